//! Our rotation, by need.
//!
//! With room for b chunks, two **rotate** through what does not fit and all others are **held** for good:
//! those are never fetched again. One job alone shares with nobody, so for it all are held, and the rest
//! is read through. A chunk is not held from the beginning: it becomes so when it would have to go and
//! there is still room, so that filling the cache costs no fetch of its own.
//!
//! A chunk goes when no job has unread items in it, or when some job's unread open items would last less
//! long than loading a chunk takes. Which, and at whose expense? What counts is what the origin has to
//! give in all, and these rules follow from that (`outlook.rs` is the arithmetic):
//!
//! - **The fastest set the pace.** For them every chunk is fetched once in a turn anyway. A job may take
//!   a chunk from slower ones, who find it again when it returns, never from faster ones: those would
//!   have to fetch it twice. From equals it takes what they have hardly begun, and waits for what they
//!   have nearly finished.
//! - **Leftovers are whole.** A job that cannot finish the chunk that is about to go begins with the one
//!   that stays, and it keeps to what it has begun. A few items left in every chunk would starve it at
//!   the end of its epoch; whole chunks that it skipped bring it along when they return.
//! - **What comes is of use to those who need it now**, does not waste what others will need later, and
//!   is not fetched for one slow job alone: that job may as well read through.
//! - **Whoever is silent has no say** until it speaks again, so that a job that was stopped stops nobody else.

mod outlook;

use std::time::Duration;

use outlook::{Outlook, Pace};

use super::{
    Contradiction, Eviction, Job, Open, Order,
    books::{Books, Member},
};
use crate::chunking::ChunkOrdinal;

/// One is read while the next is loaded.
const ROTATING: usize = 2;

pub(super) fn decide(books: &mut Books) -> Option<Order> {
    settle(books);
    if books.open().count() > books.budget {
        let least = |chunk: &ChunkOrdinal| (books.chunk(*chunk).held, books.wanted(*chunk));
        let chunk = books.open().min_by_key(least).expect("more than none are open");
        return Some(Order::Evict { chunk, why: Eviction::Budget });
    }
    let has_room = books.resident().count() < books.budget;
    let is_full = books.rotating().count() >= ROTATING;
    if !has_room && (!is_full || rotating_max(books) == 0) {
        return None;
    }
    let outlook = Outlook::new(books);
    let mut held = None;
    let order = outlook.needs().find_map(|need| {
        let next = outlook.next(need)?;
        let mut done = done_with(books, need.job);
        if has_room {
            held = is_full.then(|| done.next());
            return (held != Some(None)).then_some(Order::Load(next));
        }
        let chunk = done.find(|chunk| outlook.may_take(need, *chunk, next))?;
        let is_exhausted = books.awake().all(|(_, member)| member.unread_of(chunk) == 0);
        let why = if is_exhausted { Eviction::Exhausted } else { Eviction::Needed(need.job) };
        Some(Order::Evict { chunk, why })
    });
    if let Some(Some(stays)) = held {
        books.hold(stays, true);
    }
    order
}

/// Which chunks are held, now that jobs or the budget may have changed.
fn settle(books: &mut Books) {
    let rotating = rotating_max(books);
    if rotating == 0 {
        let open: Vec<ChunkOrdinal> = books.rotating().collect();
        for chunk in open {
            books.hold(chunk, true);
        }
    } else {
        while books.held().count() > books.budget.saturating_sub(rotating) {
            let least = books.held().min_by_key(|chunk| books.wanted(*chunk));
            books.hold(least.expect("more than none are held"), false);
        }
    }
}

/// How many chunks rotate: none if there is nobody to share with, or nothing that does not fit; but the
/// cache is filled by rotating into it.
fn rotating_max(books: &Books) -> usize {
    let room = books.budget.min(books.chunks.len());
    let is_filling = books.resident().count() < room;
    let is_shared = books.awake().count() >= 2 && room < books.chunks.len();
    if room >= ROTATING && (is_filling || is_shared) { ROTATING } else { 0 }
}

/// The rotating chunks that have nothing for a job any more, the least wanted by others first.
fn done_with(books: &Books, job: Job) -> impl Iterator<Item = ChunkOrdinal> + use<> {
    let member = &books.jobs[&job];
    let mut done: Vec<ChunkOrdinal> =
        books.rotating().filter(|chunk| member.unread_of(*chunk) == 0).collect();
    done.sort_by_key(|chunk| books.wanted(*chunk));
    done.into_iter()
}

/// Tells each job which rotating chunk it draws from first. It keeps to what it has begun.
pub(super) fn direct(books: &mut Books) {
    let rotating: Vec<ChunkOrdinal> = books.rotating().collect();
    let has_begun = |member: &Member| {
        let focus = member.focus.filter(|focus| member.unread_of(*focus) > 0);
        focus.is_some_and(|focus| rotating.contains(&focus))
    };
    if books.awake().all(|(_, member)| has_begun(member)) {
        return;
    }
    let outlook = Outlook::new(books);
    let begins = |pace: &Pace<'_>| {
        let unread = rotating.iter().filter(|chunk| pace.member.unread_of(**chunk) > 0);
        unread.copied().max_by(|a, b| {
            let readable = |chunk: &ChunkOrdinal| outlook.readable(pace, *chunk);
            let turn = |chunk: &ChunkOrdinal| books.chunk(*chunk).turn;
            readable(a).total_cmp(&readable(b)).then(turn(b).cmp(&turn(a)))
        })
    };
    let beginners = outlook.paces().filter(|pace| !has_begun(pace.member));
    let focuses: Vec<(Job, Option<ChunkOrdinal>)> =
        beginners.map(|pace| (pace.job, begins(pace))).collect();
    for (job, focus) in focuses {
        books.jobs.get_mut(&job).expect("it has a pace").focus = focus;
    }
}

pub(super) fn next_deadline(books: &Books) -> Option<Duration> {
    Outlook::new(books).next_need()
}

pub(super) fn open(books: &Books, job: Job) -> Result<Open, Contradiction> {
    let member = books.job(job)?;
    let mut then: Vec<ChunkOrdinal> =
        books.rotating().filter(|chunk| Some(*chunk) != member.focus).collect();
    then.sort_unstable_by_key(|chunk| books.chunk(*chunk).turn);
    let focus = member.focus.filter(|focus| {
        let chunk = books.chunk(*focus);
        chunk.is_open() && !chunk.held
    });
    Ok(Open { held: books.held().collect(), first: focus.into_iter().collect(), then })
}
