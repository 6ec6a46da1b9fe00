//! The checked configuration.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::keys::{FoundKey, KeyKind, ROOT, find};
use crate::problem::{Problem, TextSpan};
use crate::secret::{MASK, Secret, has_password, secrets_in, shown_address, shown_name};
use crate::value::{Branch, Origin, Value, ValueEntry, ValueLocation};

/// The values that hold: every one that was given, and the defaults of all others.
///
/// Values are read by their path in any spelling the file may use (`retry.tiers[0].delay` is
/// `retry.tiers[0].delay-ms`); names with dots may stand in quotes. A getter gives `None` when
/// the key has no value, or one of another type.
///
/// ```
/// use tidegate_config::{Inputs, load};
/// let text = "eventbus:\n  bindings:\n    orders: {topic: orders.events, group-id: g}\n";
/// let config = load(&Inputs::of_text("tidegate.yaml", text)).config;
/// assert_eq!(config.names("eventbus.bindings"), ["orders"]);
/// assert_eq!(config.text("eventbus.bindings.orders.topic"), Some("orders.events"));
/// assert_eq!(config.integer("eventbus.bindings.orders.max-poll-records"), Some(50));
/// assert!(!config.is_set("eventbus.bindings.orders.max-poll-records"));
/// ```
#[derive(Clone, PartialEq)]
pub struct Config {
    root: Branch,
    /// The names of the sources, for origins.
    files: Vec<String>,
}

impl Config {
    pub(crate) const fn new(root: Branch, files: Vec<String>) -> Self {
        Self { root, files }
    }

    pub(crate) const fn root(&self) -> &Branch {
        &self.root
    }

    pub(crate) fn origin_of(&self, entry: &ValueEntry) -> Origin {
        match &entry.spot {
            ValueLocation::Default => Origin::Default,
            ValueLocation::File(span) => Origin::File {
                file: self.file(span).to_owned(),
                line: span.line,
                column: span.column,
            },
            ValueLocation::Environment(variable) => Origin::Env(variable.clone()),
            ValueLocation::Argument(argument) => Origin::Argument(argument.clone()),
        }
    }

    fn file(&self, span: &TextSpan) -> &str {
        self.files.get(span.source).map_or("", String::as_str)
    }

    /// A flag.
    #[must_use]
    pub fn flag(&self, path: &str) -> Option<bool> {
        self.find(path)?.flag()
    }

    /// A whole number.
    #[must_use]
    pub fn integer(&self, path: &str) -> Option<i64> {
        self.find(path)?.integer()
    }

    /// A number with a fraction.
    #[must_use]
    pub fn float(&self, path: &str) -> Option<f64> {
        self.find(path)?.float()
    }

