//! Behaviour of every kind of origin, on real files and sockets.

mod faults;
mod harness;
mod listing;
mod local_files;
mod reading;
mod timeouts;
mod web_servers;
