//! How a binding works: every key of `eventbus.bindings.<name>`.

use std::time::Duration;

use serde::Deserialize;
use tidegate_core::breaker::{Rule, Trip};
use tidegate_core::{Backoff, GroupName, NameError, TierIndex, Topic};
use tidegate_log::{OwnedGroup, StartAt};

use crate::classify::ClassifierCodes;
use crate::ladder::Ladder;

/// Whether the handler takes records one by one or in batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ListenerType {
    /// One by one.
    Single,
    /// In batches.
    Batch,
}

impl ListenerType {
    /// The name users see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Single => "SINGLE",
            Self::Batch => "BATCH",
        }
    }
}

/// When the offset of a settled record is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AckMode {
    /// With its batch.
    Manual,
    /// As soon as it is settled.
    ManualImmediate,
}

/// The unit that is handled in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ConcurrencyMode {
    /// A partition: its records one after the other.
    Partition,
    /// A key: records of other keys beside it.
    Key,
    /// Nothing.
    Unordered,
}

/// The format that a key or a value must have before the handler sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PayloadFormat {
    /// Any bytes.
    Bytes,
    /// JSON.
    Json,
}

/// How a record moves to a tier or the dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandOff {
    /// In one commit with its offset.
    Transactional,
    /// Before its offset, so that a crash in between makes a copy.
    AtLeastOnce,
}

/// The fate of the rest of a batch when one record fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum BatchFailureStrategy {
    /// The failed record goes its way through the tiers, the rest goes on.
    SeekToFailed,
    /// The failed record goes to the dead letters, the rest goes on.
    DlqAndContinue,
}

/// The order that is kept when a record fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OrderingMode {
    /// A record in a tier may be handled after its successors.
    RelaxedInRetry,
    /// A failing record blocks its partition.
    Strict,
    /// A failing record blocks its key.
    KeyOrdered,
}

/// The fate of a record that used up its attempts under [`OrderingMode::Strict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StrictExhausted {
    /// It goes to the dead letters.
    DeadLetter,
    /// It stays, and the binding is paused.
    Pause,
}

/// The fate of a record that used up its attempts under [`OrderingMode::KeyOrdered`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyExhausted {
    /// It goes to the dead letters, and its key goes on.
    DeadLetter,
    /// It stays, and its key waits.
    BlockKey,
}

/// Parked records, for [`OrderingMode::KeyOrdered`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyOrderedOptions {
    /// The fate of a record that used up its attempts: `on-exhausted`.
    pub exhausted: KeyExhausted,
    /// Records of a partition that may be parked: `max-parked`.
    pub max_parked: usize,
}

/// How dead letters are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum DltStrategy {
    /// They are kept.
    StoreOnly,
    /// They are kept, and somebody is told.
    AlertAndStore,
    /// They are replayed by a timer.
    ScheduledReplay,
    /// A handler of their own gets them.
    Custom,
}

/// The step when the dead letter topic does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DltVerify {
    /// It is made.
    Create,
    /// The binding starts with a warning.
    Warn,
    /// The binding does not start.
    Fail,
}

/// Attempts in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Tier0Options {
    /// Calls of the handler, the first included: `max-attempts`.
    pub max_attempts: u32,
    /// The first wait: `initial-backoff-ms`.
    pub initial_backoff: Duration,
    /// How much each wait is longer than the one before: `multiplier`.
    pub multiplier: f64,
    /// The longest wait: `max-backoff-ms`.
    pub max_backoff: Duration,
}

/// The share by which waits in memory swing, so that records which failed together do not come back together.
const TIER0_JITTER: f64 = 0.125;

impl Tier0Options {
    pub(crate) fn backoff(&self) -> Backoff {
        let plain = Backoff::exponential(self.initial_backoff, self.multiplier, self.max_backoff);
        plain.with_jitter(TIER0_JITTER)
    }

    /// The time that one record may wait between its attempts.
    pub(crate) fn total_wait(&self) -> Duration {
        let backoff = self.backoff();
        // Beyond the first thousand waits the last one stands for the rest.
        let waits = self.max_attempts.saturating_sub(1);
        let (first, rest) = (waits.min(1_000), waits.saturating_sub(1_000));
        let sum = (0..first)
            .map(|n| backoff.wait_without_jitter(n))
            .sum::<Duration>();
        sum.saturating_add(backoff.wait_without_jitter(first).saturating_mul(rest))
    }
}

