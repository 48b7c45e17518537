//! Dev origin: an S3 server over a directory, for tests, demos and benchmarks.
//!
//! To measure what a cache saves, the origin must count exactly what it sends. This one serves S3
//! over real sockets with real signatures. It can be configured to be slow and unreliable, and it
//! counts the bytes of every object that it sends.
//!
//! The first level of the directory holds buckets; relative paths below a bucket are keys. Its
//! credentials are published, so it listens on loopback only.
//!
//! # Why not `s3s-fs`
//!
//! It has the same S3 front end (`s3s`), but:
//!
//! - A 1 KiB GET takes 43 ms. It reads the file only after the head has been sent, Nagle's
//!   algorithm holds the small body back, and the client's delayed ACK releases it 40 ms later.
//!   With `TCP_NODELAY` the same GET takes 0.4 ms.
//! - A GET of 10 MiB takes 148 ms. With reads of 256 KiB instead of 4 KiB (each is a trip through
//!   the blocking pool) it takes 40 ms. Without the MD5 over the whole file for the `ETag`, which
//!   is computed for every range, it takes 9 ms.
//! - It ignores `If-Match` on reads, on which a cache of versions depends.
//!
//! (Medians over loopback; version 0.14.1, patched step by step.)
//!
//! # Deliberately missing
//!
//! User metadata, content types, versions, ACLs, encryption and virtual-hosted addressing. Two keys
//! of which one is a directory of the other (`a` and `a/b`) cannot both exist. File names that are
//! not UTF-8 are invisible.

mod config;
mod counters;
mod server;

mod access;
mod frontend;
mod shaper;

mod body;
mod conditions;
mod list_operations;
mod list_page;
mod multipart;
mod operations;
mod tree;
mod upload;

pub use config::{ACCESS_KEY, Config, Fault, LimitedKey, REGION, SECRET_KEY};
pub use counters::{CounterSnapshot, ObjectCounts, RequestCounts};
pub use server::{DevOrigin, run};
