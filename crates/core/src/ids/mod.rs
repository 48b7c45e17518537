//! Names, one meaning each: what a thing is called never depends on who asks or where it lies.

mod address;
mod given;
mod namespace;
mod ordinal;
mod plain;
mod token;

pub use address::{Address, DatasetId};
pub use given::{JobId, NodeName, Zone};
pub use namespace::{AddressHasher, Namespace, NamespaceId, NamespaceKeyError};
pub use ordinal::{BlobOrdinal, ItemOrdinal, Ordinal};
pub use plain::PlainNameError;
pub use token::{TOKEN_LENGTH_MAX, TOKEN_LENGTH_MIN, Token, TokenError, TokenHash};

/// Why a text is not a name made of hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HexError {
    /// Too short or too long.
    #[error("{what} has {expected} hexadecimal digits, not {found}")]
    Length {
        /// What was being read.
        what: &'static str,
        /// Digits it has.
        expected: usize,
        /// Digits (or other bytes) there were.
        found: usize,
    },
    /// A character that is no hexadecimal digit.
    #[error("{what} has a character at position {position} that is no hexadecimal digit")]
    Digit {
        /// What was being read.
        what: &'static str,
        /// Where, counted from 0.
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

/// Defines a fixed-size name that prints, parses and serialises as hexadecimal.
macro_rules! hex_name {
    ($(#[$doc:meta])* $name:ident, $len:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; $len]);

        impl $name {
            /// How many bytes it has.
            pub const LEN: usize = $len;

            /// The name that these bytes spell.
            pub const fn from_bytes(bytes: [u8; $len]) -> Self {
                Self(bytes)
            }

            /// The bytes of the name.
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
            type Err = crate::names::HexError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                crate::names::from_hex($what, text).map(Self)
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
