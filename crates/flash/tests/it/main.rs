//! Tests of the engine's behaviour. Most run on the simulated disk, where one seed decides
//! everything: `SEED=n` replays one seed, `SEEDS=n` runs the seeds 0 to n - 1. `devices`,
//! `device_open_errors` and `kill_and_restart` use real files.

mod chaos;
mod crashes;
mod device_health;
mod device_open_errors;
mod devices;
mod eviction;
mod group_lifecycle;
mod kill_and_restart;
mod limits;
mod reads;
mod streaming;
mod world;
