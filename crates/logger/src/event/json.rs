//! JSON values that keep the bytes they were written with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Text;

/// One JSON value, kept as it was written.
///
/// A number such as `1.10` or one of 30 digits would not survive a way through floating point, so
/// it never takes that way. Two values are equal when their texts are.
///
/// **Invariant:** the text is valid JSON and holds no line break, so it may stand in a line.
///
/// ```
/// use tidegate_logger::Json;
/// assert_eq!(Json::from("a \"quoted\" word").as_str(), r#""a \"quoted\" word""#);
/// assert_eq!(Json::from(3).as_str(), "3");
/// assert_eq!(Json::parse("1.10")?.as_str(), "1.10");
/// assert_eq!(Json::parse("[1,\n 2]")?.as_str(), "[1,2]");
/// # Ok::<(), tidegate_logger::ParseJsonError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Box<str>);

/// A text that is not JSON.
#[derive(Debug, thiserror::Error)]
#[error("the text is not one JSON value")]
pub struct ParseJsonError(#[source] serde_json::Error);

impl Json {
    /// The value that `text` holds.
    ///
    /// # Errors
    /// The text is not exactly one JSON value.
    pub fn parse(text: &str) -> Result<Self, ParseJsonError> {
        let raw: &RawValue = serde_json::from_str(text).map_err(ParseJsonError)?;
        Ok(Self::of_raw(raw))
    }

    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value in memory, for whoever wants to look inside.
    ///
    /// # Errors
    /// The value is nested too deep to be held in memory.
    pub fn to_value(&self) -> Result<Value, ParseJsonError> {
        serde_json::from_str(&self.0).map_err(ParseJsonError)
    }

    pub(super) fn of_raw(raw: &RawValue) -> Self {
        let text = raw.get();
        if text.contains(['\n', '\r']) {
            Self(without_space(text).into())
        } else {
            Self(text.into())
        }
    }
}

impl<T> From<T> for Json
where
    Value: From<T>,
{
    fn from(value: T) -> Self {
        Self(Value::from(value).to_string().into())
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `text` without the space between its tokens. A line break inside a JSON string is always
/// escaped, so what is left holds none.
fn without_space(text: &str) -> String {
    let mut in_string = false;
    let mut escaped = false;
    let keep = |c: &char| {
        if in_string {
            match *c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => in_string = false,
                _ => {}
            }
            return true;
        }
        in_string = *c == '"';
        !matches!(c, ' ' | '\t' | '\n' | '\r')
    };
    text.chars().filter(keep).collect()
}

/// Named JSON values in the order in which they were added.
///
/// ```
/// use tidegate_logger::Properties;
/// let mut properties = Properties::new();
/// properties.set("room", "K-7");
/// properties.set("nights", 2);
/// properties.set("room", "K-9");
/// assert_eq!(properties.get("room").map(|room| room.as_str()), Some("\"K-9\""));
/// assert_eq!(properties.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["room", "nights"]);
/// ```
#[derive(Clone, Default, PartialEq)]
pub struct Properties(Vec<(Text, Json)>);

impl Properties {
    /// No properties.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Sets `name` to `value`, in its old place when there is one.
    pub fn set(&mut self, name: impl Into<Text>, value: impl Into<Json>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Json> {
        let found = self.0.iter().find(|(known, _)| known == name)?;
        Some(&found.1)
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes properties as they were read. Of a name that is there twice, the last value holds, as
    /// it does for most readers of JSON.
    pub(super) fn from_read(mut read: Vec<(Text, Json)>) -> Self {
        // Not by `set`, which would take forever on a hostile line of a hundred thousand names.
        let mut last = BTreeMap::new();
        for (index, (name, _)) in read.iter().enumerate() {
            last.insert(&**name, index);
        }
        if last.len() < read.len() {
            let keep: BTreeSet<usize> = last.into_values().collect();
            let mut index = 0..;
            read.retain(|_| index.next().is_some_and(|index| keep.contains(&index)));
        }
        Self(read)
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// The members of a JSON object as they stand in the text, which must outlive them.
pub(super) struct Members<'a>(pub(super) Vec<(Text, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    members.push((Text::Owned(name), value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_between_tokens_goes_and_space_in_strings_stays() {
        let text = "{ \"a b\" :\r\n [ 1 , \"x \\\" \\\\\" , \"\\n y\" ]\t}";
        let json = Json::parse(text).unwrap();
        assert_eq!(json.as_str(), r#"{"a b":[1,"x \" \\","\n y"]}"#);
        assert_eq!(
            json.to_value().unwrap(),
            serde_json::from_str::<Value>(text).unwrap()
        );
    }

    #[test]
    fn a_line_break_inside_a_string_is_not_json() {
        assert!(Json::parse("\"a\nb\"").is_err());
        assert!(Json::parse("1 2").is_err());
        assert!(Json::parse("").is_err());
    }

    #[test]
    fn of_a_name_read_twice_the_last_value_holds() {
        let read = [("a", 1), ("b", 2), ("a", 3)];
        let read = read.map(|(name, value)| (Text::Borrowed(name), Json::from(value)));
        let properties = Properties::from_read(read.into());
        assert_eq!(format!("{properties:?}"), r#"{"b": 2, "a": 3}"#);
    }
}
