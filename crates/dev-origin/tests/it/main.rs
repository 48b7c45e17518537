//! A dev origin on real sockets, tested with a real S3 client and with raw HTTP.

mod counters;
mod harness;
mod listing;
mod reads;
mod refusals;
mod shaping;
mod shutdown;
mod writes;
