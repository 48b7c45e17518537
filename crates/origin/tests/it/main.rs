//! Origins of every kind, on real files and sockets, by behaviour.

mod harness;
mod listing;
mod local_files;
mod patience;
mod reading;
mod web_servers;
