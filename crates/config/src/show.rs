//! The configuration as text: `config show`.

use serde_json::Value as Json;

use crate::config::{Config, Secrets, json_of};
use crate::interpolate::escape;
use crate::keys::{DefaultValue, Key, KeyKind, ROOT, Unit};
use crate::path::{KeyPath, is_bare};
use crate::secret::{MASK, has_password, shown_address, shown_name};
use crate::units::{format_duration, format_size};
use crate::value::{Branch, Origin, Value, ValueEntry};

/// One value as `config show` lists it.
///
/// ```
/// use tidegate_config::{Inputs, load};
/// let config = load(&Inputs::of_text("tidegate.yaml", "server: {token: hunter2}\n")).config;
/// let token = config.show().find(|shown| shown.path == "server.token").unwrap();
/// assert_eq!(token.value, "***");
/// assert_eq!(token.origin.to_string(), "tidegate.yaml:1:17");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownValue {
    /// The path of the key.
    pub path: String,
    /// The value as the file would have it; `null` for nothing, `***` for a secret.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

/// Whether a text tells where each value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origins {
    /// Values only.
    Hidden,
    /// With a comment after each value.
    Commented,
}

/// A line of the shown configuration: a value, or the beginning of a section or a list.
struct Line {
    depth: usize,
    head: String,
    value: Option<(KeyPath, String, Origin)>,
}

impl Config {
    /// Every value, given or default, in the order of the table.
    pub fn show(&self) -> impl Iterator<Item = ShownValue> {
        self.lines().into_iter().filter_map(|line| {
            let (path, value, origin) = line.value?;
            Some(ShownValue {
                path: path.to_string(),
                // YAML needs the quotes, because a star begins an alias there.
                value: value.replace(&quote(MASK), MASK),
                origin,
            })
        })
    }

    /// The configuration as a file that loads to the same values, secrets aside.
    ///
    /// ```
    /// use tidegate_config::{Inputs, Origins, load};
    /// let config = load(&Inputs::of_text("tidegate.yaml", "store: {max-connections: 3}\n")).config;
    /// let text = config.to_yaml(Origins::Commented);
    /// assert!(text.contains("  max-connections: 3 # tidegate.yaml:1:26\n"));
    /// ```
    #[must_use]
    pub fn to_yaml(&self, origins: Origins) -> String {
        let mut text = String::new();
        for line in self.lines() {
            text.push_str(&"  ".repeat(line.depth));
            text.push_str(&line.head);
            if let Some((_, value, origin)) = line.value {
                let comment = match origins {
                    Origins::Commented => comment_of(&origin),
                    Origins::Hidden => String::new(),
                };
                text.push_str(format!(" {value}{comment}").trim_end());
            }
            text.push('\n');
        }
        text
    }

    /// The configuration as JSON: canonical keys, durations in milliseconds, sizes in bytes.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let entry = Value::Branch(self.root().clone());
        json_of(&entry, Secrets::Hidden)
    }

    /// Each value with its origin, as JSON: a list of `{"path", "value", "origin"}`.
    #[must_use]
    pub fn to_json_with_origins(&self) -> Json {
        let value = |shown: &ShownValue| {
            let entry = self.find(&shown.path);
            entry.map_or(Json::Null, |entry| json_of(&entry.value, Secrets::Hidden))
        };
        self.show()
            .map(|shown| {
                let value = value(&shown);
                serde_json::json!({
                    "path": shown.path, "value": value, "origin": shown.origin.to_string(),
                })
            })
            .collect()
    }

    fn lines(&self) -> Vec<Line> {
        let mut writer = Writer {
            config: self,
            lines: Vec::new(),
        };
        writer.section(ROOT, self.root(), &KeyPath::default(), 0, "");
        writer.lines
    }
}

/// An origin as a comment that cannot end before its line does.
fn comment_of(origin: &Origin) -> String {
    let text = origin.to_string();
    format!(" # {}", text.replace(char::is_control, ""))
}

struct Writer<'a> {
    config: &'a Config,
    lines: Vec<Line>,
}

