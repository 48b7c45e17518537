//! Whether others follow a job: read what it brought, and how long after it.
//!
//! Nobody may have said so. But whoever was followed so far will be, at the same distance; and a follower who comes later
//! than segments stay finds nothing of them, and is no nearer for the segments to come.

use std::time::Duration;

/// So many segments that went unread make a verdict,
const LOST_MIN: f64 = 64.0;
/// which is that they do not pay, unless this share was read.
const PAYS: f64 = 0.1;
/// Then half is forgotten.
const ENDED_MAX: f64 = 4096.0;
/// So many segments that were read say when the next ones are.
const READ_MIN: f64 = 16.0;
/// Distances are not always the same.
const MARGIN: f64 = 1.5;

/// What became of the segments that a job brought.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Followed {
    read: f64,
    lost: f64,
    /// How long after it they were read, in seconds, on average over the last ones.
    lag: f64,
}

impl Followed {
    /// Another job has read one, so long after it.
    pub fn read(&mut self, lag: Duration) {
        self.read += 1.0;
        self.lag += (lag.as_secs_f64() - self.lag) / self.read.min(64.0);
        self.forget();
    }

    /// One that was kept on the chance has gone unread.
    pub fn lost(&mut self) {
        self.lost += 1.0;
        self.forget();
    }

    /// Is it worth keeping what nobody is known to read? Until the contrary is seen.
    pub fn pays(&self) -> bool {
        self.lost < LOST_MIN || self.share() >= PAYS
    }

    /// How many seconds after it others are expected, at the latest, and how many of its segments they read.
    pub fn expected(&self) -> Option<(f64, f64)> {
        (self.read >= READ_MIN && self.pays()).then(|| (MARGIN * self.lag, self.share()))
    }

    fn share(&self) -> f64 {
        self.read / (self.read + self.lost).max(1.0)
    }

    fn forget(&mut self) {
        if self.read + self.lost > ENDED_MAX {
            (self.read, self.lost) = (self.read / 2.0, self.lost / 2.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_believed_to_be_followed_until_the_contrary_is_seen() {
        let mut followed = Followed::default();
        assert!(followed.pays() && followed.expected().is_none(), "nothing is known");
        (0..64).for_each(|_| followed.lost());
        assert!(!followed.pays());
        // A tenth is enough.
        (0..7).for_each(|_| followed.read(Duration::from_secs(10)));
        assert!(!followed.pays() && followed.expected().is_none());
        (0..9).for_each(|_| followed.read(Duration::from_secs(10)));
        assert!(followed.pays());
        let (lag, share) = followed.expected().unwrap();
        assert!((lag - 15.0).abs() < 1e-9 && (share - 0.2).abs() < 1e-9, "{lag} {share}");
    }

    #[test]
    fn what_was_long_ago_counts_less() {
        let mut followed = Followed::default();
        (0..1_000_000).for_each(|_| followed.lost());
        assert!(!followed.pays());
        (0..600).for_each(|_| followed.read(Duration::from_secs(1)));
        assert!(followed.pays(), "a million were lost before");
        (0..200).for_each(|_| followed.read(Duration::from_secs(100)));
        let (lag, _) = followed.expected().unwrap();
        assert!((100.0..150.5).contains(&lag), "the distance has changed: {lag}");
    }
}
