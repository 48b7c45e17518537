//! Warming: a dataset is brought into the node before any job asks for it.
//!
//! The way of each blob is the agent's own: claimed, fetched with the user's credentials, proved and put. What is
//! resident is skipped, so that what was interrupted goes on where it was. Nothing is dropped to make room: when
//! the node is full, that was all.

use std::{collections::HashMap, sync::Arc};

use forebay_core::attempt::Outcome;
use futures::StreamExt as _;

use crate::{Config, fetch::FetchError, link::Link, service::AgentService};

/// A node that refuses so many blobs in a row takes none.
const REFUSED_MAX: u64 = 16;

/// What is to be warmed, and how.
pub struct Warming {
    service: Arc<AgentService>,
    /// Blobs that are wanted, in this order, each with its length.
    wanted: Vec<(u64, u64)>,
    at_once: usize,
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Blobs that were fetched and put.
    pub fetched: u64,
    /// Bytes of those.
    pub fetched_bytes: u64,
    /// Blobs that were there, or that somebody else was fetching.
    pub elsewhere: u64,
    /// Bytes of those.
    pub elsewhere_bytes: u64,
    /// Blobs that have no place on the node: its managers give the space to others.
    pub outside: u64,
    /// Blobs that the node did not take.
    pub refused: u64,
}

/// Why it ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The node has no room for the next blob.
    #[error("the node is full")]
    Full,
    /// It was asked to.
    #[error("interrupted")]
    Asked,
    /// There is no node any more.
    #[error("the node does not answer; is it running? (forebay status)")]
    NoNode,
    /// It takes nothing.
    #[error("the node takes nothing; its log says why")]
    TakesNothing,
    /// The origin failed.
    #[error("{0}")]
    Origin(String),
}

impl Warming {
    /// Of the agent's dataset these blobs, `at_once` at a time.
    pub fn new(config: Config, wanted: Vec<(u64, u64)>, at_once: usize) -> Self {
        Self { service: Arc::new(AgentService::new(config)), wanted, at_once }
    }

    /// Fetches until everything is there, or something ends it; `tell` is told how far it is. What is under
    /// way when `stop` completes is still finished.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        mut tell: impl FnMut(&Warmed),
    ) -> (Warmed, Option<Ended>) {
        let (mut warmed, mut ended, mut refused_in_a_row) = (Warmed::default(), None, 0);
        // Of each node.
        let mut evicted_before: HashMap<*const Link, Option<u64>> = HashMap::new();
        let mut stop = std::pin::pin!(stop);
        let mut next = self.wanted.iter().copied();
        let mut fetches = futures::stream::FuturesUnordered::new();
        loop {
            while ended.is_none() && fetches.len() < self.at_once {
                let Some((blob, length)) = next.next() else { break };
                let service = Arc::clone(&self.service);
                let Ok(link) = service.links.to(blob).await else {
                    ended = Some(Ended::NoNode);
                    break;
                };
                let before = evicted_before.entry(Arc::as_ptr(&link)).or_insert(None);
                match link.room_for(&service.links, length, self.at_once).await {
                    // Half-empty regions are full as well: then it drops what it had.
                    Ok((true, evicted)) if evicted <= *before.get_or_insert(evicted) => {}
                    Ok(_) => ended = Some(Ended::Full),
                    Err(_) => ended = Some(Ended::NoNode),
                }
                if ended.is_none() {
                    // On a task of its own, so that it also goes on while others are asked for room.
                    let fetch =
                        tokio::spawn(
                            async move { service.fetch_ahead(blob, length, Ok(link)).await },
                        );
                    fetches.push(async move { (blob, length, fetch.await) });
                }
            }
            if fetches.is_empty() {
                break;
            }
            let (blob, length, outcome) = tokio::select! {
                Some(done) = fetches.next() => done,
                () = &mut stop, if ended.is_none() => {
                    ended = Some(Ended::Asked);
                    continue;
                }
            };
            refused_in_a_row = match outcome {
                Ok(Ok(Outcome::Kept)) => refused_in_a_row + 1,
                _ => 0,
            };
            match outcome {
                Ok(Ok(Outcome::Bytes)) => {
                    warmed.fetched += 1;
                    warmed.fetched_bytes += length;
                }
                Ok(Ok(Outcome::Elsewhere)) => {
                    warmed.elsewhere += 1;
                    warmed.elsewhere_bytes += length;
                }
                Ok(Ok(Outcome::Kept)) => {
                    warmed.refused += 1;
                    if refused_in_a_row >= REFUSED_MAX {
                        ended.get_or_insert(Ended::TakesNothing);
                    }
                }
                Ok(Ok(_)) if self.is_there(blob).await => warmed.outside += 1,
                Ok(Ok(_)) => drop(ended.get_or_insert(Ended::NoNode)),
                Ok(Err(error)) => drop(ended.get_or_insert(Ended::Origin(said(&error)))),
                Err(_) => drop(ended.get_or_insert(Ended::Origin("the fetch failed".to_owned()))),
            }
            tell(&warmed);
        }
        (warmed, ended)
    }
}

impl Warming {
    /// Whether the node that owns a blob answers.
    async fn is_there(&self, blob: u64) -> bool {
        let links = &self.service.links;
        match links.to(blob).await {
            Ok(link) => link.connection(links).await.is_ok(),
            Err(_) => false,
        }
    }
}

fn said(error: &FetchError) -> String {
    crate::service::chain(error)
}
