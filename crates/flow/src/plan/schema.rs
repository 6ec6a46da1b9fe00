//! Schemas and lookups of a plan.

use std::sync::{Arc, OnceLock};

use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::expression::pattern;
use crate::value::{FlowType, ObjectType};

/// A literal as it is written: numbers keep their digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LiteralPlan {
    /// A text without its quotes.
    Text(String),
    /// The digits of a number.
    Number(String),
    /// True or false.
    Boolean(bool),
}

impl LiteralPlan {
    /// The literal as JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        match self {
            Self::Text(text) => serde_json::Value::from(text.as_str()).to_string(),
            Self::Number(digits) => digits.clone(),
            Self::Boolean(is_true) => is_true.to_string(),
        }
    }
}

/// The type of a field as it is declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FieldType {
    /// Text.
    String,
    /// A whole number.
    Integer,
    /// A floating-point number.
    Double,
    /// True or false.
    Boolean,
    /// A day, as text.
    Date,
    /// A point in time.
    Timestamp,
    /// A UUID, as text.
    Uuid,
    /// Bytes, as base64.
    Bytes,
    /// Anything.
    Json,
    /// An exact number; with its digits in all and behind the point.
    Decimal(Option<(u32, u32)>),
    /// Values of one type.
    List(Box<Self>),
    /// Values of one type by name.
    Map(Box<Self>),
    /// Fields of their own.
    Object(Vec<FieldPlan>),
}

impl FieldType {
    /// The type that expressions see.
    #[must_use]
    pub fn to_flow_type(&self) -> FlowType {
        match self {
            Self::String | Self::Date | Self::Uuid => FlowType::String,
            Self::Integer => FlowType::Integer,
            Self::Double => FlowType::Double,
            Self::Boolean => FlowType::Boolean,
            Self::Timestamp => FlowType::Timestamp,
            Self::Bytes => FlowType::Bytes,
            Self::Json => FlowType::Dynamic,
            Self::Decimal(_) => FlowType::Decimal,
            Self::List(of) => FlowType::list(of.to_flow_type()),
            Self::Map(of) => FlowType::map(of.to_flow_type()),
            Self::Object(fields) => FlowType::Object(Arc::new(object_type(fields))),
        }
    }

    /// Bytes that a value is likely to take, for an estimate of state.
    pub(crate) fn likely_bytes(&self) -> u64 {
        match self {
            Self::Boolean => 1,
            Self::Integer | Self::Double | Self::Timestamp | Self::Date => 8,
            Self::Decimal(_) | Self::Uuid => 16,
            Self::String => 24,
            Self::Bytes | Self::Json => 128,
            Self::List(of) | Self::Map(of) => of.likely_bytes().saturating_mul(8),
            Self::Object(fields) => {
                let each = fields.iter().map(|field| field.kind.likely_bytes());
                each.fold(0, u64::saturating_add)
            }
        }
    }
}

/// The types of fields that expressions see; no other field may be read.
#[must_use]
pub(crate) fn object_type(fields: &[FieldPlan]) -> ObjectType {
    ObjectType::closed(
        fields
            .iter()
            .map(|field| (field.name.clone(), field.kind.to_flow_type())),
    )
}

/// A rule that a value must hold beside its type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConstraintPlan {
    /// A number between two others, both included.
    Range(String, String),
    /// A text of so many characters, both ends included.
    Length(u64, u64),
    /// A text that the whole pattern matches.
    Pattern(PatternPlan),
    /// One of these.
    Values(Vec<LiteralPlan>),
}

/// A pattern that a whole text must match. It is compiled once, and its compiled form has a limit.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PatternPlan {
    /// The pattern as it is written.
    pub text: String,
    #[serde(skip)]
    compiled: OnceLock<Option<Regex>>,
}

impl PatternPlan {
    /// The pattern of a text.
    ///
    /// # Errors
    /// It is no regular expression, or its compiled form is too large.
    pub(crate) fn new(text: String) -> Result<Self, regex::Error> {
        // By itself first, so that a bracket that closes too early does not close ours.
        pattern(&text)?;
        let compiled = OnceLock::from(Some(pattern(&whole(&text))?));
        Ok(Self { text, compiled })
    }

    /// Whether all of a text matches.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let compiled = self
            .compiled
            .get_or_init(|| pattern(&whole(&self.text)).ok());
        compiled.as_ref().is_some_and(|regex| regex.is_match(text))
    }
}

/// Two patterns of one text are equal.
impl PartialEq for PatternPlan {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for PatternPlan {}

fn whole(pattern: &str) -> String {
    format!("^(?:{pattern})$")
}

/// A field of a schema, lookup or object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FieldPlan {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: FieldType,
    /// Whether it may be absent; then it is null.
    pub optional: bool,
    /// Its value where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<LiteralPlan>,
    /// The rules that its value must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<ConstraintPlan>,
}

impl FieldPlan {
    /// Whether a record without it breaks the schema.
    #[must_use]
    pub const fn is_required(&self) -> bool {
        !self.optional && self.default.is_none()
    }
}

/// A schema.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SchemaPlan {
    /// The version, if one is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The fields of the key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<String>,
    /// The field of the event time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// The fields in their order.
    pub fields: Vec<FieldPlan>,
}

impl SchemaPlan {
    /// The record that expressions see.
    pub(crate) fn record(&self) -> ObjectType {
        object_type(&self.fields)
    }
}

/// The shape of the answers of a lookup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LookupPlan {
    /// The fields that it is asked by.
    pub key: Vec<String>,
    /// The fields of an answer.
    pub fields: Vec<FieldPlan>,
}
