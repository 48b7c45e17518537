//! Presence: answers which blobs of a dataset are resident.
//!
//! `core::node::presence` encodes the answers. This module scans the flash index, once for all
//! clients of a dataset, and limits how often it does.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use forebay_core::{
    DatasetId,
    dataset::blob_table::{BlobRow, BlobTable},
    node::presence::PresenceLog,
};
use forebay_transport::session::fresh_nonce;
use forebay_wire::{ErrorCode, PRESENCE_MAX, Reply};
use parking_lot::Mutex;

use crate::requests::service::{NodeService, Refused};

/// Shortest time between two scans of a dataset. In between, clients that have an earlier version
/// get the result of the last scan.
const SCAN_INTERVAL_MIN: Duration = Duration::from_millis(20);
/// Scans may take one part in this many of the time.
const SCAN_TIME_SHARE: u32 = 20;

/// The presence of all datasets that clients ask about.
#[derive(Default)]
pub(crate) struct PresenceRegistry(Mutex<HashMap<DatasetId, Weak<DatasetPresence>>>);

/// The presence of one dataset.
pub(crate) struct DatasetPresence {
    table: Arc<BlobTable>,
    state: Mutex<State>,
}

struct State {
    log: PresenceLog,
    /// Time of the next scan.
    next_scan: Option<Instant>,
}

impl PresenceRegistry {
    /// The presence of a dataset, shared by all connections.
    pub fn of(&self, table: &Arc<BlobTable>) -> Result<Arc<DatasetPresence>, Refused> {
        let blobs = u32::try_from(table.rows().len()).ok().filter(|blobs| *blobs <= PRESENCE_MAX);
        let blobs = blobs.ok_or_else(out_of_range)?;
        let mut registry = self.0.lock();
        if let Some(known) = registry.get(&table.dataset()).and_then(Weak::upgrade) {
            return Ok(known);
        }
        registry.retain(|_, presence| presence.strong_count() > 0);
        let nonce = fresh_nonce().ok_or_else(|| {
            (ErrorCode::Failed, "cannot read random bytes from the kernel".to_owned())
        })?;
        let first_version = u64::from_le_bytes(*nonce.first_chunk().expect("longer"));
        let state = State { log: PresenceLog::new(blobs, first_version), next_scan: None };
        let (table, state) = (Arc::clone(table), Mutex::new(state));
        let presence = Arc::new(DatasetPresence { table, state });
        registry.insert(presence.table.dataset(), Arc::downgrade(&presence));
        Ok(presence)
    }
}

impl NodeService {
    /// Which blobs of a range are resident, or which have changed since a version. Blocks while it
    /// scans: call it from a blocking thread.
    pub(crate) fn presence_since(
        &self,
        presence: &DatasetPresence,
        first: u64,
        count: u32,
        since: u64,
    ) -> Result<Reply, Refused> {
        let blobs = presence.table.rows().len() as u64;
        first.checked_add(count.into()).filter(|end| *end <= blobs).ok_or_else(out_of_range)?;
        let first = u32::try_from(first).map_err(|_| out_of_range())?;
        let mut state = presence.state.lock();
        let State { log, next_scan } = &mut *state;
        let began = Instant::now();
        // A client without a version gets the result of a new scan.
        if since == 0 || next_scan.is_none_or(|next| began >= next) {
            log.set(self.bits_of(presence.table.rows()));
            let pause = SCAN_INTERVAL_MIN.max(began.elapsed() * SCAN_TIME_SHARE);
            *next_scan = Some(Instant::now() + pause);
        }
        Ok(Reply::Presence {
            version: log.version(),
            update: log.update_since(since, first, count),
        })
    }

    /// One bit per blob: whether it is resident.
    fn bits_of(&self, rows: &[BlobRow]) -> Vec<u8> {
        let mut bits = vec![0_u8; rows.len().div_ceil(8)];
        for (at, row) in rows.iter().enumerate() {
            if self.blobs.contains(&row.address) {
                bits[at / 8] |= 1 << (at % 8);
            }
        }
        bits
    }
}

fn out_of_range() -> Refused {
    (ErrorCode::Malformed, "the range of blobs exceeds the dataset".to_owned())
}
