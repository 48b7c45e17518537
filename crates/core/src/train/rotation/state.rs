//! What both policies know: the chunks' lives, the jobs and what they have not read, and how long things take.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Contradiction, Fact, Job, Order};
use crate::{ByteSize, chunking::ChunkOrdinal};

/// More jobs than this are not taken in,
const JOBS_MAX: usize = 1 << 12;
/// and fewer if there are very many chunks: each job costs eight bytes for each.
const UNREAD_MAX: usize = 1 << 24;
/// A load of less than one part in so many tells nothing of a whole one.
const LEARNT_FROM: u64 = 16;

/// Whoever has been silent for this part of its lease is not reckoned with until it speaks again,
const SILENT: u32 = 10;
/// unless it always takes long: so many times what is usual is not long for it.
const PATIENT: u32 = 2;

/// What is thought possible for a load: there is always some need before there is nothing, and an origin
/// that has stood still for a day is not a measure for the next chunk.
const LOAD_TIME_MIN: Duration = Duration::from_millis(10);
const LOAD_TIME_MAX: Duration = Duration::from_hours(24);

/// Where a chunk stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Absent,
    Loading { since: Duration, bytes: u64 },
    Loaded,
    Evicting,
}

#[derive(Debug)]
pub(super) struct Chunk {
    pub size: u64,
    pub life: Life,
    /// Counts all orders to load, so that the latest is known.
    pub turn: u64,
    /// Stays for good (ours).
    pub held: bool,
    /// Takes no new readers (the paper's).
    pub marked: bool,
    /// When the first job had exhausted it.
    pub first_done: Option<Duration>,
}

impl Chunk {
    /// Whether jobs may draw from it.
    pub fn is_open(&self) -> bool {
        matches!(self.life, Life::Loading { .. } | Life::Loaded)
    }
}

/// A job, as far as its dataset's rotation is concerned.
#[derive(Debug)]
pub(super) struct Member {
    heard_at: Duration,
    /// How long it is silent between two reports, at most and of late.
    was_silent: Duration,
    pub unread: Vec<u64>,
    pub unread_total: u64,
    pub pace: u64,
    pub reported_at: Duration,
    pub references: BTreeSet<ChunkOrdinal>,
    /// The rotating chunk that it draws from first (ours).
    pub focus: Option<ChunkOrdinal>,
}

impl Member {
    pub fn unread_of(&self, chunk: ChunkOrdinal) -> u64 {
        self.unread[chunk.0 as usize]
    }

    /// Until when it is believed to live.
    fn lives_until(&self, lease: Duration) -> Duration {
        self.heard_at.saturating_add(lease)
    }

    fn set_unread(&mut self, chunk: ChunkOrdinal, unread: u64) {
        let slot = &mut self.unread[chunk.0 as usize];
        // In this order: who names a chunk twice has the last word, and that may be more than the first.
        self.unread_total = self.unread_total - *slot + unread;
        *slot = unread;
    }
}

#[derive(Debug)]
pub(super) struct Books {
    pub now: Duration,
    pub budget: usize,
    pub chunks: Vec<Chunk>,
    pub jobs: BTreeMap<Job, Member>,
    /// How long loading a whole chunk takes.
    pub load_time: Duration,
    lease: Duration,
    /// How many orders to load there were.
    turns: u64,
}

impl Books {
    pub fn new(lease: Duration, load_time: Duration, sizes: &[ByteSize]) -> Self {
        assert!(lease > Duration::ZERO, "no job could live without a lease");
        assert!(u32::try_from(sizes.len()).is_ok(), "more chunks than can be named");
        let chunk = |size: &ByteSize| Chunk {
            size: size.0,
            life: Life::Absent,
            turn: 0,
            held: false,
            marked: false,
            first_done: None,
        };
        Self {
            now: Duration::ZERO,
            budget: 0,
            chunks: sizes.iter().map(chunk).collect(),
            jobs: BTreeMap::new(),
            load_time: load_time.clamp(LOAD_TIME_MIN, LOAD_TIME_MAX),
            lease,
            turns: 0,
        }
    }

