//! Whether it pays to keep what no known job will read.
//!
//! Somebody may come who was not announced. Keeping a segment for him costs a write, so it has to pay: a tenth of what is
//! kept on the chance must be read again.
//!
//! - What all announced readers have read (**spent**) probably is not: a sixteenth is tried, and all the others
//!   follow while enough of what was tried is read again.
//! - What is **unknown** is kept, unless that did not pay for other segments of the job that brings it
//!   (`followed.rs`): then one in 64 is tried.

use super::super::{followed::Followed, words::Segment};
use crate::stable::mix;

/// Of what is spent, one in so many is always tried.
const SPENT_ONE_IN: u64 = 16;
/// So many of what was tried must have been read again,
const PAYS: f64 = 0.1;
/// out of so many, or more.
const TRIED_MIN: f64 = 64.0;
/// Then half is forgotten.
const TRIED_MAX: f64 = 65536.0;
/// Of what is unknown, one in so many is always tried.
const UNKNOWN_ONE_IN: u64 = 64;

/// Why a segment would be on flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chance {
    /// Somebody is known to read it.
    None,
    /// All who were known to have.
    Spent,
    /// Nobody has said anything about it.
    Unknown,
}

/// What was tried of what is spent, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Speculation {
    tried: f64,
    paid: f64,
}

impl Speculation {
    /// Is this worth a try? `brought_by` is what is known of the job that brings it, if one does.
    pub fn allows(&self, chance: Chance, brought_by: Option<&Followed>, segment: Segment) -> bool {
        let (pays, one_in) = match chance {
            Chance::None => return true,
            // Without a tag there is nobody to judge.
            Chance::Unknown => (brought_by.is_none_or(Followed::pays), UNKNOWN_ONE_IN),
            Chance::Spent => {
                (self.tried >= TRIED_MIN && self.paid >= PAYS * self.tried, SPENT_ONE_IN)
            }
        };
        pays || mix(segment.0 ^ 0x5bec).is_multiple_of(one_in)
    }

    /// Something spent is kept.
    pub fn tried(&mut self) {
        self.tried += 1.0;
        if self.tried > TRIED_MAX {
            (self.tried, self.paid) = (self.tried / 2.0, self.paid / 2.0);
        }
    }

    /// Something spent that was kept is read.
    pub fn paid(&mut self) {
        self.paid += 1.0;
    }
}
