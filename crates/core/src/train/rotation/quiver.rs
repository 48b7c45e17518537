//! Quiver's rotation (5.1): double buffering with a two-step eviction.
//!
//! While jobs read one chunk, the next is loaded. Then the older is marked, so that new jobs read
//! the newer only. When all jobs that referenced the older have exhausted it, it is evicted, and
//! the chunk after the newer is loaded. A much slower job would block that, so a chunk is evicted
//! by force some time after the first job has exhausted it. There are never more than two chunks,
//! whatever the space, unless the whole dataset fits: then all of it is loaded and stays.

use std::time::Duration;

use super::{
    ChunkDrawSet, ChunkOrder, EvictionCause, InvalidEvent, JobNumber,
    state::{ChunkState, JobState, RotationState},
};
use crate::dataset::chunking::ChunkOrdinal;

/// Double buffering.
const CHUNKS_MAX: usize = 2;

pub(super) fn decide(state: &RotationState, deadline: Duration) -> Option<ChunkOrder> {
    let room = if state.budget >= state.chunks.len() {
        state.budget
    } else {
        state.budget.min(CHUNKS_MAX)
    };
    if state.drawable().count() > room {
        let chunk = oldest(state, |_| true).expect("at least one is drawable");
        return Some(ChunkOrder::Evict { chunk, cause: EvictionCause::Budget });
    }
    if room < state.chunks.len()
        && let Some(older) = oldest(state, |chunk| state.chunk(chunk).state == ChunkState::Loaded)
        && newest(state)
            .is_some_and(|newer| newer != older && state.chunk(newer).state == ChunkState::Loaded)
    {
        let chunk = state.chunk(older);
        if !chunk.marked {
            return Some(ChunkOrder::Mark(older));
        }
        let is_reading =
            |job: &JobState| job.references.contains(&older) && job.unread_of(older) > 0;
        if !state.jobs.values().any(is_reading) {
            return Some(ChunkOrder::Evict { chunk: older, cause: EvictionCause::Exhausted });
        }
        if chunk.first_done.is_some_and(|done| done.saturating_add(deadline) <= state.now) {
            return Some(ChunkOrder::Evict { chunk: older, cause: EvictionCause::Deadline });
        }
    }
    // One load at a time.
    let is_loading =
        state.chunks.iter().any(|chunk| matches!(chunk.state, ChunkState::Loading { .. }));
    if state.occupied().count() < room && !is_loading {
        return next(state).map(ChunkOrder::Load);
    }
    None
}

pub(super) fn next_deadline(state: &RotationState, deadline: Duration) -> Option<Duration> {
    let marked = state.chunks.iter().filter(|chunk| chunk.marked);
    marked.filter_map(|chunk| Some(chunk.first_done?.saturating_add(deadline))).min()
}

/// Hits come from every loaded chunk, but marked ones are for their readers only. Misses come from
/// the chunk that is being loaded.
pub(super) fn draw_set(
    state: &RotationState,
    job: JobNumber,
) -> Result<ChunkDrawSet, InvalidEvent> {
    let job_state = state.job(job)?;
    let is_whole = state.budget >= state.chunks.len();
    let mut open = ChunkDrawSet::default();
    for chunk in state.ordinals() {
        let known = state.chunk(chunk);
        match known.state {
            ChunkState::Loaded if is_whole => open.pinned.push(chunk),
            ChunkState::Loaded if !known.marked || job_state.references.contains(&chunk) => {
                open.first.push(chunk);
            }
            ChunkState::Loading { .. } => open.then.push(chunk),
            _ => {}
        }
    }
    Ok(open)
}

fn oldest(state: &RotationState, of: impl Fn(ChunkOrdinal) -> bool) -> Option<ChunkOrdinal> {
    state.drawable().filter(|chunk| of(*chunk)).min_by_key(|chunk| state.chunk(*chunk).load_number)
}

fn newest(state: &RotationState) -> Option<ChunkOrdinal> {
    state.drawable().max_by_key(|chunk| state.chunk(*chunk).load_number)
}

/// The first absent chunk with unread items after the one that was loaded last, in the order of the
/// dataset.
fn next(state: &RotationState) -> Option<ChunkOrdinal> {
    let chunks = state.chunks.len();
    let last = state.ordinals().max_by_key(|chunk| state.chunk(*chunk).load_number)?;
    let after = match state.chunk(last).load_number {
        0 => 0,
        _ => last.0 as usize + 1,
    };
    (0..chunks)
        .map(|step| (after + step) % chunks)
        .map(|index| ChunkOrdinal(u32::try_from(index).expect("checked by `new`")))
        .find(|chunk| {
            state.chunk(*chunk).state == ChunkState::Absent && state.unread_by_all(*chunk) > 0
        })
}
