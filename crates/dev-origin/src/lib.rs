//! A small, real S3 server over a directory, shaped and counted, for tests, demos and benchmarks.
//!
//! What a cache saves can only be shown against an origin that is honest about what it sent. This
//! one speaks S3 over real sockets with real signatures, can be made as slow and as unreliable as a
//! distant store, and counts the bytes of every object it hands out.
//!
//! The first level of the directory holds buckets, and below each the relative paths are the keys.
//! Its credentials are public knowledge, so it serves loopback only.
//!
//! # Why not `s3s-fs`
//!
//! It shares our S3 front end (`s3s`), but a 1 KiB GET takes it 43 ms. Nearly all of that is one
//! missing socket option: it reads the file only after the head has left, Nagle's algorithm then
//! holds the small body back, and the client's delayed ACK releases it 40 ms later. With
//! `TCP_NODELAY` the same GET takes 0.4 ms. A GET of 10 MiB takes it 148 ms: 40 ms with reads of
//! 256 KiB instead of 4 KiB (each is a trip through the blocking pool), 9 ms without the MD5 over the
//! whole file, whatever the range, for the `ETag`. (Medians over loopback; version 0.14.1, patched
//! step by step.) It also ignores `If-Match` on reads, on which a cache of versions depends.
//!
//! # What is deliberately missing
//!
//! User metadata and content types are not kept (a directory has no place for them), nor versions,
//! ACLs, encryption or virtual-hosted addressing. Two keys of which one is a directory of the other
//! (`a` and `a/b`) cannot both exist. File names that are not UTF-8 are invisible.

mod config;
mod counters;
mod server;

mod access;
mod front;
mod shape;

mod body;
mod conditions;
mod list;
mod listing;
mod multipart;
mod operations;
mod tree;
mod upload;

pub use config::{ACCESS_KEY, Config, REGION, SECRET_KEY};
pub use counters::{CounterSnapshot, ObjectCounts, RequestCounts};
pub use server::{DevOrigin, run};
