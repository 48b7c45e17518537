//! Simulated time: whole nanoseconds since the start, so that a seed determines a run.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// A point in time, or a span between two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Nanos(pub u64);

impl Nanos {
    pub const MAX: Self = Self(u64::MAX);

    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// As a [`Duration`], which the core uses.
    pub fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Nanos {
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).expect("a scenario is at most a year long"))
    }
}

impl Add for Nanos {
    type Output = Self;

    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub for Nanos {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self(self.0.checked_sub(earlier.0).expect("time does not go back"))
    }
}
