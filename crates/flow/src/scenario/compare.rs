//! Differences between expected and found JSON.

use std::collections::VecDeque;

use crate::value::{FlowType, FlowValue, MapKey};

fn value(text: &str) -> Option<FlowValue<'_>> {
    FlowValue::parse_json(text, &FlowType::Dynamic).ok()
}

/// The difference; none where they agree. A partial expectation may leave out fields.
pub(super) fn difference(expected: &str, found: &str, is_partial: bool) -> Option<String> {
    let is_same = match (value(expected), value(found)) {
        (Some(a), Some(b)) => agrees(&a, &b, is_partial),
        _ => expected == found,
    };
    (!is_same).then(|| format!("expected {expected}, found {found}"))
}

fn agrees(expected: &FlowValue<'_>, found: &FlowValue<'_>, is_partial: bool) -> bool {
    match (expected, found) {
        (FlowValue::Map(wanted), FlowValue::Map(entries)) => {
            let agree = |key: &MapKey<'_>, wanted: &FlowValue<'_>| {
                // Borrowed keys of two texts have different lifetimes, so the entry is searched.
                let entry = entries.iter().find(|(other, _)| **other == *key);
                entry.is_some_and(|(_, found)| agrees(wanted, found, is_partial))
            };
            (is_partial || wanted.len() == entries.len())
                && wanted.iter().all(|(key, wanted)| agree(key, wanted))
        }
        (FlowValue::List(wanted), FlowValue::List(values)) => {
            let pairs = || wanted.iter().zip(values.iter());
            wanted.len() == values.len()
                && pairs().all(|(wanted, found)| agrees(wanted, found, is_partial))
        }
        (expected, found) => expected == found,
    }
}

/// The difference between two lists of records.
pub(super) fn difference_of_all(
    expected: &[&str],
    found: &[&str],
    is_partial: bool,
    is_any_order: bool,
) -> Option<String> {
    let fits =
        |wanted: usize, at: usize| difference(expected[wanted], found[at], is_partial).is_none();
    let mut left: Vec<&str> = found.to_vec();
    let mut missing = Vec::new();
    if is_any_order {
        let taken = matching(expected.len(), found.len(), &fits);
        let untaken = (0..found.len()).filter(|at| taken[*at].is_none());
        left = untaken.map(|at| found[at]).collect();
        let unmet = (0..expected.len()).filter(|wanted| !taken.contains(&Some(*wanted)));
        missing = unmet.map(|wanted| expected[wanted]).collect();
    } else {
        let next = (0..expected.len()).find(|at| *at >= found.len() || !fits(*at, *at));
        missing.extend(next.map(|at| expected[at]));
        left.drain(..next.unwrap_or(expected.len()));
    }
    if missing.is_empty() && left.is_empty() {
        return None;
    }
    let all = |texts: &[&str]| {
        if texts.is_empty() {
            "nothing".to_owned()
        } else {
            texts.join(" ")
        }
    };
    Some(format!("expected {}, found {}", all(expected), all(found)))
}

/// For each record the expectation that it meets, for as many of them as can be met at once.
fn matching(
    wanted: usize,
    found: usize,
    fits: &dyn Fn(usize, usize) -> bool,
) -> Vec<Option<usize>> {
    let mut taken: Vec<Option<usize>> = vec![None; found];
    for first in 0..wanted {
        // The shortest way to a free record, over records whose expectations could take another one.
        let mut came: Vec<Option<usize>> = vec![None; found];
        let mut queue = VecDeque::from([first]);
        while let Some(one) = queue.pop_front() {
            let new = (0..found).filter(|at| came[*at].is_none() && fits(one, *at));
            let new: Vec<usize> = new.collect();
            for at in &new {
                came[*at] = Some(one);
                queue.extend(taken[*at]);
            }
            if let Some(mut at) = new.into_iter().find(|at| taken[*at].is_none()) {
                while let Some(one) = came[at] {
                    let before = taken.iter().position(|other| *other == Some(one));
                    taken[at] = Some(one);
                    let Some(before) = before else { break };
                    at = before;
                }
                break;
            }
        }
    }
    taken
}
