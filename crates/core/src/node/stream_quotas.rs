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
//! Not here: the device, its memory and the catalogue of streams, which are `crates/streams`.

use std::collections::BTreeMap;

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
}

#[derive(Debug)]
struct AccountState {
    scope: String,
    budget: ByteSize,
    streams: BTreeMap<StreamName, Charge>,
    readers: BTreeMap<Holder, u32>,
}

/// What a stream is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Charge {
    regions: u64,
    /// Bytes that are left in its last region.
    room: u64,
    /// The connection that writes it; `None` when it is sealed.
    writer: Option<Holder>,
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
    fn prefix(&self) -> String {
        format!("{}{SEPARATOR}", self.scope)
    }

    fn used(&self, region: RegionShape) -> ByteSize {
        let regions: u64 = self.streams.values().map(|charge| charge.regions()).sum();
        ByteSize(regions.saturating_mul(region.size.0))
    }

    /// Charges a stream, if the budget allows it.
    fn charge(
        &mut self,
        name: StreamName,
        charge: Charge,
        region: RegionShape,
    ) -> Result<(), QuotaError> {
        let before = self.streams.get(&name).map_or(0, |before| before.regions());
        let more = ByteSize(charge.regions().saturating_sub(before).saturating_mul(region.size.0));
        let used = self.used(region);
        if more.0 > 0 && used.0.saturating_add(more.0) > self.budget.0 {
            let (stream, budget) = (name.to_string(), self.budget);
            return Err(QuotaError::Full { stream, needed: more, used, budget });
        }
        self.streams.insert(name, charge);
        Ok(())
    }
}

