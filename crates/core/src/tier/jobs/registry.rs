//! Who reads what: jobs inferred from the tags of requests, and enriched by specifications.
//!
//! A job and a bucket together are a **reading**: which of the bucket's segments the job has read (bits, by
//! their places), how far along the trail it is, and whether it comes at all. A job that was
//! never announced gets its readings as it reads: whoever has begun a bucket is expected to go on.
//!
//! A specification is believed until it is refuted. A job that reads much that it did not name loses its
//! specification; one that is not heard of loses everything. Both are counted.
//!
//! Not here: when a segment is due (`next_use::outlook`).

use std::time::Duration;

use super::{
    contradiction::{Contradiction, JOBS_MAX, STAGES_MAX},
    followed::Followed,
    history::Sight,
    words::{Bucket, Job, Request, Spec},
};
use crate::{
    ByteSize,
    stable::{StableMap, StableSet},
};

/// A place in the slab of jobs.
pub(super) type JobIndex = u32;
/// A place in the slab of readings.
pub(super) type ReadingIndex = u32;

/// So many jobs of one bucket can be told apart at once.
pub(super) const READERS_MAX: usize = 64;
/// So many readings are known at once, some hundred bytes each.
const READINGS_MAX: usize = 1 << 22;
/// So many places of a bucket are told apart, a bit each (at 256 KiB: 64 TiB).
const PLACES_MAX: u32 = 1 << 28;
/// How long a job that was announced but has not started is waited for, unless it says so itself.
const QUEUE_LEASE: Duration = Duration::from_hours(24);
/// A job that has gone on to another bucket may come back for what its slower readers left.
const STRAGGLING: Duration = Duration::from_mins(1);
/// So many reads outside its specification refute it, if they are also an eighth of all.
const UNNAMED_READS: u64 = 64;
/// A rate is what was read in the last few ticks.
const RATE_GAIN: f64 = 0.3;
/// Until anything is known: what one reader of the paper's does.
const RATE_GUESS: f64 = 1.5e9;

/// What happened that should not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobCounters {
    /// Jobs that nobody had announced.
    pub inferred: u64,
    /// Requests without a tag.
    pub untagged: u64,
    /// Requests of an announced job for what it had not named.
    pub unnamed_reads: u64,
    /// Specifications that were set aside because of such reads.
    pub refuted: u64,
    /// Jobs that were not heard of in time.
    pub expired: u64,
    /// Readings that could not be told apart from others, because a bucket has too many readers, or jobs too many buckets.
    pub crowded: u64,
    /// Facts that cannot be.
    pub contradictions: u64,
}

/// What an announced job said.
#[derive(Debug)]
struct Plan {
    /// Bytes before each stage, and after the last.
    before: Vec<u64>,
    starts: Option<Duration>,
    rate: Option<f64>,
    lease: Option<Duration>,
}

/// A job.
#[derive(Debug)]
pub(super) struct State {
    id: Job,
    plan: Option<Plan>,
    heard: Duration,
    pub started: bool,
    /// The stage it is in, and what it has read of it.
    stage: u32,
    stage_bytes: u64,
    bytes: u64,
    tick_bytes: u64,
    rate: f64,
    /// How far from its place on the trail a segment is read, as a share of the bucket.
    pub scatter: f64,
    reads: u64,
    unnamed: u64,
    readings: Vec<ReadingIndex>,
    latest: Option<(Bucket, ReadingIndex)>,
    /// What became of the segments that it brought.
    pub followed: Followed,
}

impl State {
    /// What it reads in a second, in bytes.
    pub fn rate(&self) -> f64 {
        let stated = || self.plan.as_ref().and_then(|plan| plan.rate).unwrap_or(RATE_GUESS);
        if self.rate > 0.0 { self.rate.max(1.0) } else { stated().max(1.0) }
    }
}

/// A job and a bucket.
#[derive(Debug)]
pub(super) struct Reading {
    pub job: JobIndex,
    pub bucket: Bucket,
    /// Where the job's specification has it, and how long it says the bucket is.
    pub stage: Option<u32>,
    pub size: u64,
    /// Which of the bucket's readers it is: a bit in the masks of residents.
    pub bit: u8,
    read: Vec<u64>,
    pub segments: u64,
    pub bytes: u64,
    /// How far along the trail.
    pub head: f64,
    last: Duration,
}

