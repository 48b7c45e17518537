//! What is to be expected: how long each job can go on with what is open, what it can still read of a
//! chunk, what bringing one is worth, and what taking one away costs. All of it is in bytes that the
//! origin has to give, so that one can be weighed against the other.

use std::{cmp::Ordering, time::Duration};

use super::super::{
    Job,
    books::{Books, Life, Member},
};
use crate::chunking::ChunkOrdinal;

/// A chunk that nobody needs may go a little before there is need: that costs nothing.
const EARLY: u32 = 2;
/// Jobs whose speeds differ by less go alike: speeds are measured, and vary.
const ALIKE: f64 = 1.1;
/// Less than this share of a chunk is no reason to bring it.
const CRUMBS: u64 = 4;
/// What is fetched for slow jobs alone must be shared by more than this many.
const SHARED: f64 = 2.0;
/// Nobody is woken sooner than this: estimates are not that exact.
const WAKE_MIN: Duration = Duration::from_millis(1);

/// A job, and how it gets on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace<'a> {
    pub job: Job,
    pub member: &'a Member,
    /// Bytes a second that it draws from what is not held.
    speed: f64,
    /// How long what is open to it will last.
    supply: Duration,
    /// Whether it has anything unread that is not open.
    wants_more: bool,
    /// How near the end of its epoch is, in turns of the fastest: nought as long as every chunk will
    /// return before, one at the end. What a job leaves of a chunk is lost to it in that proportion.
    scarcity: f64,
}

impl<'a> Pace<'a> {
    fn new(
        books: &Books,
        held: &[ChunkOrdinal],
        rotating: &[ChunkOrdinal],
        job: Job,
        member: &'a Member,
    ) -> Self {
        let unread = |chunks: &[ChunkOrdinal]| -> u64 {
            chunks.iter().map(|chunk| member.unread_of(*chunk)).sum()
        };
        let (held, open) = (unread(held), unread(rotating));
        let rest = member.unread_total - held;
        let speed = match member.unread_total {
            0 => 0.0,
            total => member.pace as f64 * (rest as f64 / total as f64),
        };
        let wants_more = rest > open;
        // What is open at the end of an epoch is open, and unread, at the beginning of the next.
        let again: u64 = rotating.iter().map(|chunk| books.chunk(*chunk).size).sum();
        let open = if wants_more { open } else { open.saturating_add(again) };
        let lasts = Duration::try_from_secs_f64(open as f64 / speed).unwrap_or(Duration::MAX);
        let since = books.now.saturating_sub(member.reported_at);
        // Until it says so, a job has not drawn the last of it.
        let supply = lasts.saturating_sub(since).max(WAKE_MIN);
        let supply = if open == 0 { Duration::ZERO } else { supply };
        Self { job, member, speed, supply, wants_more, scarcity: 0.0 }
    }

    fn is_faster_than(&self, other: &Pace<'_>) -> bool {
        self.speed > other.speed * ALIKE
    }

    fn unread_of(&self, chunk: ChunkOrdinal) -> f64 {
        self.member.unread_of(chunk) as f64
    }

    fn supply_s(&self) -> f64 {
        self.supply.as_secs_f64()
    }
}

/// All jobs of a dataset that are reckoned with, and how they get on.
#[derive(Debug)]
pub(super) struct Outlook<'a> {
    books: &'a Books,
    paces: Vec<Pace<'a>>,
    /// The speed of the fastest, and how long it takes for a chunk.
    speed_max: f64,
    period_s: f64,
}

impl<'a> Outlook<'a> {
    pub fn new(books: &'a Books) -> Self {
        let (held, rotating): (Vec<_>, Vec<_>) =
            (books.held().collect(), books.rotating().collect());
        let pace = |(job, member)| Pace::new(books, &held, &rotating, job, member);
        let mut paces: Vec<Pace<'a>> = books.awake().map(pace).collect();
        let speed_max = paces.iter().map(|pace| pace.speed).fold(0.0, f64::max);
        let size_max = books.chunks.iter().map(|chunk| chunk.size).max().unwrap_or(0);
        let period_s = size_max as f64 / speed_max.max(1.0);
        let turn_s = period_s * (books.chunks.len() - held.len()) as f64;
        for pace in &mut paces {
            let epoch_s = pace.member.unread_total as f64 / pace.member.pace.max(1) as f64;
            pace.scarcity = (1.0 - epoch_s / turn_s).clamp(0.0, 1.0);
        }
        Self { books, paces, speed_max, period_s }
    }

