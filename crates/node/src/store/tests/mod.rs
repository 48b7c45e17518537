//! Tests of the store over sets of devices.

mod device_sets;
