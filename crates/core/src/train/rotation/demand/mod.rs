//! Our rotation, by demand.
//!
//! Of the chunks that fit into the budget, two **rotate** through what does not fit, and all others
//! are **pinned**: these are never fetched again. A part of a chunk fills what is left beside whole
//! ones, and is pinned from the start. A job alone shares with no other, so for it all
//! chunks are pinned, and the rest is read uncached. A chunk is not pinned from the start. It is
//! pinned when it would be evicted and the budget has room, so that filling the cache costs no
//! extra fetch.
//!
//! A chunk is evicted when no job has unread items in it, or when the supply of some job would last
//! less long than loading a chunk takes. The goal is to minimise the bytes from the origin. These
//! rules follow (`forecast.rs` has the arithmetic):
//!
//! - **The fastest jobs set the pace.** For them every chunk is fetched once per turn anyway. A job
//!   may have a chunk evicted that slower jobs read: they meet it again when it returns. Never one
//!   that faster jobs read: they would have to fetch it twice. Of equally fast jobs, it takes
//!   chunks that they have hardly begun, and waits for those that they have nearly finished.
//! - **Leftovers are whole chunks.** A job that cannot finish the chunk that is evicted next starts
//!   with the one that stays, and finishes what it has begun. A few items left in every chunk would
//!   starve it at the end of its epoch. Whole chunks that it skipped let it catch up when they
//!   return.
//! - **A load serves the jobs that need it now.** It does not waste what others will need later,
//!   and it is not for one slow job alone: that job may as well read uncached.
//! - **Inactive jobs are ignored** until their next event, so that a stopped job stops no other.

mod forecast;

use std::time::Duration;

use forecast::{Forecast, JobForecast};

use super::{
    ChunkDrawSet, ChunkOrder, EvictionCause, InvalidEvent, JobNumber,
    state::{Chunk, ChunkState, JobState, RotationState},
};
use crate::dataset::chunking::ChunkOrdinal;

/// One chunk is read while the next is loaded.
const ROTATING: usize = 2;

pub(super) fn decide(state: &mut RotationState) -> Option<ChunkOrder> {
    update_pinned(state);
    if state.bytes(state.drawable()) > state.budget {
        let least =
            |chunk: &ChunkOrdinal| (state.chunk(*chunk).pinned, state.unread_by_all(*chunk));
        let chunk = state.drawable().min_by_key(least).expect("at least one is drawable");
        return Some(ChunkOrder::Evict { chunk, cause: EvictionCause::Budget });
    }
    if let Some(chunk) = idle_rest(state) {
        return Some(ChunkOrder::Evict { chunk, cause: EvictionCause::Exhausted });
    }
    let room = Room::new(state);
    let kept = state.parts.kept.filter(|kept| room.fits(state, *kept));
    let is_full = state.rotating().count() >= ROTATING;
    let has_room = room.takes_more(state);
    let rotates = is_full && !room.takes_whole(state) && rotating_max(state, &room) > 0;
    if kept.is_none() && !has_room && !rotates {
        return None;
    }
    let forecast = Forecast::new(state);
    let mut pinned = None;
    let order = forecast.starving().find_map(|need| {
        if let Some(kept) = kept.filter(|kept| need.progress.unread_of(*kept) > 0) {
            // It stays, so it does not matter when it is loaded.
            pinned = Some(kept);
            return Some(ChunkOrder::Load(kept));
        }
        let done: Vec<ChunkOrdinal> = done_with(state, need.number).collect();
        let stays = done.iter().copied().find(|chunk| may_pin(state, *chunk));
        if has_room
            && (!is_full || stays.is_some())
            && let Some(next) = forecast.next(need, |chunk| room.takes(state, chunk))
        {
            pinned = stays.filter(|_| is_full);
            return Some(ChunkOrder::Load(next));
        }
        if !rotates {
            return None;
        }
        let next = forecast.next(need, |chunk| !is_kept_part(state, chunk))?;
        let chunk = done.into_iter().find(|chunk| forecast.may_evict(need, *chunk, next))?;
        let is_exhausted = state.active_jobs().all(|(_, progress)| progress.unread_of(chunk) == 0);
        let cause = if is_exhausted {
            EvictionCause::Exhausted
        } else {
            EvictionCause::Needed(need.number)
        };
        Some(ChunkOrder::Evict { chunk, cause })
    });
    if let Some(stays) = pinned {
        state.set_pinned(stays, true);
    }
    order
}

/// Pins or unpins chunks after jobs or the budget have changed.
fn update_pinned(state: &mut RotationState) {
    let rotating = rotating_max(state, &Room::new(state));
    if rotating == 0 {
        let open: Vec<ChunkOrdinal> =
            state.rotating().filter(|chunk| may_pin(state, *chunk)).collect();
        for chunk in open {
            state.set_pinned(chunk, true);
        }
        return;
    }
    let rotating_bytes = state.size_max.saturating_mul(rotating as u64);
    let pinned_max = state.budget.saturating_sub(rotating_bytes);
    while state.bytes(state.pinned()) > pinned_max {
        let of = state.pinned().filter(|chunk| !is_kept_part(state, *chunk));
        let Some(least) = of.min_by_key(|chunk| state.unread_by_all(*chunk)) else { break };
        state.set_pinned(least, false);
    }
    // After a takeover or a regrouping, more chunks are present than rotate.
    while state.rotating().count() > rotating {
        let free = pinned_max.saturating_sub(state.bytes(state.pinned()));
        let fits =
            |chunk: &ChunkOrdinal| may_pin(state, *chunk) && state.chunk(*chunk).size <= free;
        let most = state.rotating().filter(fits).max_by_key(|chunk| state.unread_by_all(*chunk));
        let Some(most) = most else { break };
        state.set_pinned(most, true);
    }
}

