//! Rules of one binding.

use std::time::Duration;

use super::{Quantity, View, at_most, compare, contradiction};
use crate::codes;
use crate::findings::Findings;
use crate::path::KeyPath;
use crate::units::format_duration;
use crate::value::{ValueEntry, ValueLocation};

/// Heartbeats that must fit into a session: one may be lost and one late without a rebalance.
const HEARTBEATS_PER_SESSION: u64 = 3;

/// Share of the poll interval that retries may use up.
///
/// The rest is for the commit and one slow handler call. Past the full interval the broker takes
/// the partitions away and the whole batch is delivered to somebody else.
const POLL_BUDGET: f64 = 0.7;

/// Waits that are added up one by one; beyond, the last one stands for the rest.
const MAX_WAITS: u64 = 1_000;

pub(super) fn check(binding: &View<'_>, topics: Option<&View<'_>>, findings: &mut Findings<'_>) {
    session(binding, findings);
    one_handler(binding, findings);
    more_consumers_than_partitions(binding, topics, findings);
    let Some(retry) = binding.at(&["retry"]) else {
        return;
    };
    if let Some(tier0) = retry.at(&["tier0"]) {
        budget(binding, &tier0, findings);
        at_most(&tier0, "initial-backoff-ms", "max-backoff-ms", findings);
    }
    growing_tiers(&retry, findings);
    strict_without_tiers(binding, &retry, findings);
    overlapping_codes(&retry, findings);
    existing_tiers(&retry, findings);
    java_classes(&retry, findings);
}

fn session(binding: &View<'_>, findings: &mut Findings<'_>) {
    let session = binding.quantity("session-timeout-ms");
    let heartbeat = binding.quantity("heartbeat-interval-ms");
    let fits = |session, beat: u64| session >= beat.saturating_mul(HEARTBEATS_PER_SESSION);
    let rule = "must be at least three times `heartbeat-interval-ms`";
    compare(session, heartbeat, fits, rule, findings);
}

/// The time one record may spend waiting between its attempts in memory.
fn retry_time(attempts: u64, initial: Duration, multiplier: f64, longest: Duration) -> f64 {
    let longest = longest.as_secs_f64();
    let (mut wait, mut total) = (initial.as_secs_f64().min(longest), 0.0);
    let mut left = attempts.saturating_sub(1);
    for _ in 0..left.min(MAX_WAITS) {
        total += wait;
        wait = (wait * multiplier).min(longest);
        left -= 1;
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "a count of attempts, far below 2^52"
    )]
    let rest = left as f64 * wait;
    total + rest
}

fn budget(binding: &View<'_>, tier0: &View<'_>, findings: &mut Findings<'_>) {
    let (interval, records) = ("max-poll-interval-ms", "max-poll-records");
    let duration = |view: &View<'_>, name| view.entry(name).and_then(ValueEntry::duration);
    let (Some(longest), Some(count)) = (duration(binding, interval), binding.integer(records))
    else {
        return;
    };
    let (Some(attempts), Some(initial), Some(multiplier), Some(ceiling)) = (
        tier0.integer("max-attempts"),
        duration(tier0, "initial-backoff-ms"),
        tier0.entry("multiplier").and_then(ValueEntry::float),
        duration(tier0, "max-backoff-ms"),
    ) else {
        return;
    };
    let one = retry_time(attempts, initial, multiplier, ceiling);
    #[expect(
        clippy::cast_precision_loss,
        reason = "a count of records, far below 2^52"
    )]
    let all = one * count as f64;
    let budget = longest.as_secs_f64() * POLL_BUDGET;
    if all < budget || all == 0.0 {
        return;
    }
    let places = [
        (binding, records),
        (tier0, "max-attempts"),
        (tier0, "initial-backoff-ms"),
        (tier0, "max-backoff-ms"),
        (binding, interval),
    ];
    let given = places.into_iter().find_map(|(view, name)| {
        let entry = view.entry(name)?;
        (entry.spot != ValueLocation::Default).then(|| (view.path.name(name), &entry.spot))
    });
    let (path, at) =
        given.unwrap_or_else(|| (binding.path.name(interval), &ValueLocation::Default));
    let limit = binding
        .entry(interval)
        .map_or(&ValueLocation::Default, |entry| &entry.spot);
    let message = format!(
        "lets {count} records wait {all:.0} s in their retries ({attempts} attempts each), and \
         70 % of `{interval}`, which is {} ({}), is {budget:.0} s",
        format_duration(longest),
        findings.place(limit),
    );
    let hint = "take fewer records per poll, retry less, or allow a longer interval";
    let problem = findings.at(at, &path, message).hint(hint.to_owned());
    findings.problem(if limit == at {
        problem
    } else {
        problem.also(limit)
    });
}

fn growing_tiers(retry: &View<'_>, findings: &mut Findings<'_>) {
    let tiers = retry.entry("tiers").map_or(&[][..], ValueEntry::as_list);
    let delay = |n: usize| {
        let path = retry.path.name("tiers").index(n).name("delay-ms");
        Quantity::of(tiers[n].as_branch()?.get("delay-ms")?, path)
    };
    for n in 1..tiers.len() {
        let rule = "must be longer than the delay of the tier before";
        compare(delay(n), delay(n - 1), |a, b| a > b, rule, findings);
    }
}

