//! The names that an expression may use, and what they stand for when it is evaluated.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

use super::EvaluationFailure;
use crate::value::{FlowType, FlowValue, JsonRecord, ObjectType};

/// The names that an expression may use, with their types.
///
/// ```
/// use tidegate_flow::expression::ExpressionScope;
/// use tidegate_flow::value::{FlowType, ObjectType};
/// let fields = ObjectType::closed([("amount", FlowType::Decimal)]);
/// let scope = ExpressionScope::of(fields).state("seen", FlowType::Integer);
/// assert!(scope.record.field("amont").is_none());
/// ```
#[derive(Debug, Clone, Default)]
pub struct ExpressionScope {
    /// The fields of the record.
    pub record: ObjectType,
    /// The declared state; none where the process has no state, and `state` is an ordinary field.
    pub state: Option<BTreeMap<String, FlowType>>,
    /// The functions that were registered from Rust.
    pub functions: BTreeMap<String, FunctionSignature>,
    /// Whether `_route` is known, which it is in metrics.
    pub has_route: bool,
}

/// The types of a registered function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionSignature {
    /// The types of its arguments.
    pub parameters: Vec<FlowType>,
    /// The type of its answer.
    pub result: FlowType,
}

impl ExpressionScope {
    /// A record without a schema: every field may be read.
    #[must_use]
    pub fn dynamic() -> Self {
        Self::of(ObjectType::open())
    }

    /// A record with these fields.
    #[must_use]
    pub fn of(record: ObjectType) -> Self {
        Self {
            record,
            ..Self::default()
        }
    }

    /// The same scope with one more state.
    #[must_use]
    pub fn state(mut self, name: impl Into<String>, kind: FlowType) -> Self {
        let states = self.state.get_or_insert_default();
        states.insert(name.into(), kind);
        self
    }

    /// The same scope with one more function.
    #[must_use]
    pub fn function(mut self, name: impl Into<String>, signature: FunctionSignature) -> Self {
        self.functions.insert(name.into(), signature);
        self
    }
}

/// A name about the record that is not a field of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetadataName {
    Key,
    Id,
    Topic,
    Partition,
    Offset,
    Timestamp,
    Headers,
    Route,
}

pub(crate) const METADATA: [(&str, MetadataName); 8] = [
    ("_key", MetadataName::Key),
    ("_id", MetadataName::Id),
    ("_topic", MetadataName::Topic),
    ("_partition", MetadataName::Partition),
    ("_offset", MetadataName::Offset),
    ("_timestamp", MetadataName::Timestamp),
    ("_headers", MetadataName::Headers),
    ("_route", MetadataName::Route),
];

impl MetadataName {
    pub(crate) fn kind(self) -> FlowType {
        match self {
            Self::Key | Self::Id | Self::Topic | Self::Route => FlowType::String,
            Self::Partition | Self::Offset => FlowType::Integer,
            Self::Timestamp => FlowType::Timestamp,
            Self::Headers => FlowType::map(FlowType::String),
        }
    }
}

/// Where a record came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordMetadata {
    /// The key as text; none where the record has none.
    pub key: Option<String>,
    /// The event id.
    pub id: String,
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i64,
    /// The offset.
    pub offset: i64,
    /// The time of the record.
    pub timestamp: Timestamp,
    /// The headers whose values are text.
    pub headers: BTreeMap<String, String>,
}

/// State and registered functions, which live outside of expressions.
pub trait ExpressionHost: fmt::Debug {
    /// The value of a declared state for the current record.
    ///
    /// # Errors
    /// The state cannot be read.
    fn state(&self, name: &str) -> Result<FlowValue<'static>, Box<EvaluationFailure>>;

    /// The answer of a registered function.
    ///
    /// # Errors
    /// The function failed.
    fn call(
        &self,
        name: &str,
        arguments: &[FlowValue<'_>],
    ) -> Result<FlowValue<'static>, Box<EvaluationFailure>>;
}

/// No state and no functions.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHost;

impl ExpressionHost for NoHost {
    fn state(&self, name: &str) -> Result<FlowValue<'static>, Box<EvaluationFailure>> {
        let message = format!("there is no state `{name}`");
        Err(EvaluationFailure::new("expr.missing", message))
    }

    fn call(
        &self,
        name: &str,
        _arguments: &[FlowValue<'_>],
    ) -> Result<FlowValue<'static>, Box<EvaluationFailure>> {
        let message = format!("there is no function `{name}`");
        Err(EvaluationFailure::new("expr.missing", message))
    }
}

/// The values of the names, for one record.
#[derive(Debug, Clone, Copy)]
pub struct ExpressionBindings<'a> {
    /// The record.
    pub record: &'a JsonRecord,
    /// Where it came from.
    pub metadata: &'a RecordMetadata,
    /// The answer of `now()`: the start of the epoch.
    pub now: Timestamp,
    /// The stream that the record leaves by, in metrics.
    pub route: Option<&'a str>,
    /// State and functions.
    pub host: &'a dyn ExpressionHost,
}

impl<'a> ExpressionBindings<'a> {
    /// Bindings at the start of 1970, without a route.
    #[must_use]
    pub fn new(
        record: &'a JsonRecord,
        metadata: &'a RecordMetadata,
        host: &'a dyn ExpressionHost,
    ) -> Self {
        Self {
            record,
            metadata,
            now: Timestamp::UNIX_EPOCH,
            route: None,
            host,
        }
    }
}
