//! Random requests on a faulty disk: never a wrong byte, never a request without an answer.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use forebay_flash::{
    format::{CLASS_EPHEMERAL, CLASS_STREAM},
    index::GroupId,
    io::sim::FaultRates,
    shard::{
        EntryName, GuardKind, RequestResult, Settings, ShardAnswer, ShardRequest, UnverifiedRead,
    },
};

use crate::world::{World, append, commit, content, key, seeds, settings};

const KEYS: u64 = 40;
const ORDINALS: u64 = 20;

/// Payload of an entry. For dense groups it depends on how many times the group has been freed.
fn payload(name: &EntryName, times_freed: u64) -> bytes::Bytes {
    let (seed, length) = match name {
        EntryName::Key(key) => {
            let seed = u64::from_le_bytes(key.0[..8].try_into().expect("eight bytes"));
            (seed, seed % 60_000)
        }
        EntryName::Ordinal(_, ordinal) => (ordinal + 1000 * times_freed, 500 + ordinal * 3000),
    };
    content(seed, usize::try_from(length).expect("short"))
}

struct Chaos {
    world: World,
    random: Rng,
    /// How many times each dense group has been freed.
    freed_counts: BTreeMap<&'static str, u64>,
    pending: BTreeMap<u64, Pending>,
}

