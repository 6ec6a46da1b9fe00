//! YAML as JSON text, for files whose values become records.

use std::fmt;

use crate::tree::{Body, YamlNode, is_null_word, parse};

/// A text that is not the YAML that is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlTextError {
    /// The line, counted from one.
    pub line: usize,
    /// The column in characters, counted from one.
    pub column: usize,
    /// The mistake in words.
    pub message: String,
}

impl fmt::Display for YamlTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            column,
            message,
        } = self;
        write!(f, "line {line}, column {column}: {message}")
    }
}

impl std::error::Error for YamlTextError {}

/// The JSON text of a YAML text. Numbers keep their digits: `12.50` stays as it is written.
///
/// ```
/// use tidegate_config::yaml_to_json;
/// let json = yaml_to_json("amount: 12.50\nnames: [a, '1', null, true]\n")?;
/// assert_eq!(json, r#"{"amount":12.50,"names":["a","1",null,true]}"#);
/// # Ok::<(), tidegate_config::YamlTextError>(())
/// ```
///
/// # Errors
/// The text is not YAML, or exceeds a limit of configuration files.
pub fn yaml_to_json(text: &str) -> Result<String, YamlTextError> {
    let tree = parse(text, 0).map_err(|refusal| YamlTextError {
        line: refusal.span.line,
        column: refusal.span.column,
        message: refusal.message,
    })?;
    Ok(tree.map_or_else(|| "null".to_owned(), |node| json_of_node(&node)))
}

/// A node as JSON text.
pub(crate) fn json_of_node(node: &YamlNode) -> String {
    let mut json = String::new();
    write(node, &mut json);
    json
}

fn write(node: &YamlNode, out: &mut String) {
    let string = |text: &str| serde_json::Value::from(text).to_string();
    match &node.body {
        Body::Scalar { text, plain: true } if is_null_word(text) => out.push_str("null"),
        Body::Scalar { text, plain: true } if is_json(text) => out.push_str(text),
        Body::Scalar { text, .. } => out.push_str(&string(text)),
        Body::List(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Body::Map(pairs) => {
            out.push('{');
            for (at, (key, value)) in pairs.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                let name = match &key.body {
                    Body::Scalar { text, .. } => text.as_str(),
                    // Keys that are lists or sections were refused by the reader.
                    Body::List(_) | Body::Map(_) | Body::Item(..) => "",
                };
                out.push_str(&string(name));
                out.push(':');
                write(value, out);
            }
            out.push('}');
        }
        Body::Item(_, inner) => write(inner, out),
    }
}

/// Whether a plain scalar is a flag or a number that JSON writes the same way.
fn is_json(text: &str) -> bool {
    matches!(text, "true" | "false") || text.parse::<serde_json::Number>().is_ok()
}
