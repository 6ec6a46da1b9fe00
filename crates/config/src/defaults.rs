//! Defaults, put where nothing is given, and what is missing altogether.

use std::collections::BTreeMap;

use crate::findings::Findings;
use crate::keys::{DefaultValue, Key, KeyKind, ROOT};
use crate::path::KeyPath;
use crate::read::{ConfigReader, default_value};
use crate::tree;
use crate::value::{Branch, Value, ValueEntry, ValueLocation};

/// The knowledge on the way down: the choices of the enclosing sections, and the place in a list.
#[derive(Clone, Default)]
struct Scope {
    choices: BTreeMap<&'static str, &'static str>,
    /// The number of the entry in the nearest list, counted from zero.
    index: Option<usize>,
}

/// Fills in every default and reports every required key that is missing.
pub(crate) fn fill(root: &mut Branch, findings: &mut Findings<'_>) {
    section(
        ROOT,
        root,
        &KeyPath::default(),
        &ValueLocation::Default,
        &Scope::default(),
        findings,
    );
}

/// Takes out what is wrong and fills its default in, so that the configuration is whole.
pub(crate) fn repair(root: &mut Branch) {
    drop_broken(root);
    // A key that is missing was reported when the defaults were filled in the first time.
    fill(root, &mut Findings::new(&[]));
}

fn drop_broken(branch: &mut Branch) {
    branch.retain(|_, entry| entry.value != Value::Broken);
    for entry in branch.values_mut() {
        if let Value::List(items) = &mut entry.value {
            items.retain(|item| item.value != Value::Broken);
            for inner in items.iter_mut().filter_map(ValueEntry::as_branch_mut) {
                drop_broken(inner);
            }
        } else if let Some(inner) = entry.as_branch_mut() {
            drop_broken(inner);
        }
    }
}

fn section(
    keys: &'static [Key],
    branch: &mut Branch,
    path: &KeyPath,
    spot: &ValueLocation,
    scope: &Scope,
    findings: &mut Findings<'_>,
) {
    let mut scope = scope.clone();
    let depends = |key: &&Key| matches!(key.default, DefaultValue::By { .. });
    for key in keys.iter().filter(|key| !depends(key)) {
        missing(key, branch, path, spot, &scope, findings);
    }
    for key in keys {
        if let Some(ValueEntry {
            value: Value::Choice(word),
            ..
        }) = branch.get(key.name)
        {
            scope.choices.insert(key.name, word);
        }
    }
    for key in keys.iter().filter(depends) {
        missing(key, branch, path, spot, &scope, findings);
    }
    for key in keys {
        if let Some(entry) = branch.get_mut(key.name) {
            below(&key.kind, entry, &path.name(key.name), &scope, findings);
        }
    }
}

/// Fills the sections under an entry that is there.
fn below(
    kind: &'static KeyKind,
    entry: &mut ValueEntry,
    path: &KeyPath,
    scope: &Scope,
    findings: &mut Findings<'_>,
) {
    let spot = entry.key_spot();
    if let KeyKind::List(each) = kind
        && let Value::List(items) = &mut entry.value
    {
        for (n, item) in items.iter_mut().enumerate() {
            let scope = Scope {
                index: Some(n),
                ..scope.clone()
            };
            below(each, item, &path.index(n), &scope, findings);
        }
        return;
    }
    let Some(branch) = entry.as_branch_mut() else {
        return;
    };
    if let KeyKind::Section(keys) = kind {
        section(keys, branch, path, &spot, scope, findings);
    }
    if let KeyKind::Map { each, .. } = kind {
        for (name, entry) in branch {
            below(each, entry, &path.name(name), scope, findings);
        }
    }
}

/// Puts the default of `key` into `branch` unless something stands there.
fn missing(
    key: &'static Key,
    branch: &mut Branch,
    path: &KeyPath,
    spot: &ValueLocation,
    scope: &Scope,
    findings: &mut Findings<'_>,
) {
    if branch.contains_key(key.name) {
        return;
    }
    let text = match key.default {
        DefaultValue::Nothing | DefaultValue::Explained(_) => return,
        DefaultValue::Filled => {
            branch.insert(
                key.name.to_owned(),
                ValueEntry::branch(ValueLocation::Default),
            );
            return;
        }
        DefaultValue::Value(text) => Some(text),
        DefaultValue::Required => None,
        DefaultValue::Nth(texts) => scope.index.and_then(|index| texts.get(index)).copied(),
        DefaultValue::By {
            choice,
            is,
            then,
            otherwise,
        } => Some(match scope.choices.get(choice) {
            Some(word) if *word == is => then,
            Some(_) | None => otherwise,
        }),
    };
    let Some(text) = text else {
        let problem = findings.at(spot, &path.name(key.name), "is missing and must be given");
        findings.problem(problem);
        return;
    };
    if let Some(entry) = default(key, text, scope) {
        branch.insert(key.name.to_owned(), entry);
    }
}

/// A default of the table as an entry.
fn default(key: &'static Key, text: &str, scope: &Scope) -> Option<ValueEntry> {
    if let KeyKind::List(_) = key.kind {
        let node = tree::parse(&format!("{}: {text}", key.name), 0).ok()??;
        let mut reader = ConfigReader {
            environment: &BTreeMap::new(),
            findings: &mut Findings::new(&[]),
            outside: Some(ValueLocation::Default),
        };
        let (mut read, keys) = (Branch::new(), std::slice::from_ref(key));
        reader.section(keys, &node, &KeyPath::default(), &mut read);
        return read.remove(key.name);
    }
    let text = match scope.index {
        Some(index) => text.replace("{n}", &(index + 1).to_string()),
        None => text.to_owned(),
    };
    default_value(key, &text).map(|value| ValueEntry::new(value, ValueLocation::Default))
}