impl Reading {
    pub fn has_read(&self, place: u32) -> bool {
        self.read.get(place as usize / 64).is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    fn mark(&mut self, place: u32) {
        if place >= PLACES_MAX {
            return;
        }
        let word = place as usize / 64;
        if word >= self.read.len() {
            self.read.resize(word + 1, 0);
        }
        self.read[word] |= 1 << (place % 64);
    }
}

/// All jobs that are known.
#[derive(Debug)]
pub(super) struct Jobs {
    lease: Duration,
    ids: StableMap<Job, JobIndex>,
    states: Vec<Option<State>>,
    readings: Vec<Option<Reading>>,
    free_states: Vec<JobIndex>,
    free_readings: Vec<ReadingIndex>,
    readers: StableMap<Bucket, Vec<Option<ReadingIndex>>>,
    /// Bits that were another's before and may still be set in masks.
    pub reused: Vec<(Bucket, u8)>,
    ticked: Duration,
    segment_bytes: f64,
    pub counters: JobCounters,
}

impl Jobs {
    /// Nobody is known yet; segments are usually so long.
    pub fn new(lease: Duration, segment: ByteSize) -> Self {
        Self {
            lease,
            ids: StableMap::default(),
            states: Vec::new(),
            readings: Vec::new(),
            free_states: Vec::new(),
            free_readings: Vec::new(),
            readers: StableMap::default(),
            reused: Vec::new(),
            ticked: Duration::ZERO,
            segment_bytes: segment.0 as f64,
            counters: JobCounters::default(),
        }
    }

    /// A job is announced.
    pub fn announce(&mut self, now: Duration, job: Job, spec: &Spec) -> Result<(), Contradiction> {
        let checked = self.check(now, job, spec);
        let before = checked.inspect_err(|_| self.counters.contradictions += 1)?;
        let index = self.state_of(job, now);
        // What it reads already it goes on reading; what was only promised is forgotten.
        self.forget_promises(index);
        for (stage, buckets) in spec.stages.iter().enumerate() {
            let stage = u32::try_from(stage).expect("stages are counted");
            for (bucket, size) in &buckets.buckets {
                if let Some(reading) = self.reading_of(index, *bucket, now) {
                    let reading = self.reading_mut(reading);
                    (reading.stage, reading.size) = (Some(stage), size.0);
                }
            }
        }
        let rate = spec.rate.map(|rate| rate.0.0 as f64);
        let state = self.state_mut(index);
        state.plan = Some(Plan { before, starts: spec.starts, rate, lease: spec.lease });
        (state.heard, state.unnamed, state.reads) = (now, 0, 0);
        (state.stage, state.stage_bytes) = (0, 0);
        Ok(())
    }

    fn check(&self, now: Duration, job: Job, spec: &Spec) -> Result<Vec<u64>, Contradiction> {
        if self.ids.len() >= JOBS_MAX && !self.ids.contains_key(&job) {
            return Err(Contradiction::TooManyJobs);
        }
        if spec.stages.iter().all(|stage| stage.buckets.is_empty()) {
            return Err(Contradiction::Empty { job });
        }
        if let Some(starts) = spec.starts.filter(|starts| *starts < now) {
            return Err(Contradiction::StartsInThePast { job, starts, now });
        }
        let mut seen = StableSet::default();
        let (mut before, mut sum) = (vec![0], 0_u64);
        for stage in &spec.stages {
            for (bucket, size) in &stage.buckets {
                if !seen.insert(*bucket) {
                    return Err(Contradiction::Repeated { job, bucket: *bucket });
                }
                sum = sum.checked_add(size.0).ok_or(Contradiction::TooLong { job })?;
            }
            before.push(sum);
        }
        let too_long = seen.len() > STAGES_MAX || spec.stages.len() > STAGES_MAX;
        if too_long { Err(Contradiction::TooLong { job }) } else { Ok(before) }
    }

    /// A job has ended.
    pub fn end(&mut self, job: Job) -> Result<(), Contradiction> {
        let Some(index) = self.ids.get(&job).copied() else {
            self.counters.contradictions += 1;
            return Err(Contradiction::UnknownJob { job });
        };
        self.forget(index);
        Ok(())
    }

