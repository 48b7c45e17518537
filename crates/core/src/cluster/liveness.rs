//! When to doubt that one who is silent still lives.
//!
//! An agent may rightly be silent for minutes: the origin is slow, and its own deadlines end that. So may a
//! node, while somebody fetches what it was asked to wait for. One that is stopped or stuck is silent, too, and
//! must not hold up a job (promise 5). Silence alone does not tell them apart, but one that lives answers a
//! greeting at once. So whoever waits greets it now and then.
//!
//! A node, an agent, and the node again behind the next agent may hang one after the other under one batch. All
//! of that together is to be found out within five seconds.

use std::time::Duration;

/// Nobody is doubted sooner,
const AFTER: Duration = Duration::from_millis(500);
/// nor more often.
const EVERY: Duration = Duration::from_secs(2);
/// Whoever lives answers a greeting within this.
pub const GREETING: Duration = Duration::from_secs(1);
/// Whoever lives has most likely answered it by then.
const GREETING_MIN: Duration = Duration::from_millis(200);

/// How long the answer to a greeting is waited for. Of several who were asked at once, the last has been silent
/// for so long already while the others were waited for: they are found out in little more time than one.
pub fn greeting_after(others: Duration) -> Duration {
    (AFTER + GREETING).saturating_sub(others).clamp(GREETING_MIN, GREETING)
}

/// The doubts about one other side.
#[derive(Debug, Clone, Copy, Default)]
pub struct Doubt {
    greeted_at: Option<Duration>,
}

impl Doubt {
    /// Whether to greet the other side, which has been silent for so long.
    pub fn arises(&mut self, silent: Duration) -> bool {
        // Less silence than at the last greeting: it has spoken since.
        self.greeted_at = self.greeted_at.filter(|at| *at <= silent);
        let arises = silent >= self.greeted_at.map_or(AFTER, |at| at + EVERY);
        if arises {
            self.greeted_at = Some(silent);
        }
        arises
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silent_are_greeted_soon_and_then_seldom() {
        let mut doubt = Doubt::default();
        let greeted = |doubt: &mut Doubt, until: u64| -> Vec<u64> {
            let silent = (0..until).step_by(100);
            silent.filter(|silent| doubt.arises(Duration::from_millis(*silent))).collect()
        };
        assert_eq!(greeted(&mut doubt, 6000), [500, 2500, 4500]);
        assert_eq!(greeted(&mut doubt, 1000), [500], "it has spoken, and is silent again");
    }

    /// Promise 5: five nodes that hang hold up a job little longer than one.
    #[test]
    fn those_who_were_asked_at_once_are_doubted_at_once() {
        let mut waited = Duration::ZERO;
        for _ in 0..5 {
            waited = waited.max(AFTER) + greeting_after(waited);
        }
        assert!(waited <= Duration::from_millis(2500), "{waited:?}");
        assert_eq!(greeting_after(Duration::ZERO), GREETING);
    }
}
