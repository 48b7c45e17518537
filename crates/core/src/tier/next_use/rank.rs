//! Ranks: the order in which regions and segments in memory leave.
//!
//! A rank is the time of the next use. It is a point in time, so it stays valid while time passes,
//! and changes only when the knowledge about jobs changes. The latest rank leaves first.

use std::{collections::BTreeSet, time::Duration};

/// Ranks without a next use lie beyond all times: a hundred years, in seconds.
pub(super) const FAR: f64 = 3.2e9;
/// Rank of a segment that is spent on arrival, beyond all others.
pub(super) const SPENT: f64 = 3.0 * FAR;
/// Factor by which a newcomer's next use must be sooner than the victim's. Without it, segments of
/// nearly equal rank would keep replacing each other.
const SOONER: f64 = 0.98;

/// Time of the next use; greater is later. Times are positive, so their bits sort as they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(u64);

impl Rank {
    pub fn at(seconds: f64) -> Self {
        Self(seconds.max(0.0).to_bits())
    }

    /// Without a next use, in LRU order: the older, the later the rank.
    pub fn by_age(touched: Duration) -> Self {
        Self::at(FAR + (FAR - touched.as_secs_f64()).max(0.0))
    }

    pub fn seconds(self) -> f64 {
        f64::from_bits(self.0)
    }

    /// Whether this is sooner than the last rank by the factor [`SOONER`].
    pub fn is_sooner(self, now: Duration, last: Self) -> bool {
        if last.seconds() >= FAR {
            return self < last;
        }
        let now = now.as_secs_f64();
        self.seconds() - now < SOONER * (last.seconds() - now)
    }
}

/// Members in the order of their ranks.
#[derive(Debug, Default)]
pub(super) struct RankOrder {
    order: BTreeSet<(Rank, u32)>,
    ranks: Vec<Option<Rank>>,
}

impl RankOrder {
    /// Adds a member, or changes its rank.
    pub fn set(&mut self, member: u32, rank: Rank) {
        let at = member as usize;
        if at >= self.ranks.len() {
            self.ranks.resize(at + 1, None);
        }
        if let Some(before) = self.ranks[at].replace(rank) {
            if before == rank {
                return;
            }
            self.order.remove(&(before, member));
        }
        self.order.insert((rank, member));
    }

    pub fn remove(&mut self, member: u32) {
        if let Some(rank) = self.ranks.get_mut(member as usize).and_then(Option::take) {
            self.order.remove(&(rank, member));
        }
    }

    pub fn contains(&self, member: u32) -> bool {
        self.ranks.get(member as usize).is_some_and(Option::is_some)
    }

    /// The member that leaves first.
    pub fn last(&self) -> Option<(Rank, u32)> {
        self.order.last().copied()
    }
}
