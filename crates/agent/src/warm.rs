//! Warming: a dataset is brought into the nodes before any job asks for it.
//!
//! The way of each blob is the agent's own: claimed, fetched with the user's credentials, proved and put. What is
//! resident is skipped, so that what was interrupted goes on where it was. Nothing is dropped to make room: when
//! a node is full, that was all of its share. So it is when one is down, hung or takes nothing: each node's share is
//! a task of its own, and holds up no other.

use std::{collections::VecDeque, ops::AddAssign, sync::Arc};

use forebay_core::{
    attempt::Outcome,
    room::{Places, Promised},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::{JoinError, JoinSet},
};

use crate::{
    Config,
    connection::LinkError,
    fetch::FetchError,
    link::Link,
    service::{AgentService, chain},
};

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
    /// Blobs that have no place on their node: its managers give the space to others.
    pub outside: u64,
    /// Blobs that their node did not take.
    pub refused: u64,
}

impl AddAssign for Warmed {
    fn add_assign(&mut self, more: Self) {
        self.fetched += more.fetched;
        self.fetched_bytes += more.fetched_bytes;
        self.elsewhere += more.elsewhere;
        self.elsewhere_bytes += more.elsewhere_bytes;
        self.outside += more.outside;
        self.refused += more.refused;
    }
}

/// A node that was not given all of its share.
#[derive(Debug)]
pub struct Behind {
    /// Its name, if it is one of several.
    pub node: Option<String>,
    /// Why.
    pub why: Why,
    /// Blobs that were not fetched for it.
    pub blobs: u64,
    /// Bytes of those.
    pub bytes: u64,
}

/// Why a node was not given all of its share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// It has no room for the next blob.
    #[error("is full")]
    Full,
    /// It does not answer, or is not the one it should be.
    #[error("does not answer: {0}")]
    Away(String),
    /// It takes nothing.
    #[error("takes nothing; its log says why")]
    TakesNothing,
}

/// Why all of it ended before it was done.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// It was asked to.
    #[error("interrupted")]
    Asked,
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
    ) -> (Warmed, Vec<Behind>, Option<Ended>) {
        let (mut warmed, mut behind, mut ended) = (Warmed::default(), Vec::new(), None);
        let (is_over, over) = watch::channel(false);
        let (telling, mut told) = mpsc::unbounded_channel();
        let mut shares = JoinSet::new();
        let places = Arc::new(Semaphore::new(self.at_once));
        for share in self.shares().await.unwrap_or_else(|all| {
            behind.push(all);
            Vec::new()
        }) {
            shares.spawn(share.run(Arc::clone(&places), telling.clone(), over.clone()));
        }
        drop(telling);
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                more = told.recv() => match more {
                    Some(Ok(more)) => {
                        warmed += more;
                        tell(&warmed);
                    }
                    Some(Err(error)) => {
                        ended.get_or_insert(Ended::Origin(error));
                        is_over.send_replace(true);
                    }
                    // All shares have ended.
                    None => break,
                },
                () = &mut stop, if ended.is_none() => {
                    ended = Some(Ended::Asked);
                    is_over.send_replace(true);
                }
            }
        }
        while let Some(share) = shares.join_next().await {
            behind.extend(share.ok().flatten());
        }
        behind.sort_by(|one, other| one.node.cmp(&other.node));
        (warmed, behind, ended)
    }

    /// What each node is to be given; or why there is nobody.
    async fn shares(&self) -> Result<Vec<Share>, Behind> {
        let nodes = match self.service.links.nodes().await {
            Ok(nodes) => nodes,
            Err(error) => {
                let (blobs, bytes) = sum(&self.wanted);
                return Err(Behind { node: None, why: Why::Away(chain(&error)), blobs, bytes });
            }
        };
        let links = nodes.links().iter().map(Arc::clone);
        let mut shares: Vec<Share> =
            links.map(|link| Share::new(Arc::clone(&self.service), link)).collect();
        for (blob, length) in &self.wanted {
            let owner = nodes.owner(&self.service.digest, *blob);
            shares[owner].wanted.push_back((*blob, *length));
        }
        Ok(shares)
    }
}

fn sum<'a>(blobs: impl IntoIterator<Item = &'a (u64, u64)>) -> (u64, u64) {
    blobs.into_iter().fold((0, 0), |(count, bytes), (_, length)| (count + 1, bytes + length))
}

/// One node's share, as far as it is not there.
struct Share {
    service: Arc<AgentService>,
    link: Arc<Link>,
    wanted: VecDeque<(u64, u64)>,
    /// Blobs that could not be claimed, because the node was gone by then.
    lost: Vec<(u64, u64)>,
    places: Places,
    fetches: JoinSet<Fetched>,
    refused_in_a_row: u64,
    why: Option<Why>,
}

