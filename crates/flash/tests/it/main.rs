//! The engine by behaviour. Most of it runs on the simulated disk, where one seed decides everything:
//! `SEED=n` replays one, `SEEDS=n` runs so many. `devices`, `openings` and `killed` use real files.

mod chaos;
mod crashes;
mod devices;
mod edges;
mod killed;
mod lives;
mod openings;
mod reading;
mod world;
