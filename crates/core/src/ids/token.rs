//! Tokens: secrets that authenticate a client, and the hashes that a node compares them with.

use std::{fmt, str::FromStr};

use zeroize::Zeroizing;

/// A secret that authenticates a client. It is sent over encrypted or local connections only, and
/// never printed. Its memory is zeroed on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Zeroizing<String>);

/// Shortest token in bytes. A random token of this length cannot be guessed.
pub const TOKEN_LENGTH_MIN: usize = 32;
/// Longest token in bytes.
pub const TOKEN_LENGTH_MAX: usize = 256;

/// A text that is not a token. The message never quotes the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// No characters but white space.
    #[error("there is no token in it; make one with `openssl rand -hex 32`")]
    Empty,
    /// Short enough to be guessed.
    #[error(
        "the token has {0} characters, fewer than {TOKEN_LENGTH_MIN}; \
         make one with `openssl rand -hex 32`"
    )]
    Short(usize),
    /// Over the limit of the protocol.
    #[error(
        "the token is longer than {TOKEN_LENGTH_MAX} characters; \
         make one with `openssl rand -hex 32`"
    )]
    Long,
    /// White space inside, several lines, or characters that are not graphic ASCII.
    #[error(
        "a token is one line of letters, digits and signs; make one with `openssl rand -hex 32`"
    )]
    Characters,
}

impl Token {
    /// The bytes that are sent.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl FromStr for Token {
    type Err = TokenError;

    /// Parses the text of a token file. White space around the token is ignored.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim_ascii();
        match text.len() {
            0 => Err(TokenError::Empty),
            length if length > TOKEN_LENGTH_MAX => Err(TokenError::Long),
            _ if !text.bytes().all(|byte| byte.is_ascii_graphic()) => Err(TokenError::Characters),
            length if length < TOKEN_LENGTH_MIN => Err(TokenError::Short(length)),
            _ => Ok(Self(Zeroizing::new(text.to_owned()))),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// The hash of a token, which a node stores instead of the token. Comparison takes constant time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash(blake3::Hash);

impl TokenHash {
    /// The hash of bytes that a client sent as its token.
    pub fn of(token: &[u8]) -> Self {
        Self(blake3::Hasher::new_derive_key("forebay token v1").update(token).finalize())
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_long_line_and_never_printed() {
        let secret = "0123456789abcdef".repeat(4);
        let token: Token = format!(" {secret}\n").parse().unwrap();
        assert_eq!(token.as_bytes(), secret.as_bytes());
        let shown = format!("{token:?} {:?}", TokenHash::of(token.as_bytes()));
        assert!(!shown.contains("0123"), "{shown}");
        let wrong = |text: &str| text.parse::<Token>().unwrap_err();
        assert_eq!(wrong(" \n"), TokenError::Empty);
        assert_eq!(wrong("0123"), TokenError::Short(4));
        assert_eq!(wrong(&"x".repeat(257)), TokenError::Long);
        assert_eq!(wrong(&format!("{secret}\n{secret}")), TokenError::Characters);
        assert_eq!(wrong(&"é".repeat(40)), TokenError::Characters);
        assert!(wrong("0123").to_string().contains("openssl rand -hex 32"));
    }

    #[test]
    fn hashes_are_equal_if_tokens_are() {
        assert_eq!(TokenHash::of(b"a"), TokenHash::of(b"a"));
        assert_ne!(TokenHash::of(b"a"), TokenHash::of(b"b"));
    }
}