/// One tier: a topic in which records wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierOptions {
    /// How long a record waits: `delay-ms`.
    pub delay: Duration,
    /// Deliveries in this tier: `max-attempts`.
    pub max_attempts: u32,
    /// The suffix of the topic's name: `topic-suffix`; `{n}` is the number of the tier.
    pub topic_suffix: String,
    /// Consumers of this tier: `concurrency`.
    pub concurrency: u32,
}

impl TierOptions {
    /// A tier with this delay and the usual rest.
    #[must_use]
    pub fn new(delay: Duration) -> Self {
        Self {
            delay,
            max_attempts: 3,
            topic_suffix: "retry-{n}".to_owned(),
            concurrency: 1,
        }
    }
}

/// Retries after a failure.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryOptions {
    /// Attempts in memory.
    pub tier0: Tier0Options,
    /// Attempts by way of a topic each.
    pub tiers: Vec<TierOptions>,
    /// Codes that decide about failures.
    pub codes: ClassifierCodes,
}

/// When a failing dependency pauses the binding.
#[derive(Debug, Clone, PartialEq)]
pub struct BreakerOptions {
    /// Whether the breaker watches the handler.
    pub is_enabled: bool,
    /// When it opens and closes.
    pub rule: Rule,
    /// Pause while it is open: `automatic-pause-on-open`. Otherwise records fail with the code `breaker.open`.
    pub pauses_on_open: bool,
}

/// The dead letter topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DltOptions {
    /// The suffix of the topic's name: `topic-suffix`.
    pub topic_suffix: String,
    /// The whole name, if it is not the topic and the suffix: `topic`.
    pub topic: Option<Topic>,
    /// How dead letters are handled: `strategy`.
    pub strategy: DltStrategy,
    /// The step when the topic does not exist: `verify`.
    pub verify: DltVerify,
}

impl DltOptions {
    /// Whether somebody is told of each dead letter.
    pub(crate) fn tells(&self) -> bool {
        match self.strategy {
            DltStrategy::AlertAndStore | DltStrategy::Custom => true,
            DltStrategy::StoreOnly | DltStrategy::ScheduledReplay => false,
        }
    }
}

/// How a binding works.
///
/// ```
/// use tidegate_connector::BindingOptions;
/// let options = BindingOptions::new("orders", "orders.events", "order-processing")?;
/// assert_eq!(options.retry.tiers.len(), 3);
/// assert_eq!(options.dlt_topic()?.as_str(), "orders.events.DLT");
/// # Ok::<(), tidegate_core::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BindingOptions {
    /// The name of the binding.
    pub name: String,
    /// The topic to read: `topic`.
    pub topic: Topic,
    /// The consumer group: `group-id`.
    pub group: GroupName,
    /// `listener-type`.
    pub listener_type: ListenerType,
    /// `ack-mode`.
    pub ack_mode: AckMode,
    /// Consumers of this binding: `concurrency`.
    pub concurrency: u32,
    /// `concurrency-mode`.
    pub concurrency_mode: ConcurrencyMode,
    /// Records taken at once: `max-poll-records`.
    pub max_poll_records: usize,
    /// `max-poll-interval-ms`.
    pub max_poll_interval: Duration,
    /// `session-timeout-ms`.
    pub session_timeout: Duration,
    /// The longest time between heartbeats: `heartbeat-interval-ms`.
    pub heartbeat_interval: Duration,
    /// Whether the binding starts with the process: `auto-startup`.
    pub auto_startup: bool,
    /// Keep the partitions over a short restart: `static-membership`.
    pub static_membership: bool,
    /// The identity of a static member: `group-instance-id`.
    pub group_instance_id: Option<String>,
    /// The cluster of the topic: `cluster`.
    pub cluster: String,
    /// `value-format`.
    pub value_format: PayloadFormat,
    /// `key-format`.
    pub key_format: PayloadFormat,
    /// Where a group without a committed offset starts: `auto-offset-reset`.
    pub start_at: StartAt,
    /// The deadline of one call: `handler-timeout`.
    pub handler_timeout: Duration,
    /// Whether handlers may write records in one commit with their offset: `transactional`.
    pub transactional: bool,
    /// `hand-off`.
    pub hand_off: HandOff,
    /// `batch-failure-strategy`.
    pub batch_failure: BatchFailureStrategy,
    /// `ordering-mode`.
    pub ordering: OrderingMode,
    /// `strict.on-exhausted`.
    pub strict_exhausted: StrictExhausted,
    /// `key-ordered`.
    pub key_ordered: KeyOrderedOptions,
    /// From when on a commit position that does not move is an alarm: `stall-alarm`.
    pub stall_alarm: Duration,
    /// Calls of handlers under way at once, per consumer: `max-in-flight`.
    pub max_in_flight: usize,
    /// How far a partition may run ahead of its committed offset: `max-ahead`.
    pub max_ahead: usize,
    /// `retry`.
    pub retry: RetryOptions,
    /// `circuit-breaker`.
    pub breaker: BreakerOptions,
    /// `dlt`.
    pub dlt: DltOptions,
    /// How long a stop waits for handlers: the `shutdown-timeout` of the process.
    pub stop_timeout: Duration,
}