    /// All of them, in the order of their numbers.
    pub fn paces(&self) -> impl Iterator<Item = &Pace<'a>> {
        self.paces.iter()
    }

    /// The jobs that will soon have nothing open, the neediest first.
    pub fn needs(&self) -> impl Iterator<Item = &Pace<'a>> {
        let is_needy = |pace: &&Pace<'a>| pace.wants_more && pace.supply < self.early();
        let mut needs: Vec<&Pace<'a>> = self.paces().filter(is_needy).collect();
        needs.sort_by_key(|pace| (pace.supply, pace.job));
        needs.into_iter()
    }

    /// When there will be need that there is not now.
    pub fn next_need(&self) -> Option<Duration> {
        let thresholds = [self.early(), self.books.load_time, WAKE_MIN];
        let waits = self.paces().filter(|pace| pace.wants_more).flat_map(|pace| {
            thresholds.into_iter().filter_map(|threshold| pace.supply.checked_sub(threshold))
        });
        let wait = waits.filter(|wait| !wait.is_zero()).min()?;
        self.books.now.checked_add(wait.max(WAKE_MIN))
    }

    fn early(&self) -> Duration {
        self.books.load_time.saturating_mul(EARLY)
    }

    /// Whether a job is one of those who set the pace.
    fn is_fast(&self, pace: &Pace<'_>) -> bool {
        pace.speed * ALIKE >= self.speed_max
    }

    /// The chunk that is best brought for a job, if any is worth it. Of equals, the one that was there
    /// longest ago: jobs that go alike then meet all chunks in the same order, wherever they began.
    pub fn next(&self, need: &Pace<'_>) -> Option<ChunkOrdinal> {
        let is_wanted = |chunk: &ChunkOrdinal| {
            self.books.chunk(*chunk).life == Life::Absent && need.member.unread_of(*chunk) > 0
        };
        let absent = self.books.ordinals().filter(is_wanted);
        let worth = absent.map(|chunk| (self.worth(need, chunk), chunk));
        let (worth, chunk) = worth.reduce(|best, other| {
            let turn = |chunk| self.books.chunk(chunk).turn;
            let is_better = match f64::total_cmp(&other.0, &best.0) {
                Ordering::Equal => turn(other.1) < turn(best.1),
                order => order.is_gt(),
            };
            if is_better { other } else { best }
        })?;
        let is_crumbs = need.member.unread_of(chunk) < self.books.chunk(chunk).size / CRUMBS;
        (worth > 0.0 || (self.is_fast(need) && !is_crumbs)).then_some(chunk)
    }

    /// What jobs would read of a chunk that comes now, without what is lost to those who will not find it
    /// again in time. If none of the fastest has to have it anyway, it is fetched in addition.
    fn worth(&self, need: &Pace<'_>, chunk: ChunkOrdinal) -> f64 {
        let load_s = self.books.load_time.as_secs_f64().min(self.period_s);
        let stays_s = need.supply_s() + 2.0 * self.period_s - load_s;
        let size = self.books.chunk(chunk).size as f64;
        let (mut worth, mut fetched, mut is_due) = (0.0, 0.0, false);
        for pace in self.paces() {
            let unread = pace.unread_of(chunk);
            let read = unread.min(pace.speed * (stays_s - pace.supply_s()).max(0.0));
            worth += read - (unread - read) * pace.scarcity;
            fetched = unread.max(fetched);
            is_due |= self.is_fast(pace) && unread * 2.0 > size;
        }
        if is_due { worth } else { worth - fetched * SHARED }
    }

    /// Whether a job in need may have a chunk evicted, with which it has done, for another: if nobody
    /// else needs it, or if waiting would cost it more than its readers lose.
    pub fn may_take(&self, need: &Pace<'_>, chunk: ChunkOrdinal, next: ChunkOrdinal) -> bool {
        let mut readers = self.paces().filter(|pace| pace.member.unread_of(chunk) > 0).peekable();
        if readers.peek().is_none() {
            return true;
        }
        let is_loaded = self.books.chunk(chunk).life == Life::Loaded;
        if need.supply >= self.books.load_time || !is_loaded {
            return false;
        }
        let mut lost_in_all = 0.0;
        readers.all(|reader| {
            let unread = reader.unread_of(chunk);
            let is_begun = reader.member.focus == Some(chunk);
            let done_s = if is_begun { unread / reader.speed.max(1.0) } else { reader.supply_s() };
            let starved_s = (done_s - need.supply_s()).max(0.0);
            let lost = self.lost(need, reader, chunk);
            lost_in_all += lost;
            lost < need.speed * starved_s && lost_in_all < need.unread_of(next)
        })
    }

    /// What a reader loses if a chunk is taken from it for somebody in need. One who is faster must have
    /// it fetched again. One who is slower finds it again, if its epoch lasts. One who goes alike does,
    /// too; but what it has read of it by now it will not have to read then, when the others do.
    fn lost(&self, need: &Pace<'_>, reader: &Pace<'_>, chunk: ChunkOrdinal) -> f64 {
        let unread = reader.unread_of(chunk);
        if reader.is_faster_than(need) {
            unread
        } else if need.is_faster_than(reader) {
            unread * reader.scarcity
        } else {
            unread * reader.scarcity + (self.books.chunk(chunk).size as f64 - unread)
        }
    }

    /// How much of a chunk a job can read before others want it gone.
    pub fn readable(&self, pace: &Pace<'_>, chunk: ChunkOrdinal) -> f64 {
        let is_rival = |other: &&Pace<'_>| other.job != pace.job && !pace.is_faster_than(other);
        let stays_s = self.paces().filter(is_rival).map(|other| {
            let reads_on_s = if other.member.unread_of(chunk) > 0 { self.period_s } else { 0.0 };
            let before =
                if other.is_faster_than(pace) { self.books.load_time } else { Duration::ZERO };
            other.supply.saturating_sub(before).as_secs_f64() + reads_on_s
        });
        let stays_s = stays_s.fold(f64::INFINITY, f64::min);
        pace.unread_of(chunk).min(pace.speed * stays_s)
    }
}
