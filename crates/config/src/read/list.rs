//! Lists, of plain values and of sections.

use super::scalar::Reported;
use super::{ConfigReader, broken};
use crate::keys::{FoundKey, KeyKind, Unit};
use crate::path::KeyPath;
use crate::tree::{Body, YamlNode};
use crate::value::{Value, ValueEntry};

impl ConfigReader<'_, '_> {
    /// Reads a list; `None` when none is given. `below` is the list of the layers before.
    pub(super) fn list(
        &mut self,
        each: &'static KeyKind,
        node: &YamlNode,
        path: &KeyPath,
        below: Option<&ValueEntry>,
    ) -> Option<ValueEntry> {
        let spot = self.spot(node.span);
        match &node.body {
            Body::List(nodes) => {
                let read = |(n, node): (usize, &YamlNode)| self.item(each, node, &path.index(n));
                let items = nodes.iter().enumerate().map(read).collect();
                Some(ValueEntry::new(Value::List(items), spot))
            }
            Body::Item(index, inner) => self.replace(each, *index, inner, path, below),
            Body::Scalar { .. } if node.is_null() => None,
            Body::Scalar { .. } if !matches!(each, KeyKind::Section(_)) => {
                self.separated(each, node, path)
            }
            Body::Scalar { .. } | Body::Map(_) => {
                let message = format!("is {}, and must be a list", node.noun());
                self.wrong(node.span, path, message, None);
                Some(broken(spot))
            }
        }
    }

    fn item(&mut self, each: &'static KeyKind, node: &YamlNode, path: &KeyPath) -> ValueEntry {
        if let KeyKind::Section(keys) = each {
            let mut entry = ValueEntry::branch(self.spot(node.span));
            if let Some(branch) = entry.as_branch_mut() {
                self.section(keys, node, path, branch);
            }
            return entry;
        }
        self.free(each, "", node, path).unwrap_or_else(|| {
            let message = "is an empty entry of a list".to_owned();
            self.wrong(node.span, path, message, None);
            broken(self.spot(node.span))
        })
    }

    /// Reads `a, b` as a list.
    fn separated(
        &mut self,
        each: &'static KeyKind,
        node: &YamlNode,
        path: &KeyPath,
    ) -> Option<ValueEntry> {
        let text = match self.filled(node, path, false) {
            Ok(text) => text?,
            Err(Reported) => return Some(broken(self.spot(node.span))),
        };
        let spot = self.spot(node.span);
        let words = text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty());
        let mut items = Vec::new();
        for (n, word) in words.enumerate() {
            items.push(self.coerced(each, Unit::InValue, word, node, &path.index(n)));
        }
        Some(ValueEntry::new(Value::List(items), spot))
    }

    /// Reads one entry over that of a list in a lower layer.
    fn replace(
        &mut self,
        each: &'static KeyKind,
        index: usize,
        node: &YamlNode,
        path: &KeyPath,
        below: Option<&ValueEntry>,
    ) -> Option<ValueEntry> {
        let mut list = below.cloned();
        let Some(ValueEntry {
            value: Value::List(items),
            ..
        }) = &mut list
        else {
            let message = format!("has no entry {index} to change, because no list is given");
            self.wrong(node.span, path, message, None);
            return None;
        };
        let path = path.index(index);
        let Some(entry) = items.get_mut(index) else {
            let message = format!(
                "does not exist, and the number of entries is {}",
                items.len()
            );
            self.wrong(node.span, &path, message, None);
            return list;
        };
        match (each, entry.as_branch_mut()) {
            (KeyKind::Section(keys), Some(branch)) => self.section(keys, node, &path, branch),
            _ => *entry = self.item(each, node, &path),
        }
        list
    }

    /// A value without a key of its own: an entry of a list or of a map.
    pub(super) fn free(
        &mut self,
        each: &'static KeyKind,
        name: &str,
        node: &YamlNode,
        path: &KeyPath,
    ) -> Option<ValueEntry> {
        let secret = *each == KeyKind::Secret
            || (*each == KeyKind::Property && crate::secret::is_secret_name(name));
        if secret {
            self.mask(node.span);
        }
        let text = match self.single(node, path, each, secret) {
            Ok(text) => text?,
            Err(Reported) => return Some(broken(self.spot(node.span))),
        };
        let each = if secret { &KeyKind::Secret } else { each };
        Some(self.coerced(each, Unit::InValue, &text, node, path))
    }

    /// A value under a key of the table; `None` when it is not given.
    pub(super) fn scalar(
        &mut self,
        found: FoundKey,
        node: &YamlNode,
        path: &KeyPath,
    ) -> Option<ValueEntry> {
        let kind = &found.key.kind;
        if *kind == KeyKind::Json {
            return self.json(node, path);
        }
        let secret = *kind == KeyKind::Secret;
        if secret {
            self.mask(node.span);
        }
        let text = match self.single(node, path, kind, secret) {
            Ok(text) => text?,
            Err(Reported) => return Some(broken(self.spot(node.span))),
        };
        // An empty token would let everybody in who sends an empty one.
        if secret && text.is_empty() {
            return None;
        }
        if found.key.accepts_none && text.eq_ignore_ascii_case("none") {
            return Some(ValueEntry::new(Value::Nothing, self.spot(node.span)));
        }
        Some(self.coerced(kind, found.unit, &text, node, path))
    }
}
