//! `x-forebay-cache`: how a response was made.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header's name.
pub const CACHE_HEADER: HeaderName = HeaderName::from_static("x-forebay-cache");

/// How a response was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOutcome {
    /// All bytes came from this gateway.
    Hit,
    /// Some bytes were fetched from the origin and kept.
    Fill,
    /// The origin answered, and nothing was kept.
    Pass,
}

impl CacheOutcome {
    /// Sets the header.
    pub fn set(self, headers: &mut HeaderMap) {
        let value = match self {
            Self::Hit => "hit",
            Self::Fill => "fill",
            Self::Pass => "pass",
        };
        headers.insert(CACHE_HEADER, HeaderValue::from_static(value));
    }
}
