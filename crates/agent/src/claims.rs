//! Claims of the agent: held by one connection to the node, renewed until the blob is put or the
//! claim released.
//!
//! A claim ends with its connection. One task per connection renews all of its claims, with the
//! number of bytes fetched so far.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use forebay_core::{
    BlobOrdinal,
    node::{claims::Claim, fetch_table::Claimed},
};
use forebay_wire::{
    BlobProgress, ClaimAnswer, PAYLOAD_SIZE_MAX, PutAnswer, RenewAnswer, Reply, Request,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::connection::{Connection, LinkError, Result};

/// The claims of one connection.
pub(crate) struct HeldClaims {
    /// The bytes fetched so far of each claimed blob.
    progress: Mutex<BTreeMap<BlobOrdinal, Arc<AtomicU64>>>,
    /// Changes whenever a claim ends.
    ended: watch::Sender<()>,
}

impl Default for HeldClaims {
    fn default() -> Self {
        Self { progress: Mutex::default(), ended: watch::Sender::new(()) }
    }
}

impl HeldClaims {
    fn insert(&self, blob: BlobOrdinal) -> Arc<AtomicU64> {
        let fetched = Arc::new(AtomicU64::new(0));
        self.progress.lock().insert(blob, Arc::clone(&fetched));
        fetched
    }

    /// Ends a claim. Returns false if it is not held any more: after a claim was lost, another may
    /// have been granted on the same connection.
    fn remove(&self, blob: BlobOrdinal, fetched: &Arc<AtomicU64>) -> bool {
        let mut progress = self.progress.lock();
        let is_held = progress.get(&blob).is_some_and(|held| Arc::ptr_eq(held, fetched));
        if is_held {
            progress.remove(&blob);
            self.ended.send_replace(());
        }
        is_held
    }

    fn list(&self) -> Vec<(BlobOrdinal, Arc<AtomicU64>)> {
        let progress = self.progress.lock();
        progress.iter().map(|(blob, fetched)| (*blob, Arc::clone(fetched))).collect()
    }
}

impl Connection {
    /// Claims a blob. The second value is the claim, if it is granted.
    pub async fn claim(
        self: &Arc<Self>,
        blob: BlobOrdinal,
    ) -> Result<(Claimed, Option<HeldClaim>)> {
        let request = Request::Claim { handle: self.handle, blobs: vec![blob] };
        let claimed = match self.ask(&request).await? {
            Reply::Claim { answers } => match answers[..] {
                [ClaimAnswer::Granted] => {
                    let held = HeldClaim::new(Arc::clone(self), blob);
                    return Ok((Claimed::Decided(Claim::Granted), Some(held)));
                }
                [ClaimAnswer::Held] => Claimed::Decided(Claim::Held),
                [ClaimAnswer::TooMany] => Claimed::Decided(Claim::TooMany),
                [ClaimAnswer::Present] => Claimed::Present,
                [ClaimAnswer::Uncached] => Claimed::Uncached,
                _ => return Err(LinkError::Malformed),
            },
            _ => return Err(LinkError::Malformed),
        };
        Ok((claimed, None))
    }

    /// A receiver that changes when a claim on this connection ends, from now on.
    pub fn watch_claims(&self) -> watch::Receiver<()> {
        self.claims.ended.subscribe()
    }
}

/// A claim that this agent holds. It is released when it is dropped, unless the blob was put.
pub(crate) struct HeldClaim {
    connection: Arc<Connection>,
    blob: BlobOrdinal,
    fetched: Arc<AtomicU64>,
}

impl HeldClaim {
    fn new(connection: Arc<Connection>, blob: BlobOrdinal) -> Self {
        let fetched = connection.claims.insert(blob);
        Self { connection, blob, fetched }
    }

    /// Records that `bytes` more bytes were fetched.
    pub fn progress(&self, bytes: u64) {
        self.fetched.fetch_add(bytes, Relaxed);
    }

    /// Puts the whole blob, which ends the claim.
    pub async fn put(&self, content: &Bytes) -> Result<()> {
        let (blob, mut offset) = (self.blob, 0);
        loop {
            let end = content.len().min(offset + PAYLOAD_SIZE_MAX);
            let payload = content.slice(offset..end);
            let handle = self.connection.handle;
            let put = Request::Put { handle, blob, offset: offset as u64, payload };
            match self.connection.ask(&put).await? {
                Reply::Put(PutAnswer::Stored) if end == content.len() => {
                    self.end();
                    return Ok(());
                }
                Reply::Put(PutAnswer::More) if end < content.len() => {
                    self.progress((end - offset) as u64);
                    offset = end;
                }
                _ => return Err(LinkError::Malformed),
            }
        }
    }

    /// Releases the claim. A failure needs no handling: the claim ends with its connection.
    pub async fn release(self) {
        if let Some(request) = self.end() {
            let _ = self.connection.ask(&request).await;
        }
    }

    /// Stops the renewals. Returns the request that releases the claim, if it is still held.
    fn end(&self) -> Option<Request> {
        let is_held = self.connection.claims.remove(self.blob, &self.fetched);
        let (handle, blobs) = (self.connection.handle, vec![self.blob]);
        is_held.then_some(Request::Release { handle, blobs })
    }
}

impl Drop for HeldClaim {
    fn drop(&mut self) {
        if let Some(request) = self.end() {
            self.connection.send_without_reply(&request);
        }
    }
}

/// Renews the claims of a connection until it is closed.
pub(crate) async fn renew(connection: Weak<Connection>) {
    loop {
        let Some(lease) = connection.upgrade().map(|connection| connection.lease()) else { return };
        tokio::time::sleep(lease / 3).await;
        let Some(connection) = connection.upgrade().filter(|connection| !connection.is_closed())
        else {
            return;
        };
        let held = connection.claims.list();
        if held.is_empty() {
            continue;
        }
        let progress = |(blob, fetched): &(BlobOrdinal, Arc<AtomicU64>)| BlobProgress {
            blob: *blob,
            bytes: fetched.load(Relaxed),
        };
        let blobs = held.iter().map(progress).collect();
        let request = Request::Renew { handle: connection.handle, blobs };
        if let Ok(Reply::Renew { answers }) = connection.ask(&request).await {
            for ((blob, fetched), answer) in held.iter().zip(answers) {
                if answer == RenewAnswer::Lost {
                    connection.claims.remove(*blob, fetched);
                }
            }
        }
    }
}
