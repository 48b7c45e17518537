//! Stream store: the streams of a node's clients, on a device file of their own.
//!
//! The file is `streams/store.flash` in the node's directory. Its capacity is the sum of the
//! budgets, so that streams and cached blobs never compete: no stream is evicted, and no stream
//! takes space of the cache. The memory is taken at the start, with room for the readers of all
//! accounts.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use forebay_core::{
    ByteSize,
    node::stream_quotas::{
        AccountFacts, READER_DEPTH, READERS_MAX, RegionShape, StreamBudget, StreamQuotas,
        WRITERS_MAX,
    },
    node::tenants::TenantId,
    streams::StreamName,
};
use forebay_flash::{format::BLOCK_SIZE, reservation::Reservation};
use forebay_streams::{Store, StoreConfig, block_on};
use parking_lot::Mutex;

use crate::config::Config;

/// Name of the directory of the store, in the node's directory.
const DIRECTORY: &str = "streams";
/// A smaller budget has room for few blocks.
const BUDGET_MIN: ByteSize = ByteSize::mib(64);
/// Time after which a stream is looked for again that was not removed at the end of its lease.
const LEASE_RECHECK_MS: u64 = 1_000;
/// One part in this many of the capacity is added for regions that are being freed or opened.
const SPARE_SHARE: u64 = 16;

/// The streams of a node.
pub(crate) struct StreamStore {
    pub store: Store,
    quotas: Mutex<StreamQuotas>,
}

impl StreamStore {
    /// Opens the store of a configuration, and counts what it has. `None` if no account has a
    /// budget.
    pub fn open(config: &Config) -> anyhow::Result<Option<Self>> {
        let budgets = budgets(config);
        let Some((capacity, memory)) = sizes(&budgets) else { return Ok(None) };
        let directory = config.directory.join(DIRECTORY);
        let store =
            StoreConfig { memory, backend: config.io, ..StoreConfig::new(&directory, capacity) };
        let store = store
            .open()
            .with_context(|| format!("open the store of streams `{}`", directory.display()))?;
        let size = store.region_size();
        // A region has a header and a footer of at least one block each.
        let room = ByteSize(size.0 - 2 * BLOCK_SIZE as u64);
        let mut quotas = StreamQuotas::new(budgets, RegionShape { size, room });
        let regions = block_on(store.regions()).context("list the streams")?;
        let regions: BTreeMap<StreamName, u64> = regions.into_iter().collect();
        for info in store.list() {
            if let Some((account, name)) = quotas.owner_of(&info.name) {
                let taken = regions.get(&info.family).copied().unwrap_or_default();
                quotas.adopt(account, &name, taken, store.lease_end(&info.name));
            } else {
                tracing::warn!(
                    stream = %info.name,
                    bytes = info.bytes,
                    "stream of a tenant without a budget; configure the tenant's `streams`, or \
                     remove the stream with `forebay stream rm` while the node is stopped"
                );
            }
        }
        let AccountFacts { streams, used, budget, .. } = quotas.totals();
        tracing::info!(streams, %used, %budget, "streams recovered");
        Ok(Some(Self { store, quotas: Mutex::new(quotas) }))
    }

    /// Runs a decision.
    pub fn decide<T>(&self, decision: impl FnOnce(&mut StreamQuotas) -> T) -> T {
        decision(&mut self.quotas.lock())
    }

    /// Removes streams whose leases have ended, and their charges. Costs nothing while no lease
    /// ends, whatever the number of streams: each request of any client may cause it.
    pub fn collect_expired(&self) {
        let now_ms = self.store.now_ms();
        let ended = self.decide(|quotas| quotas.take_ended_leases(now_ms));
        if ended.is_empty() {
            return;
        }
        self.store.end_leases();
        for lease in ended {
            self.decide(|quotas| {
                let stored = quotas.stored_name(lease.account, lease.name.as_str());
                if stored.is_ok_and(|stored| self.store.find(&stored).is_some()) {
                    quotas.extend_lease(lease, now_ms + LEASE_RECHECK_MS);
                } else {
                    quotas.on_lease_ended(&lease);
                }
            });
        }
    }

    /// Bytes of the device that a block takes. Its descriptor in the footer of the region is 1.6 %
    /// of the shortest one; the spare capacity has room for that.
    pub fn entry_size(length: usize) -> ByteSize {
        ByteSize(Reservation::memory(length) as u64)
    }

    /// Longest block.
    pub fn block_length(&self) -> u32 {
        u32::try_from(self.store.block_length()).expect("a block fits into a frame")
    }
}

/// The budgets of a configuration, also those of 0 bytes.
fn budgets(config: &Config) -> Vec<StreamBudget> {
    let owner = StreamBudget { account: None, scope: String::new(), bytes: config.streams };
    let tenants = config.node_tenants().enumerate().map(|(at, tenant)| StreamBudget {
        account: Some(TenantId(at)),
        scope: tenant.name.clone(),
        bytes: tenant.streams,
    });
    std::iter::once(owner).chain(tenants).collect()
}

/// Capacity and memory of the store; `None` if all budgets are 0.
fn sizes(budgets: &[StreamBudget]) -> Option<(ByteSize, ByteSize)> {
    let accounts = budgets.iter().filter(|budget| budget.bytes.0 > 0).count() as u64;
    let sum = budgets.iter().fold(0_u64, |sum, budget| sum.saturating_add(budget.bytes.0));
    let spare = (sum / SPARE_SHARE).max(BUDGET_MIN.0);
    let capacity = ByteSize(sum.saturating_add(spare));
    // One reader more: the slots of a closed reader come back after its last read.
    let readers = accounts * u64::from(READERS_MAX) + 1;
    let memory = StoreConfig::memory_for(capacity, readers * u64::from(READER_DEPTH));
    (accounts > 0).then_some((capacity, memory))
}

/// The memory that the store of a configuration takes.
pub(crate) fn stream_memory(config: &Config) -> ByteSize {
    sizes(&budgets(config)).map_or(ByteSize(0), |(_, memory)| memory)
}

/// Checks the budgets of a configuration.
pub(crate) fn check_budgets(config: &Config) -> anyhow::Result<()> {
    let budgets: Vec<_> = budgets(config).into_iter().filter(|budget| budget.bytes.0 > 0).collect();
    for StreamBudget { scope, bytes, .. } in &budgets {
        let of = if scope.is_empty() { String::new() } else { format!(" of the tenant `{scope}`") };
        ensure!(
            *bytes >= BUDGET_MIN,
            "`streams`{of} is {bytes}; give at least {BUDGET_MIN}, or 0B for none"
        );
    }
    ensure!(
        budgets.len() <= WRITERS_MAX,
        "{} tenants have `streams`; at most {WRITERS_MAX} can, so let some share one",
        budgets.len()
    );
    Ok(())
}