impl StreamQuotas {
    /// Quotas for these accounts on a device of such regions.
    pub fn new(budgets: Vec<StreamBudget>, region: RegionShape) -> Self {
        let with_budget = budgets.into_iter().filter(|budget| budget.bytes.0 > 0);
        let accounts: BTreeMap<_, _> = with_budget
            .map(|StreamBudget { account, scope, bytes }| {
                let (streams, readers) = (BTreeMap::new(), BTreeMap::new());
                (account, AccountState { scope, budget: bytes, streams, readers })
            })
            .collect();
        let writers_max = (WRITERS_MAX / accounts.len().max(1)).max(1);
        Self { region, writers_max, accounts }
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
    /// may be lower than before.
    pub fn adopt(&mut self, account: Account, name: StreamName, regions: u64) {
        let charge = Charge { regions: regions.max(1), room: 0, writer: None };
        if let Some(state) = self.accounts.get_mut(&account) {
            state.streams.insert(name, charge);
        }
    }

    /// A connection creates a stream.
    pub fn create(
        &mut self,
        account: Account,
        holder: Holder,
        name: &StreamName,
    ) -> Result<(), QuotaError> {
        let (region, writers_max) = (self.region, self.writers_max);
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
        let charge = Charge { regions: 1, room: region.room.0, writer: Some(holder) };
        state.charge(name.clone(), charge, region)
    }

    /// A block that takes `entry` bytes of the device is to be appended. If this fails, nothing is
    /// charged.
    pub fn append(
        &mut self,
        account: Account,
        name: &StreamName,
        entry: ByteSize,
    ) -> Result<(), QuotaError> {
        let region = self.region;
        let state = self.account_mut(account)?;
        let not_found = || QuotaError::NotFound(name.to_string());
        let charge = *state.streams.get(name).ok_or_else(not_found)?;
        state.charge(name.clone(), charge.with_entry(entry, region), region)
    }

    /// A stream is sealed, with a record of `record` bytes. The region that it was charged for its
    /// next block pays for that.
    pub fn on_sealed(&mut self, account: Account, name: &StreamName, record: ByteSize) {
        let region = self.region;
        let stream = self.accounts.get_mut(&account).and_then(|state| state.streams.get_mut(name));
        if let Some(charge) = stream {
            *charge = Charge { writer: None, ..charge.with_entry(record, region) };
        }
    }

    /// The space of a stream is free.
    pub fn on_removed(&mut self, account: Account, name: &StreamName) {
        if let Some(state) = self.accounts.get_mut(&account) {
            state.streams.remove(name);
        }
    }

    /// Forgets sealed streams that the device does not have any more, by the names there: their
    /// leases have ended.
    pub fn retain_sealed(&mut self, mut is_stored: impl FnMut(&str) -> bool) {
        for state in self.accounts.values_mut() {
            let prefix = state.prefix();
            state.streams.retain(|name, charge| {
                charge.writer.is_some() || is_stored(&format!("{prefix}{name}"))
            });
        }
    }

    /// A connection opens a reader.
    pub fn open_reader(&mut self, account: Account, holder: Holder) -> Result<(), QuotaError> {
        let state = self.account_mut(account)?;
        if state.readers.values().sum::<u32>() >= READERS_MAX {
            return Err(QuotaError::TooManyReaders);
        }
        *state.readers.entry(holder).or_default() += 1;
        Ok(())
    }

    /// A connection has closed a reader.
    pub fn close_reader(&mut self, account: Account, holder: Holder) {
        let Some(state) = self.accounts.get_mut(&account) else { return };
        if let Some(readers) = state.readers.get_mut(&holder) {
            *readers = readers.saturating_sub(1);
        }
        state.readers.retain(|_, readers| *readers > 0);
    }

    /// A connection has ended. Returns the unsealed streams, which end with it. Its readers are
    /// closed.
    pub fn on_disconnect(&mut self, account: Account, holder: Holder) -> Vec<StreamName> {
        let Some(state) = self.accounts.get_mut(&account) else { return Vec::new() };
        state.readers.remove(&holder);
        let unsealed = |_: &StreamName, charge: &mut Charge| charge.writer == Some(holder);
        state.streams.extract_if(.., unsealed).map(|(name, _)| name).collect()
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
        quotas.on_removed(THEIRS, &name("x"));
        let not_there = quotas.append(THEIRS, &name("x"), BLOCK).unwrap_err();
        let never_was = quotas.append(THEIRS, &name("y"), BLOCK).unwrap_err();
        assert_eq!(not_there, QuotaError::NotFound("x".into()));
        assert_eq!(never_was, QuotaError::NotFound("y".into()));
        quotas.append(OURS, &name("x"), BLOCK).unwrap();
    }

    #[test]
    fn an_account_without_a_budget_is_refused_with_the_remedy() {
        let mut quotas = quotas(64, 0);
        for refused in [
            quotas.create(THEIRS, Holder(1), &name("x")).unwrap_err(),
            quotas.create(None, Holder(1), &name("x")).unwrap_err(),
            quotas.stored_name(THEIRS, "x").unwrap_err(),
            quotas.open_reader(THEIRS, Holder(1)).unwrap_err(),
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
        quotas.create(OURS, Holder(1), &name("x")).unwrap();
        // One region is charged for the next block, so five blocks fit into six regions.
        for _ in 0..5 {
            quotas.append(OURS, &name("x"), BLOCK).unwrap();
        }
        let full = quotas.append(OURS, &name("x"), BLOCK).unwrap_err();
        assert_eq!(
            full.to_string(),
            "stream \"x\" needs 4 MiB more, but 24 MiB of the budget of 24 MiB are taken: destroy \
             streams, or raise `streams` in the node's configuration"
        );
        assert!(quotas.create(OURS, Holder(1), &name("y")).is_err());
        quotas.append(OURS, &name("x"), ByteSize(4096)).expect_err("the last region is full");
        quotas.on_sealed(OURS, &name("x"), ByteSize(4096));
        assert_eq!(quotas.facts(OURS).unwrap().used, ByteSize::mib(24), "with its record");
        quotas.on_removed(OURS, &name("x"));
        quotas.create(OURS, Holder(1), &name("y")).unwrap();
    }

    #[test]
    fn an_unsealed_stream_ends_with_its_connection() {
        let mut quotas = quotas(64, 64);
        for (holder, stream) in [(1, "sealed"), (1, "unsealed"), (2, "other")] {
            quotas.create(OURS, Holder(holder), &name(stream)).unwrap();
        }
        quotas.on_sealed(OURS, &name("sealed"), ByteSize(0));
        quotas.open_reader(OURS, Holder(1)).unwrap();
        assert_eq!(quotas.on_disconnect(THEIRS, Holder(1)), []);
        assert_eq!(quotas.on_disconnect(OURS, Holder(1)), [name("unsealed")]);
        let AccountFacts { streams, readers, used, .. } = quotas.facts(OURS).unwrap();
        assert_eq!((streams, readers, used), (2, 0, ByteSize::mib(12)));
        quotas.create(OURS, Holder(3), &name("unsealed")).unwrap();
    }

    #[test]
    fn no_account_takes_the_readers_or_writers_of_another() {
        let mut quotas = quotas(4096, 64);
        for _ in 0..READERS_MAX {
            quotas.open_reader(OURS, Holder(1)).unwrap();
        }
        assert_eq!(quotas.open_reader(OURS, Holder(2)), Err(QuotaError::TooManyReaders));
        quotas.open_reader(THEIRS, Holder(3)).unwrap();
        quotas.close_reader(OURS, Holder(1));
        quotas.open_reader(OURS, Holder(2)).unwrap();
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
        quotas.adopt(OURS, name("x"), 20);
        assert_eq!(quotas.facts(OURS).unwrap().used, ByteSize::mib(80));
        assert!(quotas.create(OURS, Holder(1), &name("y")).is_err());
        assert_eq!(quotas.create(OURS, Holder(1), &name("x")), Err(QuotaError::Taken("x".into())));
        quotas.retain_sealed(|stored| stored == "ours/x");
        assert_eq!(quotas.totals().streams, 1);
        quotas.retain_sealed(|_| false);
        assert_eq!(quotas.totals().streams, 0);
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
                        let appended =
                            quotas.append(account, &name(&stream.to_string()), ByteSize(entry));
                        if appended.is_ok() {
                            *entries.get_mut(&(account, stream)).expect("it exists") += entry;
                        }
                    }
                    Step::Seal(stream) => {
                        quotas.on_sealed(account, &name(&stream.to_string()), ByteSize(0));
                    }
                    Step::Remove(stream) => {
                        quotas.on_removed(account, &name(&stream.to_string()));
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
                let own = entries.range((account, 0)..=(account, u8::MAX));
                let needed: u64 = own.clone().map(|(_, bytes)| (*bytes).max(1)).sum();
                prop_assert!(used <= budget && used.0 >= needed, "{used} for {needed}");
                prop_assert_eq!(streams, own.count() as u64);
                prop_assert_eq!(quotas.facts(other).unwrap(), of_other);
            }
        }
    }
}
