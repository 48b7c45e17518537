//! Stream quotas: which streams a client of a node may name, and how much of the node they take.
//!
//! Each *account*, a tenant or the node's owner, has names and a budget of its own. The names of
//! two accounts never meet, so a stream of another account is not there (promise 4). The budget is
//! charged in whole regions of the device, before a block is written: a region belongs to one
//! stream, and a short stream takes all of it. While a stream is written it is charged one region
//! more, because the device opens the next region before the last one is full.
//!
//! Numbers of streams, writers and readers are limited per account, so that no account can take
//! the memory or the open regions of another (promise 6). A reader has [`READER_DEPTH`] slots: that
//! is what may wait for a slow client.
//!
//! An unsealed stream ends with its connection.
//!
//! A charge has a number of its own, because a name outlives a stream: what ends a stream that was
//! destroyed does not end the charge of the next stream with its name. A stream whose lease ends
//! while it is read is charged until its last reader is closed: its regions are free only then.
//!
//! Not here: the device, its memory and the catalogue of streams, which are `crates/streams`.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    ByteSize,
    node::{claims::Holder, tenants::TenantId},
    streams::{NAME_MAX, StreamName, StreamNameError},
};

/// Streams of one account. Each takes about 1 KiB of the node's memory.
pub const STREAMS_MAX: usize = 4096;
/// Writers of all accounts together: the regions that a device fills at a time.
pub const WRITERS_MAX: usize = 64;
/// Readers of one account.
pub const READERS_MAX: u32 = 4;
/// Slots of a reader, each for one block: one is sent while the next one is read.
pub const READER_DEPTH: u32 = 2;
/// Separates the account from the name. A tenant's name has no slash.
const SEPARATOR: char = '/';

/// What a stream is charged to: a tenant, or `None` for the owner of the node.
pub type Account = Option<TenantId>;

/// A charge: what one stream takes of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChargeId(u64);

/// A lease of a stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamLease {
    /// Milliseconds since 1970 at its end.
    pub ends_ms: u64,
    /// Whose stream it is.
    pub account: Account,
    /// The stream.
    pub name: StreamName,
    /// Its charge.
    pub charge: ChargeId,
}

/// The budget of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamBudget {
    /// The account.
    pub account: Account,
    /// The tenant's name; empty for the owner.
    pub scope: String,
    /// Bytes of the device that its streams may take.
    pub bytes: ByteSize,
}

/// Sizes of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionShape {
    /// Bytes of a region.
    pub size: ByteSize,
    /// Bytes of it that entries may take.
    pub room: ByteSize,
}

/// Why a request about a stream is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum QuotaError {
    #[error(
        "this node keeps no streams for this client: set `streams` in the node's configuration, \
         for a tenant in its table under [[tenants]], such as streams = \"50GB\""
    )]
    NoBudget,
    #[error(transparent)]
    Name(#[from] StreamNameError),
    #[error("the name has {length} bytes: use at most {max} on this node")]
    NameTooLong { length: usize, max: usize },
    #[error("stream {0:?} exists: destroy it first, or use another name")]
    Taken(String),
    #[error("no stream {0:?}: it was never sealed, has been destroyed, or its lease has ended")]
    NotFound(String),
    #[error("there are {STREAMS_MAX} streams, the most that one client of a node may have")]
    TooManyStreams,
    #[error("{0} streams are being written, the most at a time on this node: seal or drop some")]
    TooManyWriters(usize),
    #[error("{READERS_MAX} readers are open, the most at a time on this node: close some")]
    TooManyReaders,
    #[error(
        "stream {stream:?} needs {needed} more, but {used} of the budget of {budget} are taken: \
         destroy streams, or raise `streams` in the node's configuration"
    )]
    Full { stream: String, needed: ByteSize, used: ByteSize, budget: ByteSize },
}

/// What an account has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AccountFacts {
    /// Its streams, also those that are being written.
    pub streams: u64,
    /// Its open readers.
    pub readers: u64,
    /// Bytes charged.
    pub used: ByteSize,
    /// Its budget.
    pub budget: ByteSize,
}

