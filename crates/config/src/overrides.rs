//! Overrides by path, from the environment and from arguments.
//!
//! `TIDEGATE__STORE__MAX_CONNECTIONS` spells the path out: double underscores stand between its
//! steps, so names may hold dashes and single underscores. One that means nothing is a problem.
//!
//! `STORE_MAX_CONNECTIONS` is looked up in the table: its words must spell keys, the longest
//! first, and names that stand in the file. It must begin with a section of the file and end at a
//! value. Any other variable belongs to somebody else and is left alone.
//!
//! Whatever is found becomes a small tree and is read like a file.

use crate::keys::{FoundKey, KeyKind, Part, ROOT, find, relaxed};
use crate::path::{KeyPath, PathStep};
use crate::problem::TextSpan;
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

/// The override of a variable of the environment.
pub(crate) fn variable(name: &str, value: &str, root: &Branch) -> Override {
    if let Some(path) = name.strip_prefix(PREFIX) {
        if path.split("__").any(str::is_empty) {
            return Override::Wrong("has an empty step in its name".to_owned());
        }
        let steps = path.split("__").map(str::to_owned).map(PathStep::Name);
        let steps: Vec<PathStep> = steps.collect();
        return spelled(&steps, value, root, Spelling::Variable);
    }
    let words: Vec<String> = name.split('_').map(str::to_lowercase).collect();
    // Neither one word alone nor lower case is enough to be sure that we are meant.
    let shouted = !name.contains(char::is_lowercase);
    if !shouted || words.len() < 2 || words.iter().any(String::is_empty) {
        return Override::Foreign;
    }
    let part = Part::of_section(&words[0]).filter(|part| *part != Part::Flows);
    let found = part.and_then(|part| find(ROOT, part.name()));
    let Some(FoundKey { key, .. }) = found else {
        return Override::Foreign;
    };
    let below = root.get(key.name).and_then(|entry| entry.as_branch());
    let mut steps = vec![PathStep::Name(key.name.to_owned())];
    match matched(&key.kind, &words[1..], below, &mut steps) {
        Some(kind) => nested(&steps, value, Some(kind)),
        None => Override::Foreign,
    }
}

/// The override of an argument.
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
    let root_kind = KeyKind::Section(ROOT);
    let kind = follow(root_kind, steps, Some(root), spelling, &mut exact);
    nested(&exact, value, kind)
}

/// Follows `steps` down the table and writes them down as the keys and names that they mean. Gives the kind
/// at their end, if the table has one there.
fn follow(
    kind: KeyKind,
    steps: &[PathStep],
    below: Option<&Branch>,
    spelling: Spelling,
    exact: &mut Vec<PathStep>,
) -> Option<KeyKind> {
    let Some((first, rest)) = steps.split_first() else {
        return Some(kind);
    };
    if let KeyKind::List(each) = kind {
        let index = match first {
            PathStep::Name(written) => written.parse().map(PathStep::Index).ok(),
            PathStep::Index(_) => None,
        };
        exact.push(index.unwrap_or_else(|| first.clone()));
        return follow(*each, rest, None, spelling, exact);
    }
    if let (KeyKind::Section(keys), PathStep::Name(written)) = (kind, first)
        && let Some(FoundKey { key, .. }) = find(keys, written)
    {
        exact.push(first.clone());
        let below = below.and_then(|b| b.get(key.name)?.as_branch());
        return follow(key.kind, rest, below, spelling, exact);
    }
    if let (KeyKind::Map { each, flat }, PathStep::Name(written)) = (kind, first) {
        if let (Some(_), KeyKind::Section(keys)) = (flat, each)
            && find(keys, written).is_some()
            && below.is_none_or(|b| !b.contains_key(written) || rest.is_empty())
        {
            return follow(*each, steps, None, spelling, exact);
        }
        let (name, used) = free_name(each, steps, below, spelling);
        let inside = below.and_then(|b| b.get(&name)?.as_branch());
        exact.push(PathStep::Name(name));
        return follow(*each, &steps[used..], inside, spelling, exact);
    }
    exact.extend_from_slice(steps);
    None
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

/// Matches words to keys and present names, the longest first, down to a value. Gives its kind.
fn matched(
    kind: &KeyKind,
    words: &[String],
    below: Option<&Branch>,
    steps: &mut Vec<PathStep>,
) -> Option<KeyKind> {
    let depth = steps.len();
    let mut down = |step, kind: &KeyKind, words: &[String], below: Option<&Branch>| {
        steps.truncate(depth);
        steps.push(step);
        matched(kind, words, below, steps)
    };
    if let KeyKind::List(each @ KeyKind::Section(_)) = kind {
        let index = words.first()?.parse().ok()?;
        return down(PathStep::Index(index), each, &words[1..], None);
    }
    for count in (1..=words.len()).rev() {
        let (wanted, rest) = (words[..count].concat(), &words[count..]);
        if let KeyKind::Section(keys) = kind {
            for key in *keys {
                let mut names = key.names().into_iter();
                let Some((name, _)) = names.find(|(name, _)| relaxed(name) == wanted) else {
                    continue;
                };
                let inside = below.and_then(|b| b.get(key.name)?.as_branch());
                let found = down(PathStep::Name(name), &key.kind, rest, inside);
                if found.is_some() {
                    return found;
                }
            }
        }
        if let KeyKind::Map { each, .. } = kind {
            let present = below.into_iter().flatten();
            for (name, entry) in present.filter(|(name, _)| letters(name) == wanted) {
                let found = down(PathStep::Name(name.clone()), each, rest, entry.as_branch());
                if found.is_some() {
                    return found;
                }
            }
        }
    }
    if let KeyKind::Map { each, flat } = kind {
        steps.truncate(depth);
        return flat.and_then(|_| matched(each, words, None, steps));
    }
    let is_value = !matches!(kind, KeyKind::Section(_)) && words.is_empty();
    is_value.then_some(*kind)
}

/// A free name without what a variable cannot spell.
fn letters(name: &str) -> String {
    name.chars()
        .filter(|c| c.is_alphanumeric())
        .flat_map(char::to_lowercase)
        .collect()
}

/// The tree that has `value` at the end of the path, where the table has `kind`, and nothing else.
fn nested(steps: &[PathStep], value: &str, kind: Option<KeyKind>) -> Override {
    let mut node = match leaf(value, kind) {
        Ok(node) => node,
        Err(message) => return Override::Wrong(message),
    };
    for step in steps.iter().rev() {
        let body = match step {
            PathStep::Index(index) => Body::Item(*index, Box::new(node)),
            PathStep::Name(name) => Body::Map(vec![(scalar(name, false), node)]),
        };
        node = YamlNode {
            span: TextSpan::default(),
            body,
        };
    }
    Override::Tree(node)
}

/// The value; one in brackets is read as YAML where a list or a section is wanted.
fn leaf(value: &str, kind: Option<KeyKind>) -> Result<YamlNode, String> {
    let takes_many = matches!(
        kind,
        Some(KeyKind::Json | KeyKind::List(_) | KeyKind::Section(_) | KeyKind::Map { .. })
    );
    if !takes_many || !value.trim_start().starts_with(['[', '{']) {
        return Ok(scalar(value, true));
    }
    match tree::parse(value, 0) {
        Ok(node) => Ok(node.unwrap_or_else(|| scalar("", true))),
        Err(refusal) => Err(refusal.message),
    }
}

fn scalar(text: &str, plain: bool) -> YamlNode {
    YamlNode {
        span: TextSpan::default(),
        body: Body::Scalar {
            text: text.to_owned(),
            plain,
        },
    }
}