    /// A job reads a segment. Returns its reading, unless nobody is known to read.
    #[inline]
    pub fn note(&mut self, now: Duration, request: &Request, sight: Sight) -> Option<ReadingIndex> {
        self.segment_bytes += (f64::from(request.bytes) - self.segment_bytes) / 64.0;
        let Some(job) = request.job else {
            self.counters.untagged += 1;
            return None;
        };
        let index = match self.ids.get(&job) {
            Some(index) => *index,
            None if self.ids.len() >= JOBS_MAX => return None,
            None => {
                self.counters.inferred += 1;
                self.state_of(job, now)
            }
        };
        let known = self.state(index).latest.filter(|(bucket, _)| *bucket == request.bucket);
        let reading_index = match known {
            Some((_, reading)) => reading,
            None => self.reading_of(index, request.bucket, now)?,
        };
        let state = self.states[index as usize].as_mut().expect("a job has its state");
        let reading = self.readings[reading_index as usize].as_mut().expect("it is there");
        let bytes = u64::from(request.bytes);
        state.latest = Some((request.bucket, reading_index));
        state.heard = now;
        state.started = true;
        state.reads += 1;
        state.bytes += bytes;
        state.tick_bytes += bytes;
        match reading.stage {
            Some(step) if step > state.stage => (state.stage, state.stage_bytes) = (step, bytes),
            Some(step) if step == state.stage => state.stage_bytes += bytes,
            None if state.plan.is_some() => {
                self.counters.unnamed_reads += 1;
                state.unnamed += 1;
            }
            _ => {}
        }
        // Along the trail, one by one, and now and then a look where that is.
        match sight.place {
            Some(place) if !sight.first => {
                let off = f64::from(place) - reading.head;
                if reading.segments == 0 {
                    reading.head = f64::from(place) + 1.0;
                } else {
                    let share = (off.abs() / f64::from(sight.trail.max(1))).min(1.0);
                    state.scatter += (share - state.scatter) / 256.0;
                    reading.head += 1.0 + (off - 1.0) / 16.0;
                }
            }
            _ => reading.head += 1.0,
        }
        if let Some(place) = sight.place {
            reading.mark(place);
        }
        reading.segments += 1;
        reading.bytes += bytes;
        reading.last = now;
        if state.unnamed > UNNAMED_READS && state.unnamed > state.reads / 8 && state.plan.is_some()
        {
            self.counters.refuted += 1;
            self.forget_promises(index);
        }
        Some(reading_index)
    }

    /// Rates are measured, and who was not heard of is forgotten.
    pub fn tick(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.ticked).as_secs_f64();
        if elapsed <= 0.0 {
            return;
        }
        self.ticked = now;
        let mut gone = Vec::new();
        for (index, state) in self.states.iter_mut().enumerate() {
            let Some(state) = state else { continue };
            let stated = state.plan.as_ref().and_then(|plan| plan.lease);
            let lease = if state.started {
                stated.unwrap_or(self.lease)
            } else {
                let waits = state.plan.as_ref().and_then(|plan| plan.starts);
                let waits =
                    waits.map_or(Duration::ZERO, |starts| starts.saturating_sub(state.heard));
                stated.unwrap_or(QUEUE_LEASE).saturating_add(waits)
            };
            if now.saturating_sub(state.heard) > lease {
                gone.push(JobIndex::try_from(index).expect("jobs are counted"));
            }
            let rate = std::mem::take(&mut state.tick_bytes) as f64 / elapsed;
            if state.rate > 0.0 {
                state.rate += RATE_GAIN * (rate - state.rate);
            } else if state.started {
                state.rate = rate;
            }
        }
        for index in gone {
            self.counters.expired += 1;
            self.forget(index);
        }
        self.forget_idle(now);
    }

    /// What a job has read of a bucket that it did not name is forgotten when it has not come back for long.
    fn forget_idle(&mut self, now: Duration) {
        let mut all_idle = Vec::new();
        let (readings, lease) = (&self.readings, self.lease);
        for state in self.states.iter_mut().flatten() {
            let latest = state.latest.map(|(_, reading)| reading);
            let idle = state.readings.extract_if(.., |index| {
                let reading = readings[*index as usize].as_ref().expect("it is listed");
                let unnamed = reading.stage.is_none() && Some(*index) != latest;
                unnamed && now.saturating_sub(reading.last) > lease
            });
            all_idle.extend(idle);
        }
        for index in all_idle {
            self.drop_reading(index);
        }
    }

    /// Is anybody known to read a bucket? If not, it is forgotten who did.
    pub fn is_read(&mut self, bucket: Bucket) -> bool {
        let Some(readers) = self.readers.get(&bucket) else { return false };
        if readers.iter().any(Option::is_some) {
            return true;
        }
        let bits = u8::try_from(readers.len()).expect("at most 64");
        self.readers.remove(&bucket);
        self.reused.extend((0..bits).map(|bit| (bucket, bit)));
        false
    }

