//! Single values: variables filled in, then read as what the key takes.

use std::net::SocketAddr;
use std::time::Duration;

use super::{ConfigReader, broken};
use crate::interpolate::{Gap, interpolate};
use crate::json_text::json_of_node;
use crate::keys::{Key, KeyKind, Unit, relaxed};
use crate::path::KeyPath;
use crate::secret::{MASK, Secret, is_suspicious, shown_address, shown_text};
use crate::tree::{Body, YamlNode, is_null_word};
use crate::units::{format_duration, format_size, parse_duration, parse_size};
use crate::value::{Value, ValueEntry};

/// A value that has no text; why is among the problems already.
#[derive(Debug)]
pub(super) struct Reported;

/// Why a text is not what a key takes.
#[derive(Debug)]
struct Wrong {
    message: String,
    hint: Option<String>,
}

/// Characters of a value that are repeated in a message.
const MAX_QUOTED: usize = 60;

impl ConfigReader<'_, '_> {
    /// The text of a single value, or why it has none.
    pub(super) fn single(
        &mut self,
        node: &YamlNode,
        path: &KeyPath,
        kind: &KeyKind,
        secret: bool,
    ) -> Result<Option<String>, Reported> {
        if matches!(node.body, Body::Scalar { .. }) {
            return self.filled(node, path, secret);
        }
        let message = format!("is {}, and must be {}", node.noun(), noun(kind));
        self.wrong(node.span, path, message, None);
        Err(Reported)
    }

    /// The text of a scalar with its variables filled in; `None` when that is nothing.
    pub(super) fn filled(
        &mut self,
        node: &YamlNode,
        path: &KeyPath,
        secret: bool,
    ) -> Result<Option<String>, Reported> {
        let Body::Scalar { text, plain } = &node.body else {
            return Ok(None);
        };
        // Variables and arguments are taken literally: a shell has expanded them already.
        let filled = match self.outside {
            None => interpolate(text, self.environment),
            Some(_) => Ok(None),
        };
        match filled {
            Ok(filled) => {
                let text = filled.unwrap_or_else(|| text.clone());
                let text = if *plain { text.trim().to_owned() } else { text };
                Ok((!*plain || !is_null_word(&text)).then_some(text))
            }
            Err(gap) => {
                let (message, hint) = explain(&gap, secret);
                self.wrong(node.span, path, message, hint);
                Err(Reported)
            }
        }
    }

    /// Free JSON with its variables filled in.
    pub(super) fn json(&mut self, node: &YamlNode, path: &KeyPath) -> Option<ValueEntry> {
        let spot = self.spot(node.span);
        match self.filled_tree(node, path) {
            Ok(node) if node.is_null() => None,
            Ok(node) => Some(ValueEntry::new(Value::Json(json_of_node(&node)), spot)),
            Err(Reported) => Some(broken(spot)),
        }
    }

    fn filled_tree(&mut self, node: &YamlNode, path: &KeyPath) -> Result<YamlNode, Reported> {
        let body = match &node.body {
            Body::Scalar { plain, .. } => Body::Scalar {
                text: self.filled(node, path, false)?.unwrap_or_default(),
                plain: *plain,
            },
            Body::List(items) => {
                let items = items.iter().map(|item| self.filled_tree(item, path));
                Body::List(items.collect::<Result<_, _>>()?)
            }
            Body::Map(pairs) => {
                let pairs = pairs
                    .iter()
                    .map(|(key, value)| Ok((key.clone(), self.filled_tree(value, path)?)));
                Body::Map(pairs.collect::<Result<_, Reported>>()?)
            }
            Body::Item(at, inner) => Body::Item(*at, Box::new(self.filled_tree(inner, path)?)),
        };
        let span = node.span;
        Ok(YamlNode { span, body })
    }

    /// The text as what the kind takes.
    pub(super) fn coerced(
        &mut self,
        kind: &'static KeyKind,
        unit: Unit,
        text: &str,
        node: &YamlNode,
        path: &KeyPath,
    ) -> ValueEntry {
        let is_shown = if matches!(kind, KeyKind::Url(_)) {
            shown_address(text) == text
        } else {
            !is_suspicious(text)
        };
        if !is_shown {
            self.mask(node.span);
        }
        match coerce(kind, unit, text) {
            Ok(value) => ValueEntry::new(value, self.spot(node.span)),
            Err(wrong) => {
                self.wrong(node.span, path, wrong.message, wrong.hint);
                broken(self.spot(node.span))
            }
        }
    }
}

/// A default of the table as a value. A test holds the table to it that there always is one.
pub(crate) fn default_value(key: &'static Key, text: &str) -> Option<Value> {
    coerce(&key.kind, key.unit(), text).ok()
}