#[derive(Debug)]
enum Pending {
    Read(&'static str, EntryName, u64),
    Free(&'static str),
    #[expect(dead_code, reason = "printed if there is no answer")]
    Other(&'static str),
}

impl Chaos {
    fn dense(&mut self) -> (&'static str, Option<GroupId>) {
        let name = ["dense cache", "stream", "ephemeral"][self.random.usize(..3)];
        (name, self.open(name, true))
    }

    fn keyed(&mut self) -> Option<GroupId> {
        let name = ["a", "b", "c"][self.random.usize(..3)];
        self.open(name, false)
    }

    fn open(&mut self, name: &str, dense: bool) -> Option<GroupId> {
        let class = match name {
            "stream" => CLASS_STREAM,
            "ephemeral" => CLASS_EPHEMERAL,
            _ => 3,
        };
        let token = self.world.begin(ShardRequest::Open { name: name.into(), class, dense });
        let outcome = self.answer_now(token);
        // If a freed group can be opened again, its new contents differ.
        self.check_answers();
        match outcome {
            Ok(ShardAnswer::Group(group)) => Some(group),
            _ => None,
        }
    }

    /// The outcome of a request that is answered at once.
    fn answer_now(&mut self, token: u64) -> RequestResult {
        while !self.world.answers.contains_key(&token) {
            self.world.step();
        }
        self.world.answers.remove(&token).expect("just seen")
    }

    fn act(&mut self) {
        match self.random.u8(..23) {
            0..7 => {
                let keyed = self.random.bool();
                let (name, group, times_freed) = if keyed {
                    let group = self.keyed();
                    (EntryName::Key(key(self.random.u64(..KEYS))), group, 0)
                } else {
                    let (name, group) = self.dense();
                    let Some(id) = group else { return };
                    let ordinal = self.random.u64(..ORDINALS);
                    (
                        EntryName::Ordinal(id, ordinal),
                        group,
                        self.freed_counts.get(name).copied().unwrap_or(0),
                    )
                };
                let Some(group) = group else { return };
                let payload = payload(&name, times_freed);
                let free = self.world.pools().in_place.free_bytes();
                let append = if self.random.bool() && free > 1 << 20 {
                    commit(self.world.pools(), group, name, &payload)
                } else {
                    append(group, name, &payload)
                };
                let token = self.world.begin(append);
                self.pending.insert(token, Pending::Other("append"));
            }
            7..13 => {
                let (of, name, times_freed) = if self.random.bool() {
                    ("", EntryName::Key(key(self.random.u64(..KEYS))), 0)
                } else {
                    let (name, group) = self.dense();
                    let Some(group) = group else { return };
                    let ordinal = self.random.u64(..ORDINALS);
                    let times_freed = self.freed_counts.get(name).copied().unwrap_or(0);
                    (name, EntryName::Ordinal(group, ordinal), times_freed)
                };
                let length = payload(&name, times_freed).len() as u64;
                let range = self.random.bool().then(|| {
                    let start = self.random.u64(..=length);
                    start..self.random.u64(start..=length)
                });
                let leased = self.random.bool();
                let own = self.random.bool();
                let into = own.then(|| self.world.pools().read.take(80 << 10)).flatten();
                let token = self.world.begin(ShardRequest::Read { name, range, leased, into });
                self.pending.insert(token, Pending::Read(of, name, times_freed));
            }
            13 => self.on_some_group(|group| ShardRequest::Seal { group }),
            14 => self.on_some_group(|group| ShardRequest::Mark { group }),
            15 => {
                let (name, group) = self.dense();
                let Some(group) = group else { return };
                let lease_timeout = Duration::from_millis(self.random.u64(..50));
                let token = self.world.begin(ShardRequest::Free { group, lease_timeout });
                self.pending.insert(token, Pending::Free(name));
            }
            16 => {
                let guard = if self.random.bool() { GuardKind::Pin } else { GuardKind::Lease };
                let on = self.random.u8(..3) == 0;
                self.on_some_group(|group| {
                    if on {
                        ShardRequest::Acquire { group, guard }
                    } else {
                        ShardRequest::Release { group, guard }
                    }
                });
            }
            17 => self.on_some_group(|group| ShardRequest::Entries { group }),
            18 => {
                let token = self.world.begin(ShardRequest::Flush);
                self.pending.insert(token, Pending::Other("flush"));
            }
            19 => self.on_some_group(|group| ShardRequest::Sync { group }),
            20 => {
                let start = self.random.u64(..ORDINALS);
                let end = self.random.u64(start..=ORDINALS);
                let ordinals = std::iter::once(start..end).collect();
                let (_, group) = self.dense();
                let Some(group) = group else { return };
                let release = ShardRequest::ReleaseOrdinals { group, ordinals };
                let token = self.world.begin(release);
                self.pending.insert(token, Pending::Other("release"));
            }
            _ => self.world.advance(Duration::from_millis(self.random.u64(..200))),
        }
    }

    fn on_some_group(&mut self, request: impl FnOnce(GroupId) -> ShardRequest) {
        let group = if self.random.bool() { self.keyed() } else { self.dense().1 };
        if let Some(group) = group {
            let token = self.world.begin(request(group));
            self.pending.insert(token, Pending::Other("on a group"));
        }
    }

    fn check_answers(&mut self) {
        for (token, outcome) in std::mem::take(&mut self.world.answers) {
            match (self.pending.remove(&token).expect("a pending request"), outcome) {
                (Pending::Read(of, name, times_freed), Ok(ShardAnswer::Read(Some(unverified)))) => {
                    self.verify(of, &name, times_freed, &unverified);
                }
                // Only an answered free is guaranteed. Before the answer, old or new contents may
                // be found.
                (Pending::Free(name), Ok(_)) => *self.freed_counts.entry(name).or_default() += 1,
                _ => {}
            }
        }
    }

    fn verify(
        &mut self,
        of: &str,
        name: &EntryName,
        times_freed: u64,
        unverified: &UnverifiedRead,
    ) {
        let range = unverified.range();
        let Some(verified) = self.world.shard.verify(unverified) else { return };
        let newest = self.freed_counts.get(of).copied().unwrap_or(0);
        // A disk that loses writes may bring back freed entries.
        let oldest = if self.world.disk_is_reliable { times_freed } else { 0 };
        let right = (oldest..=newest).any(|times_freed| {
            let whole = payload(name, times_freed);
            let range = range.clone().unwrap_or(0..whole.len() as u64);
            let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
            whole.get(range) == Some(&verified.bytes[..])
        });
        assert!(right, "promise 1: wrong bytes for {name:?}");
    }
}

fn run(seed: u64, faults: FaultRates) {
    let mut random = Rng::with_seed(seed);
    // Files are not discarded, so both settings occur.
    let settings = Settings { discard: random.bool(), ..settings() };
    let mut world = World::new(seed, random.u32(4..12), settings);
    world.disk_is_reliable = faults == FaultRates::default();
    world.disk.set_fault_rates(faults);
    let mut chaos =
        Chaos { world, random, freed_counts: BTreeMap::new(), pending: BTreeMap::new() };
    for _ in 0..chaos.random.u32(20..150) {
        chaos.act();
        for _ in 0..chaos.random.u32(..6) {
            chaos.world.step();
        }
        chaos.check_answers();
        if chaos.random.u32(..60) == 0 {
            chaos.world.disk.set_fault_rates(FaultRates::default());
            chaos.world = chaos.world.crashed();
            chaos.world.disk.set_fault_rates(faults);
            // The requests before the crash have no answer.
            chaos.pending.clear();
        }
    }
    chaos.world.disk.set_fault_rates(FaultRates::default());
    for _ in 0..1000 {
        chaos.world.settle();
        chaos.check_answers();
        if chaos.pending.is_empty() {
            return;
        }
        chaos.world.advance(Duration::from_secs(10));
    }
    panic!("promise 5: with seed {seed}, no answer to {:?}", chaos.pending);
}

#[test]
fn on_a_disk_without_faults() {
    for seed in seeds(600) {
        run(seed, FaultRates::default());
    }
}

#[test]
fn on_a_disk_that_fails() {
    let faults = FaultRates { failed: 20, no_space: 5, short: 5, ..FaultRates::default() };
    for seed in seeds(600) {
        run(seed, faults);
    }
}

#[test]
fn on_a_disk_that_corrupts() {
    let faults = FaultRates { lost: 20, misdirected: 20, flipped: 30, ..FaultRates::default() };
    for seed in seeds(600) {
        run(seed, faults);
    }
}

#[test]
fn on_a_disk_with_all_faults() {
    let faults = FaultRates {
        failed: 10,
        read_failed: 5,
        sync_failed: 10,
        no_space: 5,
        short: 5,
        lost: 10,
        misdirected: 10,
        flipped: 10,
    };
    for seed in seeds(600) {
        run(seed, faults);
    }
}
