//! Gateway: the decisions of Tier's S3 endpoint about one object.
//!
//! 1. [`byte_range`] and [`conditions`] say what a request asks of one version.
//! 2. [`versions`] says whether the version that the gateway knows may be used without asking the
//!    origin, [`rights`] whether this principal may have it.
//! 3. [`read_plan`] cuts a range into segments and says where each comes from.
//! 4. [`fill`] follows one stream of the origin that feeds a run of segments.
//! 5. [`read_ahead`] recognises sequential readers. [`names`] interns what policies count by.
//!
//! Not here: which segments are admitted and evicted, which is [`tier`](crate::tier).

mod bounded_map;
pub mod byte_range;
pub mod conditions;
pub mod etag;
pub mod fill;
pub mod names;
pub mod read_ahead;
pub mod read_plan;
pub mod rights;
pub mod versions;