/// The quotas of a node.
#[derive(Debug)]
pub struct StreamQuotas {
    region: RegionShape,
    writers_max: usize,
    accounts: BTreeMap<Account, AccountState>,
    /// Leases that have not been seen to end, the earliest first.
    leases: BTreeSet<StreamLease>,
    charges_begun: u64,
}

#[derive(Debug)]
struct AccountState {
    scope: String,
    budget: ByteSize,
    streams: BTreeMap<StreamName, Charge>,
    /// Regions of streams whose leases have ended, and which are still read.
    ended: BTreeMap<ChargeId, u64>,
    /// Readers of each connection and stream.
    readers: BTreeMap<(Holder, ChargeId), u32>,
    /// The sum of the regions of `streams` and `ended`.
    regions: u64,
}

/// What a stream is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Charge {
    id: ChargeId,
    regions: u64,
    /// Bytes that are left in its last region.
    room: u64,
    /// The connection that writes it; `None` when it is sealed.
    writer: Option<Holder>,
    /// The end of its lease.
    lease_ends_ms: Option<u64>,
}

impl Charge {
    /// Regions charged.
    fn regions(self) -> u64 {
        self.regions + u64::from(self.writer.is_some())
    }

    /// The charge with one more entry.
    fn with_entry(self, entry: ByteSize, region: RegionShape) -> Self {
        if entry.0 <= self.room {
            return Self { room: self.room - entry.0, ..self };
        }
        let room = region.room.0.saturating_sub(entry.0);
        Self { regions: self.regions + 1, room, ..self }
    }
}

impl AccountState {
    fn new(scope: String, budget: ByteSize) -> Self {
        let (streams, ended, readers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { scope, budget, streams, ended, readers, regions: 0 }
    }

    fn prefix(&self) -> String {
        format!("{}{SEPARATOR}", self.scope)
    }

    fn used(&self, region: RegionShape) -> ByteSize {
        ByteSize(self.regions.saturating_mul(region.size.0))
    }

    /// The charge of a stream; `None` if it is another one by now.
    fn find(&self, name: &StreamName, id: ChargeId) -> Option<Charge> {
        self.streams.get(name).copied().filter(|charge| charge.id == id)
    }

    /// Charges a stream, if the budget allows it.
    fn charge(
        &mut self,
        name: &StreamName,
        charge: Charge,
        region: RegionShape,
    ) -> Result<(), QuotaError> {
        let before = self.streams.get(name).map_or(0, |before| before.regions());
        let more = ByteSize(charge.regions().saturating_sub(before).saturating_mul(region.size.0));
        let used = self.used(region);
        if more.0 > 0 && used.0.saturating_add(more.0) > self.budget.0 {
            let (stream, budget) = (name.to_string(), self.budget);
            return Err(QuotaError::Full { stream, needed: more, used, budget });
        }
        self.set(name, charge);
        Ok(())
    }

    fn set(&mut self, name: &StreamName, charge: Charge) {
        self.regions += charge.regions();
        if let Some(before) = self.streams.insert(name.clone(), charge) {
            self.regions -= before.regions();
        }
    }

    fn remove(&mut self, name: &StreamName, id: ChargeId) -> Option<Charge> {
        let charge = self.find(name, id)?;
        self.streams.remove(name);
        self.regions -= charge.regions();
        Some(charge)
    }

    fn has_reader(&self, id: ChargeId) -> bool {
        self.readers.keys().any(|(_, of)| *of == id)
    }

    /// Frees the regions of a stream whose lease has ended, unless it is still read.
    fn settle(&mut self, id: ChargeId) {
        if !self.has_reader(id)
            && let Some(regions) = self.ended.remove(&id)
        {
            self.regions -= regions;
        }
    }
}

impl StreamQuotas {
    /// Quotas for these accounts on a device of such regions.
    pub fn new(budgets: Vec<StreamBudget>, region: RegionShape) -> Self {
        let with_budget = budgets.into_iter().filter(|budget| budget.bytes.0 > 0);
        let accounts: BTreeMap<_, _> = with_budget
            .map(|StreamBudget { account, scope, bytes }| {
                (account, AccountState::new(scope, bytes))
            })
            .collect();
        let writers_max = (WRITERS_MAX / accounts.len().max(1)).max(1);
        Self { region, writers_max, accounts, leases: BTreeSet::new(), charges_begun: 0 }
    }

