//! Presence: answers which blobs of a dataset are resident.
//!
//! `core::node::presence` encodes the answers. This module scans the flash index, once for all
//! clients of a dataset, and limits how often it does.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use forebay_core::{DatasetId, dataset::blob_table::BlobTable, node::presence::PresenceLog};
use forebay_transport::Entropy;
use forebay_wire::{ErrorCode, PRESENCE_MAX, Reply};
use parking_lot::Mutex;
use tokio::{sync::Mutex as TaskMutex, time::Instant};

use crate::{
    ops::work_queue::{Lane, ROWS_PER_SLICE, Slice},
    requests::service::{NodeService, Refused},
};

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
    /// Held during a scan; other clients wait for its result.
    state: TaskMutex<State>,
}

struct State {
    /// Used by the work queue only: a large log takes long to change.
    log: Arc<Mutex<PresenceLog>>,
    /// Time of the next scan.
    next_scan: Option<Instant>,
}

impl PresenceRegistry {
    /// The presence of a dataset, shared by all connections.
    pub fn of(
        &self,
        table: &Arc<BlobTable>,
        entropy: &Entropy,
    ) -> Result<Arc<DatasetPresence>, Refused> {
        let blobs = u32::try_from(table.rows().len()).ok().filter(|blobs| *blobs <= PRESENCE_MAX);
        let blobs = blobs.ok_or_else(out_of_range)?;
        let mut registry = self.0.lock();
        if let Some(known) = registry.get(&table.dataset()).and_then(Weak::upgrade) {
            return Ok(known);
        }
        registry.retain(|_, presence| presence.strong_count() > 0);
        let first_version = entropy.number().ok_or_else(|| {
            (ErrorCode::Failed, "cannot read random bytes from the kernel".to_owned())
        })?;
        let log = Arc::new(Mutex::new(PresenceLog::new(blobs, first_version)));
        let state = State { log, next_scan: None };
        let (table, state) = (Arc::clone(table), TaskMutex::new(state));
        let presence = Arc::new(DatasetPresence { table, state });
        registry.insert(presence.table.dataset(), Arc::downgrade(&presence));
        Ok(presence)
    }
}

impl NodeService {
    /// Which blobs of a range are resident, or which have changed since a version.
    pub(crate) async fn presence_since(
        self: &Arc<Self>,
        lane: Lane,
        presence: &DatasetPresence,
        first: u64,
        count: u32,
        since: u64,
    ) -> Result<Reply, Refused> {
        let blobs = presence.table.rows().len() as u64;
        first.checked_add(count.into()).filter(|end| *end <= blobs).ok_or_else(out_of_range)?;
        let first = u32::try_from(first).map_err(|_| out_of_range())?;
        let mut state = presence.state.lock().await;
        let began = Instant::now();
        // A client without a version gets the result of a new scan.
        let is_due = since == 0 || state.next_scan.is_none_or(|next| began >= next);
        let scanned =
            if is_due { Some(self.resident_bits(lane, &presence.table).await) } else { None };
        let log = Arc::clone(&state.log);
        let update = move || {
            let mut log = log.lock();
            if let Some(bits) = scanned {
                log.set(bits);
            }
            (log.version(), log.update_since(since, first, count))
        };
        let (version, update) = self.work.run_once(lane, update).await;
        if is_due {
            let pause = SCAN_INTERVAL_MIN.max(began.elapsed() * SCAN_TIME_SHARE);
            state.next_scan = Some(Instant::now() + pause);
        }
        Ok(Reply::Presence { version, update })
    }

    /// One bit per blob: whether it is resident.
    async fn resident_bits(self: &Arc<Self>, lane: Lane, table: &Arc<BlobTable>) -> Vec<u8> {
        let (node, table) = (Arc::clone(self), Arc::clone(table));
        let (mut bits, mut next) = (vec![0_u8; table.rows().len().div_ceil(8)], 0);
        let scan = move || {
            let rows = table.rows().get(next..).unwrap_or_default();
            for (at, row) in (next..).zip(rows.iter().take(ROWS_PER_SLICE)) {
                if node.blobs.contains(&row.address) {
                    bits[at / 8] |= 1 << (at % 8);
                }
            }
            next += ROWS_PER_SLICE;
            if rows.len() > ROWS_PER_SLICE {
                Slice::More
            } else {
                Slice::Done(std::mem::take(&mut bits))
            }
        };
        self.work.run(lane, scan).await
    }
}

fn out_of_range() -> Refused {
    (ErrorCode::Malformed, "the range of blobs exceeds the dataset".to_owned())
}