fn explain(gap: &Gap, secret: bool) -> (String, Option<String>) {
    match gap {
        Gap::Unset(name) => (
            format!("needs the variable `{name}`, which is not set"),
            Some(format!("set it, or give a default: `${{{name}:-…}}`")),
        ),
        Gap::Open => (
            "has a `${` without its `}`".to_owned(),
            Some("write `$$` for a dollar sign".to_owned()),
        ),
        Gap::Name(_) if secret => (
            "has a `${…}` without the name of a variable".to_owned(),
            None,
        ),
        Gap::Name(name) => (
            format!("has {} where the name of a variable belongs", quoted(name)),
            Some("names are letters, digits and `_`; write `$$` for a dollar sign".to_owned()),
        ),
        Gap::Deep => ("has variables nested too deep".to_owned(), None),
    }
}

fn coerce(kind: &'static KeyKind, unit: Unit, text: &str) -> Result<Value, Wrong> {
    match kind {
        KeyKind::Flag => flag(text),
        KeyKind::Integer { min, max } => integer(text, *min, *max).map(Value::Integer),
        KeyKind::Float { min, max } => float(text, *min, *max),
        KeyKind::Text if text.is_empty() => Err(wrong("is empty, and must not be".to_owned())),
        // A property may be the address of anything, password included.
        KeyKind::Property if is_suspicious(text) => Ok(Value::Url(text.to_owned())),
        KeyKind::Text | KeyKind::Property => Ok(Value::Text(text.to_owned())),
        KeyKind::Secret if text == MASK => Err(masked()),
        KeyKind::Secret => Ok(Value::Secret(Secret::new(text))),
        KeyKind::Duration { min_ms } => duration(text, unit, *min_ms),
        KeyKind::Size { min } => size(text, unit, *min),
        KeyKind::Choice(words) => choice(text, words),
        KeyKind::Url(schemes) => url(text, schemes),
        KeyKind::Address => address(text),
        KeyKind::Code => code(text),
        KeyKind::Json | KeyKind::List(_) | KeyKind::Section(_) | KeyKind::Map { .. } => {
            Err(must(text, noun(kind)))
        }
    }
}

fn flag(text: &str) -> Result<Value, Wrong> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(Value::Flag(true)),
        "false" => Ok(Value::Flag(false)),
        _ => Err(must(text, "`true` or `false`")),
    }
}

fn integer(text: &str, min: i64, max: i64) -> Result<i64, Wrong> {
    let number: i128 = text
        .replace('_', "")
        .parse()
        .map_err(|_| must(text, "a whole number"))?;
    i64::try_from(number)
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| wrong(format!("is {number}, and must be {}", range(min, max))))
}

fn range(min: i64, max: i64) -> String {
    if max >= i64::from(i32::MAX) && min <= 1 {
        format!("at least {min} and at most {max}")
    } else {
        format!("between {min} and {max}")
    }
}

fn float(text: &str, min: f64, max: f64) -> Result<Value, Wrong> {
    let number: f64 = text.parse().map_err(|_| must(text, "a number"))?;
    if !number.is_finite() || number < min || number > max {
        return Err(wrong(format!(
            "is {number}, and must be between {min} and {max}"
        )));
    }
    Ok(Value::Float(number))
}

fn duration(text: &str, unit: Unit, min_ms: u64) -> Result<Value, Wrong> {
    let span = if unit == Unit::Milliseconds {
        let ms = whole(
            text,
            "a whole number of milliseconds, because the key ends in `-ms`",
        )?;
        Some(Duration::from_millis(ms))
    } else {
        parse_duration(text)
    };
    let span = span.ok_or_else(|| Wrong {
        message: format!("is {}, and must be a duration", quoted(text)),
        hint: Some("a duration is written like `500ms`, `10s`, `1m30s` or `7d`".to_owned()),
    })?;
    let least = Duration::from_millis(min_ms);
    if span < least {
        let least = format_duration(least);
        return Err(wrong(format!(
            "is {}, and must be at least {least}",
            format_duration(span)
        )));
    }
    Ok(Value::Duration(span))
}

fn size(text: &str, unit: Unit, min: u64) -> Result<Value, Wrong> {
    let bytes = match unit {
        Unit::Mebibytes => {
            let number = whole(text, "a whole number of MiB, because the key ends in `-mb`")?;
            number
                .checked_mul(1 << 20)
                .filter(|bytes| i64::try_from(*bytes).is_ok())
        }
        Unit::Bytes => Some(whole(text, "a whole number of bytes")?),
        Unit::InValue | Unit::Milliseconds => parse_size(text),
    };
    let bytes = bytes.ok_or_else(|| Wrong {
        message: format!("is {}, and must be a byte size", quoted(text)),
        hint: Some("a byte size is written like `512KiB`, `50MiB` or `10GiB`".to_owned()),
    })?;
    if bytes < min {
        let (is, least) = (format_size(bytes), format_size(min));
        return Err(wrong(format!("is {is}, and must be at least {least}")));
    }
    Ok(Value::Size(bytes))
}

