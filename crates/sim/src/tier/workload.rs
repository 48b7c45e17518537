//! Workload: what jobs read, in which order and when.
//!
//! The tier does not slow readers down. They read at their own rate whether they hit or miss, as in
//! the paper's evaluation. So every policy and the optimum get the same requests.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use forebay_core::{
    ByteSize,
    tier::{Bucket, Job, Request, Segment, Spec, Stage},
    units::ByteRate,
};

/// Segments that a reader takes at a time.
const SPLIT: usize = 16;
/// Time after which the rate of a job changes.
const RATE_PERIOD: Duration = Duration::from_mins(5);

/// Order in which a job reads a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Order {
    /// From the beginning to the end; readers take splits in turn.
    Sequence,
    /// From the end to the beginning.
    Reverse,
    /// Each reader reads its own part from beginning to end.
    Parts,
    /// At random within a window of this share of the stage; 1 is a full shuffle.
    Shuffle(f64),
}

/// When a job announces its specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// At the start of the simulation, while the job is queued.
    Queued,
    /// When its wave is launched.
    Launch,
    /// When it starts.
    Start,
    /// Never.
    Never,
}

/// All or some columns of a partition: a bucket of the policy.
#[derive(Debug, Clone)]
pub struct Part {
    /// Name of the partition.
    pub name: String,
    /// Number of segments.
    pub segments: u32,
    /// Number of its first segment, over all parts.
    pub first: u32,
    /// Its table.
    pub table: u32,
}

/// A simulated job.
#[derive(Debug, Clone)]
pub struct Reader {
    /// Its name.
    pub name: String,
    /// What it reads: stages of parts that are read side by side.
    pub stages: Vec<Vec<u32>>,
    /// What it announces, if that differs from what it reads.
    pub says: Option<Vec<Vec<u32>>>,
    /// Launch of its wave.
    pub launched: Duration,
    /// Its first read.
    pub starts: Duration,
    /// Rate of all its readers together.
    pub rate: ByteRate,
    /// Number of parallel readers.
    pub readers: u32,
    /// Reading order.
    pub order: Order,
    /// When it announces its specification.
    pub announced: Announced,
    /// Share of its stages after which it stops.
    pub stops_after: f64,
}

/// All parts and jobs of a setup.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Length of a segment.
    pub segment: ByteSize,
    /// All parts.
    pub parts: Vec<Part>,
    /// All jobs.
    pub jobs: Vec<Reader>,
    /// Share by which rates vary, up and down.
    pub vary: f64,
    /// Seed of all random choices.
    pub seed: u64,
}

/// An event of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The job of this index announces its specification.
    Announced(usize),
    /// A read of one segment.
    Read(Request),
    /// The job of this index has ended.
    Ended(usize),
}

impl Workload {
    /// All events in time order.
    pub fn events(&self) -> Events<'_> {
        let mut queue = BinaryHeap::new();
        for (index, job) in self.jobs.iter().enumerate() {
            let announced = match job.announced {
                Announced::Queued => Some(Duration::ZERO),
                Announced::Launch => Some(job.launched),
                Announced::Start => Some(job.starts),
                Announced::Never => None,
            };
            if let Some(at) = announced {
                queue.push(Reverse((nanos(at), false, index, Step::Announce)));
            }
            queue.push(Reverse((nanos(job.starts), true, index, Step::Read)));
        }
        let progress =
            |job: &Reader| Progress { left: self.segments_of(job), ..Progress::default() };
        let progress = self.jobs.iter().map(progress).collect();
        Events { workload: self, queue, progress }
    }

    /// Duration of a job at its mean rate.
    pub fn duration(&self, job: &Reader) -> Duration {
        let bytes = self.segments_of(job) as f64 * self.segment.0 as f64;
        Duration::from_secs_f64(bytes / job.rate.0.0 as f64)
    }

    /// Number of segments that a job reads.
    pub fn segments_of(&self, job: &Reader) -> u64 {
        let parts = job.stages.iter().flatten();
        let all = parts.map(|part| u64::from(self.parts[*part as usize].segments)).sum::<u64>();
        share(all, job.stops_after)
    }

    /// Number of segments of all parts.
    pub fn segments(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.segments)).sum()
    }

    /// Number of reads of all jobs.
    pub fn reads(&self) -> u64 {
        self.jobs.iter().map(|job| self.segments_of(job)).sum()
    }

    /// Specification of a job as announced to each of `nodes` nodes.
    pub fn spec(&self, job: usize, nodes: u32) -> Spec {
        let reader = &self.jobs[job];
        let stages = reader.says.as_ref().unwrap_or(&reader.stages);
        let bytes = |part: u32| {
            let segments = u64::from(self.parts[part as usize].segments);
            ByteSize(segments * self.segment.0 / u64::from(nodes))
        };
        let stage = |parts: &Vec<u32>| Stage {
            buckets: parts.iter().map(|part| (Bucket(*part), bytes(*part))).collect(),
        };
        Spec {
            stages: stages.iter().map(stage).collect(),
            rate: Some(ByteRate(ByteSize((reader.rate.0.0 / u64::from(nodes)).max(1)))),
            starts: None,
            lease: None,
        }
    }

    /// Segments of a stage in reading order: part, and number in the part.
    fn order(&self, job: usize, stage: usize) -> Vec<(u32, u32)> {
        let reader = &self.jobs[job];
        let parts = &reader.stages[stage];
        let mut segments: Vec<(u32, u32)> = match &parts[..] {
            [part] => (0..self.parts[*part as usize].segments).map(|at| (*part, at)).collect(),
            parts => {
                side_by_side(parts.iter().map(|part| (*part, self.parts[*part as usize].segments)))
            }
        };
        let mut random = fastrand::Rng::with_seed(
            self.seed ^ (job as u64 + 1).wrapping_mul(0x9e37_79b9) ^ (stage as u64) << 40,
        );
        let readers = reader.readers.max(1) as usize;
        match reader.order {
            Order::Sequence => take_turns(&segments, readers),
            Order::Reverse => {
                segments.reverse();
                take_turns(&segments, readers)
            }
            Order::Parts => {
                let each = segments.len().div_ceil(readers).max(1);
                let parts: Vec<_> = segments.chunks(each).collect();
                let turns =
                    (0..each).flat_map(|at| parts.iter().filter_map(move |part| part.get(at)));
                turns.copied().collect()
            }
            Order::Shuffle(window) if window >= 1.0 => {
                random.shuffle(&mut segments);
                segments
            }
            Order::Shuffle(window) => {
                let width = window * segments.len() as f64;
                let mut keyed: Vec<(f64, (u32, u32))> = segments
                    .into_iter()
                    .enumerate()
                    .map(|(at, segment)| (at as f64 + random.f64() * width, segment))
                    .collect();
                keyed.sort_by(|one, other| one.0.total_cmp(&other.0));
                keyed.into_iter().map(|(_, segment)| segment).collect()
            }
        }
    }

    /// Nanoseconds per segment of a job at this time.
    fn interval(&self, job: usize, now: u64) -> u64 {
        let rate = self.jobs[job].rate.0.0 as f64;
        let factor = if self.vary > 0.0 {
            let period = now / nanos(RATE_PERIOD);
            let mut random = fastrand::Rng::with_seed(self.seed ^ (job as u64) << 32 ^ period);
            1.0 + self.vary * (2.0 * random.f64() - 1.0)
        } else {
            1.0
        };
        whole(self.segment.0 as f64 / (rate * factor) * 1e9).max(1)
    }
}

