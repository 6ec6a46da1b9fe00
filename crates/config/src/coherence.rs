//! Rules about values that must fit each other.
//!
//! A rule names both values and both places. A value that is wrong in itself has been reported
//! already, so rules about it are skipped.

mod binding;

use std::net::SocketAddr;
use std::time::Duration;

use crate::findings::Findings;
use crate::path::KeyPath;
use crate::units::{format_duration, format_size};
use crate::value::{Branch, Value, ValueEntry, ValueLocation};

/// Checks the whole configuration, with its defaults filled in.
pub(crate) fn check(root: &Branch, findings: &mut Findings<'_>) {
    let root = View {
        branch: root,
        path: KeyPath::default(),
    };
    if let Some(server) = root.section("server") {
        token_is_visible(&server, findings);
        token_off_loopback(&server, findings);
    }
    if let Some(embedded) = root.section("log").and_then(|log| log.section("embedded")) {
        embedded_limits(&embedded, findings);
        let topics = root.section("log").and_then(|log| log.section("topics"));
        for topic in topics.iter().flat_map(View::sections) {
            topic_limit(&topic, &embedded, findings);
        }
    }
    if let Some(logger) = root
        .section("eventlog")
        .and_then(|log| log.section("async"))
    {
        ordered(
            &logger,
            "base-retry-delay-ms",
            "max-retry-delay-ms",
            findings,
        );
    }
    if let Some(retry) = root
        .section("queue")
        .and_then(|queue| queue.section("retry"))
    {
        ordered(&retry, "initial-ms", "max-ms", findings);
    }
    for relay in root.section("outbox").iter().flat_map(View::sections) {
        if let Some(backoff) = relay.section("backoff") {
            ordered(&backoff, "initial-ms", "max-ms", findings);
        }
    }
    let bindings = root
        .section("eventbus")
        .and_then(|bus| bus.section("bindings"));
    let topics = root.section("log").and_then(|log| log.section("topics"));
    for binding in bindings.iter().flat_map(View::sections) {
        binding::check(&binding, topics.as_ref(), findings);
    }
}

/// A section on its path.
#[derive(Clone)]
struct View<'a> {
    branch: &'a Branch,
    path: KeyPath,
}

impl<'a> View<'a> {
    fn entry(&self, name: &str) -> Option<&'a ValueEntry> {
        self.branch.get(name)
    }

    fn section(&self, name: &str) -> Option<Self> {
        let branch = self.entry(name)?.as_branch()?;
        Some(Self {
            branch,
            path: self.path.name(name),
        })
    }

    /// The sections of a map.
    fn sections(&self) -> impl Iterator<Item = Self> {
        self.branch.iter().filter_map(|(name, entry)| {
            Some(Self {
                branch: entry.as_branch()?,
                path: self.path.name(name),
            })
        })
    }

    fn duration(&self, name: &str) -> Option<Duration> {
        let Value::Duration(span) = self.entry(name)?.value else {
            return None;
        };
        Some(span)
    }

    fn size(&self, name: &str) -> Option<u64> {
        let Value::Size(bytes) = self.entry(name)?.value else {
            return None;
        };
        Some(bytes)
    }

    fn integer(&self, name: &str) -> Option<u64> {
        let Value::Integer(number) = self.entry(name)?.value else {
            return None;
        };
        u64::try_from(number).ok()
    }

    fn float(&self, name: &str) -> Option<f64> {
        let Value::Float(number) = self.entry(name)?.value else {
            return None;
        };
        Some(number)
    }

    fn choice(&self, name: &str) -> Option<&'static str> {
        let Value::Choice(word) = self.entry(name)?.value else {
            return None;
        };
        Some(word)
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        let Value::Text(text) = &self.entry(name)?.value else {
            return None;
        };
        Some(text)
    }
}

/// A contradiction between the entry at `path`, whose value is `value`, and another. It is reported
/// at whichever of the two somebody gave, so that it has a place.
fn contradiction(
    path: &KeyPath,
    (entry, value): (&ValueEntry, &str),
    other: &ValueEntry,
    rule: &str,
    findings: &mut Findings<'_>,
) {
    let problem = if entry.spot == ValueLocation::Default {
        findings.at(
            &other.spot,
            path,
            format!("is {value} by default, and {rule}"),
        )
    } else {
        findings
            .at(&entry.spot, path, format!("is {value}, and {rule}"))
            .also(findings.position(&other.spot))
    };
    findings.problem(problem);
}