fn strict_without_tiers(binding: &View<'_>, retry: &View<'_>, findings: &mut Findings<'_>) {
    let (Some(mode), Some(tiers)) = (binding.entry("ordering-mode"), retry.entry("tiers")) else {
        return;
    };
    if mode.text() == Some("STRICT") && !tiers.as_list().is_empty() {
        let message = format!(
            "has tiers, and `ordering-mode` is STRICT ({}), which keeps a failing record in its \
             place",
            findings.place(&mode.spot),
        );
        let hint = "leave the tiers out, or use KEY_ORDERED to keep delays and the order of a key";
        let problem = findings.at(&tiers.key_spot(), &retry.path.name("tiers"), message);
        findings.problem(problem.hint(hint.to_owned()).also(&mode.spot));
    }
}

/// The codes of a list, each with its entry and its path.
fn codes<'a>(retry: &View<'a>, name: &str) -> Vec<(&'a str, &'a ValueEntry, KeyPath)> {
    let path = retry.path.name(name);
    let items = retry.entry(name).map_or(&[][..], ValueEntry::as_list);
    let items = items.iter().enumerate();
    items
        .filter_map(|(n, entry)| Some((entry.text()?, entry, path.index(n))))
        .collect()
}

fn overlapping_codes(retry: &View<'_>, findings: &mut Findings<'_>) {
    let retryable = codes(retry, "retryable-exceptions");
    for (code, entry, path) in codes(retry, "non-retryable-exceptions") {
        let Some((other, twin, _)) = retryable
            .iter()
            .find(|(other, _, _)| codes::overlap(code, other))
        else {
            continue;
        };
        let rule = format!(
            "`retryable-exceptions` has `{other}` ({}): a failure is one or the other",
            findings.place(&twin.spot),
        );
        contradiction(&path, (entry, &format!("`{code}`")), twin, &rule, findings);
    }
}

fn existing_tiers(retry: &View<'_>, findings: &mut Findings<'_>) {
    let Some(tiers) = retry.entry("tiers") else {
        return;
    };
    let count = tiers.as_list().len();
    let Some(mapping) = retry.at(&["skip-to-tier-mapping"]) else {
        return;
    };
    for (code, entry) in mapping.branch {
        let Some(target) = mapping.integer(code) else {
            continue;
        };
        if usize::try_from(target).is_ok_and(|target| target > count) {
            let place = findings.place(&tiers.spot);
            let rule = format!("the last of the tiers is {count} ({place})");
            let path = mapping.path.name(code);
            contradiction(&path, (entry, &target.to_string()), tiers, &rule, findings);
        }
    }
}

fn java_classes(retry: &View<'_>, findings: &mut Findings<'_>) {
    let mut found: Vec<(&str, ValueLocation, KeyPath)> = Vec::new();
    for list in [
        "retryable-exceptions",
        "non-retryable-exceptions",
        "pause-on",
    ] {
        let codes = codes(retry, list).into_iter();
        found.extend(codes.map(|(code, entry, path)| (code, entry.spot.clone(), path)));
    }
    if let Some(mapping) = retry.at(&["skip-to-tier-mapping"]) {
        let codes = mapping.branch.iter();
        found.extend(codes.map(|(code, entry)| {
            let path = mapping.path.name(code);
            (code.as_str(), entry.key_spot(), path)
        }));
    }
    for (code, spot, path) in found {
        if let Some(resembling) = codes::resembling(code) {
            let message = format!("is the Java class `{code}`, which nothing here raises");
            let warning = findings.at(&spot, &path, message);
            findings.warning(warning.hint(format!("it resembles `{resembling}`")));
        }
    }
}

fn one_handler(binding: &View<'_>, findings: &mut Findings<'_>) {
    let Some(handler) = binding.at(&["handler"]) else {
        return;
    };
    let mut given: Vec<(&String, &ValueEntry)> = handler.branch.iter().collect();
    given.sort_by_key(|(_, entry)| entry.key);
    for pair in given.windows(2) {
        let [(first, before), (second, entry)] = pair else {
            continue;
        };
        let before = before.key_spot();
        let message = format!(
            "is a second handler beside `{first}` ({}), and a binding has one",
            findings.place(&before),
        );
        let problem = findings.at(&entry.key_spot(), &handler.path.name(second), message);
        findings.problem(problem.also(&before));
    }
}

fn more_consumers_than_partitions(
    binding: &View<'_>,
    topics: Option<&View<'_>>,
    findings: &mut Findings<'_>,
) {
    let topic = binding.text("topic").and_then(|topic| topics?.at(&[topic]));
    let Some(topic) = topic else { return };
    let (Some(consumers), Some(partitions)) =
        (binding.integer("concurrency"), topic.integer("partitions"))
    else {
        return;
    };
    let (Some(entry), Some(other)) = (binding.entry("concurrency"), topic.entry("partitions"))
    else {
        return;
    };
    if consumers > partitions && entry.spot != ValueLocation::Default {
        let message = format!(
            "is {consumers}, and the topic has {partitions} partitions ({}): the others stay idle",
            findings.place(&other.spot),
        );
        let warning = findings.at(&entry.spot, &binding.path.name("concurrency"), message);
        findings.warning(warning.also(&other.spot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_time_is_the_sum_of_the_waits_between_attempts() {
        let ms = Duration::from_millis;
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(retry_time(3, ms(100), 2.0, ms(2000)), 0.3));
        assert!(close(retry_time(5, ms(200), 2.0, ms(2000)), 3.0));
        assert!(close(retry_time(1, ms(200), 2.0, ms(2000)), 0.0));
        assert!(close(retry_time(4, ms(900), 2.0, ms(1000)), 2.9));
        assert!(retry_time(u64::from(u32::MAX), ms(1), 1.0, ms(1)) > 4_000_000.0);
    }
}
