//! Replacement policies for embedding rows: which rows stay in memory.
//!
//! A recommendation model looks up one row in each of dozens of tables and waits for the slowest.
//! Only a **perfect hit**, with all rows resident, is fast. Policies therefore see whole requests
//! ([`Policy::request`]). `policies/` has the published ones, among them EV-LFU, EV-ARC and EV-CAR
//! of the dissertation on `EVStore`. `group/` is forebay's own, [`PolicyKind::Group`].
//!
//! Start at `policy.rs` (the contract), then `entries.rs` (the bookkeeping that all policies
//! share).
//!
//! Not here: rows and their bytes (`crates/embeddings`).

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares of counts are rounded down and hashes truncated, both on purpose"
)]

use crate::util::slab_list;

mod key;
mod kind;
mod policy;

mod bucket_queue;
mod count_min;
mod directory;
mod entries;
mod pinned_tables;

mod group;
mod implications;
mod policies;

#[cfg(test)]
mod tests;

pub use crate::util::policy_names::PolicyKindError;
pub use implications::Implication;
pub use key::{Key, KeyMap, TableId};
pub use kind::PolicyKind;
pub use pinned_tables::pinned_tables;
pub use policy::{Bookkeeping, Budget, Capacity, Division, Evicted, Outcome, Policy, TableShape};
pub use slab_list::Slot;
