//! Values that are never shown.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What stands where a secret would.
pub(crate) const MASK: &str = "***";

/// A value that prints as `***` in every form and is read only by [`Secret::expose`].
///
/// ```
/// use tidegate_config::Secret;
/// let secret = Secret::new("hunter2");
/// assert_eq!(format!("{secret} {secret:?}"), "*** ***");
/// assert_eq!(serde_json::to_string(&secret).unwrap(), "\"***\"");
/// assert_eq!(secret.expose(), "hunter2");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides `value`.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself. Whoever calls this answers for where it goes.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

/// Whether a property of this name holds a secret, going by the names Kafka clients use.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let telling = [
        "password",
        "passwd",
        "secret",
        "token",
        "jaas",
        "credential",
        "private.key",
    ];
    telling.iter().any(|word| name.contains(word)) || name.ends_with("ssl.key.pem")
}

/// The byte range of the password in `scheme://user:password@host`, if there is one.
pub(crate) fn password_in_url(url: &str) -> Option<std::ops::Range<usize>> {
    let start = url.find("://")? + 3;
    let end = url[start..]
        .find(['/', '?', '#'])
        .map_or(url.len(), |at| start + at);
    // A password may hold an `@`, so the last one ends it.
    let at = start + url[start..end].rfind('@')?;
    let colon = start + url[start..at].find(':')?;
    Some(colon + 1..at)
}

/// The address without its password.
pub(crate) fn without_password(url: &str) -> String {
    match password_in_url(url) {
        Some(range) => format!("{}{MASK}{}", &url[..range.start], &url[range.end..]),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_an_address_is_hidden() {
        assert_eq!(
            without_password("postgres://me:pw@db/x"),
            "postgres://me:***@db/x"
        );
        assert_eq!(
            without_password("postgres://me:p@w@db/x"),
            "postgres://me:***@db/x"
        );
        assert_eq!(
            without_password("postgres://me@db:5432/x"),
            "postgres://me@db:5432/x"
        );
        assert_eq!(without_password("sqlite://./a:b@c"), "sqlite://./a:b@c");
    }
}
