//! The job's side of Train: epochs, reports to the manager, and the map from items to blobs.

pub(crate) mod item_map;
pub(crate) mod job;
pub(crate) mod reporter;