    /// A text, an address or the word of a choice.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.find(path)?.text()
    }

    /// A time span.
    #[must_use]
    pub fn duration(&self, path: &str) -> Option<Duration> {
        self.find(path)?.duration()
    }

    /// A byte size.
    #[must_use]
    pub fn size(&self, path: &str) -> Option<u64> {
        self.find(path)?.size()
    }

    /// A secret.
    #[must_use]
    pub fn secret(&self, path: &str) -> Option<&Secret> {
        if let Value::Secret(secret) = &self.find(path)?.value {
            Some(secret)
        } else {
            None
        }
    }

    /// The texts of a list; empty when there is none.
    #[must_use]
    pub fn texts(&self, path: &str) -> Vec<&str> {
        let list = self.find(path).map_or(&[][..], ValueEntry::as_list);
        list.iter().filter_map(ValueEntry::text).collect()
    }

    /// The names under a map, sorted.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<&str> {
        let branch = self.find(path).and_then(ValueEntry::as_branch);
        let names = branch.into_iter().flat_map(Branch::keys);
        names.map(String::as_str).collect()
    }

    /// How many entries a list has.
    #[must_use]
    pub fn count(&self, path: &str) -> usize {
        self.find(path).map_or(0, |entry| entry.as_list().len())
    }

    /// Whether somebody gave this value, or anything in this section. The word `none` is given.
    #[must_use]
    pub fn is_set(&self, path: &str) -> bool {
        self.find(path).is_some_and(is_given)
    }

    /// Free JSON as its text, in which numbers have their digits.
    ///
    /// ```
    /// use tidegate_config::{Inputs, load};
    /// let text = "lookups: {rates: {type: file, path: r.csv, default: {rate: 12.50, of: [EUR]}}}";
    /// let config = load(&Inputs::of_text("tidegate.yaml", text)).config;
    /// assert_eq!(config.json("lookups.rates.default"), Some(r#"{"rate":12.50,"of":["EUR"]}"#));
    /// ```
    #[must_use]
    pub fn json(&self, path: &str) -> Option<&str> {
        if let Value::Json(text) = &self.find(path)?.value {
            Some(text)
        } else {
            None
        }
    }

    /// The bytes of a key, or of a value without one, in its source, which is counted from zero.
    #[must_use]
    pub fn place(&self, path: &str) -> Option<(usize, Range<usize>)> {
        let span = self.find(path)?.key_spot().span()?;
        Some((span.source, span.start..span.end))
    }

    /// Where a value came from.
    #[must_use]
    pub fn origin(&self, path: &str) -> Option<Origin> {
        self.find(path).map(|entry| self.origin_of(entry))
    }

    /// A section as a type of its part: canonical kebab-case keys, durations in milliseconds,
    /// sizes in bytes, defaults filled in, `none` as null.
    ///
    /// ```
    /// use serde::Deserialize;
    /// use tidegate_config::{Inputs, Secret, load};
    /// #[derive(Deserialize)]
    /// #[serde(rename_all = "kebab-case")]
    /// struct RawServer { listen: String, max_body: u64, token: Option<Secret> }
    /// let config = load(&Inputs::of_text("tidegate.yaml", "server: {token: hunter2}\n")).config;
    /// let server: RawServer = config.section("server").unwrap();
    /// assert_eq!((server.listen.as_str(), server.max_body), ("127.0.0.1:8080", 1 << 20));
    /// assert_eq!(server.token.unwrap().expose(), "hunter2");
    /// ```
    ///
    /// # Errors
    ///
    /// A value that the type does not take, at its place in the file.
    pub fn section<T: DeserializeOwned>(&self, path: &str) -> Result<T, Box<Problem>> {
        let entry = self.find(path);
        let json = entry.map_or(Json::Null, |entry| json_of(&entry.value, Secrets::Exposed));
        serde_path_to_error::deserialize(json).map_err(|error| {
            let below = error.path().to_string();
            let path = match (below.as_str(), below.starts_with('[')) {
                ("." | "", _) => path.to_owned(),
                (_, true) => format!("{path}{below}"),
                (_, false) => format!("{path}.{below}"),
            };
            self.problem(&path, error.inner())
        })
    }

    /// The problem that a part does not take the value at `path`, or what is nearest above it.
    #[must_use]
    pub fn problem(&self, path: &str, message: &dyn fmt::Display) -> Box<Problem> {
        let mut near = path;
        let entry = loop {
            match (self.find(near), near.rfind(['.', '['])) {
                (Some(entry), _) => break Some(entry),
                (None, Some(at)) => near = &near[..at],
                (None, None) => break None,
            }
        };
        let spot = entry.map_or(ValueLocation::Default, |entry| match entry.as_branch() {
            Some(_) => entry.key_spot(),
            None => entry.spot.clone(),
        });
        let (file, prefix) = spot.source(|span| self.file(span));
        let span = spot.span();
        let message = format!("{prefix}does not fit: {}", self.scrub(&message.to_string()));
        Box::new(Problem {
            file,
            line: span.map_or(0, |span| span.line),
            column: span.map_or(0, |span| span.column),
            path: path.to_owned(),
            message,
            hint: None,
            parts: Vec::new(),
            also: None,
            span,
        })
    }

    /// A foreign message without any secret it may repeat.
    fn scrub(&self, message: &str) -> String {
        let mut secrets = Vec::new();
        collect_secrets(&self.root, &mut secrets);
        // The longest first: a part that is replaced within the whole would leave the rest of it.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.iter().fold(message.to_owned(), |message, secret| {
            // A foreign message quotes a text the way Rust does.
            let quoted = format!("{secret:?}");
            let message = message.replace(&quoted, &format!("\"{MASK}\""));
            message.replace(secret, MASK)
        })
    }

    pub(crate) fn find(&self, path: &str) -> Option<&ValueEntry> {
        descend(&KeyKind::Section(ROOT), &self.root, path)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.show().map(|shown| (shown.path, shown.value)))
            .finish()
    }
}

