//! Values that are never shown.
//!
//! **Invariant:** of an address only what is understood is shown. A part that may hold a password is
//! replaced by `***`. An address that does not read as a plain one is replaced as a whole: nobody can know
//! that it is harmless.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The text in place of a secret.
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

    /// The value itself. The caller answers for where it goes.
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

/// Words in the names of things that hold secrets, going by Kafka clients and databases.
const TELLING: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "jaas",
    "credential",
    "private.key",
    "user.info",
    "api.key",
    "apikey",
];

/// Whether a property of this name holds a secret.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace(['-', '_'], ".");
    TELLING.iter().any(|word| name.contains(word)) || name.ends_with("ssl.key.pem")
}

/// Whether a text of any kind may hold a password: part of an address, or `password=…`.
///
/// Such a text is kept out of snippets and messages whatever key it stands under, because it may
/// stand under the wrong one.
pub(crate) fn is_suspicious(text: &str) -> bool {
    text.contains('@')
        || (text.contains("://") && shown_address(text) != text)
        || (text.contains('=') && is_secret_name(text))
}

/// The text as a message may repeat it.
pub(crate) fn shown_text(text: &str) -> &str {
    if is_suspicious(text) { MASK } else { text }
}

/// Whether a text or a name holds a password, though its key asks for none. That is `…:…@…`, a telling
/// word with a value, or an address that is not plain. More is kept out of messages; what is shown must
/// stay of use.
pub(crate) fn has_password(text: &str) -> bool {
    let is_userinfo = text
        .rsplit_once('@')
        .is_some_and(|(before, _)| before.contains(':'));
    let mut assignments = text.match_indices('=').map(|(at, _)| text.split_at(at));
    let is_assigned = assignments.any(|(before, after)| {
        let is_part = |c: char| !c.is_alphanumeric() && !matches!(c, '.' | '-' | '_');
        let word = before.trim_end().rsplit(is_part).next();
        // Two in a row compare: `value.token == 'x'` is a filter.
        !after.starts_with("==") && word.is_some_and(is_secret_name)
    });
    // A condition may compare with an address, and has blanks around its sign.
    let is_strange =
        text.contains("://") && !text.contains(char::is_whitespace) && shown_address(text) != text;
    is_userinfo || is_assigned || is_strange
}

/// A name that the user chose, as it may be shown.
pub(crate) fn shown_name(name: &str) -> &str {
    if has_password(name) { MASK } else { name }
}

/// An address without its password, and without whatever else may be one.
///
/// ```
/// use tidegate_config::shown_address;
/// assert_eq!(shown_address("postgres://me:hunter2@db/x"), "postgres://me:***@db/x");
/// assert_eq!(shown_address("host=db password=hunter2"), "***");
/// ```
#[must_use]
pub fn shown_address(address: &str) -> Cow<'_, str> {
    match plain_address(address) {
        Some(shown) if shown == address => Cow::Borrowed(address),
        Some(shown) => Cow::Owned(shown),
        None => Cow::Borrowed(MASK),
    }
}

/// The secrets of an address: all of it, and each part that is not shown.
pub(crate) fn secrets_in(address: &str) -> Vec<String> {
    if shown_address(address) == address {
        return Vec::new();
    }
    let mut secrets = vec![address.to_owned()];
    let userinfo = address.rsplit_once('@').map_or("", |(before, _)| before);
    let userinfo = userinfo
        .split_once("://")
        .map_or(userinfo, |(_, rest)| rest);
    secrets.extend(
        userinfo
            .split_once(':')
            .map(|(_, password)| password.to_owned()),
    );
    let query = address.split_once('?').map_or(address, |(_, query)| query);
    let values = query
        .split(['&', ' '])
        .filter_map(|pair| pair.split_once('='));
    secrets.extend(values.map(|(_, value)| value.to_owned()));
    secrets.retain(|secret| !secret.is_empty());
    secrets
}

/// Parameters of an address whose values are shown. All others may be secret.
const HARMLESS: [&str; 8] = [
    "application_name",
    "cache",
    "connect_timeout",
    "immutable",
    "mode",
    "sslmode",
    "target_session_attrs",
    "vfs",
];

/// The address with its secret parts replaced; `None` when it cannot be taken apart for sure.
///
/// It must read `scheme://user:password@host:port/path?name=value&…`, where only the password may
/// hold unusual characters, or `sqlite:path`. A password with a `/` or a `?` leaves an `@` behind the
/// host, which is not plain.
fn plain_address(address: &str) -> Option<String> {
    let (scheme, rest) = address.split_once(':')?;
    if !is_word(scheme, "+.-") {
        return None;
    }
    let (location, query) = match rest.split_once('?') {
        Some((location, query)) => (location, Some(query)),
        None => (rest, None),
    };
    let (slashes, location) = match location.strip_prefix("//") {
        Some(location) => ("//", location),
        None => ("", location),
    };
    let is_file = scheme.eq_ignore_ascii_case("sqlite");
    let location = if is_file {
        is_word(location, "._-/~ ").then(|| location.to_owned())?
    } else if slashes.is_empty() {
        return None;
    } else {
        let end = location.find('/').unwrap_or(location.len());
        let (authority, path) = location.split_at(end);
        let path = (path.is_empty() || is_word(path, "._-/~*")).then_some(path)?;
        format!("{}{path}", plain_authority(scheme, authority)?)
    };
    let query = query.map_or(Some(String::new()), plain_query)?;
    Some(format!("{scheme}:{slashes}{location}{query}"))
}

