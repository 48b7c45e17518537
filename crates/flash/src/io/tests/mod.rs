//! Tests of the real disks and of device files.

mod contract;
mod device_file;
