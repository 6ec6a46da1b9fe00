//! Where an event is.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where an event is. It is in exactly one place at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Durable, waiting for its turn.
    Queued,
    /// In the hands of a sender, a handler or a memory queue.
    InFlight,
    /// In a tier or a back-off.
    Retrying,
    /// Durably behind an earlier record of its key.
    Parked,
    /// On disk, waiting for replay.
    Spilled,
    /// Given up on and kept: dead-lettered, rejected, corrupt.
    DeadLettered,
    /// Arrived.
    Delivered,
    /// Gone, with a reason that was reported.
    Lost(LossReason),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queued => f.write_str("queued"),
            Self::InFlight => f.write_str("in_flight"),
            Self::Retrying => f.write_str("retrying"),
            Self::Parked => f.write_str("parked"),
            Self::Spilled => f.write_str("spilled"),
            Self::DeadLettered => f.write_str("dead_lettered"),
            Self::Delivered => f.write_str("delivered"),
            Self::Lost(reason) => write!(f, "lost:{reason}"),
        }
    }
}

/// A text that names no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a place")]
pub struct ParsePlaceError(String);

impl FromStr for Place {
    type Err = ParsePlaceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "queued" => Self::Queued,
            "in_flight" => Self::InFlight,
            "retrying" => Self::Retrying,
            "parked" => Self::Parked,
            "spilled" => Self::Spilled,
            "dead_lettered" => Self::DeadLettered,
            "delivered" => Self::Delivered,
            other => match other.strip_prefix("lost:") {
                Some(reason) if !reason.is_empty() => {
                    Self::Lost(LossReason::new(reason.to_owned()))
                }
                Some(_) | None => return Err(ParsePlaceError(other.to_owned())),
            },
        })
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Why an event is gone: a stable code such as `queue_full`.
///
/// Each part has its own reasons as constants; users' alerts depend on them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LossReason(Cow<'static, str>);

impl LossReason {
    /// An operator threw the dead letter away.
    pub const PURGED: Self = Self::from_static("purged");

    /// A reason that stands in the code.
    #[must_use]
    pub const fn from_static(code: &'static str) -> Self {
        Self(Cow::Borrowed(code))
    }

    /// A reason that was read back.
    #[must_use]
    pub fn new(code: String) -> Self {
        Self(Cow::Owned(code))
    }

    /// The code as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The code as it stands in the source; none for one that was read back.
    #[must_use]
    pub fn as_static(&self) -> Option<&'static str> {
        match self.0 {
            Cow::Borrowed(code) => Some(code),
            Cow::Owned(_) => None,
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
