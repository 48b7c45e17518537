//! A dev origin on real sockets, judged by a real S3 client and by raw HTTP.

mod counters;
mod harness;
mod listing;
mod reads;
mod refusals;
mod shaping;
mod shutdown;
mod writes;
