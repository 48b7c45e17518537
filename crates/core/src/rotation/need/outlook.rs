//! What is to be expected: how long each job can go on with what is open, what it could read of a chunk
//! until that goes, and what bringing a chunk is worth.

use std::time::Duration;

use super::super::{
    Job,
    books::{Books, Life, Member},
};
use crate::chunking::ChunkOrdinal;

/// Chunks that nobody needs may go a little before there is need: it costs nothing.
const EARLY: u32 = 2;
/// Jobs whose speeds differ by less go alike: they are measured, and vary.
const ALIKE: f64 = 1.1;
const PIECES: f64 = 1.0;
/// Wakes no sooner than this: estimates are not that exact.
const WAKE_MIN: Duration = Duration::from_millis(1);

/// A job, and how it gets on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace<'a> {
    pub job: Job,
    pub member: &'a Member,
    /// Bytes a second that it draws from what is not held.
    pub speed: f64,
    /// How long what is open to it will last.
    pub supply: Duration,
    /// Whether it has anything unread that is not open.
    pub wants_more: bool,
    /// How near the end of its epoch is: nought if every chunk will return before that, one at the end.
    scarcity: f64,
}

impl Pace<'_> {
    /// Whether this one is clearly faster.
    fn is_faster_than(&self, other: &Pace<'_>) -> bool {
        self.speed > other.speed * ALIKE
    }
}

#[derive(Debug)]
pub(super) struct Outlook<'a> {
    pub books: &'a Books,
    paces: Vec<Pace<'a>>,
    /// How long the fastest job takes for a chunk.
    period_s: f64,
    speed_max: f64,
}

impl<'a> Outlook<'a> {
    pub fn new(books: &'a Books) -> Self {
        let mut paces: Vec<Pace<'a>> =
            books.jobs.iter().map(|(job, member)| pace(books, *job, member)).collect();
        let speed_max = paces.iter().map(|pace| pace.speed).fold(0.0, f64::max);
        let size_max = books.chunks.iter().map(|chunk| chunk.size).max().unwrap_or(0);
        let period_s = size_max as f64 / speed_max.max(1.0);
        let turn_s = period_s * (books.chunks.len() - books.held().count()) as f64;
        for pace in &mut paces {
            let epoch_s = pace.member.unread_total as f64 / pace.member.pace.max(1) as f64;
            pace.scarcity = (1.0 - epoch_s / turn_s).clamp(0.0, 1.0);
        }
        Self { books, paces, period_s, speed_max }
    }

