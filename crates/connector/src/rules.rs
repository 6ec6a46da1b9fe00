//! Rules between the options of a binding, checked before anything starts.

use crate::classify::ClassifierCodes;
use crate::options::{
    BindingOptions, ConcurrencyMode, DltStrategy, HandOff, OrderingMode, POLL_BUDGET, window_of,
};

/// Heartbeats that must fit into a session.
const HEARTBEATS_PER_SESSION: u32 = 3;

/// The cluster whose topics a binding reads.
pub(crate) const DEFAULT_CLUSTER: &str = "default";

impl BindingOptions {
    /// Everything that is wrong with these options, each with both values.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        self.check_counts(&mut problems);
        self.check_times(&mut problems);
        self.check_tiers(&mut problems);
        self.check_order(&mut problems);
        self.check_names(&mut problems);
        check_codes(&self.retry.codes, self.retry.tiers.len(), &mut problems);
        if self.cluster != DEFAULT_CLUSTER {
            problems.push(format!(
                "`cluster` is `{}`, and this version reads the cluster `{DEFAULT_CLUSTER}` alone",
                self.cluster
            ));
        }
        if self.dlt.strategy == DltStrategy::ScheduledReplay {
            problems.push(
                "`dlt.strategy` is SCHEDULED_REPLAY, and this version replays nothing by itself"
                    .to_owned(),
            );
        }
        problems
    }

    fn check_counts(&self, problems: &mut Vec<String>) {
        let tiers = self.retry.tiers.iter();
        let in_tiers = tiers.clone().map(|tier| tier.max_attempts);
        let at_least_one = [
            ("concurrency", self.concurrency),
            ("retry.tier0.max-attempts", self.retry.tier0.max_attempts),
        ];
        let counts = [
            ("max-poll-records", self.max_poll_records),
            ("max-in-flight", self.max_in_flight),
            ("max-ahead", self.max_ahead),
            ("key-ordered.max-parked", self.key_ordered.max_parked),
        ];
        let zero = at_least_one
            .iter()
            .filter(|(_, count)| *count == 0)
            .map(|(name, _)| *name);
        let zero = zero.chain(
            counts
                .iter()
                .filter(|(_, count)| *count == 0)
                .map(|(name, _)| *name),
        );
        problems.extend(zero.map(|name| format!("`{name}` is 0, and must be at least 1")));
        if in_tiers.clone().any(|attempts| attempts == 0) {
            problems.push("`retry.tiers` has a tier with `max-attempts` 0".to_owned());
        }
        if tiers.clone().any(|tier| tier.concurrency == 0) {
            problems.push("`retry.tiers` has a tier with `concurrency` 0".to_owned());
        }
        if let Some((window, calls)) = window_of(&self.breaker.rule)
            && (window == 0 || calls == 0)
        {
            problems.push(format!(
                "`circuit-breaker` has a `sliding-window-size` of {window} and \
                 `minimum-number-of-calls` {calls}, and both must be at least 1"
            ));
        }
    }

    fn check_times(&self, problems: &mut Vec<String>) {
        let (session, beat) = (self.session_timeout, self.heartbeat_interval);
        if session < beat.saturating_mul(HEARTBEATS_PER_SESSION) {
            problems.push(format!(
                "`session-timeout-ms` is {} ms, and must be at least three times \
                 `heartbeat-interval-ms`, which is {} ms",
                session.as_millis(),
                beat.as_millis()
            ));
        }
        let one = self.retry.tier0.total_wait().as_secs_f64();
        #[expect(
            clippy::cast_precision_loss,
            reason = "a count of records, far below 2^52"
        )]
        let all = one * self.max_poll_records as f64;
        let budget = self.max_poll_interval.as_secs_f64() * POLL_BUDGET;
        if all > 0.0 && all >= budget {
            problems.push(format!(
                "{} records (`max-poll-records`) may wait {all:.0} s in their retries, and 70 % of \
                 `max-poll-interval-ms`, which is {} ms, is {budget:.0} s",
                self.max_poll_records,
                self.max_poll_interval.as_millis()
            ));
        }
        let tier0 = &self.retry.tier0;
        if tier0.initial_backoff > tier0.max_backoff {
            problems.push(format!(
                "`retry.tier0.initial-backoff-ms` is {}, and must be at most `max-backoff-ms`, which \
                 is {}",
                tier0.initial_backoff.as_millis(),
                tier0.max_backoff.as_millis()
            ));
        }
    }

    fn check_tiers(&self, problems: &mut Vec<String>) {
        for (n, pair) in self.retry.tiers.windows(2).enumerate() {
            let [before, after] = pair else { continue };
            if after.delay <= before.delay {
                problems.push(format!(
                    "`retry.tiers[{}].delay-ms` is {}, and must be longer than the delay of the tier \
                     before, which is {}",
                    n + 1,
                    after.delay.as_millis(),
                    before.delay.as_millis()
                ));
            }
        }
    }

    fn check_order(&self, problems: &mut Vec<String>) {
        let mode = self.concurrency_mode;
        if self.ordering == OrderingMode::Strict && !self.retry.tiers.is_empty() {
            problems.push(format!(
                "`ordering-mode` is STRICT, and there are {} `retry.tiers`: a failing record stays in \
                 its place",
                self.retry.tiers.len()
            ));
        }
        if self.ordering == OrderingMode::Strict && mode != ConcurrencyMode::Partition {
            problems.push(format!(
                "`ordering-mode` is STRICT, and `concurrency-mode` is {}: only PARTITION keeps that \
                 order",
                name_of(mode)
            ));
        }
        if self.ordering == OrderingMode::KeyOrdered && mode == ConcurrencyMode::Unordered {
            problems.push(
                "`ordering-mode` is KEY_ORDERED, and `concurrency-mode` is UNORDERED: nothing is in \
                 order then"
                    .to_owned(),
            );
        }
        if self.transactional && self.ordering == OrderingMode::KeyOrdered {
            problems.push(
                "`transactional` is true, and `ordering-mode` is KEY_ORDERED, whose records settle in \
                 the store"
                    .to_owned(),
            );
        }
        if self.transactional && self.hand_off == HandOff::AtLeastOnce {
            problems.push(
                "`transactional` is true, and `hand-off` is at-least-once: outputs and offset are one \
                 commit or they are not"
                    .to_owned(),
            );
        }
    }

    fn check_names(&self, problems: &mut Vec<String>) {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.name.is_empty() || !self.name.chars().all(is_word) {
            problems.push(format!(
                "the name `{}` of a binding is made of letters, digits, `.`, `_` and `-`",
                self.name
            ));
        }
        let mut topics = vec![self.topic.clone()];
        let names = self.tier_indexes().map(|tier| self.tier_topic(tier));
        for name in names.chain([self.dlt_topic()]) {
            match name {
                Ok(topic) if topics.contains(&topic) => problems.push(format!(
                    "topic `{topic}` has two roles: the topic, each tier and the dead letters are \
                     topics of their own"
                )),
                Ok(topic) => topics.push(topic),
                Err(error) => problems.push(error.to_string()),
            }
        }
        let groups = self.tier_indexes().map(|tier| self.tier_group(tier));
        let groups = groups.chain([self.dlt_group()]);
        problems.extend(groups.filter_map(|group| Some(group.err()?.to_string())));
    }
}

