//! The options of the bindings in the section `eventbus`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use tidegate_config::{Config, Problem, millis};
use tidegate_core::breaker::{Rates, Rule, Trip};
use tidegate_core::{CodePattern, GroupName, TierIndex, Topic};
use tidegate_log::StartAt;

use crate::classify::ClassifierCodes;
use crate::options::{
    AckMode, BatchFailureStrategy, BindingOptions, BreakerOptions, ConcurrencyMode, DltOptions,
    DltStrategy, DltVerify, HandOff, KeyExhausted, KeyOrderedOptions, ListenerType, OrderingMode,
    PayloadFormat, RetryOptions, StrictExhausted, Tier0Options, TierOptions,
};

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawBinding {
    topic: String,
    group_id: String,
    listener_type: ListenerType,
    ack_mode: AckMode,
    concurrency: u32,
    concurrency_mode: ConcurrencyMode,
    max_poll_records: usize,
    #[serde(with = "millis")]
    max_poll_interval_ms: Duration,
    #[serde(with = "millis")]
    session_timeout_ms: Duration,
    #[serde(with = "millis")]
    heartbeat_interval_ms: Duration,
    auto_startup: bool,
    static_membership: bool,
    group_instance_id: Option<String>,
    cluster: String,
    value_format: PayloadFormat,
    key_format: PayloadFormat,
    auto_offset_reset: RawStart,
    #[serde(with = "millis")]
    handler_timeout: Duration,
    transactional: bool,
    hand_off: HandOff,
    batch_failure_strategy: BatchFailureStrategy,
    ordering_mode: OrderingMode,
    strict: RawStrict,
    key_ordered: RawKeyOrdered,
    #[serde(with = "millis")]
    stall_alarm: Duration,
    max_in_flight: usize,
    max_ahead: usize,
    retry: RawRetry,
    circuit_breaker: RawBreaker,
    dlt: RawDlt,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawStart {
    Earliest,
    Latest,
    None,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawStrict {
    on_exhausted: StrictExhausted,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawKeyOrdered {
    on_exhausted: KeyExhausted,
    max_parked: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawRetry {
    tier0: RawTier0,
    #[serde(default)]
    tiers: Vec<RawTier>,
    retryable_exceptions: Option<Vec<String>>,
    #[serde(default)]
    non_retryable_exceptions: Vec<String>,
    #[serde(default)]
    skip_to_tier_mapping: BTreeMap<String, u32>,
    #[serde(default)]
    pause_on: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawTier0 {
    max_attempts: u32,
    #[serde(with = "millis")]
    initial_backoff_ms: Duration,
    multiplier: f64,
    #[serde(with = "millis")]
    max_backoff_ms: Duration,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawTier {
    #[serde(with = "millis")]
    delay_ms: Duration,
    max_attempts: u32,
    topic_suffix: String,
    concurrency: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawBreaker {
    enabled: bool,
    failure_rate_threshold: f32,
    slow_call_rate_threshold: f32,
    #[serde(with = "millis")]
    slow_call_duration_ms: Duration,
    #[serde(with = "millis")]
    wait_duration_in_open_state_ms: Duration,
    sliding_window_size: usize,
    minimum_number_of_calls: usize,
    permitted_number_of_calls_in_half_open_state: u32,
    automatic_pause_on_open: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawDlt {
    topic_suffix: String,
    topic: Option<String>,
    strategy: DltStrategy,
    verify: DltVerify,
}

impl BindingOptions {
    /// The bindings of the section `eventbus`, by name.
    ///
    /// ```
    /// use tidegate_config::{Inputs, load};
    /// use tidegate_connector::BindingOptions;
    /// let text = "eventbus:\n  bindings:\n    orders: {topic: orders.events, group-id: g}\n";
    /// let config = load(&Inputs::of_text("tidegate.yaml", text)).config;
    /// let bindings = BindingOptions::from_config(&config).unwrap();
    /// assert_eq!(bindings[0], BindingOptions::new("orders", "orders.events", "g").unwrap());
    /// ```
    ///
    /// # Errors
    /// A value cannot be used; the problem names its place in the file.
    pub fn from_config(config: &Config) -> Result<Vec<Self>, Box<Problem>> {
        let raw: Option<BTreeMap<String, RawBinding>> = config.section("eventbus.bindings")?;
        let stop = config.duration("shutdown-timeout").unwrap_or_default();
        let raw = raw.unwrap_or_default().into_iter();
        raw.map(|(name, binding)| binding.options(config, name, stop))
            .collect()
    }
}

impl RawBinding {
    fn options(
        self,
        config: &Config,
        name: String,
        stop_timeout: Duration,
    ) -> Result<BindingOptions, Box<Problem>> {
        let path = format!("eventbus.bindings.{name}");
        let topic = |key: &str, topic: String| {
            let named = Topic::new(topic);
            named.map_err(|error| config.problem(&format!("{path}.{key}"), &error))
        };
        let group = GroupName::new(self.group_id);
        let group = group.map_err(|error| config.problem(&format!("{path}.group-id"), &error))?;
        let options = BindingOptions {
            topic: topic("topic", self.topic)?,
            group,
            listener_type: self.listener_type,
            ack_mode: self.ack_mode,
            concurrency: self.concurrency,
            concurrency_mode: self.concurrency_mode,
            max_poll_records: self.max_poll_records,
            max_poll_interval: self.max_poll_interval_ms,
            session_timeout: self.session_timeout_ms,
            heartbeat_interval: self.heartbeat_interval_ms,
            auto_startup: self.auto_startup,
            static_membership: self.static_membership,
            group_instance_id: self.group_instance_id,
            cluster: self.cluster,
            value_format: self.value_format,
            key_format: self.key_format,
            start_at: match self.auto_offset_reset {
                RawStart::Earliest => StartAt::Earliest,
                RawStart::Latest => StartAt::Latest,
                RawStart::None => StartAt::Fail,
            },
            handler_timeout: self.handler_timeout,
            transactional: self.transactional,
            hand_off: self.hand_off,
            batch_failure: self.batch_failure_strategy,
            ordering: self.ordering_mode,
            strict_exhausted: self.strict.on_exhausted,
            key_ordered: KeyOrderedOptions {
                exhausted: self.key_ordered.on_exhausted,
                max_parked: self.key_ordered.max_parked,
            },
            stall_alarm: self.stall_alarm,
            max_in_flight: self.max_in_flight,
            max_ahead: self.max_ahead,
            retry: self.retry.options(),
            breaker: self.circuit_breaker.options(),
            dlt: DltOptions {
                topic: self
                    .dlt
                    .topic
                    .map(|name| topic("dlt.topic", name))
                    .transpose()?,
                topic_suffix: self.dlt.topic_suffix,
                strategy: self.dlt.strategy,
                verify: self.dlt.verify,
            },
            stop_timeout,
            name,
        };
        match options.problems().into_iter().next() {
            Some(problem) => Err(config.problem(&path, &problem)),
            None => Ok(options),
        }
    }
}

impl RawRetry {
    fn options(self) -> RetryOptions {
        let patterns = |codes: Vec<String>| codes.into_iter().map(CodePattern::new).collect();
        let skips = self.skip_to_tier_mapping.into_iter();
        RetryOptions {
            tier0: Tier0Options {
                max_attempts: self.tier0.max_attempts,
                initial_backoff: self.tier0.initial_backoff_ms,
                multiplier: self.tier0.multiplier,
                max_backoff: self.tier0.max_backoff_ms,
            },
            tiers: self.tiers.into_iter().map(RawTier::options).collect(),
            codes: ClassifierCodes {
                retryable: self.retryable_exceptions.map(patterns),
                non_retryable: patterns(self.non_retryable_exceptions),
                skip_to_tier: skips
                    .map(|(code, tier)| (CodePattern::new(code), TierIndex(tier)))
                    .collect(),
                pause_on: patterns(self.pause_on),
            },
        }
    }
}

impl RawTier {
    fn options(self) -> TierOptions {
        TierOptions {
            delay: self.delay_ms,
            max_attempts: self.max_attempts,
            topic_suffix: self.topic_suffix,
            concurrency: self.concurrency,
        }
    }
}

impl RawBreaker {
    fn options(self) -> BreakerOptions {
        BreakerOptions {
            is_enabled: self.enabled,
            rule: Rule {
                trip: Trip::Rates(Rates {
                    window: self.sliding_window_size,
                    minimum_calls: self.minimum_number_of_calls,
                    failure_rate: self.failure_rate_threshold,
                    slow_call_rate: self.slow_call_rate_threshold,
                    slow_call: self.slow_call_duration_ms,
                }),
                open_for: self.wait_duration_in_open_state_ms,
                probes: self.permitted_number_of_calls_in_half_open_state,
            },
            pauses_on_open: self.automatic_pause_on_open,
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_config::{Inputs, load};

    use super::*;

    const BINDING: &str = "eventbus:\n  bindings:\n    orders: {topic: t, group-id: g}\n";

    #[test]
    fn the_minimal_file_gives_the_defaults_of_the_library() {
        let loaded = load(&Inputs::of_text("tidegate.yaml", BINDING));
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        let options = BindingOptions::from_config(&loaded.config).unwrap();
        assert_eq!(options, [BindingOptions::new("orders", "t", "g").unwrap()]);
        let batch = BINDING.replace("group-id: g", "group-id: g, listener-type: BATCH");
        let config = load(&Inputs::of_text("tidegate.yaml", batch.as_str())).config;
        let options = BindingOptions::from_config(&config).unwrap();
        assert_eq!(
            options[0].max_poll_records,
            BindingOptions::BATCH_POLL_RECORDS
        );
    }

    /// Keys that are read by somebody else, or only warned about.
    const ELSEWHERE: [&str; 4] = ["handler.", "idempotency.", "dlt.replay.", "dlt.handler."];

    #[test]
    fn every_key_of_a_binding_changes_an_option() {
        let mut seen = 0;
        for listed in tidegate_config::keys::all() {
            let Some(key) = listed.path.strip_prefix("eventbus.bindings.<name>.") else {
                continue;
            };
            if ELSEWHERE.iter().any(|part| key.starts_with(part)) || key == "retry.preset" {
                continue;
            }
            let other = match key {
                "listener-type" => "BATCH",
                "ack-mode" => "MANUAL",
                "concurrency-mode" => "UNORDERED",
                "session-timeout-ms" => "50000",
                "heartbeat-interval-ms" => "7000",
                "max-poll-interval-ms" => "700000",
                "retry.tier0.max-backoff-ms" => "3000",
                "auto-startup" | "circuit-breaker.automatic-pause-on-open" => "false",
                "static-membership" | "transactional" | "circuit-breaker.enabled" => "true",
                "value-format" | "key-format" => "json",
                "auto-offset-reset" => "none",
                "hand-off" => "at-least-once",
                "batch-failure-strategy" => "DLQ_AND_CONTINUE",
                "ordering-mode" => "STRICT",
                "strict.on-exhausted" => "pause",
                "key-ordered.on-exhausted" => "block-key",
                "dlt.strategy" => "ALERT_AND_STORE",
                "dlt.verify" => "fail",
                "cluster" => continue,
                "retry.tiers" => "[{delay: 1s}]",
                "retry.retryable-exceptions"
                | "retry.non-retryable-exceptions"
                | "retry.pause-on" => "[a.b]",
                _ => "7",
            };
            let key = key.replace("tiers[]", "tiers[0]").replace("<name>", "a.b");
            let key = match key.as_str() {
                "retry.skip-to-tier-mapping.a.b" => "retry.skip-to-tier-mapping".to_owned(),
                other => other.to_owned(),
            };
            let other = if key == "retry.skip-to-tier-mapping" {
                "{a.b: 2}"
            } else {
                other
            };
            let is_tier = key.starts_with("retry.tiers[");
            let text = match is_tier {
                true => BINDING.replace("group-id: g", "group-id: g, retry: {tiers: [{}]}"),
                false => BINDING.to_owned(),
            };
            let before = load(&Inputs::of_text("tidegate.yaml", text.as_str())).config;
            let usual = format!("{:?}", BindingOptions::from_config(&before).unwrap());
            let mut inputs = Inputs::of_text("tidegate.yaml", text.as_str());
            let path = format!("eventbus.bindings.orders.{key}");
            inputs.arguments.push((path.clone(), other.to_owned()));
            let loaded = load(&inputs);
            assert!(loaded.problems.is_empty(), "{path}: {:?}", loaded.problems);
            let options = BindingOptions::from_config(&loaded.config).unwrap();
            assert_ne!(format!("{options:?}"), usual, "{path} maps to nothing");
            seen += 1;
        }
        assert!(seen >= 40, "only {seen} keys were seen");
    }
}
