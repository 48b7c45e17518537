//! Tests of streams. `model`, `crashes` and `leases` run on a simulated disk, where one seed
//! decides everything: `SEED=n` replays one seed, `SEEDS=n` runs the seeds 0 to n - 1. `store` uses
//! real files and threads, `overwritten` real files, `kills` and `borrowers` real processes.

mod arrow;
mod borrowers;
mod crashes;
mod kills;
mod leases;
mod limits;
mod model;
mod overwritten;
mod sim;
mod store;
