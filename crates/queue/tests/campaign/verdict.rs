//! Whether what happened is what was promised. Pure: it looks at evidence and names what is wrong.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::EventId;

use crate::events::{is_hopeless, is_shipped};

/// A lease, by what it is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LeaseOn {
    Batch(i64),
    Row(i64),
}

/// A lease got a token: somebody claimed, or took over, or gave back.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    /// When, in the order of the database.
    pub(crate) at: i64,
    pub(crate) on: LeaseOn,
    pub(crate) token: i64,
    /// Whose it is from then on; nobody's where it was put back.
    pub(crate) owner: Option<String>,
    /// The events it is a right to.
    pub(crate) ids: Vec<i64>,
}

/// An event got into the log.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// When, in the order of the database.
    pub(crate) at: i64,
    pub(crate) id: i64,
    /// Whose session did it.
    pub(crate) process: String,
}

/// A process says that it finalized an event, by this claim.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) id: i64,
    pub(crate) on: LeaseOn,
    pub(crate) token: i64,
}

/// A row of the log.
#[derive(Debug, Clone)]
pub(crate) struct Logged {
    pub(crate) id: i64,
    pub(crate) event_id: EventId,
    pub(crate) is_placed: bool,
    pub(crate) n: u64,
    pub(crate) is_failed: bool,
    pub(crate) position: Option<i64>,
}

/// Everything that is known afterwards.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) attempted: BTreeMap<EventId, u64>,
    pub(crate) promised: BTreeSet<EventId>,
    pub(crate) taken_back: BTreeSet<EventId>,
    /// Which handler said that it handled what, and how often.
    pub(crate) handled: BTreeMap<(String, EventId), u32>,
    pub(crate) log: Vec<Logged>,
    /// Rows that handler `two` wrote in its transactions, in the order of their commits per key.
    pub(crate) effects: Vec<(EventId, Option<String>)>,
    /// The read model: position and number.
    pub(crate) seen: Vec<(i64, i64)>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) ends: Vec<End>,
    pub(crate) said: Vec<Said>,
}

/// The problems; none when everything was kept.
pub(crate) fn problems(evidence: &Evidence) -> Vec<String> {
    let mut problems = Vec::new();
    promises(evidence, &mut problems);
    handlers(evidence, &mut problems);
    effects(evidence, &mut problems);
    projection(evidence, &mut problems);
    fences(evidence, &mut problems);
    problems
}

/// Each promised event is in the log once, and nothing is there that nobody published.
fn promises(evidence: &Evidence, problems: &mut Vec<String>) {
    let mut times: BTreeMap<EventId, u32> = BTreeMap::new();
    for row in &evidence.log {
        *times.entry(row.event_id).or_default() += 1;
        if row.is_placed && evidence.attempted.get(&row.event_id) != Some(&row.n) {
            problems.push(format!(
                "{} is in the log, and not as published",
                row.event_id
            ));
        }
        if evidence.taken_back.contains(&row.event_id) {
            problems.push(format!(
                "{} was rolled back and is in the log",
                row.event_id
            ));
        }
    }
    for (id, times) in &times {
        if *times > 1 {
            problems.push(format!("{id} is in the log {times} times"));
        }
    }
    for id in &evidence.promised {
        if !times.contains_key(id) {
            problems.push(format!("{id} was acknowledged and is not in the log"));
        }
    }
}

/// Each event in the log was handled by each handler, and nothing else was handled.
fn handlers(evidence: &Evidence, problems: &mut Vec<String>) {
    for row in evidence.log.iter().filter(|row| row.is_placed) {
        if row.is_failed != is_hopeless(row.n) {
            problems.push(format!(
                "{} ended as failed = {}",
                row.event_id, row.is_failed
            ));
        }
        for handler in ["one", "two"] {
            let is_expected = handler == "two" || !is_hopeless(row.n);
            let key = (handler.to_owned(), row.event_id);
            if evidence.handled.contains_key(&key) != is_expected {
                problems.push(format!("{} and handler {handler}", row.event_id));
            }
        }
    }
    for (handler, id) in evidence.handled.keys() {
        if evidence.taken_back.contains(id) {
            problems.push(format!("{id} was rolled back and handled by {handler}"));
        }
    }
}

