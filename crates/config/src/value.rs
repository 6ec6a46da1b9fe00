//! Checked values, and where each came from.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::problem::TextSpan;
use crate::secret::Secret;

/// Where a value came from.
///
/// ```
/// use tidegate_config::{Inputs, Origin, load};
/// let config = load(&Inputs::of_text("tidegate.yaml", "store: {max-connections: 3}\n")).config;
/// assert_eq!(config.origin("store.max-connections").unwrap().to_string(), "tidegate.yaml:1:26");
/// assert_eq!(config.origin("store.url"), Some(Origin::Default));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody gave it: the default holds.
    Default,
    /// It stands in a file.
    File {
        /// The name of the source.
        file: String,
        /// The line, counted from one.
        line: usize,
        /// The column in characters, counted from one.
        column: usize,
    },
    /// An environment variable of this name gave it.
    Env(String),
    /// An argument of this path gave it.
    Argument(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Env(variable) => write!(f, "environment: {variable}"),
            Self::Argument(path) => write!(f, "argument: {path}"),
        }
    }
}

/// Where a value stands, as long as the sources are at hand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ValueLocation {
    Default,
    File(TextSpan),
    Environment(String),
    Argument(String),
}

impl ValueLocation {
    /// The place in a file.
    pub(crate) const fn span(&self) -> Option<TextSpan> {
        if let Self::File(span) = self {
            Some(*span)
        } else {
            None
        }
    }

    /// The name of the source, and the beginning of a message about a value that is in no file.
    pub(crate) fn source<'a>(&self, file: impl FnOnce(&TextSpan) -> &'a str) -> (String, String) {
        match self {
            Self::File(span) => (file(span).to_owned(), String::new()),
            Self::Environment(name) => ("environment".to_owned(), format!("variable `{name}`: ")),
            Self::Argument(name) => ("arguments".to_owned(), format!("argument `{name}`: ")),
            Self::Default => ("defaults".to_owned(), String::new()),
        }
    }

    /// Whether the name of a variable or an argument has this step.
    pub(crate) fn names(&self, step: &str) -> bool {
        match self {
            Self::Environment(name) | Self::Argument(name) => name
                .split(['_', '.', '['])
                .any(|part| part.eq_ignore_ascii_case(step)),
            Self::Default | Self::File(_) => false,
        }
    }
}

/// A value, or a group of them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Flag(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    /// An address, which may hold a password that is not shown.
    Url(String),
    Duration(Duration),
    Size(u64),
    Choice(&'static str),
    Secret(Secret),
    /// JSON text.
    Json(String),
    /// The word `none`: given, and no value.
    Nothing,
    List(Vec<ValueEntry>),
    Branch(Branch),
    /// Given and wrong. Rules about it are skipped, and in the end its default takes its place.
    Broken,
}

/// A value in its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ValueEntry {
    pub(crate) value: Value,
    pub(crate) spot: ValueLocation,
    /// Where its key stands, in a file.
    pub(crate) key: Option<TextSpan>,
}

/// A section or a map: canonical or free names and what stands under them.
pub(crate) type Branch = BTreeMap<String, ValueEntry>;

/// A getter for each of these: the value, if it is of that kind.
macro_rules! getters {
    ($($name:ident: $kind:ident($type:ty);)*) => {
        impl ValueEntry {$(
            pub(crate) const fn $name(&self) -> Option<$type> {
                if let Value::$kind(value) = &self.value { Some(*value) } else { None }
            }
        )*}
    };
}

getters! {
    flag: Flag(bool);
    integer: Integer(i64);
    float: Float(f64);
    duration: Duration(Duration);
    size: Size(u64);
}

impl ValueEntry {
    /// A text, an address or the word of a choice.
    pub(crate) fn text(&self) -> Option<&str> {
        if let Value::Text(text) | Value::Url(text) = &self.value {
            return Some(text);
        }
        if let Value::Choice(word) = self.value {
            Some(word)
        } else {
            None
        }
    }

    pub(crate) const fn new(value: Value, spot: ValueLocation) -> Self {
        Self {
            value,
            spot,
            key: None,
        }
    }

    pub(crate) const fn branch(spot: ValueLocation) -> Self {
        Self::new(Value::Branch(Branch::new()), spot)
    }

    /// Where its key stands, or else the value.
    pub(crate) fn key_spot(&self) -> ValueLocation {
        self.key
            .map_or_else(|| self.spot.clone(), ValueLocation::File)
    }

    pub(crate) const fn as_branch(&self) -> Option<&Branch> {
        if let Value::Branch(branch) = &self.value {
            Some(branch)
        } else {
            None
        }
    }

    pub(crate) const fn as_branch_mut(&mut self) -> Option<&mut Branch> {
        if let Value::Branch(branch) = &mut self.value {
            Some(branch)
        } else {
            None
        }
    }

    pub(crate) fn as_list(&self) -> &[Self] {
        if let Value::List(items) = &self.value {
            items
        } else {
            &[]
        }
    }
}
