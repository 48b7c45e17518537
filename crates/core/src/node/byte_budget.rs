//! Byte budget: one limit on the bytes that wait on all connections together (promise 6).
//!
//! A connection takes bytes before they are brought into memory, and returns them when they have
//! been sent or handled. If the budget is used up, requests wait in order of arrival. No tenant has
//! more than its share, so that one tenant cannot make the others wait. Nor can several tenants
//! together: a part of the budget is a reserve for tenants that hold little.
//!
//! A client that neither reads nor sends would hold its bytes for minutes. So while others wait, a
//! holder has to move one part in `PACE` of what it holds within each window. A holder that does
//! not is *stalled*, and the caller closes its connection: the largest first, until there is enough
//! for those that wait.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

/// While others wait, a holder moves one part in this many of its bytes per window.
const PACE: u64 = 16;
/// One part in this many of a budget with shares is a reserve.
const RESERVE: u64 = 8;
/// One part in this many of the reserve is little: a tenant has it at once, or after tenants that
/// hold little, too.
const LITTLE: u64 = 8;

/// A connection that holds bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(pub u64);

/// The tenant whose share a holder's bytes count for. Clients without a tenant have one in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareId(pub u64);

/// A request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BudgetTicket(u64);

/// The answer to a request for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// The bytes are taken.
    Taken,
    /// The request waits. [`ByteBudget::give_back`] returns its ticket when the bytes are taken.
    Waits(BudgetTicket),
}

/// A budget of bytes.
#[derive(Debug)]
pub struct ByteBudget {
    limit: u64,
    share_max: u64,
    /// Bytes for tenants that hold no more than `little`.
    reserve: u64,
    little: u64,
    window: Duration,
    taken: u64,
    shares: BTreeMap<ShareId, u64>,
    holders: BTreeMap<HolderId, Held>,
    waiting: VecDeque<Waiting>,
    next_ticket: u64,
    /// Whether requests waited at the last check.
    is_short: bool,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    share: ShareId,
    bytes: u64,
    /// The current window: its begin, and the bytes that the holder had moved then.
    since: Duration,
    moved: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    ticket: BudgetTicket,
    holder: HolderId,
    share: ShareId,
    bytes: u64,
}

impl ByteBudget {
    /// A budget of `limit` bytes, of which one tenant may have `share_max`: all of them, or
    /// [`ByteBudget::share_of_two`] at most. A holder is checked once per `window` while others
    /// wait.
    pub fn new(limit: u64, share_max: u64, window: Duration) -> Self {
        assert!((1..=limit).contains(&share_max), "a share of {share_max} bytes of {limit}");
        let reserve = if share_max < limit { limit / RESERVE } else { 0 };
        assert!(2 * share_max <= limit - reserve || reserve == 0, "two shares and the reserve");
        Self {
            limit,
            share_max,
            reserve,
            little: reserve / LITTLE,
            window,
            taken: 0,
            shares: BTreeMap::new(),
            holders: BTreeMap::new(),
            waiting: VecDeque::new(),
            next_ticket: 0,
            is_short: false,
        }
    }

    /// The share of a tenant beside which another one has its whole share, too.
    pub fn share_of_two(limit: u64) -> u64 {
        (limit - limit / RESERVE) / 2
    }

    /// Bytes that are taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Bytes that a request counts as: one that is longer than a share takes the whole share.
    pub fn counted(&self, bytes: u64) -> u64 {
        bytes.min(self.share_max)
    }

    /// Takes bytes for a holder, or lets the request wait. `bytes` is at most
    /// [`ByteBudget::counted`] of any number.
    pub fn take(&mut self, now: Duration, holder: HolderId, share: ShareId, bytes: u64) -> Grant {
        assert!(bytes <= self.share_max, "{bytes} bytes are over the share");
        if self.try_take(now, holder, share, bytes) {
            return Grant::Taken;
        }
        let ticket = BudgetTicket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting.push_back(Waiting { ticket, holder, share, bytes });
        // A request that waits for its own tenant does not hold up the others.
        let granted = self.grant_waiting(now);
        if granted.contains(&ticket) { Grant::Taken } else { Grant::Waits(ticket) }
    }

