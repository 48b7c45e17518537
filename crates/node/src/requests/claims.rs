//! Claims: the requests to claim blobs, to renew and to release claims; and the task that expires
//! them.
//!
//! Not here: the rules, which are in `core::node::claims` and `core::node::fetch_table`.

use std::{sync::Arc, time::Duration};

use forebay_core::{
    BlobOrdinal,
    dataset::blob_table::{BlobRow, BlobTable},
    node::{
        claims::{Claim, Holder},
        fetch_table::{Claimed, Renewal},
    },
};
use forebay_transport::session::Service as _;
use forebay_wire::{BlobProgress, ClaimAnswer, ErrorCode, RenewAnswer, Reply};
use tokio::{sync::oneshot, task::yield_now};

use crate::requests::service::{NodeService, Refused, row_of};

/// Shortest time between two expiries. Claims that end within it expire together.
const EXPIRY_MIN: Duration = Duration::from_millis(5);
/// Interval of looking for claims that a waiter takes over.
const TAKEOVER_INTERVAL: Duration = Duration::from_millis(500);
/// Blobs for which the lock of the fetch table is held at a time: 50 us.
pub(crate) const BLOBS_PER_LOCK: usize = 256;

impl NodeService {
    /// Expires claims that are not renewed. Does not return.
    pub async fn expire_claims(self: Arc<Self>) {
        loop {
            // A claim that is granted during the sleep ends after a lease at the earliest.
            let lease = self.lease();
            let next = self.fetch_table.lock().wake_at().map(|at| at.saturating_sub(self.now()));
            let next = next.map_or(lease, |next| next.min(lease)).min(TAKEOVER_INTERVAL);
            tokio::time::sleep(next.max(EXPIRY_MIN)).await;
            let mut wake = Vec::new();
            let expired = self.fetch_table.lock().expire(self.now(), &mut wake);
            self.counters.claims_expired.add(expired as u64);
            let overtaken = self.fetch_table.lock().take_over(self.now(), &mut wake);
            self.counters.claims_overtaken.add(overtaken as u64);
            self.end_lost_puts();
            wake_all(wake);
        }
    }

    /// Claims blobs. If one of them does not exist, no claim is granted.
    pub(crate) async fn claim(
        &self,
        table: &BlobTable,
        holder: Holder,
        blobs: &[BlobOrdinal],
    ) -> Result<Reply, Refused> {
        if self.is_stopping() {
            return Err((ErrorCode::Stopping, "the node is stopping".to_owned()));
        }
        // A claim promises that the blob will be served from here. Without a device that accepts
        // blobs, clients read the origin without a claim.
        let is_accepting = self.blobs.is_accepting();
        // Check all blobs first: a client that is refused must not hold any of the claims.
        let check = |blob: &BlobOrdinal| {
            let row = row_of(table, *blob)?;
            let is_kept = is_accepting && self.fits(row) && self.managers.keeps(table, *blob);
            Ok((row, is_kept))
        };
        let rows: Vec<(BlobRow, bool)> = blobs.iter().map(check).collect::<Result<_, Refused>>()?;
        let mut answers = Vec::with_capacity(rows.len());
        for (at, rows) in rows.chunks(BLOBS_PER_LOCK).enumerate() {
            if at > 0 {
                yield_now().await;
            }
            let mut fetches = self.fetch_table.lock();
            let now = self.now();
            answers.extend(rows.iter().map(|(row, is_kept)| {
                let is_resident = self.blobs.contains(&row.address);
                self.answer_of(fetches.claim(now, holder, row.address, is_resident, *is_kept))
            }));
        }
        Ok(Reply::Claim { answers })
    }

    /// The answer to a claim, counted.
    fn answer_of(&self, claimed: Claimed) -> ClaimAnswer {
        match claimed {
            Claimed::Present => ClaimAnswer::Present,
            Claimed::Uncached => {
                self.counters.claims_uncached.one();
                ClaimAnswer::Uncached
            }
            Claimed::Decided(Claim::Held) => ClaimAnswer::Held,
            Claimed::Decided(Claim::TooMany) => ClaimAnswer::TooMany,
            Claimed::Decided(Claim::Granted) => {
                self.counters.claims_granted.one();
                ClaimAnswer::Granted
            }
        }
    }

    /// Renews claims.
    pub(crate) async fn renew(
        &self,
        table: &BlobTable,
        holder: Holder,
        blobs: &[BlobProgress],
    ) -> Result<Reply, Refused> {
        let (now, mut wake) = (self.now(), Vec::new());
        let mut answers = Vec::with_capacity(blobs.len());
        for (at, progress) in blobs.iter().enumerate() {
            if at % BLOBS_PER_LOCK == BLOBS_PER_LOCK - 1 {
                yield_now().await;
            }
            let address = row_of(table, progress.blob)?.address;
            let mut fetches = self.fetch_table.lock();
            answers.push(match fetches.renew(now, holder, &address, progress.bytes, &mut wake) {
                Renewal::Renewed => RenewAnswer::Renewed,
                Renewal::NotHeld => RenewAnswer::Lost,
                Renewal::Ended => {
                    self.counters.claims_expired.one();
                    RenewAnswer::Lost
                }
            });
        }
        wake_all(wake);
        Ok(Reply::Renew { answers })
    }

    /// Releases claims.
    pub(crate) async fn release(
        &self,
        table: &BlobTable,
        holder: Holder,
        blobs: &[BlobOrdinal],
    ) -> Result<Reply, Refused> {
        let mut wake = Vec::new();
        for (at, blob) in blobs.iter().enumerate() {
            if at % BLOBS_PER_LOCK == BLOBS_PER_LOCK - 1 {
                yield_now().await;
            }
            let address = row_of(table, *blob)?.address;
            if self.fetch_table.lock().release(holder, &address, &mut wake) {
                self.counters.claims_released.one();
            }
        }
        // Before another job claims the blob, since one put of a blob may be in progress.
        self.end_lost_puts();
        wake_all(wake);
        Ok(Reply::Released)
    }
}

/// Wakes waiting requests. Some may have timed out.
pub(crate) fn wake_all(waiters: Vec<oneshot::Sender<()>>) {
    for waiter in waiters {
        let _ = waiter.send(());
    }
}