impl BindingOptions {
    /// Records taken at once by a listener of single records.
    pub const SINGLE_POLL_RECORDS: usize = 50;
    /// Records taken at once by a batch listener.
    pub const BATCH_POLL_RECORDS: usize = 200;

    /// A binding with the defaults of every key.
    ///
    /// # Errors
    /// The topic or the group cannot be named like that.
    pub fn new(
        name: impl Into<String>,
        topic: impl Into<String>,
        group: impl Into<String>,
    ) -> Result<Self, NameError> {
        let seconds = Duration::from_secs;
        Ok(Self {
            name: name.into(),
            topic: Topic::new(topic)?,
            group: GroupName::new(group)?,
            listener_type: ListenerType::Single,
            ack_mode: AckMode::ManualImmediate,
            concurrency: 1,
            concurrency_mode: ConcurrencyMode::Partition,
            max_poll_records: Self::SINGLE_POLL_RECORDS,
            max_poll_interval: seconds(600),
            session_timeout: seconds(45),
            heartbeat_interval: seconds(10),
            auto_startup: true,
            static_membership: false,
            group_instance_id: None,
            cluster: "default".to_owned(),
            value_format: PayloadFormat::Bytes,
            key_format: PayloadFormat::Bytes,
            start_at: StartAt::Earliest,
            handler_timeout: seconds(300),
            transactional: false,
            hand_off: HandOff::Transactional,
            batch_failure: BatchFailureStrategy::SeekToFailed,
            ordering: OrderingMode::RelaxedInRetry,
            strict_exhausted: StrictExhausted::DeadLetter,
            key_ordered: KeyOrderedOptions {
                exhausted: KeyExhausted::DeadLetter,
                max_parked: 100_000,
            },
            stall_alarm: seconds(300),
            max_in_flight: 256,
            max_ahead: 100_000,
            retry: RetryOptions {
                tier0: Tier0Options {
                    max_attempts: 3,
                    initial_backoff: Duration::from_millis(100),
                    multiplier: 2.0,
                    max_backoff: seconds(2),
                },
                tiers: [(1, 10), (2, 60), (3, 300)]
                    .map(|(tier, delay)| TierOptions {
                        topic_suffix: format!("retry-{tier}"),
                        ..TierOptions::new(seconds(delay))
                    })
                    .into(),
                codes: ClassifierCodes::default(),
            },
            breaker: BreakerOptions {
                is_enabled: false,
                rule: Rule::binding(),
                pauses_on_open: true,
            },
            dlt: DltOptions {
                topic_suffix: "DLT".to_owned(),
                topic: None,
                strategy: DltStrategy::StoreOnly,
                verify: DltVerify::Create,
            },
            stop_timeout: seconds(30),
        })
    }

    /// The same binding in strict order: without tiers.
    #[must_use]
    pub fn strict(mut self, exhausted: StrictExhausted) -> Self {
        self.ordering = OrderingMode::Strict;
        self.strict_exhausted = exhausted;
        self.retry.tiers.clear();
        self
    }

    /// The name of the dead letter topic.
    ///
    /// # Errors
    /// Topic and suffix together are no name.
    pub fn dlt_topic(&self) -> Result<Topic, NameError> {
        match &self.dlt.topic {
            Some(topic) => Ok(topic.clone()),
            None => Topic::new(format!("{}.{}", self.topic, self.dlt.topic_suffix)),
        }
    }

