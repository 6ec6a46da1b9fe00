//! Newtypes for what could be confused with one another.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// A name that is not acceptable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("{what} must not be empty")]
    Empty {
        /// The kind of the name.
        what: &'static str,
    },
    /// The name is longer than its kind allows.
    #[error("{what} `{start}…` has {length} bytes and may have at most {limit}")]
    TooLong {
        /// The kind of the name.
        what: &'static str,
        /// The first few characters.
        start: String,
        /// How long it is.
        length: usize,
        /// How long it may be.
        limit: usize,
    },
    /// The name holds a character that its kind does not allow.
    #[error("{what} `{name}` holds {found:?}; letters, digits, `.`, `_` and `-` are allowed")]
    Character {
        /// The kind of the name.
        what: &'static str,
        /// The whole name.
        name: String,
        /// The first character that does not fit.
        found: char,
    },
    /// The name would be a directory: no broker takes it.
    #[error("{what} must not be `{name}`")]
    Dots {
        /// The kind of the name.
        what: &'static str,
        /// The name.
        name: String,
    },
}

/// Longest topic name, which is also Kafka's limit.
const TOPIC_LIMIT: usize = 249;

/// The name of a topic. Clones share it: every record on its way names its topic.
///
/// ```
/// use tidegate_core::Topic;
/// assert_eq!(Topic::new("orders.events")?.as_str(), "orders.events");
/// assert!(Topic::new("orders events").is_err());
/// # Ok::<(), tidegate_core::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Topic(Arc<str>);

impl Topic {
    /// Accepts a name that every log implementation can hold.
    ///
    /// # Errors
    /// The name is empty, too long, `.` or `..`, or holds a character other than letters, digits, `.`, `_`,
    /// `-`.
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        let name = word("topic", name.into(), TOPIC_LIMIT)?;
        match name.as_str() {
            "." | ".." => Err(NameError::Dots {
                what: "topic",
                name,
            }),
            _ => Ok(Self(name.into())),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Topic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// The name of a consumer group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct GroupName(String);

impl GroupName {
    /// Accepts a name that every log implementation can hold.
    ///
    /// # Errors
    /// The name is empty, too long, or holds a character other than letters, digits, `.`, `_`, `-`.
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        word("group", name.into(), TOPIC_LIMIT).map(Self)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number of a partition within its topic.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct Partition(pub i32);

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The position of a record within its partition.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct Offset(pub i64);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One rung of the retry ladder; tier 0 is in memory.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct TierIndex(pub u32);

impl fmt::Display for TierIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn word(what: &'static str, name: String, limit: usize) -> Result<String, NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what });
    }
    if name.len() > limit {
        let start = name.chars().take(24).collect();
        return Err(NameError::TooLong {
            what,
            start,
            length: name.len(),
            limit,
        });
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match name.chars().find(|c| !allowed(*c)) {
        Some(found) => Err(NameError::Character { what, name, found }),
        None => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_refused_with_what_is_wrong_about_it() {
        let check = |name: &str, expect: Option<&str>| {
            let got = Topic::new(name).err().map(|e| e.to_string());
            assert_eq!(got.as_deref(), expect, "{name:?}");
        };
        check("orders.events.retry-1", None);
        check("", Some("topic must not be empty"));
        check("..", Some("topic must not be `..`"));
        check(".", Some("topic must not be `.`"));
        check("...", None);
        check(
            "orders/events",
            Some("topic `orders/events` holds '/'; letters, digits, `.`, `_` and `-` are allowed"),
        );
        assert!(matches!(
            Topic::new("x".repeat(250)),
            Err(NameError::TooLong {
                length: 250,
                limit: 249,
                ..
            })
        ));
        assert!(Topic::new("x".repeat(249)).is_ok());
    }
}
