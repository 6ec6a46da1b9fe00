//! The secret that opens the server.

use std::fmt;
use std::hint::black_box;

/// A bearer token. It prints as `***` and is compared in constant time.
///
/// ```
/// use tidegate_server::Token;
/// let token = Token::new("s3cret")?;
/// assert_eq!(format!("{token:?}"), "***");
/// assert!(token.matches(b"s3cret"));
/// assert!(!token.matches(b"s3cre"));
/// # Ok::<(), tidegate_server::TokenError>(())
/// ```
#[derive(Clone)]
pub struct Token(Box<[u8]>);

/// A text that cannot be a token. It does not show the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is nothing to compare with.
    #[error("`server.token` is empty")]
    Empty,
    /// A header could not carry it.
    #[error("`server.token` has a character that is not visible ASCII")]
    NotVisible,
}

impl Token {
    /// The token with this text: visible ASCII characters, at least one.
    ///
    /// # Errors
    /// When the text is empty, or has a character that a client could not send in a header.
    pub fn new(text: impl AsRef<str>) -> Result<Self, TokenError> {
        let bytes = text.as_ref().as_bytes();
        if bytes.is_empty() {
            return Err(TokenError::Empty);
        }
        if !bytes.iter().all(u8::is_ascii_graphic) {
            return Err(TokenError::NotVisible);
        }
        Ok(Self(bytes.into()))
    }

    /// Whether `given` is this token. The time it takes depends on the length of `given` alone, so
    /// that nobody can find the token byte by byte with a stopwatch.
    #[must_use]
    pub fn matches(&self, given: &[u8]) -> bool {
        let mut difference = u8::from(given.len() != self.0.len());
        // The token repeats below a longer guess: an early end would tell its length.
        for (ours, theirs) in self.0.iter().cycle().zip(given) {
            difference = black_box(difference | (ours ^ theirs));
        }
        difference == 0
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.matches(&other.0)
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_bytes_match() {
        let token = Token::new("abc").unwrap();
        for (given, is_match) in [
            ("abc", true),
            ("", false),
            ("ab", false),
            ("abcabc", false),
            ("abd", false),
        ] {
            assert_eq!(token.matches(given.as_bytes()), is_match, "{given}");
        }
    }

    #[test]
    fn a_token_is_something_a_header_can_carry() {
        assert_eq!(Token::new(""), Err(TokenError::Empty));
        for text in ["a b", "a\n", "é"] {
            assert_eq!(Token::new(text), Err(TokenError::NotVisible), "{text:?}");
        }
    }
}