    pub fn ordinals(&self) -> impl DoubleEndedIterator<Item = ChunkOrdinal> + use<> {
        (0..u32::try_from(self.chunks.len()).expect("checked when made")).map(ChunkOrdinal)
    }

    pub fn chunk(&self, chunk: ChunkOrdinal) -> &Chunk {
        &self.chunks[chunk.0 as usize]
    }

    fn chunk_mut(&mut self, chunk: ChunkOrdinal) -> &mut Chunk {
        &mut self.chunks[chunk.0 as usize]
    }

    pub fn resident(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.ordinals().filter(|chunk| self.chunk(*chunk).life != Life::Absent)
    }

    pub fn held(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.ordinals().filter(|chunk| self.chunk(*chunk).held)
    }

    /// Chunks that jobs may draw from.
    pub fn open(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.ordinals().filter(|chunk| self.chunk(*chunk).is_open())
    }

    /// Those of them that are not held.
    pub fn rotating(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.open().filter(|chunk| !self.chunk(*chunk).held)
    }

    pub fn job(&self, job: Job) -> Result<&Member, Contradiction> {
        self.jobs.get(&job).ok_or(Contradiction::UnknownJob { job })
    }

    pub fn is_alive(&self, now: Duration, job: Job) -> bool {
        self.jobs.get(&job).is_some_and(|member| member.lives_until(self.lease) > now)
    }

    fn live(&self, now: Duration) -> usize {
        self.jobs.values().filter(|member| member.lives_until(self.lease) > now).count()
    }

    /// When a job that is not heard of until then is not reckoned with any more: it was killed or stopped, or does
    /// something else.
    pub fn silent_at(&self, member: &Member) -> Duration {
        let long = (self.lease / SILENT).max(member.was_silent.saturating_mul(PATIENT));
        member.heard_at.saturating_add(long)
    }

    /// The jobs that are reckoned with.
    pub fn awake(&self) -> impl Iterator<Item = (Job, &Member)> {
        let awake = self.jobs.iter().filter(|(_, member)| self.silent_at(member) > self.now);
        awake.map(|(job, member)| (*job, member))
    }

    fn jobs_max(&self) -> usize {
        (UNREAD_MAX / self.chunks.len().max(1)).clamp(1, JOBS_MAX)
    }

    /// What all jobs together have not read of a chunk.
    pub fn wanted(&self, chunk: ChunkOrdinal) -> u64 {
        let unread = self.jobs.values().map(|job| job.unread_of(chunk));
        unread.fold(0, u64::saturating_add)
    }

    pub fn next_expiry(&self) -> Option<Duration> {
        self.jobs.values().map(|job| job.lives_until(self.lease)).min()
    }

    /// Writes a fact down, if it can be. Returns how many jobs were not heard of in time.
    pub fn note(&mut self, now: Duration, fact: Fact<'_>) -> Result<u64, Contradiction> {
        self.check(now, fact)?;
        self.now = now;
        let before = self.jobs.len();
        self.jobs.retain(|_, job| job.lives_until(self.lease) > now);
        let expired = (before - self.jobs.len()) as u64;
        self.write(fact);
        Ok(expired)
    }