/// Whether secrets are in a tree of JSON.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Secrets {
    Exposed,
    Hidden,
}

/// A value as JSON.
pub(crate) fn json_of(value: &Value, secrets: Secrets) -> Json {
    match value {
        Value::Flag(flag) => Json::from(*flag),
        Value::Integer(number) => Json::from(*number),
        Value::Float(number) => Json::from(*number),
        Value::Text(text) if secrets == Secrets::Hidden && has_password(text) => Json::from(MASK),
        Value::Text(text) => Json::from(text.as_str()),
        Value::Url(url) if secrets == Secrets::Hidden => Json::from(shown_address(url)),
        Value::Url(url) => Json::from(url.as_str()),
        Value::Duration(span) => Json::from(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        Value::Size(bytes) => Json::from(*bytes),
        Value::Choice(word) => Json::from(*word),
        Value::Secret(_) if secrets == Secrets::Hidden => Json::from(MASK),
        Value::Secret(secret) => Json::from(secret.expose()),
        Value::Json(text) if secrets == Secrets::Hidden && has_password(text) => Json::from(MASK),
        Value::Json(text) => serde_json::from_str(text).unwrap_or_default(),
        Value::Nothing | Value::Broken => Json::Null,
        Value::List(items) => items
            .iter()
            .map(|item| json_of(&item.value, secrets))
            .collect(),
        Value::Branch(branch) => branch
            .iter()
            .map(|(name, entry)| {
                let name = match secrets {
                    Secrets::Exposed => name,
                    Secrets::Hidden => shown_name(name),
                };
                (name.to_owned(), json_of(&entry.value, secrets))
            })
            .collect::<serde_json::Map<String, Json>>()
            .into(),
    }
}

fn is_given(entry: &ValueEntry) -> bool {
    let mut inside = entry.as_branch().into_iter().flat_map(Branch::values);
    entry.spot != ValueLocation::Default || inside.any(is_given)
}

fn collect_secrets(branch: &Branch, secrets: &mut Vec<String>) {
    for entry in branch.values() {
        for item in entry.as_list().iter().chain([entry]) {
            if let Some(inner) = item.as_branch() {
                collect_secrets(inner, secrets);
            }
            if let Value::Secret(secret) = &item.value {
                secrets.push(secret.expose().to_owned());
            }
            if let Value::Url(url) = &item.value {
                secrets.extend(secrets_in(url));
            }
        }
    }
    secrets.retain(|secret| !secret.is_empty());
}

/// Follows a path; free names are tried longest first, because they may hold dots.
fn descend<'a>(kind: &KeyKind, branch: &'a Branch, path: &str) -> Option<&'a ValueEntry> {
    if let KeyKind::Section(keys) = kind {
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let FoundKey { key, .. } = find(keys, &path[..end])?;
        return rest_of(&key.kind, branch.get(key.name)?, &path[end..]);
    }
    let KeyKind::Map { each, flat } = kind else {
        return None;
    };
    if let Some(inner) = path.strip_prefix('"') {
        let (name, rest) = inner.split_once('"')?;
        return rest_of(each, branch.get(name)?, rest);
    }
    let mut names: Vec<(&String, &ValueEntry)> = branch
        .iter()
        .filter(|(name, _)| path.starts_with(name.as_str()))
        .collect();
    names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    let named = names.into_iter().find_map(|(name, entry)| {
        let rest = &path[name.len()..];
        let ends = rest.is_empty() || rest.starts_with(['.', '[']);
        ends.then(|| rest_of(each, entry, rest)).flatten()
    });
    named.or_else(|| descend(each, branch.get((*flat)?)?.as_branch()?, path))
}

fn rest_of<'a>(kind: &KeyKind, entry: &'a ValueEntry, rest: &str) -> Option<&'a ValueEntry> {
    if rest.is_empty() {
        return Some(entry);
    }
    if let KeyKind::List(each) = kind {
        let (index, rest) = match rest.strip_prefix('[') {
            Some(inner) => inner.split_once(']')?,
            None => {
                let rest = rest.strip_prefix('.')?;
                rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len()))
            }
        };
        let item = entry.as_list().get(index.parse::<usize>().ok()?)?;
        return rest_of(each, item, rest);
    }
    descend(kind, entry.as_branch()?, rest.strip_prefix('.')?)
}
