//! Nodes into checked values, by the table.
//!
//! Each layer (a file, a variable, an argument) is read into the same branch. A later layer stands
//! over the earlier ones, key by key.

mod list;
mod scalar;

use std::collections::BTreeMap;

use crate::findings::Findings;
use crate::keys::{FoundKey, IMPORTS, Key, KeyKind, find};
use crate::path::KeyPath;
use crate::problem::TextSpan;
use crate::secret::{is_secret_name, is_suspicious};
use crate::suggest;
use crate::tree::{Body, YamlNode};
use crate::value::{Branch, Value, ValueEntry, ValueLocation};

pub(crate) use scalar::default_value;

pub(crate) struct ConfigReader<'a, 'b> {
    pub(crate) environment: &'a BTreeMap<String, String>,
    pub(crate) findings: &'a mut Findings<'b>,
    /// The layer, where that is no file: a variable, an argument, or the defaults.
    pub(crate) outside: Option<ValueLocation>,
}

/// The keys of one section met so far, by canonical name.
type Seen = BTreeMap<String, (TextSpan, String)>;

impl ConfigReader<'_, '_> {
    fn spot(&self, span: TextSpan) -> ValueLocation {
        let outside = self.outside.clone();
        outside.unwrap_or(ValueLocation::File(span))
    }

    fn key_span(&self, span: TextSpan) -> Option<TextSpan> {
        self.outside.is_none().then_some(span)
    }

    fn mask(&mut self, span: TextSpan) {
        if self.outside.is_none() {
            self.findings.mask(span);
        }
    }

    fn wrong(&mut self, span: TextSpan, path: &KeyPath, message: String, hint: Option<String>) {
        let problem = self.findings.at(&self.spot(span), path, message);
        self.findings.problem(problem.hint(hint));
    }

    /// Keeps everything that may hold a password out of the snippets, wherever it stands. A value under
    /// a key that does not exist is not read, and its line is shown all the same.
    pub(crate) fn hide_passwords(&mut self, node: &YamlNode) {
        if is_suspicious(text_of(node)) {
            self.mask(node.span);
        }
        for child in node.children() {
            self.hide_passwords(child);
        }
    }

    /// Reads a section into `into`.
    pub(crate) fn section(
        &mut self,
        keys: &'static [Key],
        node: &YamlNode,
        path: &KeyPath,
        into: &mut Branch,
    ) {
        let Some(pairs) = self.pairs(node, path) else {
            return;
        };
        let mut seen = Seen::new();
        for (key, value) in pairs {
            let written = text_of(key);
            match find(keys, written) {
                Some(found) => self.once(found, key, value, path, into, &mut seen),
                None => self.unknown(keys, key, value, path),
            }
        }
    }