    fn check(&self, now: Duration, fact: Fact<'_>) -> Result<(), Contradiction> {
        if now < self.now {
            return Err(Contradiction::TimeWentBack { now, last: self.now });
        }
        let live = |job| {
            let live = self.jobs.get(&job).filter(|_| self.is_alive(now, job));
            live.ok_or(Contradiction::UnknownJob { job })
        };
        let known = |chunk: ChunkOrdinal| {
            let chunks = self.chunks.len();
            self.chunks.get(chunk.0 as usize).ok_or(Contradiction::UnknownChunk { chunk, chunks })
        };
        match fact {
            Fact::Joined { job } if live(job).is_ok() => {
                return Err(Contradiction::JoinedTwice { job });
            }
            Fact::Joined { .. } if self.live(now) >= self.jobs_max() => {
                return Err(Contradiction::TooManyJobs { jobs: self.jobs_max() });
            }
            Fact::Joined { .. } | Fact::Budget { .. } | Fact::Tick => {}
            Fact::Renewed { job } | Fact::NextEpoch { job } | Fact::Left { job } => {
                live(job)?;
            }
            Fact::Progress { job, unread, .. } => {
                let member = live(job)?;
                for (chunk, unread) in unread {
                    known(*chunk)?;
                    let (chunk, unread, known) =
                        (*chunk, *unread, ByteSize(member.unread_of(*chunk)));
                    if unread > known {
                        return Err(Contradiction::UnreadGrew { job, chunk, unread, known });
                    }
                }
            }
            Fact::Referenced { job, chunk } => {
                let (member, known) = (live(job)?, known(chunk)?);
                let is_reading = member.references.contains(&chunk);
                if !known.is_open() || (known.marked && !is_reading) {
                    return Err(Contradiction::NotOpen { job, chunk });
                }
            }
            Fact::Exhausted { job, chunk } => {
                known(chunk)?;
                if !live(job)?.references.contains(&chunk) {
                    return Err(Contradiction::NotReferenced { job, chunk });
                }
            }
            Fact::Loading { chunk, bytes } => match *known(chunk)? {
                Chunk { life: Life::Loading { bytes: known, .. }, size, .. } => {
                    if !(known..=size).contains(&bytes.0) {
                        let (known, size) = (ByteSize(known), ByteSize(size));
                        return Err(Contradiction::WrongLength { chunk, bytes, known, size });
                    }
                }
                _ => return Err(Contradiction::NotLoading { chunk }),
            },
            Fact::Loaded { chunk } => {
                if !matches!(known(chunk)?.life, Life::Loading { .. }) {
                    return Err(Contradiction::NotLoading { chunk });
                }
            }
            Fact::Evicted { chunk } => {
                if known(chunk)?.life != Life::Evicting {
                    return Err(Contradiction::NotEvicting { chunk });
                }
            }
            Fact::Found { chunk } => {
                if known(chunk)?.life != Life::Absent {
                    return Err(Contradiction::FoundTwice { chunk });
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, fact: Fact<'_>) {
        let now = self.now;
        match fact {
            Fact::Joined { job } => {
                let member = Member {
                    heard_at: now,
                    was_silent: Duration::ZERO,
                    unread: self.sizes(),
                    unread_total: self.sizes().iter().sum(),
                    pace: 0,
                    reported_at: now,
                    references: BTreeSet::new(),
                    focus: None,
                };
                self.jobs.insert(job, member);
            }
            Fact::Renewed { job } => {
                self.heard(job);
            }
            Fact::Progress { job, unread, pace } => {
                let member = self.heard(job);
                for (chunk, unread) in unread {
                    member.set_unread(*chunk, unread.0);
                }
                member.pace = pace.0.0;
                member.reported_at = now;
            }
            Fact::Referenced { job, chunk } => {
                self.heard(job).references.insert(chunk);
            }
            Fact::Exhausted { job, chunk } => {
                let member = self.heard(job);
                member.set_unread(chunk, 0);
                member.references.remove(&chunk);
                let first_done = &mut self.chunk_mut(chunk).first_done;
                *first_done = first_done.or(Some(now));
            }
            Fact::NextEpoch { job } => {
                let sizes = self.sizes();
                let member = self.heard(job);
                member.unread_total = sizes.iter().sum();
                member.unread = sizes;
                member.references.clear();
                member.reported_at = now;
            }
            Fact::Left { job } => {
                self.jobs.remove(&job);
            }
            Fact::Loading { chunk, bytes } => {
                if let Life::Loading { bytes: known, .. } = &mut self.chunk_mut(chunk).life {
                    *known = bytes.0;
                }
                self.measure(chunk, false);
            }
            Fact::Loaded { chunk } => {
                self.measure(chunk, true);
                self.chunk_mut(chunk).life = Life::Loaded;
            }
            Fact::Evicted { chunk } => self.chunk_mut(chunk).life = Life::Absent,
            Fact::Found { chunk } => {
                self.turns += 1;
                let turn = self.turns;
                let found = self.chunk_mut(chunk);
                (found.life, found.turn) = (Life::Loaded, turn);
            }
            Fact::Budget { chunks } => {
                self.budget = chunks as usize;
                if self.budget >= self.chunks.len() {
                    // All of them may stay.
                    self.chunks.iter_mut().for_each(|chunk| chunk.marked = false);
                }
            }
            Fact::Tick => {}
        }
    }

    /// Whether a chunk stays for good (ours).
    pub fn hold(&mut self, chunk: ChunkOrdinal, held: bool) {
        self.chunk_mut(chunk).held = held;
    }

    /// Carries out an order, as far as the books are concerned.
    pub fn obey(&mut self, order: Order) {
        let now = self.now;
        match order {
            Order::Load(chunk) => {
                assert!(self.resident().count() < self.budget, "no room to load chunk {}", chunk.0);
                self.turns += 1;
                let turn = self.turns;
                let loading = self.chunk_mut(chunk);
                assert_eq!(loading.life, Life::Absent, "chunk {} is there", chunk.0);
                loading.life = Life::Loading { since: now, bytes: 0 };
                (loading.turn, loading.first_done) = (turn, None);
            }
            Order::Mark(chunk) => {
                self.chunk_mut(chunk).marked = true;
                // It was open to all who are here, even if they have not come to it yet.
                for job in self.jobs.values_mut().filter(|job| job.unread_of(chunk) > 0) {
                    job.references.insert(chunk);
                }
            }
            Order::Evict { chunk, .. } => {
                let leaving = self.chunk_mut(chunk);
                assert!(leaving.is_open(), "chunk {} is not there", chunk.0);
                (leaving.life, leaving.marked, leaving.held) = (Life::Evicting, false, false);
                for job in self.jobs.values_mut() {
                    job.references.remove(&chunk);
                }
            }
        }
    }

    fn sizes(&self) -> Vec<u64> {
        self.chunks.iter().map(|chunk| chunk.size).collect()
    }

    fn heard(&mut self, job: Job) -> &mut Member {
        let member = self.jobs.get_mut(&job).expect("checked before");
        let silent = self.now.saturating_sub(member.heard_at);
        if !silent.is_zero() {
            member.was_silent = silent.max(member.was_silent * 7 / 8);
            member.heard_at = self.now;
        }
        member
    }

    /// Learns from a load how long loads take: that they have become slower at once, and even before the
    /// load is over; that they have become faster little by little. From a small part nothing is learnt:
    /// hardly anything was missing.
    fn measure(&mut self, chunk: ChunkOrdinal, is_over: bool) {
        let (size, life) = (self.chunk(chunk).size, self.chunk(chunk).life);
        let Life::Loading { since, bytes } = life else { unreachable!("checked before") };
        let took = self.now.saturating_sub(since);
        let load_time = match (is_over, bytes) {
            (false, _) => self.load_time.max(took),
            (true, bytes) if bytes == 0 || bytes < size / LEARNT_FROM => self.load_time,
            (true, bytes) => {
                let whole = took.as_secs_f64() * (size as f64 / bytes as f64);
                let whole = Duration::try_from_secs_f64(whole).unwrap_or(LOAD_TIME_MAX);
                whole.max((self.load_time * 3 + whole) / 4)
            }
        };
        self.load_time = load_time.clamp(LOAD_TIME_MIN, LOAD_TIME_MAX);
    }
}
