//! Pacing: a job that is ahead waits for slower jobs instead of reading past its draw set.
//!
//! The fastest job exhausts the draw set before the others do, and the next chunk cannot be loaded
//! yet. If it reads uncached items meanwhile, the others fetch them again later. It also takes
//! bandwidth of the origin from them, so that they fall further behind, until each job reads
//! everything by itself. A job that stalls on its data anyway loses nothing if it waits for a
//! moment instead.
//!
//! The job waits no longer than it stalled since its last wait. So it is at most twice as slow,
//! whatever the others do, and a job that never stalls never waits. A wait that times out is worse
//! than no wait. After one, the next wait needs twice the credit, and stalls earn half the credit.
//! After a successful wait, stalls earn more credit again.

use std::time::Duration;

/// Longest wait at a time.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Credit is halved at most this number of times, so that the job notices when others catch up
/// again.
const HALVINGS_MAX: u32 = 4;

/// A job's credit for waiting.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    credit: Duration,
    /// Credit that the next wait needs.
    credit_needed: Duration,
    halvings: u32,
    /// Length of the current wait, if the job is waiting.
    wait_so_far: Option<Duration>,
    /// Time waited for the next batch.
    waited: Duration,
}

impl Pacing {
    /// Whether the job has the credit to wait now.
    pub fn may_wait(&self) -> bool {
        !self.credit.is_zero() && (self.wait_so_far.is_some() || self.credit >= self.credit_needed)
    }

    /// The job has waited for `took`. `timed_out` says that the draw set still has less than a
    /// batch.
    pub fn on_waited(&mut self, took: Duration, timed_out: bool) {
        self.waited = self.waited.saturating_add(took);
        self.credit = self.credit.saturating_sub(took);
        let wait_so_far = self.wait_so_far.unwrap_or_default().saturating_add(took);
        if !timed_out {
            self.halvings = self.halvings.saturating_sub(1);
            self.wait_so_far = None;
        } else if self.credit.is_zero() {
            self.halvings = (self.halvings + 1).min(HALVINGS_MAX);
            self.credit_needed = (wait_so_far * 2).min(WAIT_MAX);
            self.wait_so_far = None;
        } else {
            self.wait_so_far = Some(wait_so_far);
        }
    }

    /// A batch stalled the job for this time, including waits for other jobs.
    pub fn on_stalled(&mut self, stalled: Duration) {
        let by_data = stalled.saturating_sub(std::mem::take(&mut self.waited));
        let earned = by_data / (1 << self.halvings);
        self.credit = self.credit.saturating_add(earned).min(WAIT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Total wait of a job alone in its epoch, whose batches take `batch` each, if every wait times
    /// out.
    fn wait_with_timeouts(batch: Duration, batches: u32) -> Duration {
        let (mut pacing, mut total) = (Pacing::default(), Duration::ZERO);
        for _ in 0..batches {
            let mut waited = Duration::ZERO;
            while pacing.may_wait() {
                pacing.on_waited(MS(5), true);
                waited += MS(5);
            }
            pacing.on_stalled(waited + batch);
            total += waited;
        }
        total
    }

    #[test]
    fn a_job_that_never_stalls_never_waits() {
        assert_eq!(wait_with_timeouts(Duration::ZERO, 1000), Duration::ZERO);
    }

    #[test]
    fn waits_that_time_out_become_rare() {
        let (batch, batches) = (MS(80), 1000);
        let waited = wait_with_timeouts(batch, batches);
        let share = waited.as_secs_f64() / (batch * batches).as_secs_f64();
        assert!((0.02..0.08).contains(&share), "{share}");
    }

    #[test]
    fn a_wait_is_at_most_a_second() {
        let mut pacing = Pacing::default();
        pacing.on_stalled(MS(3_600_000));
        pacing.on_waited(WAIT_MAX, true);
        assert!(!pacing.may_wait());
    }

    /// Others need longer than the first wait: longer waits are tried, and then all succeed.
    #[test]
    fn waits_become_as_long_as_they_have_to_be() {
        let (mut pacing, mut batches) = (Pacing::default(), Vec::new());
        for batch in 0..200 {
            let mut waited = Duration::ZERO;
            while pacing.may_wait() && waited < MS(300) {
                waited += MS(5);
                pacing.on_waited(MS(5), waited < MS(300));
            }
            if waited == MS(300) {
                batches.push(batch);
            }
            pacing.on_stalled(waited + MS(100));
        }
        assert!(batches[0] < 30, "{batches:?}");
        let late = batches.iter().filter(|batch| **batch >= 100).count();
        assert!(
            late >= 33,
            "one in three, since each batch stalls for a third of a wait: {batches:?}"
        );
    }

    #[test]
    fn waiting_for_others_earns_no_credit() {
        let mut pacing = Pacing::default();
        pacing.on_stalled(MS(100));
        pacing.on_waited(MS(100), true);
        pacing.on_stalled(MS(100));
        assert!(!pacing.may_wait());
    }
}
