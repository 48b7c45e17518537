//! Names and numbers of streams and families.

use std::{borrow::Borrow, fmt, time::Duration};

/// Longest name of a stream or a family, in bytes.
pub const NAME_MAX: usize = 128;

/// Name of a stream, or of a family of streams.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamName(String);

/// Why a name is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum StreamNameError {
    #[error("the name is empty: use 1 to {NAME_MAX} bytes")]
    Empty,
    #[error("the name has {0} bytes: use 1 to {NAME_MAX}")]
    TooLong(usize),
    #[error("the name {0:?} has a control character: use printable text")]
    Control(String),
    #[error("the name {0:?} has a character that changes the direction of text: remove it")]
    Direction(String),
    #[error("the name is not UTF-8: use printable text")]
    NotUtf8,
}

impl StreamName {
    /// Checks a name.
    pub fn new(name: &str) -> Result<Self, StreamNameError> {
        match name.len() {
            0 => Err(StreamNameError::Empty),
            length if length > NAME_MAX => Err(StreamNameError::TooLong(length)),
            _ if name.chars().any(char::is_control) => Err(StreamNameError::Control(name.into())),
            _ => Ok(Self(name.into())),
        }
    }

    /// Checks the name of a new stream or family. It may have no invisible character that changes
    /// the direction of text, because such a name looks like another one.
    pub fn for_new(name: &str) -> Result<Self, StreamNameError> {
        let is_direction = |c| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let checked = Self::new(name)?;
        if name.contains(is_direction) {
            return Err(StreamNameError::Direction(name.into()));
        }
        Ok(checked)
    }

    /// Checks a name in bytes.
    pub fn from_bytes(name: &[u8]) -> Result<Self, StreamNameError> {
        Self::new(std::str::from_utf8(name).map_err(|_| StreamNameError::NotUtf8)?)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for StreamName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How long streams live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Until the process that owns the store ends. Nothing is made durable.
    Process,
    /// For this time after the stream is sealed, also across restarts.
    Lease(Duration),
    /// Until the stream is destroyed.
    Kept,
}

impl Lifetime {
    /// Whether a sealed stream is found after a restart.
    pub fn is_durable(self) -> bool {
        self != Self::Process
    }
}

/// Number of a stream while its store is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Number of a family while its store is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FamilyId(pub u32);

/// Number of a stream in its family. Below 2^31: the upper half marks records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamNumber(pub u32);

/// Number of a block in its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNumber(pub u64);
