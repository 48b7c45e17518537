//! Tests of the object path: `ObjectCache::serve` in front of a real S3 server (`dev-origin`), and
//! in front of one that misbehaves as it is scripted to.

mod admission;
mod answers;
mod harness;
mod kill_and_restart;
mod misbehaving_origins;
mod model;
mod rights;
mod scripted_origin;
mod shared_fills;
mod slow_clients;
