//! Our rotation, by demand.
//!
//! With a budget of b chunks, two **rotate** through what does not fit, and all others are
//! **pinned**: these are never fetched again. A job alone shares with no other, so for it all
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
    state::{JobState, RotationState},
};
use crate::dataset::chunking::ChunkOrdinal;

/// One chunk is read while the next is loaded.
const ROTATING: usize = 2;

pub(super) fn decide(state: &mut RotationState) -> Option<ChunkOrder> {
    update_pinned(state);
    if state.drawable().count() > state.budget {
        let least =
            |chunk: &ChunkOrdinal| (state.chunk(*chunk).pinned, state.unread_by_all(*chunk));
        let chunk = state.drawable().min_by_key(least).expect("at least one is drawable");
        return Some(ChunkOrder::Evict { chunk, cause: EvictionCause::Budget });
    }
    let has_room = state.occupied().count() < state.budget;
    let is_full = state.rotating().count() >= ROTATING;
    if !has_room && (!is_full || rotating_max(state) == 0) {
        return None;
    }
    let forecast = Forecast::new(state);
    let mut pinned = None;
    let order = forecast.starving().find_map(|need| {
        let next = forecast.next(need)?;
        let mut done = done_with(state, need.number);
        if has_room {
            pinned = is_full.then(|| done.next());
            return (pinned != Some(None)).then_some(ChunkOrder::Load(next));
        }
        let chunk = done.find(|chunk| forecast.may_evict(need, *chunk, next))?;
        let is_exhausted = state.active_jobs().all(|(_, progress)| progress.unread_of(chunk) == 0);
        let cause = if is_exhausted {
            EvictionCause::Exhausted
        } else {
            EvictionCause::Needed(need.number)
        };
        Some(ChunkOrder::Evict { chunk, cause })
    });
    if let Some(Some(stays)) = pinned {
        state.set_pinned(stays, true);
    }
    order
}

/// Pins or unpins chunks after jobs or the budget have changed.
fn update_pinned(state: &mut RotationState) {
    let rotating = rotating_max(state);
    if rotating == 0 {
        let open: Vec<ChunkOrdinal> = state.rotating().collect();
        for chunk in open {
            state.set_pinned(chunk, true);
        }
    } else {
        while state.pinned().count() > state.budget.saturating_sub(rotating) {
            let least = state.pinned().min_by_key(|chunk| state.unread_by_all(*chunk));
            state.set_pinned(least.expect("at least one is pinned"), false);
        }
    }
}

/// Number of chunks that rotate: none if only one job reads or the whole dataset fits. But while
/// the cache fills, chunks rotate into it.
fn rotating_max(state: &RotationState) -> usize {
    let room = state.budget.min(state.chunks.len());
    let is_filling = state.occupied().count() < room;
    let is_shared = state.active_jobs().count() >= 2 && room < state.chunks.len();
    if room >= ROTATING && (is_filling || is_shared) { ROTATING } else { 0 }
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
