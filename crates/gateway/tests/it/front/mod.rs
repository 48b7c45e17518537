//! The front: signatures, tenants, limits and pass-through, over real sockets.

mod harness;
mod hostile;
mod identities;
mod isolation;
mod limits;
mod pass_through;
mod recording_origin;