    /// Takes bytes for a holder if that is possible at once.
    pub fn try_take(
        &mut self,
        now: Duration,
        holder: HolderId,
        share: ShareId,
        bytes: u64,
    ) -> bool {
        let fits = self.fits(share, bytes, !self.waiting.is_empty());
        if fits {
            self.add(now, holder, share, bytes);
        }
        fits
    }

    /// A holder returns bytes. Returns the requests whose bytes are taken now.
    #[must_use = "the requests wait until they are woken"]
    pub fn give_back(
        &mut self,
        now: Duration,
        holder: HolderId,
        share: ShareId,
        bytes: u64,
    ) -> Vec<BudgetTicket> {
        self.taken -= bytes;
        let of_share = self.shares.get_mut(&share).expect("it holds bytes");
        *of_share -= bytes;
        if *of_share == 0 {
            self.shares.remove(&share);
        }
        let held = self.holders.get_mut(&holder).expect("it holds bytes");
        held.bytes -= bytes;
        if held.bytes == 0 {
            self.holders.remove(&holder);
        }
        self.grant_waiting(now)
    }

    /// Withdraws a request that waits. Returns false if its bytes were taken meanwhile: the caller
    /// returns them. Otherwise `granted` has the requests that it held up.
    pub fn withdraw(
        &mut self,
        now: Duration,
        ticket: BudgetTicket,
        granted: &mut Vec<BudgetTicket>,
    ) -> bool {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.ticket == ticket) else {
            return false;
        };
        self.waiting.remove(at);
        granted.extend(self.grant_waiting(now));
        true
    }

    /// The holders whose connections are to be closed, if requests wait. `moved` is the number of
    /// bytes that a connection has sent and received since it began.
    pub fn stalled(&mut self, now: Duration, moved: impl Fn(HolderId) -> u64) -> Vec<HolderId> {
        let was_short = std::mem::replace(&mut self.is_short, !self.waiting.is_empty());
        let mut stalled = Vec::new();
        for (holder, held) in &mut self.holders {
            let moved = moved(*holder);
            // Without requests that wait, a holder may take any time.
            if !was_short {
                (held.since, held.moved) = (now, moved);
            } else if now >= held.since + self.window {
                if moved.saturating_sub(held.moved) < held.bytes / PACE + 1 {
                    stalled.push((held.bytes, *holder));
                }
                (held.since, held.moved) = (now, moved);
            }
        }
        let mut wanted: u64 = self.waiting.iter().map(|waiting| waiting.bytes).sum();
        stalled.sort_by_key(|(bytes, holder)| (Reverse(*bytes), *holder));
        let closed = stalled.into_iter().take_while(|(bytes, _)| {
            let is_needed = wanted > 0;
            wanted = wanted.saturating_sub(*bytes);
            is_needed
        });
        closed.map(|(_, holder)| holder).collect()
    }

    /// Whether a request may have `bytes` more. Behind a request that waits for the budget, only a
    /// tenant that holds little may.
    fn fits(&self, share: ShareId, bytes: u64, is_behind: bool) -> bool {
        let (of_share, all) = (self.share_with(share, bytes), self.taken + bytes);
        let is_little = of_share <= self.little && all <= self.limit;
        let is_usual = of_share <= self.share_max && all <= self.limit - self.reserve;
        is_little || (is_usual && !is_behind)
    }

    /// What a tenant would hold with `bytes` more.
    fn share_with(&self, share: ShareId, bytes: u64) -> u64 {
        self.shares.get(&share).copied().unwrap_or(0) + bytes
    }

    fn add(&mut self, now: Duration, holder: HolderId, share: ShareId, bytes: u64) {
        self.taken += bytes;
        *self.shares.entry(share).or_default() += bytes;
        let new = Held { share, bytes: 0, since: now, moved: 0 };
        let held = self.holders.entry(holder).or_insert(new);
        debug_assert_eq!(held.share, share, "a connection has one tenant");
        held.bytes += bytes;
    }

    /// Takes bytes for the requests that wait, in order. Those of a tenant that has its share are
    /// passed over. One for which the budget is too small holds up those behind it, except for
    /// tenants that hold little.
    fn grant_waiting(&mut self, now: Duration) -> Vec<BudgetTicket> {
        let (mut granted, mut full, mut at) = (Vec::new(), BTreeSet::new(), 0);
        let mut is_behind = false;
        while let Some(waiting) = self.waiting.get(at).copied() {
            let Waiting { share, bytes, .. } = waiting;
            if full.contains(&share) || self.share_with(share, bytes) > self.share_max {
                full.insert(share);
                at += 1;
                continue;
            }
            if !self.fits(share, bytes, is_behind) {
                is_behind = true;
                at += 1;
                continue;
            }
            self.waiting.remove(at);
            self.add(now, waiting.holder, waiting.share, waiting.bytes);
            granted.push(waiting.ticket);
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(2);
    const ALL: ShareId = ShareId(0);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn waits(grant: Grant) -> BudgetTicket {
        let Grant::Waits(ticket) = grant else { panic!("taken at once") };
        ticket
    }

    #[test]
    fn requests_over_the_limit_wait_in_order() {
        let mut budget = ByteBudget::new(100, 100, WINDOW);
        let [a, b, c] = [1, 2, 3].map(HolderId);
        assert_eq!(budget.take(at(0), a, ALL, 60), Grant::Taken);
        let large = waits(budget.take(at(0), b, ALL, 80));
        let small = waits(budget.take(at(0), c, ALL, 10));
        assert_eq!(budget.give_back(at(1), a, ALL, 60), [large, small]);
        assert_eq!(budget.taken(), 90);
        let gone = waits(budget.take(at(1), a, ALL, 50));
        let behind = waits(budget.take(at(1), a, ALL, 5));
        let mut granted = Vec::new();
        assert!(budget.withdraw(at(1), gone, &mut granted));
        assert_eq!(granted, [behind]);
        assert!(!budget.withdraw(at(1), behind, &mut granted), "its bytes are taken");
    }

    /// Promise 6: one tenant's slow readers do not use up the memory of the others.
    #[test]
    fn a_tenant_has_no_more_than_its_share() {
        let mut budget = ByteBudget::new(100, ByteBudget::share_of_two(100), WINDOW);
        let (greedy, honest) = (ShareId(1), ShareId(2));
        for holder in 0..4 {
            assert_eq!(budget.take(at(0), HolderId(holder), greedy, 10), Grant::Taken);
        }
        let over = waits(budget.take(at(0), HolderId(5), greedy, 10));
        assert_eq!(budget.take(at(0), HolderId(9), honest, 44), Grant::Taken, "not held up");
        assert_eq!(budget.give_back(at(1), HolderId(9), honest, 44), []);
        assert_eq!(budget.give_back(at(1), HolderId(0), greedy, 10), [over]);
    }

    /// Promise 6: slow readers of two tenants do not use up the memory of a third. Its large
    /// request is next when one of them returns its bytes, whatever it requests meanwhile.
    #[test]
    fn a_tenant_that_holds_little_does_not_wait_for_the_others() {
        let mut budget = ByteBudget::new(1600, 700, WINDOW);
        let (greedy, third) = ([1, 2].map(ShareId), ShareId(3));
        assert_eq!(budget.take(at(0), HolderId(1), greedy[0], 700), Grant::Taken);
        assert_eq!(budget.take(at(0), HolderId(2), greedy[1], 700), Grant::Taken);
        let _ = waits(budget.take(at(0), HolderId(2), greedy[1], 25));
        assert_eq!(budget.take(at(0), HolderId(3), third, 15), Grant::Taken);
        let large = waits(budget.take(at(0), HolderId(4), third, 500));
        assert_eq!(budget.give_back(at(1), HolderId(3), third, 15), []);
        assert_eq!(budget.take(at(1), HolderId(3), third, 25), Grant::Taken);
        let over = waits(budget.take(at(1), HolderId(3), third, 1));
        let granted = budget.give_back(at(2), HolderId(1), greedy[0], 700);
        assert!(granted.contains(&large) && granted.contains(&over), "{granted:?}");
    }

    /// A client that reads is never closed; one that does not read is, once others wait.
    #[test]
    fn stalled_holders_are_closed_while_others_wait() {
        let mut budget = ByteBudget::new(100, 100, WINDOW);
        let [slow, slower, fast, waiting] = [1, 2, 3, 4].map(HolderId);
        for (holder, bytes) in [(slow, 30), (slower, 50), (fast, 20)] {
            assert_eq!(budget.take(at(0), holder, ALL, bytes), Grant::Taken);
        }
        let moved = |now: u64| move |holder| if holder == fast { 2 * now } else { 0 };
        assert_eq!(budget.stalled(at(100), moved(100)), [], "no request waits");
        let _ = waits(budget.take(at(100), waiting, ALL, 40));
        assert_eq!(budget.stalled(at(101), moved(101)), [], "a window begins");
        assert_eq!(budget.stalled(at(102), moved(102)), []);
        assert_eq!(budget.stalled(at(103), moved(103)), [slower], "the largest is enough");
        let _ = waits(budget.take(at(103), waiting, ALL, 20));
        assert_eq!(budget.stalled(at(105), moved(105)), [slower, slow]);
    }

    /// A trickle is not enough: a holder of a million bytes has to move more than one.
    #[test]
    fn the_pace_follows_the_bytes_held() {
        let mut budget = ByteBudget::new(1 << 20, 1 << 20, WINDOW);
        assert_eq!(budget.take(at(0), HolderId(1), ALL, 1 << 20), Grant::Taken);
        let _ = waits(budget.take(at(0), HolderId(2), ALL, 1));
        assert_eq!(budget.stalled(at(0), |_| 0), []);
        assert_eq!(budget.stalled(at(2), |_| 100), [HolderId(1)]);
        assert_eq!(budget.stalled(at(4), |_| 100 + (1 << 16) + 1), []);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// For any sequence of requests: both limits hold, every request is granted once, and when
        /// all holders have returned their bytes no request waits.
        #[test]
        fn the_limits_hold_and_no_request_is_lost(
            steps in proptest::collection::vec((0_u64..8, 1_u64..44, any::<bool>()), 1..200),
        ) {
            let mut budget = ByteBudget::new(100, 44, WINDOW);
            let mut held: Vec<(HolderId, ShareId, u64)> = Vec::new();
            let mut waiting: BTreeMap<BudgetTicket, (HolderId, ShareId, u64)> = BTreeMap::new();
            let mut now = at(0);
            for (holder, bytes, is_take) in steps {
                now += Duration::from_millis(100);
                let request = (HolderId(holder), ShareId(holder % 3), bytes);
                if is_take {
                    match budget.take(now, request.0, request.1, request.2) {
                        Grant::Taken => held.push(request),
                        Grant::Waits(ticket) => { waiting.insert(ticket, request); }
                    }
                } else if !held.is_empty() {
                    let (holder, share, bytes) = held.swap_remove(
                        usize::try_from(bytes).unwrap() % held.len(),
                    );
                    for ticket in budget.give_back(now, holder, share, bytes) {
                        held.push(waiting.remove(&ticket).expect("granted once"));
                    }
                }
                prop_assert_eq!(budget.taken(), held.iter().map(|held| held.2).sum::<u64>());
                prop_assert!(budget.taken() <= 100);
                for share in (0..3).map(ShareId) {
                    let of = held.iter().filter(|held| held.1 == share).map(|held| held.2);
                    prop_assert!(of.sum::<u64>() <= 44);
                }
            }
            while let Some((holder, share, bytes)) = held.pop() {
                for ticket in budget.give_back(now, holder, share, bytes) {
                    held.push(waiting.remove(&ticket).expect("granted once"));
                }
            }
            prop_assert!(waiting.is_empty() && budget.taken() == 0);
        }
    }
}
