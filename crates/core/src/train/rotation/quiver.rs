//! The paper's rotation (Quiver 5.1): double buffering with a two-step eviction.
//!
//! While jobs read one chunk the next is loaded; when it is, the older is marked, so that newcomers read
//! the newer only; when all who referenced the older have exhausted it, it goes, and the chunk after the
//! newer is loaded. A job that is much slower than the rest would hold that up, so a chunk goes by force
//! a while after the first job has exhausted it. There are never more than two chunks, whatever the
//! space, unless the whole dataset fits: then all of it is loaded and stays.

use std::time::Duration;

use super::{
    Contradiction, Eviction, Job, Open, Order,
    books::{Books, Life, Member},
};
use crate::chunking::ChunkOrdinal;

/// Double buffering.
const CHUNKS_MAX: usize = 2;

pub(super) fn decide(books: &Books, deadline: Duration) -> Option<Order> {
    let room = if books.budget >= books.chunks.len() {
        books.budget
    } else {
        books.budget.min(CHUNKS_MAX)
    };
    if books.open().count() > room {
        let chunk = oldest(books, |_| true).expect("more than none are open");
        return Some(Order::Evict { chunk, why: Eviction::Budget });
    }
    if room < books.chunks.len()
        && let Some(older) = oldest(books, |chunk| books.chunk(chunk).life == Life::Loaded)
        && newest(books)
            .is_some_and(|newer| newer != older && books.chunk(newer).life == Life::Loaded)
    {
        let chunk = books.chunk(older);
        if !chunk.marked {
            return Some(Order::Mark(older));
        }
        let is_reading = |job: &Member| job.references.contains(&older) && job.unread_of(older) > 0;
        if !books.jobs.values().any(is_reading) {
            return Some(Order::Evict { chunk: older, why: Eviction::Exhausted });
        }
        if chunk.first_done.is_some_and(|done| done.saturating_add(deadline) <= books.now) {
            return Some(Order::Evict { chunk: older, why: Eviction::Forced });
        }
    }
    // One after the other, each when its predecessor is there.
    let is_loading = books.chunks.iter().any(|chunk| matches!(chunk.life, Life::Loading { .. }));
    if books.resident().count() < room && !is_loading {
        return next(books).map(Order::Load);
    }
    None
}

pub(super) fn next_deadline(books: &Books, deadline: Duration) -> Option<Duration> {
    let marked = books.chunks.iter().filter(|chunk| chunk.marked);
    marked.filter_map(|chunk| Some(chunk.first_done?.saturating_add(deadline))).min()
}

/// Hits come from every chunk that is there, except that what is marked is for its readers only; misses
/// are of the chunk that is being loaded.
pub(super) fn open(books: &Books, job: Job) -> Result<Open, Contradiction> {
    let member = books.job(job)?;
    let is_whole = books.budget >= books.chunks.len();
    let mut open = Open::default();
    for chunk in books.ordinals() {
        let known = books.chunk(chunk);
        match known.life {
            Life::Loaded if is_whole => open.held.push(chunk),
            Life::Loaded if !known.marked || member.references.contains(&chunk) => {
                open.first.push(chunk);
            }
            Life::Loading { .. } => open.then.push(chunk),
            _ => {}
        }
    }
    Ok(open)
}

fn oldest(books: &Books, of: impl Fn(ChunkOrdinal) -> bool) -> Option<ChunkOrdinal> {
    books.open().filter(|chunk| of(*chunk)).min_by_key(|chunk| books.chunk(*chunk).turn)
}

fn newest(books: &Books) -> Option<ChunkOrdinal> {
    books.open().max_by_key(|chunk| books.chunk(*chunk).turn)
}

/// The first absent chunk that anybody needs after the one that was loaded last, in the order of the dataset.
fn next(books: &Books) -> Option<ChunkOrdinal> {
    let chunks = books.chunks.len();
    let last = books.ordinals().max_by_key(|chunk| books.chunk(*chunk).turn)?;
    let after = match books.chunk(last).turn {
        0 => 0,
        _ => last.0 as usize + 1,
    };
    (0..chunks)
        .map(|step| (after + step) % chunks)
        .map(|index| ChunkOrdinal(u32::try_from(index).expect("checked when made")))
        .find(|chunk| books.chunk(*chunk).life == Life::Absent && books.wanted(*chunk) > 0)
}