    /// Forgets buckets that nobody is known to read any more, except where residents may have the bits of those who did.
    pub fn forget_unread(&mut self, may_have_bits: impl Fn(Bucket) -> bool) {
        self.readers.retain(|bucket, readers| {
            readers.iter().any(Option::is_some) || may_have_bits(*bucket)
        });
    }

    /// How many active jobs have named a bucket and not finished it (Shift's future priority).
    pub fn future_readers(&self, now: Duration, bucket: Bucket) -> u32 {
        let readers = self.readers(bucket);
        let counted = readers.filter(|(_, reading)| {
            let state = self.state(reading.job);
            state.started && reading.stage.is_some() && !self.finished(now, reading)
        });
        u32::try_from(counted.count()).expect("readers are counted")
    }

    /// Has a job read all that it will of a bucket?
    pub fn finished(&self, now: Duration, reading: &Reading) -> bool {
        let state = self.state(reading.job);
        if reading.size > 0 && reading.bytes >= reading.size {
            return true;
        }
        let elsewhere = state.latest.is_some_and(|(bucket, _)| bucket != reading.bucket);
        let idle = now.saturating_sub(reading.last) > STRAGGLING;
        reading.segments > 0 && elsewhere && idle
    }

    /// Who reads a bucket, or has named it; with their bits.
    pub fn readers(&self, bucket: Bucket) -> impl Iterator<Item = (ReadingIndex, &Reading)> {
        let readers = self.readers.get(&bucket).map_or(&[][..], |readers| readers);
        readers.iter().flatten().map(|index| (*index, self.reading(*index)))
    }

    /// The bits of those who have read this place.
    pub fn readers_of(&self, bucket: Bucket, place: u32) -> u64 {
        let readers = self.readers(bucket).filter(|(_, reading)| reading.has_read(place));
        readers.fold(0, |mask, (_, reading)| mask | 1 << reading.bit)
    }

    pub fn reading(&self, index: ReadingIndex) -> &Reading {
        self.readings[index as usize].as_ref().expect("readings are known while they are listed")
    }

    pub fn state(&self, index: JobIndex) -> &State {
        self.states[index as usize].as_ref().expect("jobs are known while they have readings")
    }

    /// What became of the segments that a job brought, if it is known still.
    pub fn followed(&mut self, job: Job) -> Option<&mut Followed> {
        let index = *self.ids.get(&job)?;
        Some(&mut self.state_mut(index).followed)
    }

    /// What a bucket's segments are long, on average over all.
    pub fn segment_bytes(&self) -> f64 {
        self.segment_bytes.max(1.0)
    }

    /// What share of its stage a reading is: side by side with others of the same stage.
    pub fn share_of_stage(&self, reading: &Reading) -> f64 {
        let state = self.state(reading.job);
        let (Some(plan), Some(step)) = (&state.plan, reading.stage) else { return 1.0 };
        let stage_bytes = plan.before[step as usize + 1] - plan.before[step as usize];
        if stage_bytes == 0 { 1.0 } else { reading.size as f64 / stage_bytes as f64 }
    }

    /// Bytes that a job reads before it comes to a reading that it has not begun, and when it starts
    /// reading at all; `None` if nobody says that it will.
    pub fn until(
        &self,
        now: Duration,
        reading: &Reading,
        unknown_start: Duration,
    ) -> Option<(f64, Duration)> {
        let state = self.state(reading.job);
        let plan = state.plan.as_ref()?;
        let step = reading.stage? as usize;
        if !state.started {
            let starts = plan.starts.map_or(unknown_start, |starts| starts.saturating_sub(now));
            return Some((plan.before[step] as f64, starts));
        }
        let all = *plan.before.last().expect("there is a sum of all stages") as f64;
        let bytes = if step >= state.stage as usize {
            let begun = plan.before[state.stage as usize] as f64 + state.stage_bytes as f64;
            (plan.before[step] as f64 - begun).max(0.0)
        } else {
            // It keeps to another order than it said; this may come at any time.
            (all - state.bytes as f64).max(0.0) / 2.0
        };
        Some((bytes, Duration::ZERO))
    }

