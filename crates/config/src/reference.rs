//! The reference: every key, with its default and what it means.

use crate::keys::{DefaultValue, Key, KeyKind, ROOT};

/// A complete file with every default in it, each key explained above its line. Keys without a
/// default, and everything under names of the user, are commented out.
///
/// ```
/// let text = tidegate_config::defaults_text();
/// assert!(text.contains("# The size of the connection pool.\n  max-connections: 10\n"));
/// ```
#[must_use]
pub fn defaults_text() -> String {
    let mut writer = Writer {
        text: String::from(HEADER),
    };
    for key in ROOT {
        writer.text.push('\n');
        writer.key(key, 0, Ink::Live, "");
    }
    writer.text
}

const HEADER: &str = "\
# Every key of Tidegate with its default. A file holds only what differs.
#
# Keys may be written in kebab, camel or snake case. `delay-ms: 10000` is `delay: 10s`, and
# `size-mb: 50` is `size: 50MiB`. `${NAME}` and `${NAME:-default}` take a variable; `$$` is a
# dollar sign. `STORE_URL` or `TIDEGATE__STORE__URL` in the environment stands over the file.
";

/// Whether a line counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ink {
    Live,
    Comment,
}

struct Writer {
    text: String,
}

impl Writer {
    fn line(&mut self, depth: usize, ink: Ink, text: &str) {
        let mark = if ink == Ink::Comment { "# " } else { "" };
        self.text
            .push_str(format!("{mark}{}{text}", "  ".repeat(depth)).trim_end());
        self.text.push('\n');
    }

    /// Writes a key with its explanation. `dash` stands before the first key of a list's entry.
    fn key(&mut self, key: &'static Key, depth: usize, ink: Ink, dash: &str) {
        let filled = key.default == DefaultValue::Filled;
        let is_map = matches!(key.kind, KeyKind::Map { .. });
        let is_block = matches!(
            key.kind,
            KeyKind::Section(_) | KeyKind::List(KeyKind::Section(_))
        ) || is_map;
        let holds = (filled && !is_map) || matches!(key.default, DefaultValue::Value(_));
        let note = note(key);
        if !holds && !is_block && ink == Ink::Live {
            self.line(depth, ink, &format!("# {}{note}", key.doc));
            return self.line(
                depth,
                ink,
                &format!("# {}: {}", key.name, default_text(key)),
            );
        }
        let ink = if holds { ink } else { Ink::Comment };
        // A comment inside a commented block keeps its mark, so that uncommenting gives a file.
        let indent = if dash.is_empty() {
            depth
        } else {
            depth.saturating_sub(1)
        };
        self.line(indent, ink, &format!("# {}{note}", key.doc));
        let head = format!("{dash}{}:", key.name);
        if let KeyKind::Section(keys) = key.kind
            && (filled || !keys.is_empty())
        {
            self.line(indent, ink, &head);
            self.keys(keys, depth + 1, ink);
        } else if let KeyKind::List(KeyKind::Section(keys)) = key.kind {
            self.line(indent, ink, &head);
            let mut dash = "- ";
            for key in *keys {
                self.key(key, depth + 2, ink, dash);
                dash = "";
            }
        } else if let KeyKind::Map { each, .. } = key.kind {
            self.line(indent, ink, &head);
            if let KeyKind::Section(keys) = each {
                self.line(depth + 1, ink, "<name>:");
                self.keys(keys, depth + 2, ink);
            } else {
                self.line(depth + 1, ink, "<name>: …");
            }
        } else {
            self.line(indent, ink, &format!("{head} {}", default_text(key)));
        }
    }

    fn keys(&mut self, keys: &'static [Key], depth: usize, ink: Ink) {
        for key in keys {
            self.key(key, depth, ink, "");
        }
    }
}

/// The note beside the explanation.
fn note(key: &Key) -> String {
    let words = if let KeyKind::Choice(words) = key.kind {
        format!(" One of {}.", words.join(", "))
    } else {
        String::new()
    };
    let default = match key.default {
        DefaultValue::Required => " Required.".to_owned(),
        DefaultValue::Explained(text) => format!(" Default: {text}."),
        DefaultValue::By {
            choice,
            is,
            then: "[]",
            ..
        } => format!(" Default: three tiers; none where `{choice}` is {is}."),
        DefaultValue::By {
            choice,
            is,
            then,
            otherwise,
        } => format!(" Default: {otherwise}; {then} where `{choice}` is {is}."),
        DefaultValue::Nth(texts) => format!(" Default by tier: {}.", texts.join(", ")),
        DefaultValue::Nothing | DefaultValue::Value(_) | DefaultValue::Filled => String::new(),
    };
    let unused = if key.unused.is_some() {
        " Read and not used."
    } else {
        ""
    };
    format!("{words}{default}{unused}")
}

fn default_text(key: &'static Key) -> String {
    match (key.default, &key.kind) {
        (DefaultValue::Value(text), KeyKind::List(_)) => text.to_owned(),
        (DefaultValue::Value(text), _) => crate::read::default_value(key, text).map_or_else(
            || text.to_owned(),
            |value| crate::show::written(&value, key.unit()),
        ),
        (DefaultValue::Nth(texts), _) => texts.first().copied().unwrap_or_default().to_owned(),
        (DefaultValue::By { otherwise, .. }, _) => otherwise.to_owned(),
        (_, KeyKind::Section(_)) => "{}".to_owned(),
        _ => String::new(),
    }
}