/// Number of chunks that rotate: none if only one job reads or the whole dataset fits. But while
/// the cache fills, chunks rotate into it.
fn rotating_max(state: &RotationState, room: &Room) -> usize {
    let rotates = room.takes_more(state) || is_shared(state);
    if state.slots() >= ROTATING && rotates { ROTATING } else { 0 }
}

/// Whether several jobs read a dataset that does not fit.
fn is_shared(state: &RotationState) -> bool {
    state.active_jobs().count() >= 2 && !state.is_whole()
}

/// The room beside the chunks that are present.
struct Room {
    bytes: u64,
    /// Number of whole chunks for which there is room.
    slots: usize,
}

impl Room {
    fn new(state: &RotationState) -> Self {
        let whole = state.occupied().filter(|chunk| !is_kept_part(state, *chunk)).count();
        Self { bytes: state.room(), slots: state.slots().saturating_sub(whole) }
    }

    /// Whether a chunk is absent and fits.
    fn fits(&self, state: &RotationState, chunk: ChunkOrdinal) -> bool {
        let Chunk { state: of, size, .. } = state.chunk(chunk);
        *of == ChunkState::Absent && *size <= self.bytes
    }

    /// Whether a chunk that is to rotate may be loaded. The rest of a cut chunk takes the space of
    /// a whole one, so it is not for the chunks that will be pinned.
    fn takes(&self, state: &RotationState, chunk: ChunkOrdinal) -> bool {
        let has_slot = if may_pin(state, chunk) {
            self.slots > 0
        } else {
            self.slots == 1 && is_shared(state)
        };
        has_slot && !is_kept_part(state, chunk) && self.fits(state, chunk)
    }

    /// Whether a chunk that may be pinned can be loaded.
    fn takes_whole(&self, state: &RotationState) -> bool {
        let takes = |chunk| may_pin(state, chunk) && self.takes(state, chunk);
        self.bytes > 0 && state.ordinals().any(takes)
    }

    /// Whether another chunk may be loaded.
    fn takes_more(&self, state: &RotationState) -> bool {
        self.bytes > 0 && state.ordinals().any(|chunk| self.takes(state, chunk))
    }
}

/// The rest of a cut chunk, if nothing needs it and no chunks rotate: another one is to stay in its
/// place.
fn idle_rest(state: &RotationState) -> Option<ChunkOrdinal> {
    let is_alone = state.active_jobs().count() == 1 && !state.is_whole();
    let is_idle = |rest: &ChunkOrdinal| {
        is_alone && state.chunk(*rest).is_drawable() && state.unread_by_all(*rest) == 0
    };
    state.parts.rest.filter(is_idle)
}

fn is_kept_part(state: &RotationState, chunk: ChunkOrdinal) -> bool {
    state.parts.kept == Some(chunk)
}

/// Whether a chunk may be pinned beside others.
fn may_pin(state: &RotationState, chunk: ChunkOrdinal) -> bool {
    state.is_whole() || state.parts.rest != Some(chunk)
}

/// Rotating chunks that a job has exhausted, those with the least unread by others first.
fn done_with(state: &RotationState, job: JobNumber) -> impl Iterator<Item = ChunkOrdinal> + use<> {
    let progress = &state.jobs[&job];
    let mut done: Vec<ChunkOrdinal> =
        state.rotating().filter(|chunk| progress.unread_of(*chunk) == 0).collect();
    done.sort_by_key(|chunk| state.unread_by_all(*chunk));
    done.into_iter()
}

/// Sets the rotating chunk that each job draws from first. A job finishes what it has begun.
pub(super) fn set_focuses(state: &mut RotationState) {
    let rotating: Vec<ChunkOrdinal> = state.rotating().collect();
    let has_focus = |progress: &JobState| {
        let focus = progress.focus.filter(|focus| progress.unread_of(*focus) > 0);
        focus.is_some_and(|focus| rotating.contains(&focus))
    };
    if state.active_jobs().all(|(_, progress)| has_focus(progress)) {
        return;
    }
    let forecast = Forecast::new(state);
    let best_focus = |job: &JobForecast<'_>| {
        let unread = rotating.iter().filter(|chunk| job.progress.unread_of(**chunk) > 0);
        unread.copied().max_by(|a, b| {
            let readable = |chunk: &ChunkOrdinal| forecast.readable(job, *chunk);
            let load_number = |chunk: &ChunkOrdinal| state.chunk(*chunk).load_number;
            readable(a).total_cmp(&readable(b)).then(load_number(b).cmp(&load_number(a)))
        })
    };
    let unfocused = forecast.jobs().filter(|job| !has_focus(job.progress));
    let focuses: Vec<(JobNumber, Option<ChunkOrdinal>)> =
        unfocused.map(|job| (job.number, best_focus(job))).collect();
    for (job, focus) in focuses {
        state.jobs.get_mut(&job).expect("it has a forecast").focus = focus;
    }
}

pub(super) fn next_deadline(state: &RotationState) -> Option<Duration> {
    Forecast::new(state).next_need_at()
}

pub(super) fn draw_set(
    state: &RotationState,
    job: JobNumber,
) -> Result<ChunkDrawSet, InvalidEvent> {
    let progress = state.job(job)?;
    let mut then: Vec<ChunkOrdinal> =
        state.rotating().filter(|chunk| Some(*chunk) != progress.focus).collect();
    then.sort_unstable_by_key(|chunk| state.chunk(*chunk).load_number);
    let focus = progress.focus.filter(|focus| {
        let chunk = state.chunk(*focus);
        chunk.is_drawable() && !chunk.pinned
    });
    Ok(ChunkDrawSet { pinned: state.pinned().collect(), first: focus.into_iter().collect(), then })
}
