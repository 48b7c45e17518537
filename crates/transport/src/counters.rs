//! Counters of a process, as reported in `stats`. One table defines name and meaning of each.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Name, meaning and value of one metric.
pub type Row = (&'static str, &'static str, u64);

/// Defines a struct of counters. Doc comments are the help texts.
#[macro_export]
macro_rules! counters {
    ($(#[doc = $what:literal])+ $all:ident; $($(#[doc = $help:literal])+ $name:ident,)+) => {
        $(#[doc = $what])+
        #[derive(Debug, Default)]
        pub struct $all {
            $($(#[doc = $help])+ pub $name: $crate::Counter,)+
        }

        impl $all {
            /// Name, meaning and value of each counter.
            pub fn all(&self) -> Vec<$crate::counters::Row> {
                vec![$((stringify!($name), concat!($($help),+).trim_ascii(), self.$name.get())),+]
            }
        }
    };
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds 1.
    pub fn one(&self) {
        self.add(1);
    }

    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