fn plain_authority(scheme: &str, authority: &str) -> Option<String> {
    let (userinfo, host) = match authority.rsplit_once('@') {
        Some((userinfo, host)) => (Some(userinfo), host),
        None => (None, authority),
    };
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !name.ends_with(':') => (name, Some(port)),
        _ => (host, None),
    };
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok());
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let is_name = bare.map_or_else(|| is_word(name, ".-_"), |address| is_word(address, ":."));
    if !is_port || !is_name {
        return None;
    }
    let Some(userinfo) = userinfo else {
        return Some(host.to_owned());
    };
    // Over HTTP a name alone is often a token.
    if scheme.to_ascii_lowercase().starts_with("http") {
        return Some(format!("{MASK}@{host}"));
    }
    let (user, password) = match userinfo.split_once(':') {
        Some((user, _)) => (user, format!(":{MASK}")),
        None => (userinfo, String::new()),
    };
    is_word(user, "._-").then(|| format!("{user}{password}@{host}"))
}

fn plain_query(query: &str) -> Option<String> {
    let shown = query.split('&').map(|pair| {
        let (name, value) = pair.split_once('=')?;
        if !is_word(name, "_-.") || value.contains('@') {
            return None;
        }
        let is_shown = HARMLESS.contains(&name) && is_word(value, "_-.");
        Some(format!("{name}={}", if is_shown { value } else { MASK }))
    });
    let shown: Vec<String> = shown.collect::<Option<_>>()?;
    Some(format!("?{}", shown.join("&")))
}

/// Whether a text is letters, digits and these, and at least one of them.
fn is_word(text: &str, more: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_address_only_what_is_understood_is_shown() {
        for (address, shown) in [
            ("sqlite://./data/tidegate.db", "sqlite://./data/tidegate.db"),
            ("sqlite:./x.db?mode=rwc", "sqlite:./x.db?mode=rwc"),
            ("sqlite:x.db?key=hunter2", "sqlite:x.db?key=***"),
            ("sqlite://./a:b@c", "***"),
            ("postgres://db", "postgres://db"),
            ("postgres://me@db:5432/x", "postgres://me@db:5432/x"),
            ("postgres://me:pw@db/x", "postgres://me:***@db/x"),
            ("postgres://me:p@w@db/x", "postgres://me:***@db/x"),
            (
                "postgres://me:p:w@[::1]:5432/x",
                "postgres://me:***@[::1]:5432/x",
            ),
            ("postgres://me:p/w@db/x", "***"),
            ("postgres://me:12/w@db/x", "***"),
            ("postgres://me:p#w@db/x", "postgres://me:***@db/x"),
            ("postgres://me:12?w@db/x", "***"),
            ("postgres://me:12?a=w@db/x", "***"),
            ("postgres://me:hunter2", "***"),
            ("postgres:me:hunter2@db", "***"),
            ("host=db password=hunter2", "***"),
            (
                "postgres://db/x?sslmode=require",
                "postgres://db/x?sslmode=require",
            ),
            (
                "postgres://db/x?sslmode=require&password=hunter2",
                "postgres://db/x?sslmode=require&password=***",
            ),
            ("postgres://db/x?pass%77ord=hunter2", "***"),
            ("postgres://db/x?hunter2", "***"),
            ("postgres://db/x#hunter2", "***"),
            ("https://hunter2@log/v1", "https://***@log/v1"),
            (
                "https://log.example.com:8443/v1",
                "https://log.example.com:8443/v1",
            ),
            ("hunter2", "***"),
            ("", "***"),
        ] {
            assert_eq!(shown_address(address), shown, "{address}");
        }
    }

    #[test]
    fn a_password_is_told_from_a_filter() {
        for text in ["a:b@c", "host=db password=x", "pwd = x", "postgres:me:x@db"] {
            assert!(has_password(text), "{text}");
        }
        for text in [
            "value.token == 'x'",
            "a@b:c",
            "me@example.com",
            "mode=x",
            "password",
        ] {
            assert!(!has_password(text), "{text}");
        }
    }

    #[test]
    fn names_tell_secrets() {
        for name in [
            "sasl.password",
            "api-key",
            "API_KEY",
            "basic.auth.user.info",
            "sslPassword",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        assert!(!is_secret_name("sasl.mechanism"));
    }
}
