//! A node over a real socket and a real directory.
