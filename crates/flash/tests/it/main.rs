//! The engine by behaviour. Most of it runs on the simulated disk, where one seed decides everything:
//! `SEED=n` replays one, `SEEDS=n` runs so many.

mod chaos;
mod crashes;
mod lives;
mod reading;
mod world;
