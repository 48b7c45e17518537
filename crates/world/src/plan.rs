//! Plan: what a seed decides before a world begins.

use std::time::Duration;

use fastrand::Rng;
use forebay_core::{ByteSize, dataset::verification::VerifyPolicy};

use crate::{node_host::NodePlan, rogue::Misconduct};

/// How much happens in a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// About 550 items and 11,500 messages: 500 worlds take 110 s of processor time.
    Ordinary,
    /// About 7,500 items and 50,000 messages.
    Large,
}

/// The faults of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "kinds of faults, in any combination")]
pub struct Faults {
    /// Nodes are killed, stopped and started, with other devices at times.
    pub kills: bool,
    /// Partitions, pauses and resets.
    pub network: bool,
    /// Devices fail, lose and damage what was written.
    pub disks: bool,
    /// The origin fails, hangs, is slow and damages transfers.
    pub origin: bool,
    /// Clients attack the nodes.
    pub hostile: bool,
    /// Jobs report to managers, which decide what is kept.
    pub managed: bool,
    /// Devices are too small for the datasets.
    pub full: bool,
    /// Members of the cluster hang, or answer wrongly.
    pub rogues: bool,
}

/// The plan of a world.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What goes wrong.
    pub faults: Faults,
    /// The nodes.
    pub nodes: NodePlan,
    /// Longest usual delay of the network.
    pub delay_max: Duration,
    /// Jobs.
    pub jobs: u8,
    /// Processes of each job.
    pub processes: u8,
    /// Epochs of each job.
    pub epochs: u32,
    /// Most items of a batch.
    pub batch_max: usize,
    /// Lengths of the blobs of each dataset.
    pub lengths: [Vec<usize>; 2],
    /// Hostile clients.
    pub hostile: u8,
    /// Rogue members.
    pub rogues: Vec<Misconduct>,
    /// What clients verify.
    pub verify: VerifyPolicy,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(random: &mut Rng, scale: Scale) -> Self {
        let faults = Faults::new(random);
        let lengths = [lengths(random, faults.full), lengths(random, faults.full)];
        let rogues = if faults.rogues { rogues(random) } else { Vec::new() };
        let nodes = NodePlan {
            nodes: random.u8(3..=4),
            rogues: u8::try_from(rogues.len()).expect("at most 64 members"),
            max_connections: random.usize(48..=96),
            connection_memory: ByteSize::mib(random.u64(2..=16)),
            memory_cache: if random.bool() { ByteSize(0) } else { ByteSize::gb(1) },
            claim_lease: Duration::from_millis(random.u64(500..5000)),
            regions: if faults.full { 4 } else { 24 },
            slice: Duration::from_micros(*random.choice(&[0, 0, 1000]).expect("a choice")),
        };
        Self {
            faults,
            nodes,
            delay_max: Duration::from_millis(random.u64(0..5)),
            jobs: random.u8(2..=4),
            processes: random.u8(1..=2),
            epochs: if scale == Scale::Large { 40 } else { random.u32(2..=4) },
            batch_max: random.usize(1..=16),
            lengths,
            hostile: if faults.hostile { random.u8(1..=5) } else { 0 },
            verify: verify(random, &rogues),
            rogues,
        }
    }

    /// Whether members answer wrongly.
    pub fn has_liars(&self) -> bool {
        self.rogues.iter().any(|rogue| rogue.is_lie())
    }
}

impl Faults {
    /// One world in eight has none: there, each blob is read from the origin exactly once.
    fn new(random: &mut Rng) -> Self {
        let none = Self {
            kills: false,
            network: false,
            disks: false,
            origin: false,
            hostile: false,
            managed: false,
            full: false,
            rogues: false,
        };
        if random.u8(..8) == 0 {
            return none;
        }
        let mut often = || random.u8(..3) > 0;
        let (kills, network, origin, hostile) = (often(), often(), often(), often());
        let mut seldom = || random.u8(..4) == 0;
        let (disks, managed, full, rogues) = (seldom(), seldom(), seldom(), seldom());
        Self { kills, network, disks, origin, hostile, managed, full, rogues }
    }

    /// Whether nothing goes wrong.
    pub fn is_none(self) -> bool {
        let Self { kills, network, disks, origin, hostile, managed, full, rogues } = self;
        !(kills || network || disks || origin || hostile || managed || full || rogues)
    }
}

/// Many members that hang, as behind a switch that fails, or a few that answer wrongly.
fn rogues(random: &mut Rng) -> Vec<Misconduct> {
    let hung = [Misconduct::Silent, Misconduct::HelloOnly, Misconduct::Trickle];
    match random.u8(..4) {
        0 | 1 => vec![*random.choice(&hung).expect("a choice"); random.usize(6..=60)],
        2 => vec![Misconduct::Lies; random.usize(1..=2)],
        _ => vec![Misconduct::OtherIds; random.usize(1..=2)],
    }
}

/// Lies are found by verification only. Answers with a wrong id are found without it.
fn verify(random: &mut Rng, rogues: &[Misconduct]) -> VerifyPolicy {
    match rogues.first() {
        Some(Misconduct::Lies) => VerifyPolicy::Always,
        Some(Misconduct::OtherIds) => VerifyPolicy::Never,
        _ => *random
            .choice(&[VerifyPolicy::default(), VerifyPolicy::Always, VerifyPolicy::Never])
            .expect("a choice"),
    }
}

/// Most blobs have some kilobytes. A few are longer than the regions of some devices, so that they
/// are stored in parts there.
fn lengths(random: &mut Rng, is_full: bool) -> Vec<usize> {
    let has_long = random.u8(..3) == 0;
    let length = |at: usize, random: &mut Rng| match at {
        0 | 1 if has_long => random.usize(900_000..2_300_000),
        _ if is_full => random.usize(100_000..250_000),
        _ if random.u8(..8) == 0 => random.usize(20_000..60_000),
        _ => random.usize(1..8_000),
    };
    (0..random.usize(20..40)).map(|at| length(at, random)).collect()
}