fn whole(text: &str, what: &str) -> Result<u64, Wrong> {
    let number: Option<i64> = text.replace('_', "").parse().ok();
    number
        .and_then(|n| u64::try_from(n).ok())
        .ok_or_else(|| must(text, what))
}

fn choice(text: &str, words: &'static [&'static str]) -> Result<Value, Wrong> {
    let wanted = relaxed(text);
    words
        .iter()
        .find(|word| relaxed(word) == wanted)
        .map(|word| Value::Choice(word))
        .ok_or_else(|| Wrong {
            message: format!(
                "is {}, and must be one of {}",
                quoted(text),
                words.join(", ")
            ),
            hint: crate::suggest::nearest(text, words.iter().copied())
                .map(|word| format!("did you mean `{word}`?")),
        })
}

/// The stars that `config show` prints for a secret have come back as one.
fn masked() -> Wrong {
    Wrong {
        message: format!("holds `{MASK}`, which stands for a secret and is none"),
        hint: Some("`config show` prints it so; write the secret itself, or `${NAME}`".to_owned()),
    }
}

fn url(text: &str, schemes: &'static [&'static str]) -> Result<Value, Wrong> {
    if text.contains(MASK) {
        return Err(masked());
    }
    let fits = text.split_once(':').is_some_and(|(scheme, rest)| {
        let known = schemes
            .iter()
            .any(|known| known.eq_ignore_ascii_case(scheme));
        // A file may follow `sqlite:` directly; everything else has a host.
        let host = rest
            .strip_prefix("//")
            .map(|rest| rest.split('/').next().unwrap_or(""));
        let is_file = scheme.eq_ignore_ascii_case("sqlite");
        let has_host = host.is_some_and(|host| !host.is_empty());
        // The name of a file may have spaces within.
        let has_space = match is_file {
            true => text.trim() != text,
            false => text.contains(char::is_whitespace),
        };
        known && (is_file || has_host) && !rest.is_empty() && !has_space
    });
    if fits {
        return Ok(Value::Url(text.to_owned()));
    }
    let starts: Vec<String> = schemes
        .iter()
        .map(|scheme| format!("`{scheme}://`"))
        .collect();
    Err(wrong(format!(
        "is \"{}\", and must be an address that starts with {}",
        shown_address(text),
        starts.join(" or ")
    )))
}

fn address(text: &str) -> Result<Value, Wrong> {
    let named = text.rsplit_once(':').is_some_and(|(host, port)| {
        let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        !host.is_empty() && host.chars().all(letters) && port.parse::<u16>().is_ok()
    });
    if named || text.parse::<SocketAddr>().is_ok() {
        return Ok(Value::Text(text.to_owned()));
    }
    Err(Wrong {
        message: format!("is {}, and must be a host and a port", quoted(text)),
        hint: Some("write it like `127.0.0.1:8080`".to_owned()),
    })
}

fn code(text: &str) -> Result<Value, Wrong> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err(must(
            text,
            "a failure code like `timeout.read` or `timeout.*`",
        ));
    }
    Ok(Value::Text(text.to_owned()))
}

fn noun(kind: &KeyKind) -> &'static str {
    match kind {
        KeyKind::Flag => "`true` or `false`",
        KeyKind::Integer { .. } => "a whole number",
        KeyKind::Float { .. } => "a number",
        KeyKind::Duration { .. } => "a duration",
        KeyKind::Size { .. } => "a byte size",
        KeyKind::Choice(_) => "a single word",
        KeyKind::Url(_) | KeyKind::Address => "an address",
        KeyKind::Code => "a failure code",
        KeyKind::Text | KeyKind::Property | KeyKind::Secret => "a text",
        KeyKind::Json => "a value",
        KeyKind::List(_) => "a list",
        KeyKind::Section(_) | KeyKind::Map { .. } => "a section",
    }
}

fn must(text: &str, what: &str) -> Wrong {
    wrong(format!("is {}, and must be {what}", quoted(text)))
}

const fn wrong(message: String) -> Wrong {
    Wrong {
        message,
        hint: None,
    }
}

fn quoted(text: &str) -> String {
    let text = shown_text(text);
    let short: String = text.chars().take(MAX_QUOTED).collect();
    let dots = if short.len() < text.len() { "…" } else { "" };
    format!("\"{}{dots}\"", short.escape_debug())
}
