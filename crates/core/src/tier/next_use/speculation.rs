//! Whether it pays to keep what no known job will read.
//!
//! Where there is room, a segment that all announced readers have read could stay in case somebody comes who was
//! not announced. That costs a write, so a sixteenth is tried, and all the others follow while enough of what was
//! tried is read again.

use super::super::words::Segment;
use crate::stable::mix;

/// One in so many is always tried.
const ONE_IN: u64 = 16;
/// So many of what was tried must have been read again,
const PAYS: f64 = 0.1;
/// out of so many, or more.
const TRIED_MIN: f64 = 64.0;
/// Then half is forgotten.
const TRIED_MAX: f64 = 65536.0;

/// What was tried, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Speculation {
    tried: f64,
    paid: f64,
}

impl Speculation {
    /// Is this worth a try?
    pub fn allows(&self, segment: Segment) -> bool {
        let pays = self.tried >= TRIED_MIN && self.paid >= PAYS * self.tried;
        pays || mix(segment.0 ^ 0x5bec).is_multiple_of(ONE_IN)
    }

    /// Something is kept on the chance.
    pub fn tried(&mut self) {
        self.tried += 1.0;
        if self.tried > TRIED_MAX {
            (self.tried, self.paid) = (self.tried / 2.0, self.paid / 2.0);
        }
    }

    /// Something that was kept on the chance is read.
    pub fn paid(&mut self) {
        self.paid += 1.0;
    }
}
