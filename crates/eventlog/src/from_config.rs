//! The options of the Event Log API in the section `eventlog.api`.

use std::time::Duration;

use serde::Deserialize;
use tidegate_config::{Config, Problem, millis};

use crate::EventLogOptions;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawEventLogApi {
    enabled: bool,
    max_batch: usize,
    #[serde(default, deserialize_with = "millis::optional")]
    retention: Option<Duration>,
    rate_limit: Option<u32>,
    debug: bool,
}

impl EventLogOptions {
    /// The section `eventlog.api`, and `idempotency-ttl`.
    ///
    /// ```
    /// use tidegate_config::{Inputs, load};
    /// use tidegate_eventlog::EventLogOptions;
    /// let text = "eventlog: {api: {max-batch: 50}}\n";
    /// let config = load(&Inputs::of_text("tidegate.yaml", text)).config;
    /// assert_eq!(EventLogOptions::from_config(&config).unwrap().max_batch, 50);
    /// ```
    ///
    /// # Errors
    /// A value cannot be used; the problem names its place in the file.
    pub fn from_config(config: &Config) -> Result<Self, Box<Problem>> {
        let raw: RawEventLogApi = config.section("eventlog.api")?;
        let usual = Self::default();
        let ttl = config.duration("idempotency-ttl");
        Ok(Self {
            enabled: raw.enabled,
            max_batch: raw.max_batch,
            retention: raw.retention,
            rate_limit: raw.rate_limit,
            debug: raw.debug,
            idempotency_ttl: ttl.unwrap_or(usual.idempotency_ttl),
            ..usual
        })
    }
}

#[cfg(test)]
mod tests {
    use tidegate_config::{Inputs, load};

    use super::*;

    #[test]
    fn an_empty_file_gives_the_defaults_of_the_library() {
        let config = load(&Inputs::of_text("tidegate.yaml", "")).config;
        let options = EventLogOptions::from_config(&config).unwrap();
        assert_eq!(options, EventLogOptions::default());
    }

    #[test]
    fn every_key_of_the_api_changes_an_option() {
        let mut seen = 0;
        for listed in tidegate_config::keys::all() {
            let path = listed.path.as_str();
            if !path.starts_with("eventlog.api.") && path != "idempotency-ttl" {
                continue;
            }
            let other = match path {
                "eventlog.api.enabled" => "false",
                "eventlog.api.debug" => "true",
                _ => "7",
            };
            let mut inputs = Inputs::of_text("tidegate.yaml", "");
            inputs.arguments.push((path.to_owned(), other.to_owned()));
            let loaded = load(&inputs);
            assert!(loaded.problems.is_empty(), "{path}: {:?}", loaded.problems);
            let options = EventLogOptions::from_config(&loaded.config).unwrap();
            assert_ne!(
                options,
                EventLogOptions::default(),
                "{path} maps to nothing"
            );
            seen += 1;
        }
        assert_eq!(seen, 6);
    }
}
