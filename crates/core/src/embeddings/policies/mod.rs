//! Published replacement policies, with which `group` is compared.
//!
//! - `queues`: FIFO, LRU, CLOCK, SIEVE
//! - `windowed`: S3-FIFO, W-TinyLFU
//! - `frequency`: LFU, EV-LFU and its variants
//! - `arc`: ARC, EV-ARC
//! - `car`: CAR, EV-CAR
//! - `lirs`: LIRS
//! - `clock_pro`: CLOCK-Pro
//! - `regret`: `LeCaR`, CACHEUS

pub(super) mod arc;
pub(super) mod car;
pub(super) mod clock_pro;
pub(super) mod frequency;
pub(super) mod lirs;
pub(super) mod queues;
pub(super) mod regret;
pub(super) mod windowed;
