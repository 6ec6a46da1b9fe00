//! The table as one flat list.

use std::fmt;

use super::{DefaultValue, Key, KeyKind, Part, ROOT, Unit};

/// One key with its full path, as [`all`] lists it.
#[derive(Debug, Clone)]
pub struct ListedKey {
    /// The path; names of the user are `<name>`, entries of a list are `[]`.
    pub path: String,
    /// The part the key belongs to.
    pub part: Option<Part>,
    /// The key itself.
    pub key: &'static Key,
}

/// A line of a table: path, type, default.
impl fmt::Display for ListedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = kind_text(&self.key.kind, self.key.unit());
        // The entries of a map are listed, and it is the map that is there by default.
        let default = match self.key.default {
            DefaultValue::Nothing | DefaultValue::Filled => "none".to_owned(),
            DefaultValue::Required => "required".to_owned(),
            DefaultValue::Explained(text) => format!("({text})"),
            DefaultValue::Value(text) => text.to_owned(),
            DefaultValue::Nth(texts) => texts.join(" / "),
            DefaultValue::By {
                choice,
                cases,
                otherwise,
            } => {
                let cases: Vec<String> = cases
                    .iter()
                    .map(|(word, text)| format!(", {word}: {text}"))
                    .collect();
                format!("{otherwise} (by {choice}{})", cases.concat())
            }
        };
        write!(f, "{} | {kind} | {default}", self.path)
    }
}

/// Every key of the table that takes a value, in the order of the file.
///
/// ```
/// let paths: Vec<_> = tidegate_config::keys::all().into_iter().map(|listed| listed.path).collect();
/// assert!(paths.contains(&"eventbus.bindings.<name>.retry.tiers[].delay-ms".to_owned()));
/// ```
#[must_use]
pub fn all() -> Vec<ListedKey> {
    let mut listed = Vec::new();
    visit(&mut |visited| {
        if visited.is_value {
            listed.push(visited.listed);
        }
    });
    listed
}

/// A key of the table, as [`visit`] comes by it.
pub(crate) struct VisitedKey<'a> {
    /// The path of the section that it stands in; empty for the top of the file.
    pub(crate) section: &'a str,
    pub(crate) listed: ListedKey,
    /// Whether it takes a value, and has no keys inside.
    pub(crate) is_value: bool,
}

/// Goes through every key of the table, sections included, in the order of the file.
pub(crate) fn visit(each: &mut dyn FnMut(VisitedKey<'_>)) {
    visit_keys(ROOT, "", None, each);
}

fn visit_keys(
    keys: &'static [Key],
    section: &str,
    part: Option<Part>,
    each: &mut dyn FnMut(VisitedKey<'_>),
) {
    for key in keys {
        let (step, below) = inside(&key.kind);
        let dot = if section.is_empty() { "" } else { "." };
        let path = format!("{section}{dot}{}{step}", key.name);
        let part = part.or(key.part);
        let listed = ListedKey {
            path: path.clone(),
            part,
            key,
        };
        each(VisitedKey {
            section,
            listed,
            is_value: below.is_empty(),
        });
        visit_keys(below, &path, part, each);
    }
}

/// What a kind adds to the path of its key, and the keys inside of it.
fn inside(kind: &'static KeyKind) -> (&'static str, &'static [Key]) {
    if let KeyKind::Map { each, .. } = kind {
        (".<name>", inside(each).1)
    } else if let KeyKind::List(KeyKind::Section(keys)) = kind {
        ("[]", keys)
    } else if let KeyKind::Section(keys) = kind {
        ("", keys)
    } else {
        ("", &[])
    }
}

/// The kind of a key in a few words, for tables.
fn kind_text(kind: &KeyKind, unit: Unit) -> String {
    match kind {
        KeyKind::Flag => "flag".to_owned(),
        KeyKind::Integer { min, max } => format!("integer {min}..={max}"),
        KeyKind::Float { min, max } => format!("number {min}..={max}"),
        KeyKind::Text => "text".to_owned(),
        KeyKind::Property => "property".to_owned(),
        KeyKind::Duration { .. } if unit == Unit::Milliseconds => "milliseconds".to_owned(),
        KeyKind::Duration { .. } => "duration".to_owned(),
        KeyKind::Size { .. } if unit == Unit::Mebibytes => "MiB".to_owned(),
        KeyKind::Size { .. } => "size".to_owned(),
        KeyKind::Choice(words) => format!("one of {}", words.join(", ")),
        KeyKind::Url(_) => "url".to_owned(),
        KeyKind::Address => "address".to_owned(),
        KeyKind::Code => "code".to_owned(),
        KeyKind::Secret => "secret".to_owned(),
        KeyKind::List(each) => format!("list of {}", kind_text(each, unit)),
        KeyKind::Section(_) => "section".to_owned(),
        KeyKind::Map { each, .. } => format!("map of {}", kind_text(each, unit)),
    }
}
