//! A small, real S3 server over a directory, shaped and counted, for tests, demos and benchmarks.
