//! When to doubt that one who is silent still lives.
//!
//! An agent may rightly be silent for minutes: the origin is slow, and its own deadlines end that. One
//! that is stopped or stuck is silent, too, and must not hold up a job (promise 5). Silence alone does
//! not tell them apart, but one that lives answers a greeting at once. So whoever waits greets it now
//! and then.

use std::time::Duration;

/// Nobody is doubted sooner,
const AFTER: Duration = Duration::from_secs(2);
/// nor more often.
const EVERY: Duration = Duration::from_secs(10);

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
        let greeted = |doubt: &mut Doubt, seconds: std::ops::Range<u64>| -> Vec<u64> {
            seconds.filter(|silent| doubt.arises(Duration::from_secs(*silent))).collect()
        };
        assert_eq!(greeted(&mut doubt, 0..30), [2, 12, 22]);
        assert_eq!(greeted(&mut doubt, 0..10), [2], "it has spoken, and is silent again");
    }
}