fn check_codes(codes: &ClassifierCodes, tiers: usize, problems: &mut Vec<String>) {
    for code in &codes.non_retryable {
        let retryable = codes.retryable.iter().flatten();
        if let Some(twin) = retryable
            .clone()
            .find(|other| overlap(code.as_str(), other.as_str()))
        {
            problems.push(format!(
                "`non-retryable-exceptions` has `{}`, and `retryable-exceptions` has `{}`: a failure is \
                 one or the other",
                code.as_str(),
                twin.as_str()
            ));
        }
    }
    for (code, tier) in &codes.skip_to_tier {
        let target = usize::try_from(tier.0).unwrap_or(usize::MAX);
        if target == 0 || target > tiers {
            problems.push(format!(
                "`skip-to-tier-mapping` sends `{}` to tier {tier}, and the last of the tiers is {tiers}",
                code.as_str()
            ));
        }
    }
}

/// Whether some code is meant by both patterns.
fn overlap(one: &str, other: &str) -> bool {
    let stem = |pattern: &str| pattern.strip_suffix('*').map(str::to_owned);
    match (stem(one), stem(other)) {
        (Some(one), Some(other)) => one.starts_with(&other) || other.starts_with(&one),
        (Some(one), None) => other.starts_with(&one),
        (None, Some(other)) => one.starts_with(&other),
        (None, None) => one == other,
    }
}