/// Interleaves parts of different lengths evenly.
fn side_by_side(parts: impl Iterator<Item = (u32, u32)>) -> Vec<(u32, u32)> {
    let mut placed: Vec<(f64, u32, u32)> = Vec::new();
    for (part, segments) in parts {
        let relative = |at: u32| ((f64::from(at) + 0.5) / f64::from(segments), part, at);
        placed.extend((0..segments).map(relative));
    }
    placed.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    placed.into_iter().map(|(_, part, at)| (part, at)).collect()
}

/// Hands splits to readers in turn, which read them side by side.
fn take_turns(segments: &[(u32, u32)], readers: usize) -> Vec<(u32, u32)> {
    let mut taken = Vec::with_capacity(segments.len());
    for round in segments.chunks(SPLIT * readers) {
        let splits: Vec<_> = round.chunks(SPLIT).collect();
        for at in 0..SPLIT {
            taken.extend(splits.iter().filter_map(|split| split.get(at)));
        }
    }
    taken
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Announce,
    Read,
}

/// Progress of a job.
#[derive(Debug, Default)]
struct Progress {
    stage: usize,
    at: usize,
    left: u64,
    order: Vec<(u32, u32)>,
}

/// Iterator over the events of a workload.
#[derive(Debug)]
pub struct Events<'a> {
    workload: &'a Workload,
    queue: BinaryHeap<Reverse<(u64, bool, usize, Step)>>,
    progress: Vec<Progress>,
}

impl Iterator for Events<'_> {
    type Item = (Duration, Event);

    fn next(&mut self) -> Option<Self::Item> {
        let mut top = self.queue.peek_mut()?;
        let Reverse((now, _, job, step)) = *top;
        let at = Duration::from_nanos(now);
        if step == Step::Announce {
            std::collections::binary_heap::PeekMut::pop(top);
            return Some((at, Event::Announced(job)));
        }
        let workload = self.workload;
        let reader = &workload.jobs[job];
        let progress = &mut self.progress[job];
        while progress.at == progress.order.len() && progress.stage < reader.stages.len() {
            progress.order = workload.order(job, progress.stage);
            (progress.stage, progress.at) = (progress.stage + 1, 0);
        }
        let next = progress.order.get(progress.at);
        let (Some((part, number)), true) = (next, progress.left > 0) else {
            std::collections::binary_heap::PeekMut::pop(top);
            progress.order = Vec::new();
            return Some((at, Event::Ended(job)));
        };
        progress.at += 1;
        progress.left -= 1;
        let segment = Segment(u64::from(workload.parts[*part as usize].first + number));
        let length = u32::try_from(workload.segment.0).expect("a segment is at most 1 GiB");
        let request = Request::whole(segment, Bucket(*part), Some(Job(job as u64)), length);
        top.0.0 = now.saturating_add(workload.interval(job, now));
        Some((at, Event::Read(request)))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a scenario is at most a year long")
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a positive time or count, rounded down"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

/// A share of a count, rounded.
pub(super) fn share(of: u64, share: f64) -> u64 {
    whole((of as f64 * share).round())
}