    /// The name of the topic of a tier, the first one being 1.
    ///
    /// # Errors
    /// Topic and suffix together are no name.
    pub fn tier_topic(&self, tier: TierIndex) -> Result<Topic, NameError> {
        let index = usize::try_from(tier.0.saturating_sub(1)).unwrap_or(usize::MAX);
        let suffix = self
            .retry
            .tiers
            .get(index)
            .map_or("", |tier| &tier.topic_suffix);
        let suffix = suffix.replace("{n}", &tier.0.to_string());
        Topic::new(format!("{}.{suffix}", self.topic))
    }

    /// The group of the consumers of a tier.
    ///
    /// # Errors
    /// The group is too long for that.
    pub fn tier_group(&self, tier: TierIndex) -> Result<GroupName, NameError> {
        GroupName::new(format!("{}.retry-{tier}", self.group))
    }

    /// The group that hands dead letters to their handler.
    ///
    /// # Errors
    /// The group is too long for that.
    pub fn dlt_group(&self) -> Result<GroupName, NameError> {
        GroupName::new(format!("{}.DLT", self.group))
    }

    /// Its name in the books: `group@topic`.
    pub(crate) fn component_name(&self) -> String {
        OwnedGroup::new(self.topic.clone(), self.group.clone()).name()
    }

    /// The numbers of the tiers that have a topic, from 1. Where keys are ordered, records wait in the store.
    pub(crate) fn tier_indexes(&self) -> impl Iterator<Item = TierIndex> + use<> {
        let count = match self.ordering {
            OrderingMode::KeyOrdered => 0,
            OrderingMode::RelaxedInRetry | OrderingMode::Strict => self.retry.tiers.len(),
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        (1..=count).map(TierIndex)
    }

    pub(crate) fn ladder(&self) -> Ladder {
        Ladder(
            self.retry
                .tiers
                .iter()
                .map(|tier| tier.max_attempts)
                .collect(),
        )
    }

    /// The wait of a tier.
    pub(crate) fn delay(&self, tier: TierIndex) -> Duration {
        let index = tier
            .0
            .checked_sub(1)
            .and_then(|index| usize::try_from(index).ok());
        let tier = index.and_then(|index| self.retry.tiers.get(index));
        tier.map_or(Duration::ZERO, |tier| tier.delay)
    }

    /// How long a record that has no next step is kept while the breaker is finding out: ten times as long as the
    /// ladder takes. Where no ladder is climbed, it is as long as 180 probes take, three hours by default. A record that fails
    /// alone would otherwise keep the breaker from closing for ever.
    pub(crate) fn patience(&self) -> Duration {
        let is_climbed = self.listener_type == ListenerType::Single
            || self.batch_failure != BatchFailureStrategy::DlqAndContinue;
        let tiers = self.retry.tiers.iter().filter(|_| is_climbed);
        let ladder: Duration = tiers
            .map(|tier| tier.delay.saturating_mul(tier.max_attempts))
            .sum();
        let probes = self.breaker.rule.open_for.saturating_mul(PROBED);
        match ladder.is_zero() {
            true => probes,
            false => ladder.saturating_mul(10),
        }
    }

    /// The share of the poll interval that a batch may take.
    pub(crate) fn poll_budget(&self) -> Duration {
        self.max_poll_interval.mul_f64(POLL_BUDGET)
    }

    /// The name of its consumers in logs, and of their tasks.
    pub(crate) fn container_name(&self, tier: TierIndex) -> String {
        match tier.0 {
            0 => format!("eventbus-{}", self.name),
            tier => format!("eventbus-{}-retry-{tier}", self.name),
        }
    }
}

/// Times that a breaker finds out before a record without tiers is given up.
const PROBED: u32 = 180;

/// The share of the poll interval that retries, or a batch, may take.
pub(crate) const POLL_BUDGET: f64 = 0.7;

/// Whether a rule judges by shares of a window that is shorter than the calls it asks for.
pub(crate) fn window_of(rule: &Rule) -> Option<(usize, usize)> {
    match &rule.trip {
        Trip::Rates(rates) => Some((rates.window, rates.minimum_calls)),
        Trip::InARow { .. } => None,
    }
}