/// What became of one blob.
struct Fetched {
    blob: u64,
    length: u64,
    promised: Promised,
    outcome: Result<Outcome, FetchError>,
    _place: OwnedSemaphorePermit,
}

/// How far a share has come since it last said so, or how the origin failed.
type Told = Result<Warmed, String>;

impl Share {
    fn new(service: Arc<AgentService>, link: Arc<Link>) -> Self {
        let (wanted, lost, places, fetches) = Default::default();
        Self { service, link, wanted, lost, places, fetches, refused_in_a_row: 0, why: None }
    }

    async fn run(
        mut self,
        at_once: Arc<Semaphore>,
        tell: mpsc::UnboundedSender<Told>,
        mut over: watch::Receiver<bool>,
    ) -> Option<Behind> {
        loop {
            let may_begin = self.why.is_none() && !self.wanted.is_empty() && !*over.borrow();
            let promised = if may_begin { self.place_for_next().await } else { None };
            if promised.is_none() && self.fetches.is_empty() {
                break;
            }
            tokio::select! {
                Some(done) = self.fetches.join_next() => {
                    if let Some(promised) = promised {
                        self.places.done(promised);
                    }
                    let told = self.heard(done).await;
                    let _ = tell.send(told);
                }
                Ok(place) = Arc::clone(&at_once).acquire_owned(), if promised.is_some() => {
                    self.begin(promised.expect("just seen"), place);
                }
                _ = over.changed(), if promised.is_some() => {
                    self.places.done(promised.expect("just seen"));
                }
            }
        }
        let (blobs, bytes) = sum(self.wanted.iter().chain(&self.lost));
        let node = self.link.name().map(ToString::to_string);
        self.why.map(|why| Behind { node, why, blobs, bytes })
    }

    /// A place on the node for the next blob; or none, for now or for good.
    async fn place_for_next(&mut self) -> Option<Promised> {
        let (_, length) = *self.wanted.front()?;
        if !self.places.is_stale(self.service.links.now())
            && let Some(promised) = self.places.take(length)
        {
            return Some(promised);
        }
        if let Err(error) = self.ask_for_room().await {
            self.why = Some(Why::Away(chain(&error)));
            return None;
        }
        let promised = self.places.take(length);
        // What is on its way may need less than was thought; if nothing is, this is all there is.
        if promised.is_none() && self.places.is_idle() {
            self.why = Some(Why::Full);
        }
        promised
    }

    async fn ask_for_room(&mut self) -> Result<(), LinkError> {
        let links = &self.service.links;
        let room = self.link.connection(links).await?.room().await?;
        self.places.hear(links.now(), room);
        Ok(())
    }

    /// Fetches the next blob, on a task of its own.
    fn begin(&mut self, promised: Promised, place: OwnedSemaphorePermit) {
        let (blob, length) = self.wanted.pop_front().expect("it has a place");
        let (service, link) = (Arc::clone(&self.service), Arc::clone(&self.link));
        self.fetches.spawn(async move {
            let outcome = service.fetch_ahead(blob, length, Ok(link)).await;
            Fetched { blob, length, promised, outcome, _place: place }
        });
    }

    async fn heard(&mut self, done: Result<Fetched, JoinError>) -> Told {
        let done = done.map_err(|_| "the fetch failed".to_owned())?;
        let Fetched { blob, length, promised, outcome, _place: _ } = done;
        self.places.done(promised);
        let outcome = outcome.map_err(|error| chain(&error))?;
        let none = Warmed::default();
        if outcome != Outcome::Kept {
            self.refused_in_a_row = 0;
        }
        Ok(match outcome {
            Outcome::Bytes => Warmed { fetched: 1, fetched_bytes: length, ..none },
            Outcome::Elsewhere => Warmed { elsewhere: 1, elsewhere_bytes: length, ..none },
            Outcome::Kept => {
                self.refused_in_a_row += 1;
                if self.refused_in_a_row >= REFUSED_MAX {
                    self.why.get_or_insert(Why::TakesNothing);
                }
                Warmed { refused: 1, ..none }
            }
            Outcome::Unclaimed | Outcome::Failed => {
                match self.link.connection(&self.service.links).await {
                    Ok(_) => Warmed { outside: 1, ..none },
                    Err(error) => {
                        self.lost.push((blob, length));
                        self.why.get_or_insert(Why::Away(chain(&error)));
                        none
                    }
                }
            }
        })
    }
}