    fn state_of(&mut self, job: Job, now: Duration) -> JobIndex {
        if let Some(index) = self.ids.get(&job) {
            return *index;
        }
        let state = State {
            id: job,
            plan: None,
            heard: now,
            started: false,
            stage: 0,
            stage_bytes: 0,
            bytes: 0,
            tick_bytes: 0,
            rate: 0.0,
            scatter: 0.0,
            reads: 0,
            unnamed: 0,
            readings: Vec::new(),
            latest: None,
            followed: Followed::default(),
        };
        let index = self.free_states.pop().unwrap_or_else(|| {
            self.states.push(None);
            JobIndex::try_from(self.states.len() - 1).expect("jobs are counted")
        });
        self.states[index as usize] = Some(state);
        self.ids.insert(job, index);
        index
    }

    /// The reading of a job and a bucket; a new one if there is a bit left for it.
    fn reading_of(&mut self, job: JobIndex, bucket: Bucket, now: Duration) -> Option<ReadingIndex> {
        let readers = self.readers.entry(bucket).or_default();
        for index in readers.iter().flatten() {
            let reading = self.readings[*index as usize].as_ref().expect("listed readings are");
            if reading.job == job {
                return Some(*index);
            }
        }
        if self.readings.len() - self.free_readings.len() >= READINGS_MAX {
            self.counters.crowded += 1;
            return None;
        }
        let bit = if readers.len() < READERS_MAX {
            readers.push(None);
            readers.len() - 1
        } else if let Some(bit) = readers.iter().position(Option::is_none) {
            self.reused.push((bucket, u8::try_from(bit).expect("one of 64")));
            bit
        } else {
            self.counters.crowded += 1;
            return None;
        };
        let reading = Reading {
            job,
            bucket,
            stage: None,
            size: 0,
            bit: u8::try_from(bit).expect("one of 64"),
            read: Vec::new(),
            segments: 0,
            bytes: 0,
            head: 0.0,
            last: now,
        };
        let index = self.free_readings.pop().unwrap_or_else(|| {
            self.readings.push(None);
            ReadingIndex::try_from(self.readings.len() - 1).expect("readings are counted")
        });
        self.readings[index as usize] = Some(reading);
        self.readers.get_mut(&bucket).expect("made above")[bit] = Some(index);
        self.state_mut(job).readings.push(index);
        Some(index)
    }

    /// A job's specification is not believed any more: what it has begun remains.
    fn forget_promises(&mut self, job: JobIndex) {
        let state = self.state_mut(job);
        state.plan = None;
        let readings = std::mem::take(&mut state.readings);
        let (begun, promised): (Vec<_>, Vec<_>) =
            readings.into_iter().partition(|index| self.reading(*index).segments > 0);
        for index in promised {
            self.drop_reading(index);
        }
        for index in &begun {
            let reading = self.reading_mut(*index);
            (reading.stage, reading.size) = (None, 0);
        }
        self.state_mut(job).readings = begun;
    }

    fn forget(&mut self, job: JobIndex) {
        let state = self.states[job as usize].take().expect("it is known");
        self.ids.remove(&state.id);
        for reading in state.readings {
            self.drop_reading(reading);
        }
        self.free_states.push(job);
    }

    fn drop_reading(&mut self, index: ReadingIndex) {
        let reading = self.readings[index as usize].take().expect("it is known");
        let readers = self.readers.get_mut(&reading.bucket).expect("it is listed");
        readers[usize::from(reading.bit)] = None;
        self.free_readings.push(index);
    }

    fn state_mut(&mut self, index: JobIndex) -> &mut State {
        self.states[index as usize].as_mut().expect("jobs are known while they have readings")
    }

    fn reading_mut(&mut self, index: ReadingIndex) -> &mut Reading {
        self.readings[index as usize].as_mut().expect("readings are known while they are listed")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::{
            Changes, Fact, Policy,
            words::{Segment, Stage},
        },
        *,
    };

    /// Promise 6 (bounded): one job is announced again and again, each time with other buckets, and reads none of them. Says
    /// of how many buckets it is known who reads them.
    pub fn announced_anew<P: Policy>(mut policy: P, jobs: impl Fn(&P) -> &Jobs) -> usize {
        let request = Request { segment: Segment(0), bucket: Bucket(0), job: None, bytes: 1 };
        for round in 0..100 {
            let now = Duration::from_mins(round);
            let bucket = Bucket(u32::try_from(round).expect("a few"));
            let stages = vec![Stage { buckets: vec![(bucket, ByteSize(1))] }];
            let spec = Spec { stages, rate: None, starts: None, lease: None };
            policy.tell(now, Fact::Announced { job: Job(1), spec: &spec }).expect("it can be");
            policy.request(now, &request, &mut Changes::default());
        }
        jobs(&policy).readers.len()
    }
}
