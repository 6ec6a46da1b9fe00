//! Overrides by path, from the environment and from arguments.
//!
//! `TIDEGATE__STORE__MAX_CONNECTIONS` spells the path out: double underscores stand between its
//! steps, so names may hold dashes and single underscores. One that means nothing is a problem.
//!
//! `STORE_MAX_CONNECTIONS` is looked up in the table: its words must spell keys, the longest
//! first, and names that stand in the file. It must begin with a section of the file and end at a
//! value; one that does not is somebody else's variable and is left alone.
//!
//! Whatever is found becomes a small tree and is read like a file.

use crate::keys::{Key, KeyKind, Part, ROOT, find, relaxed};
use crate::path::{KeyPath, PathStep};
use crate::problem::Span;
use crate::tree::{self, Body, YamlNode};
use crate::value::Branch;

const PREFIX: &str = "TIDEGATE__";

/// An override as a tree of its own.
pub(crate) enum Override {
    /// It sets this.
    Tree(YamlNode),
    /// It is meant for us and cannot be read.
    Wrong(String),
    /// It is not meant for us.
    Foreign,
}

/// What a variable of the environment sets.
pub(crate) fn variable(name: &str, value: &str, root: &Branch) -> Override {
    if let Some(path) = name.strip_prefix(PREFIX) {
        let steps: Vec<PathStep> = path
            .split("__")
            .map(|step| PathStep::Name(step.to_owned()))
            .collect();
        if steps
            .iter()
            .any(|step| matches!(step, PathStep::Name(name) if name.is_empty()))
        {
            return Override::Wrong("has an empty step in its name".to_owned());
        }
        return spelled(&steps, value, root, Spelling::Variable);
    }
    let words: Vec<String> = name.split('_').map(str::to_lowercase).collect();
    // Neither one word alone nor lower case is enough to be sure that we are meant.
    let shouted = !name.contains(char::is_lowercase);
    if !shouted || words.len() < 2 || words.iter().any(String::is_empty) {
        return Override::Foreign;
    }
    let mut steps = Vec::new();
    let is_section = |key: &&Key| Part::of_section(key.name).is_some_and(|p| p != Part::Flows);
    for key in ROOT
        .iter()
        .filter(is_section)
        .filter(|key| key.name == words[0])
    {
        let below = root.get(key.name).and_then(|entry| entry.as_branch());
        steps.push(PathStep::Name(key.name.to_owned()));
        if matched(&key.kind, &words[1..], below, &mut steps) {
            return nested(&steps, value, ROOT);
        }
        steps.clear();
    }
    Override::Foreign
}

/// What an argument sets.
pub(crate) fn argument(path: &str, value: &str, root: &Branch) -> Override {
    match KeyPath::read(path) {
        Some(path) => spelled(path.steps(), value, root, Spelling::Argument),
        None => Override::Wrong("is not a path of a key".to_owned()),
    }
}

/// How the names of a path are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// In capitals, as variables are.
    Variable,
    /// As in the file.
    Argument,
}

/// A path that is spelled out, with its free names matched to those that are there.
fn spelled(steps: &[PathStep], value: &str, root: &Branch, spelling: Spelling) -> Override {
    let mut exact = Vec::new();
    follow(
        &KeyKind::Section(ROOT),
        steps,
        Some(root),
        spelling,
        &mut exact,
    );
    nested(&exact, value, ROOT)
}

fn follow(
    kind: &KeyKind,
    steps: &[PathStep],
    below: Option<&Branch>,
    spelling: Spelling,
    exact: &mut Vec<PathStep>,
) {
    let Some((first, rest)) = steps.split_first() else {
        return;
    };
    let PathStep::Name(written) = first else {
        exact.push(first.clone());
        if let KeyKind::List(each) = kind {
            follow(each, rest, None, spelling, exact);
        } else {
            exact.extend_from_slice(rest);
        }
        return;
    };
    if let KeyKind::Section(keys) = kind {
        exact.push(first.clone());
        match find(keys, written) {
            Some(found) => {
                let below = below.and_then(|b| b.get(found.key.name)?.as_branch());
                follow(&found.key.kind, rest, below, spelling, exact);
            }
            None => exact.extend_from_slice(rest),
        }
    } else if let KeyKind::List(each) = kind {
        match written.parse() {
            Ok(index) => exact.push(PathStep::Index(index)),
            Err(_) => exact.push(first.clone()),
        }
        follow(each, rest, None, spelling, exact);
    } else if let KeyKind::Map { each, flat } = kind {
        if let (Some(_), KeyKind::Section(keys)) = (flat, each)
            && find(keys, written).is_some()
            && below.is_none_or(|b| !b.contains_key(written) || rest.is_empty())
        {
            return follow(each, steps, None, spelling, exact);
        }
        let (name, used) = free_name(each, steps, below, spelling);
        let inside = below.and_then(|b| b.get(&name)?.as_branch());
        exact.push(PathStep::Name(name));
        follow(each, &steps[used..], inside, spelling, exact);
    } else {
        exact.extend_from_slice(steps);
    }
}

