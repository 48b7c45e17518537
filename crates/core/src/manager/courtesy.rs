//! Courtesy: how long a job waits for others, rather than read past what is open.
//!
//! Whoever is ahead has drawn all that is open before the others have, and the next chunk cannot come. What it
//! reads from the origin meanwhile, the others will have to fetch again; and it takes the link from them, so that
//! they fall further behind, until each reads everything for itself. A job whose data holds it up anyway loses
//! nothing if it waits for a moment instead.
//!
//! How long? As long as its data has held it up since it last waited: so it is never more than twice as slow,
//! whatever the others do, and a job that is never held up never waits. When it has waited in vain, others are
//! far behind, and what it is held up for counts half as much from then on; when it was of use, twice as much.

use std::time::Duration;

/// Nobody is waited for longer than this at a time.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Waits that are in vain become no rarer after so many halvings, so that it is noticed when others come along.
const HALVINGS_MAX: u32 = 6;

/// How much patience a job has left.
#[derive(Debug, Default)]
pub(super) struct Courtesy {
    left: Duration,
    halvings: u32,
    /// What was waited for the batch that comes next.
    waited: Duration,
}

impl Courtesy {
    /// Whether there is any.
    pub fn is_left(&self) -> bool {
        !self.left.is_zero()
    }

    /// The job has waited for so long; then it had something to draw, or had not.
    pub fn waited(&mut self, took: Duration, in_vain: bool) {
        self.waited = self.waited.saturating_add(took);
        self.left = self.left.saturating_sub(took);
        if !in_vain {
            self.halvings = self.halvings.saturating_sub(1);
        } else if self.left.is_zero() {
            self.halvings = (self.halvings + 1).min(HALVINGS_MAX);
        }
    }

    /// The job was held up for so long by a batch, with what it waited for others.
    pub fn held_up(&mut self, stalled: Duration) {
        let by_its_data = stalled.saturating_sub(std::mem::take(&mut self.waited));
        let counts = by_its_data / (1 << self.halvings);
        self.left = self.left.saturating_add(counts).min(WAIT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// A job alone in its epoch, whose batches each take `batch`: it waits whenever it may, and nobody comes.
    fn waits_in_vain(batch: Duration, batches: u32) -> Duration {
        let (mut courtesy, mut in_all) = (Courtesy::default(), Duration::ZERO);
        for _ in 0..batches {
            let mut waited = Duration::ZERO;
            while courtesy.is_left() {
                courtesy.waited(MS(5), true);
                waited += MS(5);
            }
            courtesy.held_up(waited + batch);
            in_all += waited;
        }
        in_all
    }

    #[test]
    fn a_job_that_is_never_held_up_never_waits() {
        assert_eq!(waits_in_vain(Duration::ZERO, 1000), Duration::ZERO);
    }

    #[test]
    fn waiting_in_vain_becomes_rare() {
        let (batch, batches) = (MS(80), 1000);
        let waited = waits_in_vain(batch, batches);
        let share = waited.as_secs_f64() / (batch * batches).as_secs_f64();
        assert!((0.01..0.07).contains(&share), "{share}");
    }

    #[test]
    fn nobody_is_waited_for_for_long() {
        let mut courtesy = Courtesy::default();
        courtesy.held_up(MS(3_600_000));
        courtesy.waited(WAIT_MAX, true);
        assert!(!courtesy.is_left());
    }

    #[test]
    fn what_was_of_use_is_done_again() {
        let mut courtesy = Courtesy::default();
        for _ in 0..3 {
            courtesy.held_up(MS(100));
            courtesy.waited(MS(100), true);
        }
        assert_eq!(courtesy.halvings, 3);
        for _ in 0..3 {
            courtesy.held_up(MS(100));
            courtesy.waited(MS(5), false);
        }
        assert_eq!(courtesy.halvings, 0);
    }

    #[test]
    fn what_was_waited_for_others_does_not_count_as_held_up() {
        let mut courtesy = Courtesy::default();
        courtesy.held_up(MS(100));
        courtesy.waited(MS(100), true);
        courtesy.held_up(MS(100));
        assert!(!courtesy.is_left());
    }
}
