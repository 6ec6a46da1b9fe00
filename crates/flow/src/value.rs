//! Types, values and records of flows.
//!
//! A record stays the bytes that it came as ([`JsonRecord`]); a field becomes a [`FlowValue`] when an expression
//! touches it. Money is a [`FlowValue::Decimal`], read from the digits and never a float.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "values of any other type have neither keys nor an order"
)]

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;

mod json;
mod number;
pub mod paths;
mod record;
mod text;

pub use json::JsonError;
pub(crate) use json::{Member, Scanner, member};
use number::compare_numbers;
pub(crate) use number::exact;
pub(crate) use record::FieldPosition;
pub use record::JsonRecord;
pub(crate) use text::{decimal, duration, in_range, timestamp};

/// The type of a field or an expression.
///
/// ```
/// use tidegate_flow::value::FlowType;
/// let lines = FlowType::list(FlowType::Decimal);
/// assert_eq!(lines.to_string(), "list<decimal>");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowType {
    /// Known when a record is there.
    Dynamic,
    /// The type of `null`, which every field may be.
    Null,
    /// True or false.
    Boolean,
    /// A signed number of 64 bits.
    Integer,
    /// An unsigned number of 64 bits.
    Unsigned,
    /// A floating-point number.
    Double,
    /// An exact decimal number of up to 28 digits.
    Decimal,
    /// Text; dates and UUIDs are text, too.
    String,
    /// Bytes, in JSON as base64.
    Bytes,
    /// A point in time.
    Timestamp,
    /// A length of time.
    Duration,
    /// Values of one type.
    List(Arc<FlowType>),
    /// Values of one type by name.
    Map(Arc<FlowType>),
    /// Fields with a type each.
    Object(Arc<ObjectType>),
    /// The type of a type, which `type(x)` gives.
    Type,
}

/// The fields of an object or record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectType {
    /// The declared fields, in their order.
    pub fields: IndexMap<String, FlowType>,
    /// Whether other fields may be read, too; their types are dynamic.
    pub is_open: bool,
}

impl ObjectType {
    /// Declared fields; no other one may be read.
    pub fn closed<N: Into<String>>(fields: impl IntoIterator<Item = (N, FlowType)>) -> Self {
        Self {
            fields: fields.into_iter().map(|(n, t)| (n.into(), t)).collect(),
            is_open: false,
        }
    }

    /// Any field may be read; those that are declared have their types.
    #[must_use]
    pub fn open() -> Self {
        Self {
            fields: IndexMap::new(),
            is_open: true,
        }
    }

    /// The type of a field; none where it may not be read.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<FlowType> {
        match self.fields.get(name) {
            Some(kind) => Some(kind.clone()),
            None if self.is_open => Some(FlowType::Dynamic),
            None => None,
        }
    }
}

impl FlowType {
    /// A list of this type.
    #[must_use]
    pub fn list(element: Self) -> Self {
        Self::List(Arc::new(element))
    }

    /// A map to this type.
    #[must_use]
    pub fn map(value: Self) -> Self {
        Self::Map(Arc::new(value))
    }

    /// Whether values of this type and the other can be compared or assigned; a dynamic one can always.
    #[must_use]
    pub fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dynamic | Self::Null, _) | (_, Self::Dynamic | Self::Null) => true,
            (Self::List(a), Self::List(b)) | (Self::Map(a), Self::Map(b)) => a.fits(b),
            (Self::Object(_) | Self::Map(_), Self::Object(_) | Self::Map(_)) => true,
            (a, b) => a == b,
        }
    }

    /// Whether a value of this type may have fields: a map, an object, or one that is not known.
    pub(crate) const fn has_fields(&self) -> bool {
        matches!(self, Self::Map(_) | Self::Object(_) | Self::Dynamic)
    }

    /// Whether a value of this type may be the key of a map.
    pub(crate) const fn is_key(&self) -> bool {
        let is_number = matches!(self, Self::Integer | Self::Unsigned);
        is_number || matches!(self, Self::String | Self::Boolean | Self::Dynamic)
    }

    /// Whether it is a type of numbers.
    #[must_use]
    pub fn is_number(&self) -> bool {
        matches!(
            self,
            Self::Integer | Self::Unsigned | Self::Double | Self::Decimal
        )
    }
}

impl fmt::Display for FlowType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dynamic => "dynamic",
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Unsigned => "uint",
            Self::Double => "double",
            Self::Decimal => "decimal",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::Object(_) => "object",
            Self::Type => "type",
            Self::List(element) => return write!(f, "list<{element}>"),
            Self::Map(value) => return write!(f, "map<{value}>"),
        })
    }
}

