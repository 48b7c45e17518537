//! Ids and names: one type for each kind of thing that forebay names.
//!
//! An id never depends on where a thing is stored or which component asks.

mod address;
pub mod endpoint;
mod half_chunk;
mod names;
mod namespace;
mod ordinal;
mod plain_name;
mod token;

pub use address::{Address, DatasetId};
pub use half_chunk::{HalfChunk, HalfChunkRange};
pub use names::{JobName, NodeName, Zone};
pub use namespace::{AddressHasher, Namespace, NamespaceId, NamespaceKeyError};
pub use ordinal::{BlobOrdinal, ItemOrdinal, Ordinal};
pub use plain_name::PlainNameError;
pub use token::{TOKEN_LENGTH_MAX, TOKEN_LENGTH_MIN, Token, TokenError, TokenHash};

/// A text that is not an id of hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HexError {
    /// Too short or too long.
    #[error("{what} has {expected} hexadecimal digits, not {found}")]
    Length {
        /// The kind of id.
        what: &'static str,
        /// Digits that this kind of id has.
        expected: usize,
        /// Bytes of the text.
        found: usize,
    },
    /// A character that is not a hexadecimal digit.
    #[error("{what} has a character at position {position} that is no hexadecimal digit")]
    Digit {
        /// The kind of id.
        what: &'static str,
        /// Position of the character, from 0.
        position: usize,
    },
}

/// Reads exactly `N` bytes of hexadecimal, upper or lower case.
fn from_hex<const N: usize>(what: &'static str, text: &str) -> Result<[u8; N], HexError> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return Err(HexError::Length { what, expected: 2 * N, found: digits.len() });
    }
    let mut bytes = [0; N];
    for (position, digit) in digits.iter().enumerate() {
        let value = char::from(*digit).to_digit(16).ok_or(HexError::Digit { what, position })?;
        let value = u8::try_from(value).expect("a hexadecimal digit is below 16");
        bytes[position / 2] = bytes[position / 2] << 4 | value;
    }
    Ok(bytes)
}

/// Defines a fixed-size id that prints, parses and serialises as hexadecimal.
macro_rules! hex_name {
    ($(#[$doc:meta])* $name:ident, $len:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; $len]);

        impl $name {
            /// Length in bytes.
            pub const LEN: usize = $len;

            /// The id with these bytes.
            pub const fn from_bytes(bytes: [u8; $len]) -> Self {
                Self(bytes)
            }

            /// The bytes of the id.
            pub const fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::ids::HexError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                crate::ids::from_hex($what, text).map(Self)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}
use hex_name;
