//! Train: the decisions of a dataset cache that training jobs share (Quiver, FAST'20).

pub mod benefit;
pub mod job;
pub mod manager;
pub mod placement;
pub mod rotation;
pub mod sampler;
