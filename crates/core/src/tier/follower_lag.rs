//! Follower lag: whether other jobs read what a job brought in, and the time until they do.
//!
//! Followers need not be announced. A job that was followed so far is expected to be followed with
//! the same lag. A follower that comes after the segments were evicted finds none of them, so it
//! does not count.

use std::time::Duration;

use super::snapshot::{Reader, SnapshotError, Writer};

/// Unread evictions after which a job may be judged not worth keeping segments for.
const EVICTED_UNREAD_MIN: f64 = 64.0;
/// Share of segments that others must read for it to be worth it.
const WORTHWHILE_SHARE: f64 = 0.1;
/// Number of outcomes at which all counts are halved, so that old ones count less.
const OUTCOMES_MAX: f64 = 4096.0;
/// Reads by followers needed for an estimate of the lag.
const READ_MIN: f64 = 16.0;
/// Factor on the mean lag, because lags vary.
const MARGIN: f64 = 1.5;

/// Follower lag of one job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FollowerLag {
    read: f64,
    evicted_unread: f64,
    /// Mean lag of the last 64 reads, in seconds.
    lag: f64,
}

/// Expectation for a job's next segments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FollowerEstimate {
    /// Seconds until a follower reads a segment, at the latest.
    pub lag: f64,
    /// Share of segments that followers read.
    pub share: f64,
}

impl FollowerLag {
    /// Another job has read a segment of this one.
    pub fn on_read(&mut self, lag: Duration) {
        self.read += 1.0;
        self.lag += (lag.as_secs_f64() - self.lag) / self.read.min(64.0);
        self.decay();
    }

    /// Segments without a known reader were evicted unread.
    pub fn on_evicted_unread(&mut self, segments: u32) {
        self.evicted_unread += f64::from(segments);
        self.decay();
    }

    /// Whether segments without a known reader are worth keeping. True until proven otherwise.
    pub fn is_worthwhile(&self) -> bool {
        self.evicted_unread < EVICTED_UNREAD_MIN || self.share() >= WORTHWHILE_SHARE
    }

    /// The estimate, if there are enough reads.
    pub fn estimate(&self) -> Option<FollowerEstimate> {
        (self.read >= READ_MIN && self.is_worthwhile())
            .then(|| FollowerEstimate { lag: MARGIN * self.lag, share: self.share() })
    }

    pub fn save(&self, writer: &mut Writer) {
        for value in [self.read, self.evicted_unread, self.lag] {
            writer.f64(value);
        }
    }

    pub fn read(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let (read, evicted_unread) = (reader.positive()?, reader.positive()?);
        Ok(Self { read, evicted_unread, lag: reader.positive()? })
    }

    fn share(&self) -> f64 {
        self.read / (self.read + self.evicted_unread).max(1.0)
    }

    fn decay(&mut self) {
        if self.read + self.evicted_unread > OUTCOMES_MAX {
            (self.read, self.evicted_unread) = (self.read / 2.0, self.evicted_unread / 2.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_worthwhile_until_proven_otherwise() {
        let mut job = FollowerLag::default();
        assert!(job.is_worthwhile() && job.estimate().is_none(), "no data yet");
        (0..64).for_each(|_| job.on_evicted_unread(1));
        assert!(!job.is_worthwhile());
        // A tenth is enough.
        (0..7).for_each(|_| job.on_read(Duration::from_secs(10)));
        assert!(!job.is_worthwhile() && job.estimate().is_none());
        (0..9).for_each(|_| job.on_read(Duration::from_secs(10)));
        assert!(job.is_worthwhile());
        let FollowerEstimate { lag, share } = job.estimate().unwrap();
        assert!((lag - 15.0).abs() < 1e-9 && (share - 0.2).abs() < 1e-9, "{lag} {share}");
    }

    #[test]
    fn old_outcomes_count_less() {
        let mut job = FollowerLag::default();
        (0..1_000_000).for_each(|_| job.on_evicted_unread(1));
        assert!(!job.is_worthwhile());
        (0..600).for_each(|_| job.on_read(Duration::from_secs(1)));
        assert!(job.is_worthwhile(), "a million were evicted unread before");
        (0..200).for_each(|_| job.on_read(Duration::from_secs(100)));
        let lag = job.estimate().unwrap().lag;
        assert!((100.0..150.5).contains(&lag), "the lag has changed: {lag}");
    }
}
