//! Rotation in a small world of jobs, an origin and a cache.

mod explore;
mod world;