/// The writes of a handler's transaction happened once for each event, in the order of its key, and
/// so did what it published.
fn effects(evidence: &Evidence, problems: &mut Vec<String>) {
    let mut times: BTreeMap<EventId, u32> = BTreeMap::new();
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    for (id, key) in &evidence.effects {
        *times.entry(*id).or_default() += 1;
        let n = evidence.attempted.get(id).copied().unwrap_or(u64::MAX);
        if let Some(key) = key {
            match last.insert(key, n) {
                Some(before) if before > n => {
                    problems.push(format!("{n} of key {key} came after {before}"));
                }
                Some(_) | None => {}
            }
        }
    }
    let mut shipped: BTreeMap<u64, u32> = BTreeMap::new();
    for row in evidence.log.iter().filter(|row| !row.is_placed) {
        *shipped.entry(row.n).or_default() += 1;
    }
    for row in evidence.log.iter().filter(|row| row.is_placed) {
        let found = times.remove(&row.event_id).unwrap_or(0);
        if found != 1 {
            problems.push(format!("{} had its effect {found} times", row.event_id));
        }
        let found = shipped.remove(&row.n).unwrap_or(0);
        if found != u32::from(is_shipped(row.n)) {
            problems.push(format!("{} was shipped {found} times", row.event_id));
        }
    }
    for id in times.keys() {
        problems.push(format!("{id} had an effect and is not in the log"));
    }
    for n in shipped.keys() {
        problems.push(format!("number {n} was shipped and is not in the log"));
    }
}

/// Positions are 1, 2, 3 and so on, and the read model has the completed ones, each once.
fn projection(evidence: &Evidence, problems: &mut Vec<String>) {
    let mut positions: Vec<i64> = evidence.log.iter().filter_map(|row| row.position).collect();
    positions.sort_unstable();
    let expected: Vec<i64> = (1..).take(evidence.log.len()).collect();
    if positions != expected {
        let at = positions.iter().zip(&expected).position(|(a, b)| a != b);
        problems.push(format!(
            "{} positions for {} events, wrong from {at:?} on",
            positions.len(),
            expected.len()
        ));
    }
    let completed = evidence.log.iter().filter(|row| !row.is_failed);
    let mut completed: Vec<(i64, i64)> = completed
        .filter_map(|row| Some((row.position?, row.id)))
        .collect();
    completed.sort_unstable();
    let mut seen = evidence.seen.clone();
    seen.sort_unstable();
    if seen == completed {
        return;
    }
    let (all, had): (BTreeSet<_>, BTreeSet<_>) =
        (completed.iter().collect(), seen.iter().collect());
    problems.push(format!(
        "the read model has {} rows for {} events; missing {:?}, strange {:?}",
        seen.len(),
        completed.len(),
        all.difference(&had).take(5).collect::<Vec<_>>(),
        had.difference(&all).take(5).collect::<Vec<_>>(),
    ));
}

