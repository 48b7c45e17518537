//! Anything in any order on a disk that lies: never a wrong byte, never a request without an answer.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use forebay_flash::{
    index::GroupId,
    io::sim::Faults,
    shard::{Answer, Fetched, Hold, Name, Outcome, Request, Settings},
};

use crate::world::{World, append, content, key, seeds, settings};

const KEYS: u64 = 40;
const ORDINALS: u64 = 20;

/// What an entry is, told from its first bytes: which incarnation of which dense group wrote it.
fn payload(name: &Name, incarnation: u64) -> bytes::Bytes {
    let (seed, length) = match name {
        Name::Key(key) => {
            let seed = u64::from_le_bytes(key.0[..8].try_into().expect("eight"));
            (seed, seed % 60_000)
        }
        Name::Ordinal(_, ordinal) => (ordinal + 1000 * incarnation, 500 + ordinal * 3000),
    };
    content(seed, usize::try_from(length).expect("short"))
}

struct Chaos {
    world: World,
    random: Rng,
    /// How often each dense group has been freed.
    incarnations: BTreeMap<&'static str, u64>,
    asked: BTreeMap<u64, Asked>,
}

#[derive(Debug)]
enum Asked {
    Read(&'static str, Name, u64),
    Free(&'static str),
    #[expect(dead_code, reason = "printed when nobody answers")]
    Other(&'static str),
}

impl Chaos {
    fn dense(&mut self) -> (&'static str, Option<GroupId>) {
        let name = if self.random.bool() { "dense one" } else { "dense two" };
        (name, self.open(name, true))
    }

    fn keyed(&mut self) -> Option<GroupId> {
        let name = ["a", "b", "c"][self.random.usize(..3)];
        self.open(name, false)
    }

    fn open(&mut self, name: &str, dense: bool) -> Option<GroupId> {
        let token = self.world.begin(Request::Open { name: name.into(), class: 3, dense });
        let outcome = self.answer_now(token);
        // A group that could be opened again is another one now, and its content as well.
        self.look_at_answers();
        match outcome {
            Ok(Answer::Group(group)) => Some(group),
            _ => None,
        }
    }

    /// Of a request that is answered at once.
    fn answer_now(&mut self, token: u64) -> Outcome {
        while !self.world.answers.contains_key(&token) {
            self.world.step();
        }
        self.world.answers.remove(&token).expect("just seen")
    }

    fn act(&mut self) {
        match self.random.u8(..20) {
            0..7 => {
                let keyed = self.random.bool();
                let (name, group, incarnation) = if keyed {
                    let group = self.keyed();
                    (Name::Key(key(self.random.u64(..KEYS))), group, 0)
                } else {
                    let (name, group) = self.dense();
                    let Some(id) = group else { return };
                    let ordinal = self.random.u64(..ORDINALS);
                    (
                        Name::Ordinal(id, ordinal),
                        group,
                        self.incarnations.get(name).copied().unwrap_or(0),
                    )
                };
                let Some(group) = group else { return };
                let token = self.world.begin(append(group, name, &payload(&name, incarnation)));
                self.asked.insert(token, Asked::Other("append"));
            }
            7..13 => {
                let (of, name, incarnation) = if self.random.bool() {
                    ("", Name::Key(key(self.random.u64(..KEYS))), 0)
                } else {
                    let (name, group) = self.dense();
                    let Some(group) = group else { return };
                    let ordinal = self.random.u64(..ORDINALS);
                    let incarnation = self.incarnations.get(name).copied().unwrap_or(0);
                    (name, Name::Ordinal(group, ordinal), incarnation)
                };
                let length = payload(&name, incarnation).len() as u64;
                let range = self.random.bool().then(|| {
                    let start = self.random.u64(..=length);
                    start..self.random.u64(start..=length)
                });
                let leased = self.random.bool();
                let token = self.world.begin(Request::Read { name, range, leased });
                self.asked.insert(token, Asked::Read(of, name, incarnation));
            }
            13 => self.on_some_group(|group| Request::Seal { group }),
            14 => self.on_some_group(|group| Request::Mark { group }),
            15 => {
                let (name, group) = self.dense();
                let Some(group) = group else { return };
                let patience = Duration::from_millis(self.random.u64(..50));
                let token = self.world.begin(Request::Free { group, patience });
                self.asked.insert(token, Asked::Free(name));
            }
            16 => {
                let hold = if self.random.bool() { Hold::Pin } else { Hold::Lease };
                let on = self.random.u8(..3) == 0;
                self.on_some_group(|group| {
                    if on { Request::Hold { group, hold } } else { Request::LetGo { group, hold } }
                });
            }
            17 => self.on_some_group(|group| Request::Entries { group }),
            18 => {
                let token = self.world.begin(Request::Flush);
                self.asked.insert(token, Asked::Other("flush"));
            }
            _ => self.world.advance(Duration::from_millis(self.random.u64(..200))),
        }
    }

    fn on_some_group(&mut self, request: impl FnOnce(GroupId) -> Request) {
        let group = if self.random.bool() { self.keyed() } else { self.dense().1 };
        if let Some(group) = group {
            let token = self.world.begin(request(group));
            self.asked.insert(token, Asked::Other("on a group"));
        }
    }

    fn look_at_answers(&mut self) {
        for (token, outcome) in std::mem::take(&mut self.world.answers) {
            match (self.asked.remove(&token).expect("asked once"), outcome) {
                (Asked::Read(of, name, incarnation), Ok(Answer::Read(Some(fetched)))) => {
                    self.prove(of, &name, incarnation, &fetched);
                }
                // Only what was answered is promised; until then, either may be found.
                (Asked::Free(name), Ok(_)) => *self.incarnations.entry(name).or_default() += 1,
                _ => {}
            }
        }
    }

    fn prove(&mut self, of: &str, name: &Name, incarnation: u64, fetched: &Fetched) {
        let range = fetched.range();
        let Some(proved) = self.world.shard.prove(fetched) else { return };
        let newest = self.incarnations.get(of).copied().unwrap_or(0);
        // A disk that loses what it was told to write may bring back what was freed.
        let oldest = if self.world.honest { incarnation } else { 0 };
        let right = (oldest..=newest).any(|incarnation| {
            let whole = payload(name, incarnation);
            let range = range.clone().unwrap_or(0..whole.len() as u64);
            let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
            whole.get(range) == Some(&proved.bytes[..])
        });
        assert!(right, "promise 1: wrong bytes for {name:?}");
    }
}

fn run(seed: u64, faults: Faults) {
    let mut random = Rng::with_seed(seed);
    // Files have nothing discarded.
    let settings = Settings { discard: random.bool(), ..settings() };
    let mut world = World::new(seed, random.u32(4..12), settings);
    world.honest = faults == Faults::default();
    world.disk.set_faults(faults);
    let mut chaos = Chaos { world, random, incarnations: BTreeMap::new(), asked: BTreeMap::new() };
    for _ in 0..chaos.random.u32(20..150) {
        chaos.act();
        for _ in 0..chaos.random.u32(..6) {
            chaos.world.step();
        }
        chaos.look_at_answers();
        if chaos.random.u32(..60) == 0 {
            chaos.world.disk.set_faults(Faults::default());
            chaos.world = chaos.world.crashed();
            chaos.world.disk.set_faults(faults);
            // Nobody is left to wait for what was asked before.
            chaos.asked.clear();
        }
    }
    chaos.world.disk.set_faults(Faults::default());
    for _ in 0..1000 {
        chaos.world.settle();
        chaos.look_at_answers();
        if chaos.asked.is_empty() {
            return;
        }
        chaos.world.advance(Duration::from_secs(10));
    }
    panic!("promise 5: with seed {seed}, nobody answers {:?}", chaos.asked);
}

#[test]
fn on_a_disk_that_keeps_its_word() {
    for seed in seeds(600) {
        run(seed, Faults::default());
    }
}

#[test]
fn on_a_disk_that_fails() {
    let faults = Faults { failed: 20, no_space: 5, short: 5, ..Faults::default() };
    for seed in seeds(600) {
        run(seed, faults);
    }
}

#[test]
fn on_a_disk_that_lies() {
    let faults = Faults { lost: 20, misdirected: 20, flipped: 30, ..Faults::default() };
    for seed in seeds(600) {
        run(seed, faults);
    }
}

#[test]
fn on_a_disk_that_does_all_of_it() {
    let faults =
        Faults { failed: 10, no_space: 5, short: 5, lost: 10, misdirected: 10, flipped: 10 };
    for seed in seeds(600) {
        run(seed, faults);
    }
}
