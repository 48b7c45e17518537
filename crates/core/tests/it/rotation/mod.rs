//! Rotation in a small simulated world of jobs, an origin and a cache.

mod chaos;
mod cost;
mod invalid_events;
mod rules;
mod world;