    /// The name under which the device has a stream of an account. No other account has the same.
    pub fn stored_name(&self, account: Account, name: &str) -> Result<StreamName, QuotaError> {
        let prefix = self.prefix(account)?;
        let max = NAME_MAX - prefix.len();
        StreamName::new(name)?;
        if name.len() > max {
            return Err(QuotaError::NameTooLong { length: name.len(), max });
        }
        Ok(StreamName::new(&(prefix + name))?)
    }

    /// What the names of an account begin with on the device.
    pub fn prefix(&self, account: Account) -> Result<String, QuotaError> {
        self.account(account).map(AccountState::prefix)
    }

    /// The account of a stream of the device, and its name there. `None` if the account is not
    /// configured, or the stream is not one of a node.
    pub fn owner_of(&self, stored: &StreamName) -> Option<(Account, StreamName)> {
        let (scope, name) = stored.as_str().split_once(SEPARATOR)?;
        let mut accounts = self.accounts.iter();
        let (account, _) = accounts.find(|(_, state)| state.scope == scope)?;
        Some((*account, StreamName::new(name).ok()?))
    }

    /// A sealed stream was found after a restart. It counts even if it exceeds the budget, which
    /// may be lower than before. `lease_ends_ms` is the end of its lease, if it has one.
    pub fn adopt(
        &mut self,
        account: Account,
        name: &StreamName,
        regions: u64,
        lease_ends_ms: Option<u64>,
    ) {
        let id = self.next_charge();
        let Some(state) = self.accounts.get_mut(&account) else { return };
        let regions = regions.max(1);
        state.set(name, Charge { id, regions, room: 0, writer: None, lease_ends_ms });
        self.leases.extend(lease(account, name, id, lease_ends_ms));
    }

    /// A connection creates a stream.
    pub fn create(
        &mut self,
        account: Account,
        holder: Holder,
        name: &StreamName,
    ) -> Result<ChargeId, QuotaError> {
        let (region, writers_max, id) = (self.region, self.writers_max, self.next_charge());
        let state = self.account_mut(account)?;
        if state.streams.contains_key(name) {
            return Err(QuotaError::Taken(name.to_string()));
        }
        if state.streams.len() >= STREAMS_MAX {
            return Err(QuotaError::TooManyStreams);
        }
        let writers = state.streams.values().filter(|charge| charge.writer.is_some()).count();
        if writers >= writers_max {
            return Err(QuotaError::TooManyWriters(writers_max));
        }
        let (room, writer) = (region.room.0, Some(holder));
        let charge = Charge { id, regions: 1, room, writer, lease_ends_ms: None };
        state.charge(name, charge, region)?;
        Ok(id)
    }

    /// The charge of a stream, by its name.
    pub fn find(&self, account: Account, name: &StreamName) -> Option<ChargeId> {
        self.accounts.get(&account)?.streams.get(name).map(|charge| charge.id)
    }

    /// Whether a stream is still charged.
    pub fn is_charged(&self, account: Account, name: &StreamName, id: ChargeId) -> bool {
        let state = self.accounts.get(&account);
        state.is_some_and(|state| state.find(name, id).is_some() || state.ended.contains_key(&id))
    }

    /// A block that takes `entry` bytes of the device is to be appended. If this fails, nothing is
    /// charged.
    pub fn append(
        &mut self,
        account: Account,
        name: &StreamName,
        id: ChargeId,
        entry: ByteSize,
    ) -> Result<(), QuotaError> {
        let region = self.region;
        let state = self.account_mut(account)?;
        let not_found = || QuotaError::NotFound(name.to_string());
        let charge = state.find(name, id).ok_or_else(not_found)?;
        state.charge(name, charge.with_entry(entry, region), region)
    }

