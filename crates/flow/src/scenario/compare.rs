//! Differences between expected and found JSON.

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
    let mut left: Vec<&str> = found.to_vec();
    let mut missing = Vec::new();
    for wanted in expected {
        let position = if is_any_order {
            left.iter()
                .position(|found| difference(wanted, found, is_partial).is_none())
        } else {
            let is_next = left
                .first()
                .is_some_and(|found| difference(wanted, found, is_partial).is_none());
            is_next.then_some(0)
        };
        match position {
            Some(at) => drop(left.remove(at)),
            None => {
                missing.push(*wanted);
                if !is_any_order {
                    break;
                }
            }
        }
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