impl Writer<'_> {
    /// Writes the keys of a section. `dash` stands before the first, in a list of sections.
    fn section(
        &mut self,
        keys: &'static [Key],
        branch: &Branch,
        path: &KeyPath,
        depth: usize,
        dash: &str,
    ) {
        let mut dash = dash;
        for key in keys {
            let entry = branch.get(key.name);
            let absent = matches!(key.default, DefaultValue::Required | DefaultValue::Nth(_))
                || matches!(key.kind, KeyKind::Section(_) | KeyKind::Map { .. });
            if entry.is_none() && absent {
                continue;
            }
            let (name, unit) = spelling(key, entry);
            let head = format!("{dash}{name}:");
            let depth = if dash.is_empty() { depth } else { depth - 1 };
            self.entry(&key.kind, unit, entry, &path.name(name), depth, head);
            dash = "";
        }
    }

    fn entry(
        &mut self,
        kind: &'static KeyKind,
        unit: Unit,
        entry: Option<&ValueEntry>,
        path: &KeyPath,
        depth: usize,
        head: String,
    ) {
        let Some(entry) = entry else {
            let value = Some((path.clone(), "null".to_owned(), Origin::Default));
            return self.lines.push(Line { depth, head, value });
        };
        let branch = entry.as_branch().filter(|branch| !branch.is_empty());
        if let (KeyKind::Section(keys), Some(branch)) = (kind, branch) {
            self.open(depth, head);
            return self.section(keys, branch, path, depth + 1, "");
        }
        if let (KeyKind::Map { each, .. }, Some(branch)) = (kind, branch) {
            self.open(depth, head);
            for (name, inner) in branch {
                let (path, head) = (path.name(name), format!("{}:", key_text(name)));
                self.entry(each, Unit::InValue, Some(inner), &path, depth + 1, head);
            }
            return;
        }
        if let (KeyKind::List(KeyKind::Section(keys)), false) = (kind, entry.as_list().is_empty()) {
            self.open(depth, head);
            for (n, item) in entry.as_list().iter().enumerate() {
                if let Some(branch) = item.as_branch() {
                    self.section(keys, branch, &path.index(n), depth + 2, "- ");
                }
            }
            return;
        }
        let text = written(&entry.value, unit);
        let value = Some((path.clone(), text, self.config.origin_of(entry)));
        self.lines.push(Line { depth, head, value });
    }

    fn open(&mut self, depth: usize, head: String) {
        let value = None;
        self.lines.push(Line { depth, head, value });
    }
}

/// The name to show a key under: its own, unless its unit cannot express the value.
fn spelling(key: &'static Key, entry: Option<&ValueEntry>) -> (&'static str, Unit) {
    let is_whole = |bytes: u64| bytes.is_multiple_of(1 << 20);
    let size = entry.and_then(ValueEntry::size);
    if key.unit() == Unit::Mebibytes && !size.is_none_or(is_whole) {
        return (key.stem(), Unit::InValue);
    }
    (key.name, key.unit())
}

/// A value as it would stand in the file.
pub(crate) fn written(value: &Value, unit: Unit) -> String {
    match value {
        Value::Flag(flag) => flag.to_string(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Text(text) | Value::Json(text) if has_password(text) => quote(MASK),
        Value::Json(text) => escape(text),
        Value::Text(text) => scalar(text),
        Value::Url(url) => scalar(&shown_address(url)),
        Value::Duration(span) if unit == Unit::Milliseconds => span.as_millis().to_string(),
        Value::Duration(span) => format_duration(*span),
        Value::Size(bytes) if unit == Unit::Mebibytes => (bytes >> 20).to_string(),
        Value::Size(bytes) if unit == Unit::Bytes => bytes.to_string(),
        Value::Size(bytes) => format_size(*bytes),
        Value::Choice(word) => (*word).to_owned(),
        Value::Secret(_) => quote(MASK),
        Value::Nothing => "none".to_owned(),
        Value::Broken => "null".to_owned(),
        Value::List(items) => {
            let items = items.iter().map(|item| written(&item.value, unit));
            format!("[{}]", items.collect::<Vec<_>>().join(", "))
        }
        Value::Branch(_) => "{}".to_owned(),
    }
}

/// A name as a key of YAML.
fn key_text(name: &str) -> String {
    let name = shown_name(name);
    if is_bare(name) {
        name.to_owned()
    } else {
        quote(name)
    }
}

/// A text that reads as itself, both as YAML and with variables filled in.
fn scalar(text: &str) -> String {
    let text = escape(text);
    // Only what can be nothing else goes without quotes, in lists as well as alone.
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '.' | '/' | '_'))
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-/:@+*".contains(c))
        && !text.ends_with(':')
        && !matches!(
            text.to_ascii_lowercase().as_str(),
            "null" | "none" | "true" | "false"
        )
        && !text.starts_with("...");
    if plain { text } else { quote(&text) }
}

fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