    /// A stream is sealed, with a record of `record` bytes. The region that it was charged for its
    /// next block pays for that. `lease_ends_ms` is the end of its lease, if it has one.
    pub fn on_sealed(
        &mut self,
        account: Account,
        name: &StreamName,
        id: ChargeId,
        record: ByteSize,
        lease_ends_ms: Option<u64>,
    ) {
        let region = self.region;
        let Some(state) = self.accounts.get_mut(&account) else { return };
        let Some(charge) = state.find(name, id) else { return };
        let charge = charge.with_entry(record, region);
        state.set(name, Charge { writer: None, lease_ends_ms, ..charge });
        self.leases.extend(lease(account, name, id, lease_ends_ms));
    }

    /// The space of a stream is free.
    pub fn on_removed(&mut self, account: Account, name: &StreamName, id: ChargeId) {
        let Some(state) = self.accounts.get_mut(&account) else { return };
        let Some(charge) = state.remove(name, id) else { return };
        if let Some(lease) = lease(account, name, id, charge.lease_ends_ms) {
            self.leases.remove(&lease);
        }
    }

    /// Takes the leases that have ended by now. Most of the time there are none, whatever the
    /// number of streams.
    pub fn take_ended_leases(&mut self, now_ms: u64) -> Vec<StreamLease> {
        let mut ended = Vec::new();
        while self.leases.first().is_some_and(|lease| lease.ends_ms <= now_ms) {
            ended.extend(self.leases.pop_first());
        }
        ended.retain(|lease| self.is_charged(lease.account, &lease.name, lease.charge));
        ended
    }

    /// The device does not have a stream any more, because its lease has ended. What is read of it
    /// is charged until then.
    pub fn on_lease_ended(&mut self, lease: &StreamLease) {
        let Some(state) = self.accounts.get_mut(&lease.account) else { return };
        let Some(charge) = state.remove(&lease.name, lease.charge) else { return };
        state.regions += charge.regions();
        state.ended.insert(lease.charge, charge.regions());
        state.settle(lease.charge);
    }

    /// The device still has a stream whose lease has ended, such as one that is half consumed. It
    /// is looked for again later.
    pub fn extend_lease(&mut self, lease: StreamLease, ends_ms: u64) {
        let state = self.accounts.get_mut(&lease.account);
        let stream = state.and_then(|state| state.streams.get_mut(&lease.name));
        if let Some(charge) = stream.filter(|charge| charge.id == lease.charge) {
            charge.lease_ends_ms = Some(ends_ms);
            self.leases.insert(StreamLease { ends_ms, ..lease });
        }
    }

    /// A connection opens a reader of a stream.
    pub fn open_reader(
        &mut self,
        account: Account,
        holder: Holder,
        name: &StreamName,
    ) -> Result<ChargeId, QuotaError> {
        let state = self.account_mut(account)?;
        if state.readers.values().sum::<u32>() >= READERS_MAX {
            return Err(QuotaError::TooManyReaders);
        }
        let not_found = || QuotaError::NotFound(name.to_string());
        let id = state.streams.get(name).ok_or_else(not_found)?.id;
        *state.readers.entry((holder, id)).or_default() += 1;
        Ok(id)
    }

    /// A connection has closed a reader.
    pub fn close_reader(&mut self, account: Account, holder: Holder, id: ChargeId) {
        let Some(state) = self.accounts.get_mut(&account) else { return };
        if let Some(readers) = state.readers.get_mut(&(holder, id)) {
            *readers = readers.saturating_sub(1);
        }
        state.readers.retain(|_, readers| *readers > 0);
        state.settle(id);
    }

    /// A connection has ended. Returns the unsealed streams, which end with it. Its readers are
    /// closed.
    pub fn on_disconnect(&mut self, account: Account, holder: Holder) -> Vec<StreamName> {
        let Some(state) = self.accounts.get_mut(&account) else { return Vec::new() };
        state.readers.retain(|(of, _), _| *of != holder);
        for id in state.ended.keys().copied().collect::<Vec<_>>() {
            state.settle(id);
        }
        let unsealed = |_: &StreamName, charge: &mut Charge| charge.writer == Some(holder);
        let ended: Vec<_> = state.streams.extract_if(.., unsealed).collect();
        state.regions -= ended.iter().map(|(_, charge)| charge.regions()).sum::<u64>();
        ended.into_iter().map(|(name, _)| name).collect()
    }