    /// All jobs, in the order of their numbers.
    pub fn paces(&self) -> impl Iterator<Item = &Pace<'a>> {
        self.paces.iter()
    }

    /// The jobs that will soon have nothing open, the neediest first.
    pub fn needs(&self) -> impl Iterator<Item = &Pace<'a>> {
        let mut needs: Vec<&Pace<'a>> =
            self.paces().filter(|pace| pace.wants_more && pace.supply < self.early()).collect();
        needs.sort_by_key(|pace| (pace.supply, pace.job));
        needs.into_iter()
    }

    /// When there will be need that there is not now.
    pub fn next_need(&self) -> Option<Duration> {
        let thresholds = [self.early(), self.books.load_time, Duration::ZERO];
        let waits =
            self.paces().filter(|pace| pace.wants_more && pace.speed > 0.0).flat_map(|pace| {
                thresholds.map(|threshold| {
                    pace.supply.checked_sub(threshold).filter(|wait| !wait.is_zero())
                })
            });
        let wait = waits.flatten().min()?;
        self.books.now.checked_add(wait.max(WAKE_MIN))
    }

    fn early(&self) -> Duration {
        self.books.load_time.saturating_mul(EARLY)
    }

    /// The chunk that is best brought for a job, if any is worth it.
    pub fn next(&self, need: &Pace<'_>) -> Option<ChunkOrdinal> {
        let absent = self.books.ordinals().filter(|chunk| {
            self.books.chunk(*chunk).life == Life::Absent && need.member.unread_of(*chunk) > 0
        });
        let worth = absent.map(|chunk| (self.worth(need, chunk), chunk));
        let (worth, chunk) = worth.reduce(|best, other| {
            let turn = |chunk: ChunkOrdinal| self.books.chunk(chunk).turn;
            let is_better = match other.0.total_cmp(&best.0) {
                std::cmp::Ordering::Equal => turn(other.1) < turn(best.1),
                order => order.is_gt(),
            };
            if is_better { other } else { best }
        })?;
        let is_crumbs = need.member.unread_of(chunk) < self.books.chunk(chunk).size / 4;
        (worth > 0.0 || (self.is_fast(need) && !is_crumbs)).then_some(chunk)
    }

    /// What jobs will read of a chunk that comes now, without what is lost to those who will not find it
    /// again in time, and without what the origin has to give for it in addition.
    fn worth(&self, need: &Pace<'_>, chunk: ChunkOrdinal) -> f64 {
        let stays_s = need.supply.as_secs_f64() + 2.0 * self.period_s
            - self.books.load_time.as_secs_f64().min(self.period_s);
        let (mut worth, mut union, mut returns) = (0.0, 0.0, false);
        for pace in self.paces() {
            let unread = pace.member.unread_of(chunk) as f64;
            let free_s = (stays_s - pace.supply.as_secs_f64()).max(0.0);
            let read = unread.min(pace.speed * free_s);
            worth += read - (unread - read) * pace.scarcity;
            union = unread.max(union);
            returns |= self.is_fast(pace) && unread * 2.0 > self.books.chunk(chunk).size as f64;
        }
        if returns { worth } else { worth - union }
    }

    /// Whether a job is one of those who set the pace.
    fn is_fast(&self, pace: &Pace<'_>) -> bool {
        pace.speed * ALIKE >= self.speed_max
    }

    /// Whether a job in need may have a chunk evicted with which it has done: if nobody else needs it, or
    /// if waiting for those who do would cost more than what they may have to fetch again.
    pub fn may_take(&self, need: &Pace<'_>, chunk: ChunkOrdinal, next: ChunkOrdinal) -> bool {
        let readers: Vec<&Pace<'a>> =
            self.paces().filter(|pace| pace.member.unread_of(chunk) > 0).collect();
        if readers.is_empty() {
            return true;
        }
        if need.supply >= self.books.load_time || self.books.chunk(chunk).life != Life::Loaded {
            return false;
        }
        let size = self.books.chunk(chunk).size as f64;
        let gained = need.member.unread_of(next) as f64;
        let mut lost_in_all = 0.0;
        readers.into_iter().all(|reader| {
            let unread = reader.member.unread_of(chunk) as f64;
            let is_begun = reader.member.focus == Some(chunk);
            let done_s =
                if is_begun { unread / reader.speed.max(1.0) } else { reader.supply.as_secs_f64() };
            let lost = if reader.is_faster_than(need) {
                unread
            } else if need.is_faster_than(reader) {
                unread * reader.scarcity
            } else {
                unread * reader.scarcity + (size - unread) * PIECES
            };
            lost_in_all += lost;
            let starved_s = (done_s - need.supply.as_secs_f64()).max(0.0);
            lost < need.speed * starved_s && lost_in_all < gained
        })
    }

    /// How much of a chunk a job can read before others want it gone.
    pub fn readable(&self, pace: &Pace<'_>, chunk: ChunkOrdinal) -> u64 {
        let unread = pace.member.unread_of(chunk);
        let others =
            self.paces().filter(|other| other.job != pace.job && !pace.is_faster_than(other));
        let stays_s = others.map(|other| {
            let reads_on = if other.member.unread_of(chunk) > 0 { self.period_s } else { 0.0 };
            let needs_at = match other.is_faster_than(pace) {
                true => other.supply.saturating_sub(self.books.load_time),
                false => other.supply,
            };
            needs_at.as_secs_f64() + reads_on
        });
        let stays_s = stays_s.fold(f64::INFINITY, f64::min);
        let readable = pace.speed * stays_s;
        if readable < unread as f64 { readable as u64 } else { unread }
    }
}

fn pace<'a>(books: &Books, job: Job, member: &'a Member) -> Pace<'a> {
    let unread = |chunk: ChunkOrdinal| member.unread_of(chunk);
    let held: u64 = books.held().map(unread).sum();
    let open: u64 = books.rotating().map(unread).sum();
    let rest = member.unread_total - held;
    let speed = match member.unread_total {
        0 => 0.0,
        total => member.pace as f64 * (rest as f64 / total as f64),
    };
    // What is open at the end of an epoch is open at the beginning of the next.
    let wants_more = rest > open;
    let again: u64 = books.rotating().map(|chunk| books.chunk(chunk).size).sum();
    let supply = open.saturating_add(if wants_more { 0 } else { again });
    let lasts = match supply {
        0 => Duration::ZERO,
        _ => Duration::try_from_secs_f64(supply as f64 / speed).unwrap_or(Duration::MAX),
    };
    let since = books.now.saturating_sub(member.reported_at);
    // Until it says so, a job has not read the last of what is open.
    let supply = if supply == 0 { lasts } else { lasts.saturating_sub(since).max(WAKE_MIN) };
    Pace { job, member, speed, supply, wants_more, scarcity: 0.0 }
}
