//! Our rotation, by need (DESIGN 4.5).
//!
//! With room for b chunks, two **rotate** through what does not fit and all others are **held** for good:
//! those are never fetched again. One job alone shares with nobody, so nothing rotates for it. A chunk is
//! not held from the beginning: it becomes so when it would have to go, and there is still room.

use std::time::Duration;

use super::{
    Contradiction, Eviction, Job, Open, Order,
    books::{Books, Life, Member},
};
use crate::chunking::ChunkOrdinal;

/// One is read while the next is loaded.
const ROTATING: usize = 2;

pub(super) fn decide(books: &mut Books) -> Option<Order> {
    settle(books);
    let rotating = rotating_max(books);
    if books.open().count() > books.budget {
        let spare = books.open().min_by_key(|c| (books.chunk(*c).held, books.wanted(*c), c.0));
        let chunk = spare.expect("more than none are open");
        return Some(Order::Evict { chunk, why: Eviction::Budget });
    }
    let needy = needy(books);
    let has_room = books.resident().count() < books.budget;
    for job in needy {
        let Some(next) = next(books, job) else { continue };
        if has_room {
            if rotating > 0 && books.rotating().count() >= ROTATING {
                let Some(stays) = leaves(books, job) else { continue };
                books.hold(stays, true);
            }
            return Some(Order::Load(next));
        }
        if rotating > 0
            && books.rotating().count() >= ROTATING
            && let Some(chunk) = leaves(books, job)
        {
            let why = match books.wanted(chunk) {
                0 => Eviction::Exhausted,
                _ => Eviction::Needed(job),
            };
            return Some(Order::Evict { chunk, why });
        }
    }
    None
}

/// Which chunks are held, now that jobs or the budget have changed.
fn settle(books: &mut Books) {
    let rotating = rotating_max(books);
    if rotating == 0 {
        let open: Vec<_> = books.rotating().collect();
        for chunk in open {
            books.hold(chunk, true);
        }
        return;
    }
    while books.held().count() > books.budget - rotating {
        let least = books.held().min_by_key(|chunk| (books.wanted(*chunk), chunk.0));
        books.hold(least.expect("more than none are held"), false);
    }
}

fn rotating_max(books: &Books) -> usize {
    let fits = books.budget >= books.chunks.len();
    if books.jobs.len() >= 2 && !fits && books.budget >= ROTATING { ROTATING } else { 0 }
}

/// The jobs that would have nothing open before another chunk is loaded, the neediest first.
fn needy(books: &Books) -> Vec<Job> {
    let lasts = books.jobs.iter().map(|(job, member)| (lasts(books, member), *job));
    let mut needy: Vec<_> = lasts.filter(|(lasts, _)| *lasts < books.load_time).collect();
    needy.sort_unstable();
    needy.into_iter().map(|(_, job)| job).collect()
}

/// How long what a job has unread in rotating chunks will last.
fn lasts(books: &Books, member: &Member) -> Duration {
    let open: u64 = books.rotating().map(|chunk| member.unread_of(chunk)).sum();
    let held: u64 = books.held().map(|chunk| member.unread_of(chunk)).sum();
    if member.unread_total == open + held {
        return Duration::MAX;
    }
    if open == 0 {
        return Duration::ZERO;
    }
    let rate =
        member.pace as f64 * (member.unread_total - held) as f64 / member.unread_total as f64;
    let seconds = open as f64 / rate;
    let lasts = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    lasts.saturating_sub(books.now.checked_sub(member.reported_at).unwrap())
}

fn next(books: &Books, job: Job) -> Option<ChunkOrdinal> {
    let member = &books.jobs[&job];
    books
        .ordinals()
        .filter(|c| books.chunk(*c).life == Life::Absent && member.unread_of(*c) > 0)
        .max_by_key(|c| {
            (books.wanted(*c), std::cmp::Reverse(books.chunk(*c).turn), std::cmp::Reverse(c.0))
        })
}

fn leaves(books: &Books, job: Job) -> Option<ChunkOrdinal> {
    let member = &books.jobs[&job];
    let harms = |c: ChunkOrdinal| {
        books.jobs.values().any(|other| other.unread_of(c) > 0 && other.pace * 4 > member.pace * 5)
    };
    books
        .rotating()
        .filter(|c| member.unread_of(*c) == 0 && !harms(*c))
        .min_by_key(|c| (books.wanted(*c), c.0))
}

/// Which chunk each job draws from first.
pub(super) fn direct(books: &mut Books) {
    let rotating: Vec<ChunkOrdinal> = books.rotating().collect();
    let turns: Vec<u64> = rotating.iter().map(|c| books.chunk(*c).turn).collect();
    for member in books.jobs.values_mut() {
        if member.focus.is_some_and(|c| rotating.contains(&c) && member.unread_of(c) > 0) {
            continue;
        }
        let open = rotating.iter().zip(&turns).filter(|(c, _)| member.unread_of(**c) > 0);
        member.focus = open.min_by_key(|(_, turn)| **turn).map(|(c, _)| *c);
    }
}

pub(super) fn next_deadline(books: &Books) -> Option<Duration> {
    let needs = books.jobs.values().map(|member| lasts(books, member));
    let wakes = needs.filter(|lasts| *lasts < Duration::MAX && *lasts > books.load_time);
    wakes.map(|lasts| books.now + lasts.checked_sub(books.load_time).unwrap()).min()
}

pub(super) fn open(books: &Books, job: Job) -> Result<Open, Contradiction> {
    let member = books.job(job)?;
    let mut then: Vec<ChunkOrdinal> =
        books.rotating().filter(|chunk| Some(*chunk) != member.focus).collect();
    then.sort_unstable_by_key(|chunk| books.chunk(*chunk).turn);
    Ok(Open { held: books.held().collect(), first: member.focus.into_iter().collect(), then })
}
