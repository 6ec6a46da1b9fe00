//! Options of a binding that this version does not have, or that contradict each other.

use super::View;
use crate::findings::Findings;
use crate::value::ValueLocation;

/// The cluster whose topics bindings read.
const DEFAULT_CLUSTER: &str = "default";

pub(super) fn check(binding: &View<'_>, findings: &mut Findings<'_>) {
    is_default_cluster(binding, findings);
    is_built(binding, findings);
    keeps_its_order(binding, findings);
    forwards_in_one_commit(binding, findings);
    warn_about_the_rest(binding, findings);
    has_handler(binding, findings);
}

fn is_default_cluster(binding: &View<'_>, findings: &mut Findings<'_>) {
    let (Some(cluster), Some(entry)) = (binding.text("cluster"), binding.entry("cluster")) else {
        return;
    };
    if cluster != DEFAULT_CLUSTER {
        let message = format!(
            "is `{cluster}`, and this version reads topics of the cluster `{DEFAULT_CLUSTER}` alone"
        );
        findings.problem(findings.at(&entry.spot, &binding.path.name("cluster"), message));
    }
}

fn is_built(binding: &View<'_>, findings: &mut Findings<'_>) {
    let Some(view) = binding.at(&["dlt"]) else {
        return;
    };
    let (key, word) = ("strategy", "SCHEDULED_REPLAY");
    if let Some(entry) = view.entry(key).filter(|entry| entry.text() == Some(word)) {
        let message = format!("is {word}, which this version does not have yet");
        let problem = findings.at(&entry.spot, &view.path.name(key), message);
        findings.problem(problem.hint("use STORE_ONLY, and replay by hand".to_owned()));
    }
}

/// On a broker a partition moves between machines, and the rows of its keys must follow it.
pub(super) fn has_shared_store(
    binding: &View<'_>,
    store: Option<&str>,
    findings: &mut Findings<'_>,
) {
    let (key, word) = ("ordering-mode", "KEY_ORDERED");
    let is_file = store.is_none_or(|url| url.starts_with("sqlite:"));
    let entry = binding.entry(key).filter(|_| is_file);
    if let Some(entry) = entry.filter(|entry| entry.text() == Some(word)) {
        let message = format!(
            "is {word} on Kafka, and the store is SQLite, whose rows do not follow a partition to \
             another machine"
        );
        let problem = findings.at(&entry.spot, &binding.path.name(key), message);
        findings.problem(problem.hint("use PostgreSQL (`store.url`)".to_owned()));
    }
}

fn keeps_its_order(binding: &View<'_>, findings: &mut Findings<'_>) {
    let order = binding.entry("ordering-mode");
    let pairs = [
        (
            "STRICT",
            "concurrency-mode",
            "KEY",
            "only PARTITION keeps that order",
        ),
        (
            "STRICT",
            "concurrency-mode",
            "UNORDERED",
            "only PARTITION keeps that order",
        ),
        (
            "KEY_ORDERED",
            "concurrency-mode",
            "UNORDERED",
            "nothing is in order then",
        ),
    ];
    for (word, key, other, why) in pairs {
        let (Some(order), Some(entry)) = (order, binding.entry(key)) else {
            return;
        };
        if order.text() == Some(word) && entry.text() == Some(other) {
            let place = findings.place(&order.spot);
            let message = format!("is {other}, and `ordering-mode` is {word} ({place}): {why}");
            let problem = findings.at(&entry.spot, &binding.path.name(key), message);
            findings.problem(problem.also(&order.spot));
        }
    }
    let Some(entry) = binding
        .entry("transactional")
        .filter(|entry| entry.flag() == Some(true))
    else {
        return;
    };
    let contradictions = [
        (
            "hand-off",
            "at-least-once",
            "outputs and offset are one commit or they are not",
        ),
        (
            "ordering-mode",
            "KEY_ORDERED",
            "its records settle in the store",
        ),
    ];
    for (key, word, why) in contradictions {
        if let Some(other) = binding
            .entry(key)
            .filter(|other| other.text() == Some(word))
        {
            let place = findings.place(&other.spot);
            let message = format!("is true, and `{key}` is {word} ({place}): {why}");
            let problem = findings.at(&entry.spot, &binding.path.name("transactional"), message);
            findings.problem(problem.also(&other.spot));
        }
    }
}

/// A copy is one commit with its offset, and a record whose key is ordered may settle in the store.
fn forwards_in_one_commit(binding: &View<'_>, findings: &mut Findings<'_>) {
    let (key, word) = ("ordering-mode", "KEY_ORDERED");
    let order = binding
        .entry(key)
        .filter(|entry| entry.text() == Some(word));
    let handler = binding.at(&["handler"]);
    let forward = handler
        .as_ref()
        .and_then(|handler| handler.entry("forward"));
    let (Some(order), Some(handler), Some(forward)) = (order, handler.as_ref(), forward) else {
        return;
    };
    let transactional = binding.entry("transactional");
    let is_told = transactional.is_some_and(|entry| entry.flag() == Some(true));
    if is_told || binding.text("hand-off") == Some("at-least-once") {
        return;
    }
    let place = findings.place(&order.spot);
    let message = format!(
        "writes each record in one commit with its offset, and `{key}` is {word} ({place}): its records \
         settle in the store"
    );
    let path = handler.path.name("forward");
    let problem = findings.at(&forward.key_spot(), &path, message);
    let hint = "set `hand-off: at-least-once`, or keep another order".to_owned();
    findings.problem(problem.hint(hint).also(&order.spot));
}

/// Keys that are read and do nothing yet.
fn warn_about_the_rest(binding: &View<'_>, findings: &mut Findings<'_>) {
    let not_built: [(&[&str], &str); 3] = [
        (&[], "idempotency"),
        (&["retry"], "preset"),
        (&["dlt"], "replay"),
    ];
    for (section, key) in not_built {
        let Some(view) = binding.at(section) else {
            continue;
        };
        let Some(entry) = view.entry(key) else {
            continue;
        };
        let is_given = match entry.as_branch() {
            Some(branch) => branch
                .values()
                .find(|value| value.spot != ValueLocation::Default),
            None => Some(entry).filter(|value| value.spot != ValueLocation::Default),
        };
        if let Some(given) = is_given {
            let message = "is read, and this version does nothing with it yet".to_owned();
            findings.warning(findings.at(&given.spot, &view.path.name(key), message));
        }
    }
}

/// As a library, handlers are Rust, so that is no problem of the file.
fn has_handler(binding: &View<'_>, findings: &mut Findings<'_>) {
    let has_one = binding
        .at(&["handler"])
        .is_some_and(|handler| !handler.branch.is_empty());
    if let Some(entry) = binding.entry("topic").filter(|_| !has_one) {
        let message =
            "has no `handler`: `tidegate run` refuses it, a library brings its own".to_owned();
        findings.warning(findings.at(&entry.spot, &binding.path, message));
    }
}