fn name_of(mode: ConcurrencyMode) -> &'static str {
    match mode {
        ConcurrencyMode::Partition => "PARTITION",
        ConcurrencyMode::Key => "KEY",
        ConcurrencyMode::Unordered => "UNORDERED",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_core::{CodePattern, TierIndex};

    use super::*;
    use crate::options::{StrictExhausted, TierOptions};

    fn problems(change: impl FnOnce(&mut BindingOptions)) -> String {
        let mut options = BindingOptions::new("orders", "orders.events", "g").unwrap();
        change(&mut options);
        options.problems().join("\n")
    }

    #[test]
    fn c46_each_rule_names_both_values() {
        let check = |change: fn(&mut BindingOptions), expect: &str| {
            let found = problems(change);
            assert!(found.contains(expect), "{found:?} has no {expect:?}");
            assert_eq!(found.lines().count(), 1, "{found}");
        };
        assert_eq!(problems(|_| {}), "");
        check(
            |o| o.session_timeout = Duration::from_secs(29),
            "is 29000 ms, and must be at least three times `heartbeat-interval-ms`, which is 10000 ms",
        );
        check(
            |o| o.max_poll_records = 2_000,
            "2000 records (`max-poll-records`) may wait 600 s in their retries, and 70 % of \
             `max-poll-interval-ms`, which is 600000 ms, is 420 s",
        );
        check(
            |o| o.retry.tiers[1].delay = Duration::from_secs(10),
            "`retry.tiers[1].delay-ms` is 10000, and must be longer than the delay of the tier before, \
             which is 10000",
        );
        check(
            |o| o.ordering = OrderingMode::Strict,
            "`ordering-mode` is STRICT, and there are 3 `retry.tiers`",
        );
        check(
            |o| {
                *o = o.clone().strict(StrictExhausted::Pause);
                o.concurrency_mode = ConcurrencyMode::Key;
            },
            "`concurrency-mode` is KEY",
        );
        check(
            |o| {
                o.retry.codes.retryable = Some(vec![CodePattern::new("a.*")]);
                o.retry.codes.non_retryable = vec![CodePattern::new("a.b")];
            },
            "`non-retryable-exceptions` has `a.b`, and `retryable-exceptions` has `a.*`",
        );
        check(
            |o| o.retry.codes.skip_to_tier = vec![(CodePattern::new("a.b"), TierIndex(4))],
            "sends `a.b` to tier 4, and the last of the tiers is 3",
        );
        check(|o| o.concurrency = 0, "`concurrency` is 0");
        check(|o| o.cluster = "dr".to_owned(), "`cluster` is `dr`");
        check(
            |o| o.dlt.strategy = DltStrategy::ScheduledReplay,
            "SCHEDULED_REPLAY",
        );
        check(
            |o| {
                o.transactional = true;
                o.hand_off = HandOff::AtLeastOnce;
            },
            "`transactional` is true, and `hand-off` is at-least-once",
        );
        check(
            |o| o.dlt.topic_suffix = "retry-1".to_owned(),
            "topic `orders.events.retry-1` has two roles",
        );
        check(
            |o| {
                o.ordering = OrderingMode::KeyOrdered;
                o.concurrency_mode = ConcurrencyMode::Unordered;
            },
            "nothing is in order then",
        );
        check(
            |o| {
                o.ordering = OrderingMode::KeyOrdered;
                o.transactional = true;
            },
            "whose records settle in the store",
        );
        check(
            |o| o.key_ordered.max_parked = 0,
            "`key-ordered.max-parked` is 0",
        );
        assert_eq!(problems(|o| o.ordering = OrderingMode::KeyOrdered), "");
        check(|o| o.name = "a b".to_owned(), "`a b`");
    }

    #[test]
    fn many_tiers_may_be_named_alike_but_for_their_number() {
        let found = problems(|options| {
            let seconds = (1..=40).map(Duration::from_secs);
            options.retry.tiers = seconds.map(TierOptions::new).collect();
        });
        assert_eq!(found, "");
    }
}