    /// The pairs of a section; nothing given is an empty one.
    fn pairs<'n>(
        &mut self,
        node: &'n YamlNode,
        path: &KeyPath,
    ) -> Option<&'n [(YamlNode, YamlNode)]> {
        if let Body::Map(pairs) = &node.body {
            return Some(pairs);
        }
        if node.is_null() {
            return Some(&[]);
        }
        let what = if path.is_root() { "the file" } else { "it" };
        let message = format!("is {}, and {what} must be a section of keys", node.noun());
        self.wrong(node.span, path, message, None);
        None
    }

    /// Reads a key unless it was given before under this or another of its names.
    fn once(
        &mut self,
        found: FoundKey,
        key: &YamlNode,
        value: &YamlNode,
        path: &KeyPath,
        into: &mut Branch,
        seen: &mut Seen,
    ) {
        let written = text_of(key).to_owned();
        let name = found.key.name;
        if let Some((first, before)) = seen.get(name) {
            self.hide_secret(found.key, value);
            let message = if *before == written {
                "is given twice".to_owned()
            } else {
                format!("means the same as `{before}`, and both are given")
            };
            self.twice(key.span, *first, &path.name(&written), &message);
            return;
        }
        seen.insert(name.to_owned(), (key.span, written));
        self.key(found, key, value, path, into);
    }

    fn twice(&mut self, second: TextSpan, first: TextSpan, path: &KeyPath, message: &str) {
        let first = self.spot(first);
        let message = format!("{message}; first in {}", self.findings.place(&first));
        let problem = self.findings.at(&self.spot(second), path, message);
        let problem = problem.hint("keep one of the two".to_owned()).also(&first);
        self.findings.problem(problem);
    }

    fn key(
        &mut self,
        found: FoundKey,
        key: &YamlNode,
        value: &YamlNode,
        path: &KeyPath,
        into: &mut Branch,
    ) {
        let name = found.key.name;
        let path = path.name(name);
        let is_override = !matches!(self.outside, None | Some(ValueLocation::Default));
        if name == IMPORTS && is_override {
            let message = "is followed in files only".to_owned();
            self.wrong(key.span, &path, message, None);
            return;
        }
        if let Some(why) = found.key.unused {
            let message = format!("is read and has no effect: {why}");
            let warning = self.findings.at(&self.spot(key.span), &path, message);
            self.findings.warning(warning);
        }
        match &found.key.kind {
            KeyKind::Section(keys) => {
                // A section without keys of its own says something by being there.
                if value.is_null() && !keys.is_empty() {
                    return;
                }
                if let Some(branch) = self.branch(name, key.span, into) {
                    self.section(keys, value, &path, branch);
                }
            }
            KeyKind::Map { each, flat } => {
                if let Some(branch) = self.branch(name, key.span, into) {
                    self.map(each, *flat, value, &path, branch);
                }
            }
            KeyKind::List(each) => {
                let below = into.remove(name);
                let list = self.list(each, value, &path, below.as_ref());
                if let Some(mut entry) = list.or(below) {
                    entry.key = self.key_span(key.span).or(entry.key);
                    into.insert(name.to_owned(), entry);
                }
            }
            KeyKind::Flag
            | KeyKind::Integer { .. }
            | KeyKind::Float { .. }
            | KeyKind::Text
            | KeyKind::Duration { .. }
            | KeyKind::Size { .. }
            | KeyKind::Choice(_)
            | KeyKind::Url(_)
            | KeyKind::Address
            | KeyKind::Code
            | KeyKind::Property
            | KeyKind::Secret
            | KeyKind::Json => {
                if let Some(mut entry) = self.scalar(found, value, &path) {
                    entry.key = self.key_span(key.span);
                    into.insert(name.to_owned(), entry);
                }
            }
        }
    }

    /// The branch under `name`, made if it is not there.
    fn branch<'i>(
        &mut self,
        name: &str,
        key: TextSpan,
        into: &'i mut Branch,
    ) -> Option<&'i mut Branch> {
        let fresh = ValueEntry {
            key: self.key_span(key),
            ..ValueEntry::branch(self.spot(key))
        };
        into.entry(name.to_owned()).or_insert(fresh).as_branch_mut()
    }

    fn map(
        &mut self,
        each: &'static KeyKind,
        flat: Option<&'static str>,
        node: &YamlNode,
        path: &KeyPath,
        into: &mut Branch,
    ) {
        let Some(pairs) = self.pairs(node, path) else {
            return;
        };
        let mut seen = Seen::new();
        let mut flat_seen = Seen::new();
        for (key, value) in pairs {
            let written = text_of(key);
            if let (Some(flat), KeyKind::Section(keys)) = (flat, each) {
                let is_section = matches!(value.body, Body::Map(_)) || value.is_null();
                match find(keys, written) {
                    // A section under the name of a plain key is an entry that is called so.
                    Some(found)
                        if !is_section
                            || value.is_null()
                            || matches!(found.key.kind, KeyKind::Section(_)) =>
                    {
                        if let Some(entry) = self.branch(flat, key.span, into) {
                            self.once(found, key, value, path, entry, &mut flat_seen);
                        }
                        continue;
                    }
                    None if !is_section => {
                        self.unknown(keys, key, value, path);
                        continue;
                    }
                    Some(_) | None => {}
                }
            }
            if let Some((first, _)) = seen.get(written) {
                self.twice(key.span, *first, &path.name(written), "is given twice");
                continue;
            }
            let directly = flat_seen.values().next().filter(|_| flat == Some(written));
            if let Some((first, _)) = directly {
                let message = "is the entry whose keys are also given directly";
                self.twice(key.span, *first, &path.name(written), message);
                continue;
            }
            seen.insert(written.to_owned(), (key.span, written.to_owned()));
            self.map_entry(each, written, key, value, path, into);
        }
    }

    fn map_entry(
        &mut self,
        each: &'static KeyKind,
        name: &str,
        key: &YamlNode,
        value: &YamlNode,
        path: &KeyPath,
        into: &mut Branch,
    ) {
        let path = path.name(name);
        if name.is_empty() {
            self.wrong(key.span, &path, "has an empty name".to_owned(), None);
            return;
        }
        if let KeyKind::Section(keys) = each {
            if let Some(branch) = self.branch(name, key.span, into) {
                self.section(keys, value, &path, branch);
            }
        } else if let Some(mut entry) = self.free(each, name, value, &path) {
            entry.key = self.key_span(key.span);
            into.insert(name.to_owned(), entry);
        }
    }

    fn unknown(&mut self, keys: &'static [Key], key: &YamlNode, value: &YamlNode, path: &KeyPath) {
        let written = text_of(key);
        if self.findings.is_full() {
            self.mask(value.span);
            return;
        }
        let advice = suggest::unknown(keys, written, path);
        if advice.is_secret || is_secret_name(written) {
            self.mask(value.span);
        }
        let place = if path.is_root() {
            "the file".to_owned()
        } else {
            format!("`{path}`")
        };
        let message = format!("is not a key of {place}");
        let spot = self.spot(key.span);
        let problem = self.findings.at(&spot, &path.name(written), message);
        let problem = problem.hint(advice.hint).parts(advice.parts);
        self.findings.problem(problem);
    }

    /// Keeps a value that is not read out of the snippets, if it would be a secret.
    fn hide_secret(&mut self, key: &Key, value: &YamlNode) {
        if matches!(key.kind, KeyKind::Secret | KeyKind::Url(_)) {
            self.mask(value.span);
        }
    }
}

/// The text of a scalar, such as every key is; of anything else, nothing.
fn text_of(node: &YamlNode) -> &str {
    if let Body::Scalar { text, .. } = &node.body {
        text
    } else {
        ""
    }
}

/// A value that is there and wrong.
fn broken(spot: ValueLocation) -> ValueEntry {
    ValueEntry::new(Value::Broken, spot)
}
