//! A checked expression: names are slots, types are known where they can be.

use std::sync::Arc;

use regex::Regex;

use super::functions::FunctionRow;
use super::parser::BinaryOperator;
use super::scope::MetadataName;
use crate::value::{FieldPosition, FlowType, FlowValue, ObjectType};

#[derive(Debug, Clone)]
pub(super) enum ExpressionNode {
    Constant(FlowValue<'static>),
    Field(Box<FieldPath>),
    Record(Arc<ObjectType>),
    Metadata(MetadataName),
    State(String),
    /// The variable of a macro.
    Local(usize),
    /// A field of a value, and whether it is declared: then it is null where it is absent.
    Select(Box<ExpressionNode>, String, bool),
    /// Whether a field is there.
    Has(Box<ExpressionNode>, String),
    Index(Box<(ExpressionNode, ExpressionNode)>),
    Not(Box<ExpressionNode>),
    Negate(Box<ExpressionNode>),
    And(Vec<ExpressionNode>),
    Or(Vec<ExpressionNode>),
    Conditional(Box<[ExpressionNode; 3]>),
    Binary(BinaryOperator, Box<(ExpressionNode, ExpressionNode)>),
    Call(&'static FunctionRow, Vec<ExpressionNode>),
    /// `matches` with a pattern that was compiled when the expression was checked.
    Matches(Box<ExpressionNode>, Regex),
    Registered(String, Vec<ExpressionNode>),
    List(Vec<ExpressionNode>),
    Map(Vec<(ExpressionNode, ExpressionNode)>),
    Loop(Box<Loop>),
}

/// A field of the record, or a field in it.
#[derive(Debug, Clone)]
pub(super) struct FieldPath {
    pub(super) name: String,
    /// Where the field stood in the last record: those of one producer have one order.
    pub(super) position: FieldPosition,
    /// A declared field that is absent is null; another one that is absent is a failure.
    pub(super) is_declared: bool,
    /// The names below it, each with whether it is declared.
    pub(super) below: Vec<(String, bool)>,
    pub(super) kind: FlowType,
}

/// A macro over the elements of a list or the keys of a map.
#[derive(Debug, Clone)]
pub(super) struct Loop {
    pub(super) kind: LoopKind,
    pub(super) range: ExpressionNode,
    pub(super) filter: Option<ExpressionNode>,
    pub(super) body: ExpressionNode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoopKind {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
}
