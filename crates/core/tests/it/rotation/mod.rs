//! Rotation in a small world of jobs, an origin and a cache.

mod chaos;
mod contradictions;
mod cost;
mod rules;
mod world;
