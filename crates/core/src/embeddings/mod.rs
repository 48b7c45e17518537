//! Which embedding rows stay in memory.
//!
//! A recommendation model looks up one row in each of dozens of tables, and waits for the slowest: only
//! a **perfect hit**, all rows resident, is fast. Policies therefore see whole requests
//! ([`Policy::request`]). Beside the classics and the dissertation's EV-LFU, EV-ARC and EV-CAR stands our
//! own, [`PolicyKind::Group`].
//!
//! Start at `policy.rs` (the contract), then `store.rs` (the books that all share).

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares of counts are rounded down and hashes are cut, both on purpose"
)]

use crate::list;

mod key;
mod policy;
mod whole;

mod ranked;
mod sketch;
mod store;

mod bundles;

mod arc;
mod car;
mod clock_pro;
mod experts;
mod frequency;
mod group;
mod lirs;
mod queues;
mod segmented;

mod kind;

#[cfg(test)]
mod contract;
#[cfg(test)]
mod reference;

pub use crate::kinds::PolicyKindError;
pub use bundles::Implication;
pub use key::{Key, KeyMap, TableId};
pub use kind::PolicyKind;
pub use policy::{Budget, Capacity, Outcome, Policy, TableShape};
pub use whole::whole_tables;