/// A value that cannot be read, written or compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(pub String);

/// The entries of a map, in their order.
pub type ValueMap<'a> = IndexMap<MapKey<'a>, FlowValue<'a>>;

/// A value of an expression; text may be borrowed from the record or the expression.
///
/// ```
/// use tidegate_flow::value::{FlowType, FlowValue};
/// let price = FlowValue::from_json("12.50", &FlowType::Decimal)?;
/// assert_eq!(price.to_json()?, "12.50");
/// # Ok::<(), tidegate_flow::value::ValueError>(())
/// ```
#[derive(Debug, Clone)]
pub enum FlowValue<'a> {
    /// No value.
    Null,
    /// True or false.
    Boolean(bool),
    /// A signed number.
    Integer(i64),
    /// An unsigned number.
    Unsigned(u64),
    /// A floating-point number.
    Double(f64),
    /// An exact decimal number with its scale.
    Decimal(Decimal),
    /// Text.
    String(Cow<'a, str>),
    /// Bytes.
    Bytes(Cow<'a, [u8]>),
    /// A point in time.
    Timestamp(Timestamp),
    /// A length of time.
    Duration(SignedDuration),
    /// Values in an order.
    List(Arc<Vec<FlowValue<'a>>>),
    /// Values by key.
    Map(Arc<ValueMap<'a>>),
    /// A type.
    Type(&'static str),
}

/// A key of a map. Equal whole numbers are equal keys, signed or not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MapKey<'a> {
    /// True or false.
    Boolean(bool),
    /// A whole number.
    Number(i128),
    /// Text.
    String(Cow<'a, str>),
}

impl<'a> MapKey<'a> {
    /// The key for a value; none where a value of its type is no key.
    #[must_use]
    pub fn of(value: &FlowValue<'a>) -> Option<Self> {
        match value {
            FlowValue::Boolean(yes) => Some(Self::Boolean(*yes)),
            FlowValue::Integer(number) => Some(Self::Number(i128::from(*number))),
            FlowValue::Unsigned(number) => Some(Self::Number(i128::from(*number))),
            FlowValue::String(text) => Some(Self::String(text.clone())),
            _ => None,
        }
    }

    /// The key that a value finds: a whole double finds the key of the same number, and is none itself.
    pub(crate) fn searched(value: &FlowValue<'a>) -> Option<Self> {
        if let FlowValue::Double(number) = value
            && number.fract() == 0.0
            && number.abs() < 1e19
        {
            return Some(Self::Number(*number as i128));
        }
        Self::of(value)
    }

    /// The key as a value.
    #[must_use]
    pub fn to_value(&self) -> FlowValue<'a> {
        match self {
            Self::Boolean(yes) => FlowValue::Boolean(*yes),
            Self::Number(number) => match i64::try_from(*number) {
                Ok(number) => FlowValue::Integer(number),
                Err(_) => FlowValue::Unsigned(u64::try_from(*number).unwrap_or(u64::MAX)),
            },
            Self::String(text) => FlowValue::String(text.clone()),
        }
    }

    fn into_owned(self) -> MapKey<'static> {
        match self {
            Self::Boolean(yes) => MapKey::Boolean(yes),
            Self::Number(number) => MapKey::Number(number),
            Self::String(text) => MapKey::String(Cow::Owned(text.into_owned())),
        }
    }
}

impl<'a> FlowValue<'a> {
    /// A text that is not copied.
    #[must_use]
    pub fn text(text: &'a str) -> Self {
        Self::String(Cow::Borrowed(text))
    }

    /// A list of these values.
    #[must_use]
    pub fn list(values: Vec<FlowValue<'a>>) -> Self {
        Self::List(Arc::new(values))
    }

    /// A map by these names.
    pub fn map<N: Into<Cow<'a, str>>>(entries: impl IntoIterator<Item = (N, Self)>) -> Self {
        let entries = entries.into_iter();
        Self::Map(Arc::new(
            entries
                .map(|(n, v)| (MapKey::String(n.into()), v))
                .collect(),
        ))
    }

    /// The type of the value.
    #[must_use]
    pub fn kind(&self) -> FlowType {
        match self {
            Self::Null => FlowType::Null,
            Self::Boolean(_) => FlowType::Boolean,
            Self::Integer(_) => FlowType::Integer,
            Self::Unsigned(_) => FlowType::Unsigned,
            Self::Double(_) => FlowType::Double,
            Self::Decimal(_) => FlowType::Decimal,
            Self::String(_) => FlowType::String,
            Self::Bytes(_) => FlowType::Bytes,
            Self::Timestamp(_) => FlowType::Timestamp,
            Self::Duration(_) => FlowType::Duration,
            Self::List(_) => FlowType::list(FlowType::Dynamic),
            Self::Map(_) => FlowType::map(FlowType::Dynamic),
            Self::Type(_) => FlowType::Type,
        }
    }

    /// The same value, with texts of its own.
    #[must_use]
    pub fn into_owned(self) -> FlowValue<'static> {
        match self {
            Self::Null => FlowValue::Null,
            Self::Boolean(yes) => FlowValue::Boolean(yes),
            Self::Integer(number) => FlowValue::Integer(number),
            Self::Unsigned(number) => FlowValue::Unsigned(number),
            Self::Double(number) => FlowValue::Double(number),
            Self::Decimal(number) => FlowValue::Decimal(number),
            Self::String(text) => FlowValue::String(Cow::Owned(text.into_owned())),
            Self::Bytes(bytes) => FlowValue::Bytes(Cow::Owned(bytes.into_owned())),
            Self::Timestamp(time) => FlowValue::Timestamp(time),
            Self::Duration(length) => FlowValue::Duration(length),
            Self::List(values) => {
                let values = Arc::unwrap_or_clone(values).into_iter();
                FlowValue::list(values.map(FlowValue::into_owned).collect())
            }
            Self::Map(entries) => {
                let entries = Arc::unwrap_or_clone(entries).into_iter();
                let owned = entries.map(|(key, value)| (key.into_owned(), value.into_owned()));
                FlowValue::Map(Arc::new(owned.collect()))
            }
            Self::Type(name) => FlowValue::Type(name),
        }
    }

    /// Whether two values are equal; numbers are compared by their value, whatever their types.
    ///
    /// `spend` is told about every pair of elements that is looked at, and may end the comparison.
    pub(crate) fn equals<E: From<ValueError>>(
        &self,
        other: &FlowValue<'_>,
        spend: &mut dyn FnMut(usize) -> Result<(), E>,
    ) -> Result<bool, E> {
        Ok(match (self, other) {
            (FlowValue::Null, FlowValue::Null) => true,
            (FlowValue::Boolean(a), FlowValue::Boolean(b)) => a == b,
            (FlowValue::String(a), FlowValue::String(b)) => a == b,
            (FlowValue::Bytes(a), FlowValue::Bytes(b)) => a == b,
            (FlowValue::Timestamp(a), FlowValue::Timestamp(b)) => a == b,
            (FlowValue::Duration(a), FlowValue::Duration(b)) => a == b,
            (FlowValue::Type(a), FlowValue::Type(b)) => a == b,
            (FlowValue::List(a), FlowValue::List(b)) => {
                let mut are_equal = a.len() == b.len();
                spend(if are_equal { a.len() } else { 0 })?;
                for (a, b) in a.iter().zip(b.iter()) {
                    are_equal = are_equal && a.equals(b, spend)?;
                }
                are_equal
            }
            (FlowValue::Map(a), FlowValue::Map(b)) => {
                let mut are_equal = a.len() == b.len();
                spend(if are_equal { a.len() } else { 0 })?;
                for (key, a) in a.iter() {
                    let b = b.get(key).filter(|_| are_equal);
                    are_equal = b.map_or(Ok(false), |b| a.equals(b, spend))?;
                }
                are_equal
            }
            (a, b) if a.kind().is_number() && b.kind().is_number() => {
                compare_numbers(a, b)? == Some(Ordering::Equal)
            }
            _ => false,
        })
    }

    /// How two values are ordered; none where a number is not a number.
    ///
    /// # Errors
    /// Values of these types have no order.
    pub fn order(&self, other: &FlowValue<'_>) -> Result<Option<Ordering>, ValueError> {
        Ok(Some(match (self, other) {
            (FlowValue::Boolean(a), FlowValue::Boolean(b)) => a.cmp(b),
            (FlowValue::String(a), FlowValue::String(b)) => a.as_bytes().cmp(b.as_bytes()),
            (FlowValue::Bytes(a), FlowValue::Bytes(b)) => a.cmp(b),
            (FlowValue::Timestamp(a), FlowValue::Timestamp(b)) => a.cmp(b),
            (FlowValue::Duration(a), FlowValue::Duration(b)) => a.cmp(b),
            (a, b) => return compare_numbers(a, b),
        }))
    }
}

impl PartialEq<FlowValue<'_>> for FlowValue<'_> {
    fn eq(&self, other: &FlowValue<'_>) -> bool {
        self.equals::<ValueError>(other, &mut |_| Ok(()))
            .unwrap_or(false)
    }
}
