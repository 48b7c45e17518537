//! Courtesy: how long a job waits for others, rather than read past what is open.
//!
//! Whoever is ahead has drawn all that is open before the others have, and the next chunk cannot come. What it
//! reads from the origin meanwhile, the others will have to fetch again; and it takes the link from them, so that
//! they fall further behind, until each reads everything for itself. A job whose data holds it up anyway loses
//! nothing if it waits for a moment instead.
//!
//! How long? No longer than its data has held it up since it last waited: so it is never more than twice as slow,
//! whatever the others do, and a job that is never held up never waits. To wait in vain is worse than not to wait;
//! so after that it saves up for a wait of twice the length, and only half of what it is held up for. When a
//! wait was of use, more of them follow.

use std::time::Duration;

/// Nobody is waited for longer than this at a time.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// What is saved up does not become less after so many halvings, so that it is noticed when others come along.
const HALVINGS_MAX: u32 = 4;

/// How much patience a job has.
#[derive(Debug, Default)]
pub(super) struct Courtesy {
    saved: Duration,
    /// How much has to be saved up before it waits again.
    needed: Duration,
    halvings: u32,
    /// How long it has been waiting, if it is.
    waiting: Option<Duration>,
    /// What was waited for the batch that comes next.
    waited: Duration,
}

impl Courtesy {
    /// Whether the job would wait now.
    pub fn is_enough(&self) -> bool {
        !self.saved.is_zero() && (self.waiting.is_some() || self.saved >= self.needed)
    }

    /// The job has waited for so long; now it has something to draw, or has not.
    pub fn waited(&mut self, took: Duration, in_vain: bool) {
        self.waited = self.waited.saturating_add(took);
        self.saved = self.saved.saturating_sub(took);
        let waiting = self.waiting.unwrap_or_default().saturating_add(took);
        if !in_vain {
            self.halvings = self.halvings.saturating_sub(1);
            self.waiting = None;
        } else if self.saved.is_zero() {
            self.halvings = (self.halvings + 1).min(HALVINGS_MAX);
            self.needed = (waiting * 2).min(WAIT_MAX);
            self.waiting = None;
        } else {
            self.waiting = Some(waiting);
        }
    }

    /// The job was held up for so long by a batch, with what it waited for others.
    pub fn held_up(&mut self, stalled: Duration) {
        let by_its_data = stalled.saturating_sub(std::mem::take(&mut self.waited));
        let counts = by_its_data / (1 << self.halvings);
        self.saved = self.saved.saturating_add(counts).min(WAIT_MAX);
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
            while courtesy.is_enough() {
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
        assert!((0.02..0.08).contains(&share), "{share}");
    }

    #[test]
    fn nobody_is_waited_for_for_long() {
        let mut courtesy = Courtesy::default();
        courtesy.held_up(MS(3_600_000));
        courtesy.waited(WAIT_MAX, true);
        assert!(!courtesy.is_enough());
    }

    /// Others need longer than the first wait: longer ones are tried, and then all are of use.
    #[test]
    fn waits_become_as_long_as_they_have_to_be() {
        let (mut courtesy, mut batches) = (Courtesy::default(), Vec::new());
        for batch in 0..200 {
            let mut waited = Duration::ZERO;
            while courtesy.is_enough() && waited < MS(300) {
                waited += MS(5);
                courtesy.waited(MS(5), waited < MS(300));
            }
            if waited == MS(300) {
                batches.push(batch);
            }
            courtesy.held_up(waited + MS(100));
        }
        assert!(batches[0] < 30, "{batches:?}");
        let late = batches.iter().filter(|batch| **batch >= 100).count();
        assert!(
            late >= 33,
            "one in three, since each is held up for a third of a wait: {batches:?}"
        );
    }

    #[test]
    fn what_was_waited_for_others_does_not_count_as_held_up() {
        let mut courtesy = Courtesy::default();
        courtesy.held_up(MS(100));
        courtesy.waited(MS(100), true);
        courtesy.held_up(MS(100));
        assert!(!courtesy.is_enough());
    }
}
