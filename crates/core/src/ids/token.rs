//! Secrets by which somebody is known, and what is kept to know them again.

use std::{fmt, str::FromStr};

/// A secret that says who speaks. It is sent over connections that nobody else can read, and shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// A token cannot be guessed if it is at least so long and random.
pub const TOKEN_LENGTH_MIN: usize = 32;
/// No token is longer, in bytes.
pub const TOKEN_LENGTH_MAX: usize = 256;

/// Why a text is no token. Never quotes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is nothing.
    #[error("there is no token in it; make one with `openssl rand -hex 32`")]
    Empty,
    /// It could be guessed.
    #[error(
        "the token has {0} characters, fewer than {TOKEN_LENGTH_MIN}; make one with `openssl rand -hex 32`"
    )]
    Short(usize),
    /// Over the limit of the protocol.
    #[error(
        "the token is longer than {TOKEN_LENGTH_MAX} characters; make one with `openssl rand -hex 32`"
    )]
    Long,
    /// Blanks, several lines, or something that is no text.
    #[error(
        "a token is one line of letters, digits and signs; make one with `openssl rand -hex 32`"
    )]
    Characters,
}

impl Token {
    /// The token as it is sent.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl FromStr for Token {
    type Err = TokenError;

    /// The text of a token file: blanks around it do not count.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim_ascii();
        match text.len() {
            0 => Err(TokenError::Empty),
            length if length > TOKEN_LENGTH_MAX => Err(TokenError::Long),
            _ if !text.bytes().all(|byte| byte.is_ascii_graphic()) => Err(TokenError::Characters),
            length if length < TOKEN_LENGTH_MIN => Err(TokenError::Short(length)),
            _ => Ok(Self(text.to_owned())),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// What is kept of a token: enough to know it again, too little to say it. Comparing two takes the same time
/// wherever they differ.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash(blake3::Hash);

impl TokenHash {
    /// Of whatever somebody sent as a token.
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
    fn a_token_is_one_long_line_and_never_shown() {
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
