//! Rules about values that must fit each other.
//!
//! A rule names both values and both places. A value that is wrong in itself has been reported
//! already, so rules about it are skipped.

mod binding;
mod binding_built;
mod binding_names;
mod flow_built;

use std::net::SocketAddr;

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
    let entries = |path: &[&str]| root.at(path).map_or_else(Vec::new, |map| map.sections());
    if let Some(server) = root.at(&["server"]) {
        token_is_visible(&server, findings);
        token_off_loopback(&server, findings);
    }
    let topics = root.at(&["log", "topics"]);
    topics
        .iter()
        .for_each(|topics| binding_names::topics_have_names(topics, findings));
    if let Some(embedded) = root.at(&["log", "embedded"]) {
        let (reserve, room) = (embedded.quantity("reserve"), embedded.quantity("max-size"));
        let rule = "must be less than `max-size`";
        compare(reserve, room, |a, b| a < b, rule, findings);
        at_most(&embedded, "max-record-size", "max-commit-size", findings);
        // A record that no commit can hold could never be added.
        for topic in entries(&["log", "topics"]) {
            let record = topic.quantity("max-record-size");
            let commit = embedded.quantity("max-commit-size");
            let rule = "must be at most `log.embedded.max-commit-size`";
            compare(record, commit, |a, b| a <= b, rule, findings);
        }
    }
    if let Some(logger) = root.at(&["eventlog", "async"]) {
        let (first, longest) = ("base-retry-delay-ms", "max-retry-delay-ms");
        at_most(&logger, first, longest, findings);
    }
    let relays = entries(&["outbox"]);
    let backoffs = relays.iter().filter_map(|relay| relay.at(&["backoff"]));
    for waits in root.at(&["queue", "retry"]).into_iter().chain(backoffs) {
        at_most(&waits, "initial-ms", "max-ms", findings);
    }
    let bindings = entries(&["eventbus", "bindings"]);
    let clusters = entries(&["log", "clusters"]);
    let store = root.at(&["store"]).and_then(|store| store.text("url"));
    for binding in &bindings {
        binding::check(binding, topics.as_ref(), findings);
        binding_built::check(binding, findings);
        binding_names::check(binding, findings);
        if !clusters.is_empty() {
            binding_built::has_shared_store(binding, store, findings);
        }
    }
    bound_twice(&bindings, findings);
    flow_built::check(&root, findings);
}

/// Two bindings that would take records from each other.
fn bound_twice(bindings: &[View<'_>], findings: &mut Findings<'_>) {
    for (n, binding) in bindings.iter().enumerate() {
        let reads = |view: &View<'_>| {
            let both = view.text("topic").zip(view.text("group-id"))?;
            Some((both.0.to_owned(), both.1.to_owned()))
        };
        let Some(this) = reads(binding) else { continue };
        let twin = bindings[..n]
            .iter()
            .find(|other| reads(other).as_ref() == Some(&this));
        if let (Some(twin), Some(entry)) = (twin, binding.entry("group-id")) {
            let (topic, group) = this;
            let other = &twin.path;
            let message =
                format!("is `{group}`, and `{other}` reads topic `{topic}` in that group as well");
            let problem = findings.at(&entry.spot, &binding.path.name("group-id"), message);
            let hint = "give one of them a group of its own, or raise `concurrency`";
            findings.problem(problem.hint(hint.to_owned()));
        }
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

    /// The section at the end of these names.
    fn at(&self, names: &[&str]) -> Option<Self> {
        let mut names = names.iter();
        names.try_fold(self.clone(), |view, name| {
            Some(Self {
                branch: view.entry(name)?.as_branch()?,
                path: view.path.name(name),
            })
        })
    }

    /// The sections of a map.
    fn sections(&self) -> Vec<Self> {
        let names = self.branch.keys();
        names.filter_map(|name| self.at(&[name])).collect()
    }

    fn integer(&self, name: &str) -> Option<u64> {
        u64::try_from(self.entry(name)?.integer()?).ok()
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.entry(name)?.text()
    }

    fn quantity(&self, name: &str) -> Option<Quantity<'a>> {
        Quantity::of(self.entry(name)?, self.path.name(name))
    }
}

/// A duration or a byte size in its place.
struct Quantity<'a> {
    entry: &'a ValueEntry,
    path: KeyPath,
    /// Milliseconds or bytes.
    number: u64,
    text: String,
}

impl<'a> Quantity<'a> {
    fn of(entry: &'a ValueEntry, path: KeyPath) -> Option<Self> {
        let size = entry.size().map(|bytes| (bytes, format_size(bytes)));
        let (number, text) = match entry.duration() {
            Some(span) => (span.as_millis().try_into().ok()?, format_duration(span)),
            None => size?,
        };
        Some(Self {
            entry,
            path,
            number,
            text,
        })
    }
}

/// Reports a contradiction unless the first of two quantities `fits` the second.
fn compare(
    this: Option<Quantity<'_>>,
    other: Option<Quantity<'_>>,
    fits: impl Fn(u64, u64) -> bool,
    rule: &str,
    findings: &mut Findings<'_>,
) {
    if let (Some(this), Some(other)) = (this, other)
        && !fits(this.number, other.number)
    {
        let place = findings.place(&other.entry.spot);
        let rule = format!("{rule}, which is {} ({place})", other.text);
        let given = (this.entry, this.text.as_str());
        contradiction(&this.path, given, other.entry, &rule, findings);
    }
}

/// `low` must not be more than `high`.
fn at_most(view: &View<'_>, low: &str, high: &str, findings: &mut Findings<'_>) {
    let rule = format!("must be at most `{high}`");
    let (low, high) = (view.quantity(low), view.quantity(high));
    compare(low, high, |low, high| low <= high, &rule, findings);
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
        let message = format!("is {value} by default, and {rule}");
        findings.at(&other.spot, path, message)
    } else {
        let problem = findings.at(&entry.spot, path, format!("is {value}, and {rule}"));
        problem.also(&other.spot)
    };
    findings.problem(problem);
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
        let nth = nth(at + 1);
        let message = format!("has a character that is not visible ASCII, the {nth}");
        let problem = findings.at(&entry.spot, &server.path.name("token"), message);
        let hint = "use letters, digits and signs, without blanks".to_owned();
        findings.problem(problem.hint(hint));
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
    let problem = findings.at(&entry.spot, &server.path.name("listen"), message);
    findings.problem(problem.hint("give a token, or listen on 127.0.0.1".to_owned()));
}

fn is_loopback(address: &str) -> bool {
    match address.parse::<SocketAddr>() {
        Ok(address) => address.ip().is_loopback(),
        Err(_) => address
            .rsplit_once(':')
            .is_some_and(|(host, _)| host == "localhost"),
    }
}