    /// What an account has.
    pub fn facts(&self, account: Account) -> Result<AccountFacts, QuotaError> {
        self.account(account).map(|state| self.facts_of(state))
    }

    /// What all accounts have together.
    pub fn totals(&self) -> AccountFacts {
        let all = self.accounts.values().map(|state| self.facts_of(state));
        all.fold(AccountFacts::default(), |sum, one| AccountFacts {
            streams: sum.streams + one.streams,
            readers: sum.readers + one.readers,
            used: ByteSize(sum.used.0.saturating_add(one.used.0)),
            budget: ByteSize(sum.budget.0.saturating_add(one.budget.0)),
        })
    }

    fn next_charge(&mut self) -> ChargeId {
        self.charges_begun += 1;
        ChargeId(self.charges_begun)
    }

    fn facts_of(&self, state: &AccountState) -> AccountFacts {
        AccountFacts {
            streams: state.streams.len() as u64,
            readers: state.readers.values().map(|readers| u64::from(*readers)).sum(),
            used: state.used(self.region),
            budget: state.budget,
        }
    }

    fn account(&self, account: Account) -> Result<&AccountState, QuotaError> {
        self.accounts.get(&account).ok_or(QuotaError::NoBudget)
    }

    fn account_mut(&mut self, account: Account) -> Result<&mut AccountState, QuotaError> {
        self.accounts.get_mut(&account).ok_or(QuotaError::NoBudget)
    }
}

fn lease(
    account: Account,
    name: &StreamName,
    charge: ChargeId,
    ends_ms: Option<u64>,
) -> Option<StreamLease> {
    ends_ms.map(|ends_ms| StreamLease { ends_ms, account, name: name.clone(), charge })
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const REGION: RegionShape =
        RegionShape { size: ByteSize::mib(4), room: ByteSize((4 << 20) - (8 << 10)) };
    const OURS: Account = Some(TenantId(0));
    const THEIRS: Account = Some(TenantId(1));
    const BLOCK: ByteSize = ByteSize((4 << 20) - (8 << 10));

    fn quotas(ours: u64, theirs: u64) -> StreamQuotas {
        let budget = |account, scope: &str, mib| {
            let (scope, bytes) = (scope.to_owned(), ByteSize::mib(mib));
            StreamBudget { account, scope, bytes }
        };
        let budgets = vec![budget(OURS, "ours", ours), budget(THEIRS, "theirs", theirs)];
        StreamQuotas::new(budgets, REGION)
    }

    fn name(text: &str) -> StreamName {
        StreamName::new(text).unwrap()
    }

    /// Promise 4: a stream of another account is not there.
    #[test]
    fn two_accounts_use_one_name_and_never_meet() {
        let mut quotas = quotas(64, 64);
        for account in [OURS, THEIRS] {
            quotas.create(account, Holder(1), &name("x")).unwrap();
        }
        let stored = |account, name| quotas.stored_name(account, name).unwrap();
        assert_ne!(stored(OURS, "x"), stored(THEIRS, "x"));
        assert_ne!(stored(OURS, "x"), stored(THEIRS, "../ours/x"));
        assert_ne!(stored(OURS, "theirs/x"), stored(THEIRS, "x"));
        assert_eq!(quotas.owner_of(&stored(OURS, "a/b")), Some((OURS, name("a/b"))));
        assert_eq!(quotas.owner_of(&name("gone/x")), None, "a tenant that was removed");
        assert_eq!(quotas.owner_of(&name("x")), None, "not a stream of a node");
        let [ours, theirs] = [OURS, THEIRS].map(|of| quotas.find(of, &name("x")).unwrap());
        quotas.on_removed(THEIRS, &name("x"), theirs);
        let not_there = quotas.append(THEIRS, &name("x"), theirs, BLOCK).unwrap_err();
        let never_was = quotas.append(THEIRS, &name("y"), ours, BLOCK).unwrap_err();
        assert_eq!(not_there, QuotaError::NotFound("x".into()));
        assert_eq!(never_was, QuotaError::NotFound("y".into()));
        quotas.append(OURS, &name("x"), ours, BLOCK).unwrap();
    }

    #[test]
    fn an_account_without_a_budget_is_refused_with_the_remedy() {
        let mut quotas = quotas(64, 0);
        for refused in [
            quotas.create(THEIRS, Holder(1), &name("x")).unwrap_err(),
            quotas.create(None, Holder(1), &name("x")).unwrap_err(),
            quotas.stored_name(THEIRS, "x").unwrap_err(),
            quotas.open_reader(THEIRS, Holder(1), &name("x")).unwrap_err(),
            quotas.facts(None).unwrap_err(),
        ] {
            assert_eq!(refused, QuotaError::NoBudget);
            assert!(refused.to_string().contains("set `streams`"));
        }
    }

    /// Promise 6: the budget is checked before the block is written.
    #[test]
    fn a_full_budget_says_which_stream_how_much_and_what_to_do() {
        let mut quotas = quotas(24, 64);
        let x = quotas.create(OURS, Holder(1), &name("x")).unwrap();
        // One region is charged for the next block, so five blocks fit into six regions.
        for _ in 0..5 {
            quotas.append(OURS, &name("x"), x, BLOCK).unwrap();
        }
        let full = quotas.append(OURS, &name("x"), x, BLOCK).unwrap_err();
        assert_eq!(
            full.to_string(),
            "stream \"x\" needs 4 MiB more, but 24 MiB of the budget of 24 MiB are taken: destroy \
             streams, or raise `streams` in the node's configuration"
        );
        assert!(quotas.create(OURS, Holder(1), &name("y")).is_err());
        quotas.append(OURS, &name("x"), x, ByteSize(4096)).expect_err("the last region is full");
        quotas.on_sealed(OURS, &name("x"), x, ByteSize(4096), None);
        assert_eq!(quotas.facts(OURS).unwrap().used, ByteSize::mib(24), "with its record");
        quotas.on_removed(OURS, &name("x"), x);
        quotas.create(OURS, Holder(1), &name("y")).unwrap();
    }

    #[test]
    fn an_unsealed_stream_ends_with_its_connection() {
        let mut quotas = quotas(64, 64);
        for (holder, stream) in [(1, "sealed"), (1, "unsealed"), (2, "other")] {
            quotas.create(OURS, Holder(holder), &name(stream)).unwrap();
        }
        let sealed = quotas.find(OURS, &name("sealed")).unwrap();
        quotas.on_sealed(OURS, &name("sealed"), sealed, ByteSize(0), None);
        quotas.open_reader(OURS, Holder(1), &name("sealed")).unwrap();
        assert_eq!(quotas.on_disconnect(THEIRS, Holder(1)), []);
        assert_eq!(quotas.on_disconnect(OURS, Holder(1)), [name("unsealed")]);
        let AccountFacts { streams, readers, used, .. } = quotas.facts(OURS).unwrap();
        assert_eq!((streams, readers, used), (2, 0, ByteSize::mib(12)));
        quotas.create(OURS, Holder(3), &name("unsealed")).unwrap();
    }

    #[test]
    fn no_account_takes_the_readers_or_writers_of_another() {
        let mut quotas = quotas(4096, 64);
        let read = name("read");
        for account in [OURS, THEIRS] {
            quotas.adopt(account, &read, 1, None);
        }
        for _ in 0..READERS_MAX {
            quotas.open_reader(OURS, Holder(1), &read).unwrap();
        }
        assert_eq!(quotas.open_reader(OURS, Holder(2), &read), Err(QuotaError::TooManyReaders));
        quotas.open_reader(THEIRS, Holder(3), &read).unwrap();
        quotas.close_reader(OURS, Holder(1), quotas.find(OURS, &read).unwrap());
        quotas.open_reader(OURS, Holder(2), &read).unwrap();
        for number in 0..WRITERS_MAX / 2 {
            quotas.create(OURS, Holder(1), &name(&number.to_string())).unwrap();
        }
        let refused = quotas.create(OURS, Holder(1), &name("x")).unwrap_err();
        assert_eq!(refused, QuotaError::TooManyWriters(WRITERS_MAX / 2));
        quotas.create(THEIRS, Holder(3), &name("x")).unwrap();
    }

    #[test]
    fn what_a_restart_finds_counts_even_over_the_budget() {
        let mut quotas = quotas(64, 64);
        quotas.adopt(OURS, &name("x"), 20, Some(1_000));
        assert_eq!(quotas.facts(OURS).unwrap().used, ByteSize::mib(80));
        assert!(quotas.create(OURS, Holder(1), &name("y")).is_err());
        assert_eq!(quotas.create(OURS, Holder(1), &name("x")), Err(QuotaError::Taken("x".into())));
        assert_eq!(quotas.take_ended_leases(999), []);
        let ended = quotas.take_ended_leases(1_000).pop().unwrap();
        assert_eq!(quotas.totals().streams, 1, "until the device has removed it");
        quotas.extend_lease(ended, 2_000);
        let ended = quotas.take_ended_leases(2_000).pop().unwrap();
        quotas.on_lease_ended(&ended);
        assert_eq!(quotas.facts(OURS).unwrap().used, ByteSize(0));
    }

    /// Promise 6: a name that is used again does not free the space of its second stream.
    #[test]
    fn the_end_of_a_stream_frees_no_other_of_its_name() {
        let mut quotas = quotas(64, 64);
        let x = name("x");
        let first = quotas.create(OURS, Holder(1), &x).unwrap();
        quotas.on_removed(OURS, &x, first);
        let second = quotas.create(OURS, Holder(2), &x).unwrap();
        quotas.on_removed(OURS, &x, first);
        quotas.on_sealed(OURS, &x, first, ByteSize(0), None);
        assert_eq!(quotas.on_disconnect(OURS, Holder(1)), []);
        let missing = quotas.append(OURS, &x, first, BLOCK).unwrap_err();
        assert_eq!(missing, QuotaError::NotFound("x".into()));
        quotas.append(OURS, &x, second, BLOCK).unwrap();
        assert_eq!(quotas.facts(OURS).unwrap().used, ByteSize::mib(8));
    }

    /// Promise 6: the regions of a stream are taken while it is read.
    #[test]
    fn a_stream_whose_lease_has_ended_is_charged_until_it_is_closed() {
        let mut quotas = quotas(64, 64);
        quotas.adopt(OURS, &name("x"), 16, Some(5));
        for holder in [1, 1, 2] {
            quotas.open_reader(OURS, Holder(holder), &name("x")).unwrap();
        }
        let lease = quotas.take_ended_leases(5).pop().unwrap();
        let id = lease.charge;
        quotas.on_lease_ended(&lease);
        let used = |quotas: &StreamQuotas| quotas.facts(OURS).unwrap().used;
        assert_eq!(used(&quotas), ByteSize::mib(64));
        assert!(quotas.create(OURS, Holder(3), &name("x")).is_err(), "the budget is full");
        quotas.close_reader(OURS, Holder(1), id);
        quotas.on_disconnect(OURS, Holder(1));
        assert_eq!(used(&quotas), ByteSize::mib(64));
        quotas.close_reader(OURS, Holder(2), id);
        assert_eq!(used(&quotas), ByteSize(0));
        quotas.create(OURS, Holder(3), &name("x")).unwrap();
    }

    /// Promise 6: what is remembered of leases is bounded by the streams.
    #[test]
    fn a_stream_that_is_removed_leaves_no_lease() {
        let mut quotas = quotas(64, 64);
        for _ in 0..100 {
            let id = quotas.create(OURS, Holder(1), &name("x")).unwrap();
            quotas.on_sealed(OURS, &name("x"), id, ByteSize(0), Some(1 << 60));
            quotas.on_removed(OURS, &name("x"), id);
        }
        assert_eq!(quotas.leases.len(), 0);
    }

    #[test]
    fn a_name_leaves_room_for_its_account() {
        let quotas = quotas(64, 64);
        let max = NAME_MAX - "ours/".len();
        assert!(quotas.stored_name(OURS, &"x".repeat(max)).is_ok());
        let length = max + 1;
        let refused = quotas.stored_name(OURS, &"x".repeat(length)).unwrap_err();
        assert_eq!(refused, QuotaError::NameTooLong { length, max });
        assert!(matches!(quotas.stored_name(OURS, ""), Err(QuotaError::Name(_))));
        assert!(matches!(quotas.stored_name(OURS, "a\nb"), Err(QuotaError::Name(_))));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Create(u64, u8),
        Append(u8, u64),
        Seal(u8),
        Remove(u8),
        Disconnect(u64),
    }

    fn step() -> impl Strategy<Value = (bool, Step)> {
        let step = prop_oneof![
            3 => (0..4_u64, 0..6_u8).prop_map(|(holder, stream)| Step::Create(holder, stream)),
            6 => (0..6_u8, 1..=BLOCK.0).prop_map(|(stream, entry)| Step::Append(stream, entry)),
            2 => (0..6_u8).prop_map(Step::Seal),
            1 => (0..6_u8).prop_map(Step::Remove),
            1 => (0..4_u64).prop_map(Step::Disconnect),
        ];
        (any::<bool>(), step)
    }

    proptest! {
        /// A model of the entries of each stream: what is charged covers them, no budget is
        /// exceeded, and the steps of one account change nothing of the other.
        #[test]
        fn charges_cover_the_entries_and_stay_within_the_budget(steps in vec(step(), 0..200)) {
            let mut quotas = quotas(64, 96);
            let mut entries: BTreeMap<(Account, u8), u64> = BTreeMap::new();
            for (is_ours, step) in steps {
                let (account, other) = if is_ours { (OURS, THEIRS) } else { (THEIRS, OURS) };
                let of_other = quotas.facts(other).unwrap();
                match step {
                    Step::Create(holder, stream) => {
                        let stream_name = name(&stream.to_string());
                        if quotas.create(account, Holder(holder), &stream_name).is_ok() {
                            let before = entries.insert((account, stream), 0);
                            prop_assert_eq!(before, None, "a name that was taken");
                        }
                    }
                    Step::Append(stream, entry) => {
                        let stream_name = name(&stream.to_string());
                        let Some(id) = quotas.find(account, &stream_name) else { continue };
                        let appended = quotas.append(account, &stream_name, id, ByteSize(entry));
                        if appended.is_ok() {
                            *entries.get_mut(&(account, stream)).expect("it exists") += entry;
                        }
                    }
                    Step::Seal(stream) => {
                        let stream_name = name(&stream.to_string());
                        let Some(id) = quotas.find(account, &stream_name) else { continue };
                        quotas.on_sealed(account, &stream_name, id, ByteSize(0), None);
                    }
                    Step::Remove(stream) => {
                        let stream_name = name(&stream.to_string());
                        let Some(id) = quotas.find(account, &stream_name) else { continue };
                        quotas.on_removed(account, &stream_name, id);
                        entries.remove(&(account, stream));
                    }
                    Step::Disconnect(holder) => {
                        for ended in quotas.on_disconnect(account, Holder(holder)) {
                            let stream = ended.as_str().parse().expect("a number");
                            prop_assert!(entries.remove(&(account, stream)).is_some());
                        }
                    }
                }
                let AccountFacts { used, budget, streams, .. } = quotas.facts(account).unwrap();
                let charges = quotas.accounts[&account].streams.values();
                let regions: u64 = charges.map(|charge| charge.regions()).sum();
                prop_assert_eq!(used, ByteSize(regions * REGION.size.0));
                let own = entries.range((account, 0)..=(account, u8::MAX));
                let needed: u64 = own.clone().map(|(_, bytes)| (*bytes).max(1)).sum();
                prop_assert!(used <= budget && used.0 >= needed, "{used} for {needed}");
                prop_assert_eq!(streams, own.count() as u64);
                prop_assert_eq!(quotas.facts(other).unwrap(), of_other);
            }
        }
    }
}
