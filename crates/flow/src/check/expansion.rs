//! How large flows may become when they are expanded.
//!
//! A transform is checked again wherever it is used. The head of a table is checked in each of its rows, and each step
//! looks at the fields of its record. So a short text can be a large plan and long work. Both are paid from one budget: the
//! unit is a tenth of a byte of expression, or half of a look at a field.

use super::FlowChecker;
use crate::Span;
use crate::value::{FlowType, ObjectType};

/// Units that flows may be expanded to, beside those for their text.
pub const MAX_EXPANSION: usize = 16 << 20;
/// Units for each byte of text.
const PER_BYTE: usize = 8;

/// A byte of an expression: its tree is up to a hundred times as large.
pub(super) const EXPRESSION_BYTE: usize = 10;
/// An expression, however short it is.
pub(super) const EXPRESSION: usize = 40;
/// A field that a step looks at.
pub(super) const LOOK: usize = 2;
/// A field that is kept.
pub(super) const KEPT: usize = 16;
/// A pattern: what is compiled of it may have 256 KiB.
pub(super) const PATTERN: usize = 8 << 10;

/// Objects, lists and maps inside each other that a record may have; JSON has the same limit.
const MAX_DEPTH: usize = 128;
/// Parts of the type of one record, those of its objects included.
const MAX_PARTS: usize = 20_000;

/// The rest of the budget.
#[derive(Debug)]
pub(super) struct ExpansionBudget(usize);

impl ExpansionBudget {
    /// The budget of texts that have so many bytes together.
    pub(super) const fn of(bytes: usize) -> Self {
        Self(MAX_EXPANSION.saturating_add(PER_BYTE.saturating_mul(bytes)))
    }
}

impl FlowChecker<'_> {
    /// Whether nothing more can be checked.
    pub(super) const fn is_exhausted(&self) -> bool {
        self.budget.0 == 0
    }

    /// Pays for something at a place. The last unit is told about, once.
    pub(super) fn pay(&mut self, span: Span, units: usize) {
        if self.is_exhausted() {
            return;
        }
        self.budget.0 = self.budget.0.saturating_sub(units);
        if self.is_exhausted() {
            let message = "the flows are too large with all that they use, the limit `expansion`";
            let help = "use transforms and tables at fewer places, or deploy the flows apart";
            self.found("TG0016", span, message).help = Some(help.to_owned());
        }
    }

    /// Pays for the fields of a record; one that is nested too deep becomes any record.
    pub(super) fn admit(&mut self, span: Span, record: &mut ObjectType, units: usize) {
        let mut parts = MAX_PARTS;
        let is_small = are_small(record, MAX_DEPTH, &mut parts);
        self.pay(span, (MAX_PARTS - parts + 1) * units);
        if !is_small {
            self.refuse_type(span, parts);
            *record = ObjectType::open();
        }
    }

    /// The type, if a record may have a field of it.
    pub(super) fn admit_field(&mut self, span: Span, kind: &FlowType) -> FlowType {
        let mut parts = MAX_PARTS;
        let is_small = is_small(kind, MAX_DEPTH - 1, &mut parts);
        self.pay(span, (MAX_PARTS - parts) * LOOK);
        if is_small {
            return kind.clone();
        }
        self.refuse_type(span, parts);
        FlowType::Dynamic
    }

    fn refuse_type(&mut self, span: Span, parts: usize) {
        let message = match parts {
            0 => format!("the record has more than {MAX_PARTS} fields in all, the limit `fields`"),
            _ => format!("the record is nested more than {MAX_DEPTH} deep, the limit `nesting`"),
        };
        self.found("TG0016", span, message);
    }
}

fn are_small(record: &ObjectType, depth: usize, parts: &mut usize) -> bool {
    let mut fields = record.fields.values();
    fields.all(|kind| is_small(kind, depth, parts))
}

/// Counts the parts of a type down, and looks no deeper than it may be.
fn is_small(kind: &FlowType, depth: usize, parts: &mut usize) -> bool {
    if *parts == 0 || depth == 0 {
        return false;
    }
    *parts -= 1;
    match kind {
        FlowType::List(of) | FlowType::Map(of) => is_small(of, depth - 1, parts),
        FlowType::Object(object) => are_small(object, depth - 1, parts),
        FlowType::Dynamic
        | FlowType::Null
        | FlowType::Boolean
        | FlowType::Integer
        | FlowType::Unsigned
        | FlowType::Double
        | FlowType::Decimal
        | FlowType::String
        | FlowType::Bytes
        | FlowType::Timestamp
        | FlowType::Duration
        | FlowType::Type => true,
    }
}