/// The free name at the start of `steps`, and how many of them it takes.
fn free_name(
    each: &KeyKind,
    steps: &[PathStep],
    below: Option<&Branch>,
    spelling: Spelling,
) -> (String, usize) {
    let joined = |count: usize| {
        let words = steps[..count].iter().map(|step| match step {
            PathStep::Name(name) => name.clone(),
            PathStep::Index(index) => index.to_string(),
        });
        words.collect::<Vec<_>>().join(".")
    };
    for count in (1..=steps.len()).rev() {
        let wanted = joined(count);
        let present = |same: &dyn Fn(&str) -> bool| below?.keys().find(|name| same(name)).cloned();
        let exactly = present(&|name| name == wanted);
        let loosely = || present(&|name| letters(name) == letters(&wanted));
        let found = exactly.or_else(|| (spelling == Spelling::Variable).then(loosely)?);
        if let Some(name) = found {
            return (name, count);
        }
    }
    // A single value takes the whole rest: client properties have dots in their names.
    let count = if matches!(each, KeyKind::Section(_)) {
        1
    } else {
        steps.len()
    };
    let name = joined(count);
    let shouted = spelling == Spelling::Variable && !name.contains(char::is_lowercase);
    (if shouted { name.to_lowercase() } else { name }, count)
}

/// Matches words to keys and present names, the longest first, down to a value.
fn matched(
    kind: &KeyKind,
    words: &[String],
    below: Option<&Branch>,
    steps: &mut Vec<PathStep>,
) -> bool {
    if let KeyKind::Section(keys) = kind {
        return matched_key(keys, words, below, steps);
    }
    if let KeyKind::Map { each, flat } = kind {
        for count in (1..=words.len()).rev() {
            let wanted = words[..count].concat();
            for (name, entry) in below.into_iter().flatten() {
                if letters(name) == wanted {
                    steps.push(PathStep::Name(name.clone()));
                    if matched(each, &words[count..], entry.as_branch(), steps) {
                        return true;
                    }
                    steps.pop();
                }
            }
        }
        return flat.is_some() && matched(each, words, None, steps);
    }
    if let KeyKind::List(each @ KeyKind::Section(_)) = kind {
        let Some(index) = words.first().and_then(|word| word.parse().ok()) else {
            return false;
        };
        steps.push(PathStep::Index(index));
        if matched(each, &words[1..], None, steps) {
            return true;
        }
        steps.pop();
        return false;
    }
    words.is_empty()
}

fn matched_key(
    keys: &'static [Key],
    words: &[String],
    below: Option<&Branch>,
    steps: &mut Vec<PathStep>,
) -> bool {
    for count in (1..=words.len()).rev() {
        let wanted = words[..count].concat();
        for key in keys {
            let mut names = key.names().into_iter();
            let Some((name, _)) = names.find(|(name, _)| relaxed(name) == wanted) else {
                continue;
            };
            steps.push(PathStep::Name(name));
            let inside = below.and_then(|b| b.get(key.name)?.as_branch());
            if matched(&key.kind, &words[count..], inside, steps) {
                return true;
            }
            steps.pop();
        }
    }
    false
}

/// A free name without what a variable cannot spell.
fn letters(name: &str) -> String {
    name.chars()
        .filter(|c| c.is_alphanumeric())
        .flat_map(char::to_lowercase)
        .collect()
}

/// The tree that has `value` at the end of the path and nothing else.
fn nested(steps: &[PathStep], value: &str, keys: &'static [Key]) -> Override {
    let mut node = match leaf(steps, value, keys) {
        Ok(node) => node,
        Err(message) => return Override::Wrong(message),
    };
    for step in steps.iter().rev() {
        let body = match step {
            PathStep::Index(index) => Body::Item(*index, Box::new(node)),
            PathStep::Name(name) => Body::Map(vec![(scalar(name, false), node)]),
        };
        node = YamlNode {
            span: Span::default(),
            body,
        };
    }
    Override::Tree(node)
}

/// The value; one in brackets is read as YAML where a list or a section is wanted.
fn leaf(steps: &[PathStep], value: &str, keys: &'static [Key]) -> Result<YamlNode, String> {
    let bracketed = value.trim_start().starts_with(['[', '{']);
    if !bracketed || !takes_many(steps, keys) {
        return Ok(scalar(value, true));
    }
    match tree::parse(value, 0) {
        Ok(node) => Ok(node.unwrap_or_else(|| scalar("", true))),
        Err(refusal) => Err(refusal.message),
    }
}

fn takes_many(steps: &[PathStep], keys: &'static [Key]) -> bool {
    let mut kind = KeyKind::Section(keys);
    for step in steps {
        let next = match (kind, step) {
            (KeyKind::Section(keys), PathStep::Name(name)) => {
                find(keys, name).map(|found| found.key.kind)
            }
            (KeyKind::Map { each, flat }, PathStep::Name(name)) => {
                let direct = match (flat, each) {
                    (Some(_), KeyKind::Section(keys)) => {
                        find(keys, name).map(|found| found.key.kind)
                    }
                    _ => None,
                };
                Some(direct.unwrap_or(*each))
            }
            (KeyKind::List(each), _) => Some(*each),
            _ => None,
        };
        let Some(next) = next else { return false };
        kind = next;
    }
    matches!(
        kind,
        KeyKind::List(_) | KeyKind::Section(_) | KeyKind::Map { .. }
    )
}

fn scalar(text: &str, plain: bool) -> YamlNode {
    YamlNode {
        span: Span::default(),
        body: Body::Scalar {
            text: text.to_owned(),
            plain,
        },
    }
}