/// `low` must not be longer than `high`.
fn ordered(view: &View<'_>, low: &str, high: &str, findings: &mut Findings<'_>) {
    let (Some(first), Some(second)) = (view.duration(low), view.duration(high)) else {
        return;
    };
    let (Some(entry), Some(other)) = (view.entry(low), view.entry(high)) else {
        return;
    };
    if first > second {
        let rule = format!(
            "must be at most `{high}`, which is {} ({})",
            format_duration(second),
            findings.place(&other.spot),
        );
        let path = view.path.name(low);
        let value = format_duration(first);
        contradiction(&path, (entry, &value), other, &rule, findings);
    }
}

/// A client sends the token in a header, which carries nothing but visible ASCII.
fn token_is_visible(server: &View<'_>, findings: &mut Findings<'_>) {
    let Some(entry) = server.entry("token") else {
        return;
    };
    let Value::Secret(token) = &entry.value else {
        return;
    };
    let strange = token.expose().chars().position(|c| !c.is_ascii_graphic());
    if let Some(at) = strange {
        // The character itself would be part of a secret.
        let message = format!(
            "has a character that is not visible ASCII, the {}",
            nth(at + 1)
        );
        let problem = findings
            .at(&entry.spot, &server.path.name("token"), message)
            .hint("use letters, digits and signs, without blanks");
        findings.problem(problem);
    }
}

fn nth(number: usize) -> String {
    let ending = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

fn token_off_loopback(server: &View<'_>, findings: &mut Findings<'_>) {
    let (Some(listen), Some(entry)) = (server.text("listen"), server.entry("listen")) else {
        return;
    };
    if is_loopback(listen) || server.entry("token").is_some() {
        return;
    }
    let message = format!("is {listen}, which others can reach, and `server.token` is not given");
    let problem = findings
        .at(&entry.spot, &server.path.name("listen"), message)
        .hint("give a token, or listen on 127.0.0.1");
    findings.problem(problem);
}

fn is_loopback(address: &str) -> bool {
    match address.parse::<SocketAddr>() {
        Ok(address) => address.ip().is_loopback(),
        Err(_) => address
            .rsplit_once(':')
            .is_some_and(|(host, _)| host == "localhost"),
    }
}

/// A record that no commit can hold could never be added.
fn topic_limit(topic: &View<'_>, embedded: &View<'_>, findings: &mut Findings<'_>) {
    let (small, large) = ("max-record-size", "max-commit-size");
    let (Some(a), Some(b)) = (topic.size(small), embedded.size(large)) else {
        return;
    };
    let (Some(entry), Some(other)) = (topic.entry(small), embedded.entry(large)) else {
        return;
    };
    if a > b {
        let rule = format!(
            "must be at most `log.embedded.{large}`, which is {} ({})",
            format_size(b),
            findings.place(&other.spot),
        );
        let path = topic.path.name(small);
        contradiction(&path, (entry, &format_size(a)), other, &rule, findings);
    }
}

fn embedded_limits(embedded: &View<'_>, findings: &mut Findings<'_>) {
    let rules = [
        ("reserve", "max-size", false),
        ("max-record-size", "max-commit-size", true),
    ];
    for (small, large, equal) in rules {
        let (Some(a), Some(b)) = (embedded.size(small), embedded.size(large)) else {
            continue;
        };
        let (Some(entry), Some(other)) = (embedded.entry(small), embedded.entry(large)) else {
            continue;
        };
        if a > b || (a == b && !equal) {
            let bound = if equal { "at most" } else { "less than" };
            let rule = format!(
                "must be {bound} `{large}`, which is {} ({})",
                format_size(b),
                findings.place(&other.spot),
            );
            let path = embedded.path.name(small);
            contradiction(&path, (entry, &format_size(a)), other, &rule, findings);
        }
    }
}
