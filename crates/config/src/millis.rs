//! Time spans of a section, which [`Config::section`](crate::Config::section) gives in milliseconds.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// For a field: `#[serde(with = "tidegate_config::millis")]`.
///
/// # Errors
/// It is no whole number.
pub fn deserialize<'de, D: Deserializer<'de>>(value: D) -> Result<Duration, D::Error> {
    u64::deserialize(value).map(Duration::from_millis)
}

/// The same for one that may be left out or `none`.
///
/// # Errors
/// It is no whole number.
pub fn optional<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Duration>, D::Error> {
    Ok(Option::<u64>::deserialize(value)?.map(Duration::from_millis))
}
