//! Defaults, put where nothing is given, and what is missing altogether.

use std::collections::BTreeMap;

use crate::findings::Findings;
use crate::keys::{Key, Kind, Preset, ROOT};
use crate::load::Source;
use crate::path::Path;
use crate::read::{Layer, Reader, preset};
use crate::tree;
use crate::value::{Branch, Entry, Spot, Value};

/// What is known on the way down: the choices of the enclosing sections, and the place in a list.
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
        &Path::default(),
        &Spot::Default,
        &Scope::default(),
        findings,
    );
}

/// Takes out what is wrong and fills its default in, so that the configuration is whole.
pub(crate) fn repair(root: &mut Branch) {
    drop_broken(root);
    // What is missing was reported when the defaults were filled in the first time.
    let sources: &[Source] = &[];
    fill(root, &mut Findings::new(sources));
}

fn drop_broken(branch: &mut Branch) {
    branch.retain(|_, entry| entry.value != Value::Broken);
    for entry in branch.values_mut() {
        if let Value::List(items) = &mut entry.value {
            items.retain(|item| item.value != Value::Broken);
            for inner in items.iter_mut().filter_map(Entry::as_branch_mut) {
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
    path: &Path,
    spot: &Spot,
    scope: &Scope,
    findings: &mut Findings<'_>,
) {
    let mut scope = scope.clone();
    let depends = |key: &&Key| matches!(key.preset, Preset::By { .. });
    for key in keys.iter().filter(|key| !depends(key)) {
        missing(key, branch, path, spot, &scope, findings);
    }
    for key in keys {
        if let Some(Entry {
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
    kind: &'static Kind,
    entry: &mut Entry,
    path: &Path,
    scope: &Scope,
    findings: &mut Findings<'_>,
) {
    let spot = entry.key.map_or_else(|| entry.spot.clone(), Spot::File);
    if let Kind::List(each) = kind
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
    if let Kind::Section(keys) = kind {
        section(keys, branch, path, &spot, scope, findings);
    }
    if let Kind::Map { each, .. } = kind {
        for (name, entry) in branch {
            below(each, entry, &path.name(name), scope, findings);
        }
    }
}

/// Puts the default of `key` into `branch` unless something stands there.
fn missing(
    key: &'static Key,
    branch: &mut Branch,
    path: &Path,
    spot: &Spot,
    scope: &Scope,
    findings: &mut Findings<'_>,
) {
    if branch.contains_key(key.name) {
        return;
    }
    let text = match key.preset {
        Preset::Nothing | Preset::Explained(_) => return,
        Preset::Filled => {
            branch.insert(key.name.to_owned(), Entry::branch(Spot::Default));
            return;
        }
        Preset::Value(text) => Some(text),
        Preset::Required => None,
        Preset::Nth(texts) => scope.index.and_then(|index| texts.get(index)).copied(),
        Preset::By {
            choice,
            cases,
            otherwise,
        } => {
            let word = scope.choices.get(choice);
            let case = cases.iter().find(|(case, _)| word == Some(case));
            Some(case.map_or(otherwise, |(_, text)| *text))
        }
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
fn default(key: &'static Key, text: &str, scope: &Scope) -> Option<Entry> {
    if let Kind::List(_) = key.kind {
        let node = tree::parse(&format!("{}: {text}", key.name), 0).ok()??;
        let sources: &[Source] = &[];
        let mut findings = Findings::new(sources);
        let environment = BTreeMap::new();
        let mut reader = Reader {
            environment: &environment,
            findings: &mut findings,
            layer: Layer::Default,
        };
        let mut read = Branch::new();
        reader.section(
            std::slice::from_ref(key),
            &node,
            &Path::default(),
            &mut read,
        );
        return read.remove(key.name);
    }
    let text = match scope.index {
        Some(index) => text.replace("{n}", &(index + 1).to_string()),
        None => text.to_owned(),
    };
    preset(key, &text).map(|value| Entry::new(value, Spot::Default))
}