/// The process that finalized an event had its newest claim.
fn fences(evidence: &Evidence, problems: &mut Vec<String>) {
    let said: BTreeMap<i64, &Said> = evidence.said.iter().map(|said| (said.id, said)).collect();
    let mut tokens: Vec<&Token> = evidence.tokens.iter().collect();
    tokens.sort_by_key(|token| token.at);
    let mut ends: Vec<&End> = evidence.ends.iter().collect();
    ends.sort_by_key(|end| end.at);
    let mut newest: BTreeMap<i64, &Token> = BTreeMap::new();
    let mut tokens = tokens.into_iter().peekable();
    for end in &ends {
        while let Some(token) = tokens.next_if(|token| token.at < end.at) {
            for id in &token.ids {
                // Once an event has a row of its own, its batch is no right to it any more.
                let has_row = newest
                    .get(id)
                    .is_some_and(|t| matches!(t.on, LeaseOn::Row(_)));
                if !has_row || matches!(token.on, LeaseOn::Row(_)) {
                    newest.insert(*id, token);
                }
            }
        }
        let Some(claim) = newest.get(&end.id) else {
            problems.push(format!("event {} was finalized without a claim", end.id));
            continue;
        };
        if claim.owner.as_ref() != Some(&end.process) {
            problems.push(format!(
                "event {} was finalized by {} while it was claimed by {:?}",
                end.id, end.process, claim.owner
            ));
        }
        if let Some(said) = said.get(&end.id)
            && (said.on, said.token) != (claim.on, claim.token)
        {
            problems.push(format!("{said:?} finalized what was held by {claim:?}"));
        }
    }
    let ended: BTreeSet<i64> = ends.iter().map(|end| end.id).collect();
    for said in &evidence.said {
        if !ended.contains(&said.id) {
            problems.push(format!("{said:?}, and the log does not know it"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> EventId {
        EventId::from_u128(u128::from(n) + 1)
    }

    fn token(at: i64, on: LeaseOn, token: i64, owner: &str, ids: &[i64]) -> Token {
        Token {
            at,
            on,
            token,
            owner: Some(owner.to_owned()),
            ids: ids.to_vec(),
        }
    }

    /// Two events, of which the second was retried by another process.
    fn good() -> Evidence {
        let mut evidence = Evidence::default();
        for n in [1, 2] {
            evidence.attempted.insert(id(n), n);
            evidence.promised.insert(id(n));
            for handler in ["one", "two"] {
                evidence.handled.insert((handler.to_owned(), id(n)), 1);
            }
            let number = n as i64;
            evidence.effects.push((id(n), Some("k".to_owned())));
            evidence.log.push(Logged {
                id: number,
                event_id: id(n),
                is_placed: true,
                n,
                is_failed: false,
                position: Some(number),
            });
            evidence.seen.push((number, number));
        }
        let batch = LeaseOn::Batch(7);
        evidence.tokens = vec![
            token(1, batch, 1, "a", &[1, 2]),
            token(3, LeaseOn::Row(2), 0, "nobody", &[2]),
            token(4, LeaseOn::Row(2), 1, "b", &[2]),
            token(5, batch, 2, "a", &[1, 2]),
        ];
        let end = |at, id, process: &str| End {
            at,
            id,
            process: process.to_owned(),
        };
        evidence.ends = vec![end(2, 1, "a"), end(6, 2, "b")];
        evidence.said = vec![
            Said {
                id: 1,
                on: batch,
                token: 1,
            },
            Said {
                id: 2,
                on: LeaseOn::Row(2),
                token: 1,
            },
        ];
        evidence
    }

    #[track_caller]
    fn check(spoil: impl FnOnce(&mut Evidence), problem: &str) {
        let mut evidence = good();
        spoil(&mut evidence);
        let found = problems(&evidence);
        assert!(found.iter().any(|one| one.contains(problem)), "{found:?}");
    }

    #[test]
    fn valid_names_are_accepted() {
        assert_eq!(problems(&good()), [""; 0]);
    }

    #[test]
    fn each_kind_of_loss_is_seen() {
        check(|e| e.log.truncate(1), "acknowledged and is not in the log");
        check(|e| e.log.push(e.log[0].clone()), "2 times");
        check(
            |e| e.taken_back.extend([id(2)]),
            "rolled back and is in the log",
        );
        check(|e| e.attempted.extend([(id(2), 9)]), "not as published");
        check(|e| e.handled.retain(|(h, _), _| h != "one"), "handler one");
        check(|e| e.log[1].is_failed = true, "ended as failed = true");
    }

    #[test]
    fn each_kind_of_double_is_seen() {
        check(
            |e| e.effects.push(e.effects[0].clone()),
            "its effect 2 times",
        );
        check(|e| e.effects.reverse(), "1 of key k came after 2");
        check(|e| e.seen.push((2, 2)), "3 rows for 2 events");
        check(|e| e.seen.truncate(1), "missing [(2, 2)]");
        check(|e| e.log[1].position = Some(3), "wrong from Some(1)");
        check(|e| e.log[0].n = 3, "shipped 0 times");
    }

    #[test]
    fn a_stale_claim_is_seen() {
        check(
            |e| e.ends[1].process = "a".to_owned(),
            "while it was claimed by Some(\"b\")",
        );
        check(|e| e.said[0].token = 2, "finalized what was held");
        check(
            |e| e.tokens.push(token(1, LeaseOn::Batch(7), 2, "c", &[1])),
            "Some(\"c\")",
        );
        check(|e| e.tokens.clear(), "without a claim");
        check(|e| e.ends.truncate(1), "the log does not know it");
    }
}
