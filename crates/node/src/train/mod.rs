//! Drives the managers of datasets (`core::train::manager`).

pub(crate) mod manager_driver;
