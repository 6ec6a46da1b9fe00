//! The table as one flat list.

use std::fmt;

use super::{Key, Kind, Part, Preset, ROOT, Unit};

/// One key with its full path, as [`all`] lists it.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The path; names of the user are `<name>`, entries of a list are `[]`.
    pub path: String,
    /// The part the key belongs to.
    pub part: Option<Part>,
    /// The key itself.
    pub key: &'static Key,
}

/// A line of a table: path, type, default.
impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = kind_text(&self.key.kind, self.key.unit());
        // The entries of a map are listed, and it is the map that is there by default.
        let default = match self.key.preset {
            Preset::Nothing | Preset::Filled => "none".to_owned(),
            Preset::Required => "required".to_owned(),
            Preset::Explained(text) => format!("({text})"),
            Preset::Value(text) => text.to_owned(),
            Preset::Nth(texts) => texts.join(" / "),
            Preset::By {
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
pub fn all() -> Vec<Listed> {
    let mut listed = Vec::new();
    walk(ROOT, "", None, &mut listed);
    listed
}

fn walk(keys: &'static [Key], prefix: &str, part: Option<Part>, listed: &mut Vec<Listed>) {
    for key in keys {
        let path = if prefix.is_empty() {
            key.name.to_owned()
        } else {
            format!("{prefix}.{}", key.name)
        };
        let part = part.or(key.part);
        below(key, &key.kind, path, part, listed);
    }
}

fn below(
    key: &'static Key,
    kind: &'static Kind,
    path: String,
    part: Option<Part>,
    listed: &mut Vec<Listed>,
) {
    match kind {
        Kind::Section(keys) if !keys.is_empty() => walk(keys, &path, part, listed),
        Kind::List(each @ Kind::Section(_)) => below(key, each, format!("{path}[]"), part, listed),
        Kind::Map { each, .. } => below(key, each, format!("{path}.<name>"), part, listed),
        Kind::Flag
        | Kind::Integer { .. }
        | Kind::Float { .. }
        | Kind::Text
        | Kind::Duration { .. }
        | Kind::Size { .. }
        | Kind::Choice(_)
        | Kind::Url(_)
        | Kind::Address
        | Kind::Code
        | Kind::Property
        | Kind::Secret
        | Kind::List(_)
        | Kind::Section(_) => listed.push(Listed { path, part, key }),
    }
}

/// The kind of a key in a few words, for tables.
fn kind_text(kind: &Kind, unit: Unit) -> String {
    match kind {
        Kind::Flag => "flag".to_owned(),
        Kind::Integer { min, max } => format!("integer {min}..={max}"),
        Kind::Float { min, max } => format!("number {min}..={max}"),
        Kind::Text => "text".to_owned(),
        Kind::Property => "property".to_owned(),
        Kind::Duration { .. } if unit == Unit::Milliseconds => "milliseconds".to_owned(),
        Kind::Duration { .. } => "duration".to_owned(),
        Kind::Size { .. } if unit == Unit::Mebibytes => "MiB".to_owned(),
        Kind::Size { .. } => "size".to_owned(),
        Kind::Choice(words) => format!("one of {}", words.join(", ")),
        Kind::Url(_) => "url".to_owned(),
        Kind::Address => "address".to_owned(),
        Kind::Code => "code".to_owned(),
        Kind::Secret => "secret".to_owned(),
        Kind::List(each) => format!("list of {}", kind_text(each, unit)),
        Kind::Section(_) => "section".to_owned(),
        Kind::Map { each, .. } => format!("map of {}", kind_text(each, unit)),
    }
}
