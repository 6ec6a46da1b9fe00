//! The table as one flat list.

use std::fmt;

use super::{DefaultValue, Key, KeyKind, ROOT, Unit};

/// One key with its full path, as [`all`] lists it.
#[derive(Debug, Clone)]
pub struct ListedKey {
    /// The path; names of the user are `<name>`, entries of a list are `[]`.
    pub path: String,
    /// The path of the section that it stands in; empty for the top of the file.
    pub(crate) section: String,
    pub(crate) key: &'static Key,
    /// Whether it takes a value, and has no keys inside.
    is_value: bool,
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
                is,
                then,
                otherwise,
            } => format!("{otherwise} (by {choice}, {is}: {then})"),
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
    let mut listed = every();
    listed.retain(|listed| listed.is_value);
    listed
}

/// Every key of the table, sections included, in the order of the file.
pub(crate) fn every() -> Vec<ListedKey> {
    let mut listed = Vec::new();
    list(ROOT, "", &mut listed);
    listed
}

fn list(keys: &'static [Key], section: &str, listed: &mut Vec<ListedKey>) {
    for key in keys {
        let (step, below) = inside(&key.kind);
        let dot = if section.is_empty() { "" } else { "." };
        let path = format!("{section}{dot}{}{step}", key.name);
        listed.push(ListedKey {
            path: path.clone(),
            section: section.to_owned(),
            key,
            is_value: below.is_empty(),
        });
        list(below, &path, listed);
    }
}

/// The step that a kind adds to the path of its key, and the keys inside of it.
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
        KeyKind::Json => "json".to_owned(),
        KeyKind::List(each) => format!("list of {}", kind_text(each, unit)),
        KeyKind::Section(_) => "section".to_owned(),
        KeyKind::Map { each, .. } => format!("map of {}", kind_text(each, unit)),
    }
}
