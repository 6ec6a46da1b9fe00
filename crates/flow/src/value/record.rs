//! A record that stays its bytes.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::json::{JsonError, Member, Quoted, Scanner, write_string};
use super::{FlowType, FlowValue, ValueError};

/// A JSON object whose fields are decoded when they are touched.
///
/// Fields that were not set are written back byte for byte, with the digits of their numbers.
///
/// ```
/// use tidegate_flow::value::{FlowValue, JsonRecord};
/// let mut record = JsonRecord::parse(br#"{"id": 7, "amount": 12.50}"#)?;
/// record.set("id", &FlowValue::Integer(8))?;
/// assert_eq!(record.to_string(), r#"{"id":8,"amount": 12.50}"#);
/// assert!(JsonRecord::parse(br#"{"id": 7, "id": 8}"#).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct JsonRecord {
    source: Arc<str>,
    fields: Vec<Field>,
    is_changed: bool,
}

#[derive(Clone)]
struct Field {
    name: FieldName,
    value: FieldText,
}

#[derive(Clone)]
enum FieldName {
    /// The name as it stands in the source.
    Source(Quoted),
    Added(Arc<str>),
}

#[derive(Clone)]
enum FieldText {
    /// The place of the value in the source.
    Source(u32, u32),
    Set(Arc<str>),
}

/// Where a field probably stands. A wrong guess costs a search and changes nothing.
#[derive(Debug, Default)]
pub(crate) struct FieldPosition(AtomicUsize);

impl Clone for FieldPosition {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Default for JsonRecord {
    fn default() -> Self {
        Self {
            source: Arc::from("{}"),
            fields: Vec::new(),
            is_changed: false,
        }
    }
}

impl JsonRecord {
    /// A record of these bytes.
    ///
    /// # Errors
    /// The bytes are not UTF-8, not a JSON object, or a name is repeated in one object.
    pub fn parse(bytes: &[u8]) -> Result<Self, JsonError> {
        let text = std::str::from_utf8(bytes).map_err(|error| JsonError {
            message: "the record is not UTF-8".to_owned(),
            at: error.valid_up_to(),
        })?;
        Self::of_text(text)
    }

    /// A record of this text.
    ///
    /// # Errors
    /// The text is not a JSON object, or a name is repeated in one object.
    pub fn of_text(text: &str) -> Result<Self, JsonError> {
        if u32::try_from(text.len()).is_err() {
            return Err(JsonError {
                message: "the record is larger than 4 GiB".to_owned(),
                at: 0,
            });
        }
        let mut fields = Vec::with_capacity(16);
        let mut scanner = Scanner::new(text);
        scanner.object(0, &mut |Member { name, value }| {
            fields.push(Field {
                name: FieldName::Source(name),
                value: FieldText::Source(value.0, value.1),
            });
        })?;
        scanner.finish()?;
        Ok(Self {
            source: Arc::from(text),
            fields,
            is_changed: false,
        })
    }

    /// Whether a field was set or removed.
    pub(crate) const fn is_changed(&self) -> bool {
        self.is_changed
    }

    #[inline]
    fn is_named(&self, field: &Field, name: &str) -> bool {
        match &field.name {
            FieldName::Source(quoted) => quoted.is(&self.source, name),
            FieldName::Added(added) => **added == *name,
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.fields
            .iter()
            .position(|field| self.is_named(field, name))
    }

    /// As [`JsonRecord::raw`], beginning the search where the field stood last time.
    #[inline]
    pub(crate) fn raw_at(&self, name: &str, position: &FieldPosition) -> Option<&str> {
        let last = position.0.load(Ordering::Relaxed);
        if let Some(field) = self.fields.get(last)
            && self.is_named(field, name)
        {
            return Some(self.text_of(field));
        }
        let found = self.position(name)?;
        position.0.store(found, Ordering::Relaxed);
        Some(self.text_of(&self.fields[found]))
    }

    fn text_of<'a>(&'a self, field: &'a Field) -> &'a str {
        match &field.value {
            FieldText::Source(start, end) => &self.source[*start as usize..*end as usize],
            FieldText::Set(text) => text,
        }
    }

    /// The JSON text of a field, as it will be written.
    #[must_use]
    pub fn raw(&self, name: &str) -> Option<&str> {
        self.position(name).map(|at| self.text_of(&self.fields[at]))
    }

    /// The value of a field; none where it is absent.
    ///
    /// # Errors
    /// The field is not of this type.
    pub fn get(&self, name: &str, kind: &FlowType) -> Result<Option<FlowValue<'_>>, ValueError> {
        self.raw(name)
            .map(|raw| FlowValue::from_json(raw, kind))
            .transpose()
    }

    /// The names of the fields and their JSON texts, in the order of the record.
    pub fn fields(&self) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
        self.fields.iter().map(|field| {
            let name = match &field.name {
                FieldName::Source(quoted) => quoted.decode(&self.source),
                FieldName::Added(added) => Cow::Borrowed(&**added),
            };
            (name, self.text_of(field))
        })
    }

    /// Sets a field, at its place if there is one, else at the end.
    ///
    /// # Errors
    /// JSON has no text for the value, for instance for an infinite number.
    pub fn set(&mut self, name: &str, value: &FlowValue<'_>) -> Result<(), ValueError> {
        let mut text = String::new();
        value.write_json(&mut text)?;
        self.set_raw(name, text);
        Ok(())
    }

    /// Sets a field to a text that is known to be JSON.
    pub fn set_raw(&mut self, name: &str, text: impl Into<Arc<str>>) {
        self.is_changed = true;
        let value = FieldText::Set(text.into());
        match self.position(name) {
            Some(at) => self.fields[at].value = value,
            None => self.fields.push(Field {
                name: FieldName::Added(Arc::from(name)),
                value,
            }),
        }
    }

    /// Removes a field, if it is there.
    pub fn remove(&mut self, name: &str) {
        if let Some(at) = self.position(name) {
            self.is_changed = true;
            self.fields.remove(at);
        }
    }

    /// Keeps only the fields that `keep` wants.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        let source = Arc::clone(&self.source);
        let before = self.fields.len();
        self.fields.retain(|field| match &field.name {
            FieldName::Source(quoted) => keep(&quoted.decode(&source)),
            FieldName::Added(added) => keep(added),
        });
        self.is_changed |= self.fields.len() != before;
    }

    /// Appends the JSON text of the record.
    pub fn write(&self, out: &mut String) {
        if !self.is_changed {
            out.push_str(&self.source);
            return;
        }
        out.reserve(self.source.len() + 32);
        out.push('{');
        for (at, field) in self.fields.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            match (&field.name, &field.value) {
                // From the quote before the name to the end of the value: also the blanks between them stay.
                (FieldName::Source(name), FieldText::Source(_, end)) => {
                    out.push_str(&self.source[name.start as usize - 1..*end as usize]);
                }
                (FieldName::Source(name), FieldText::Set(text)) => {
                    out.push_str(&self.source[name.start as usize - 1..=name.end as usize]);
                    out.push(':');
                    out.push_str(text);
                }
                (FieldName::Added(name), _) => {
                    write_string(name, out);
                    out.push(':');
                    out.push_str(self.text_of(field));
                }
            }
        }
        out.push('}');
    }
}

impl fmt::Display for JsonRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text);
        f.write_str(&text)
    }
}

impl fmt::Debug for JsonRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
