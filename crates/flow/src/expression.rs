//! Expressions: the Common Expression Language over records, with exact decimals.
//!
//! A text is parsed into a tree, checked against the types of the record, and then evaluated as often as records
//! come. Names become slots when the expression is checked; text is borrowed from the record. Every evaluation has a
//! budget of steps, so that no expression takes for ever.
//!
//! Nothing here reads a clock or a random number: `now()` is a part of the bindings, so a replay computes the same.

mod arithmetic;
mod check;
mod evaluate;
mod functions;
mod lexer;
mod library;
mod node;
mod parser;
mod scope;

use tidegate_core::{Code, Failure, FailureClass};

pub use arithmetic::{add, average};
pub use check::{CheckedExpression, check};
pub(crate) use lexer::{unescaped, unknown_escape};
pub use library::MAX_PATTERN_BYTES;
pub(crate) use library::pattern;
pub use scope::{
    ExpressionBindings, ExpressionHost, ExpressionScope, FunctionSignature, NoHost, RecordMetadata,
};

use crate::value::ValueError;
use crate::{Diagnostic, Span};

/// Bytes that an expression may have.
pub const MAX_EXPRESSION_BYTES: usize = 16 * 1024;
/// Steps that one evaluation may take.
pub const EXPRESSION_STEPS: u32 = 100_000;

/// A parsed expression.
///
/// ```
/// use tidegate_flow::Span;
/// use tidegate_flow::expression::{
///     ExpressionBindings, ExpressionScope, NoHost, RecordMetadata, StepBudget, check, parse,
/// };
/// use tidegate_flow::value::{FlowValue, JsonRecord};
///
/// let text = "amount * 2 > 20 && country in ['DE', 'FR']";
/// let expression = parse(text, Span::new(0, 0, 43)).expect("is CEL");
/// let checked = check(&expression, &ExpressionScope::dynamic()).expect("has types");
/// let record = JsonRecord::parse(br#"{"amount": 12, "country": "FR"}"#)?;
/// let metadata = RecordMetadata::default();
/// let bindings = ExpressionBindings::new(&record, &metadata, &NoHost);
/// assert_eq!(checked.evaluate(&bindings, &mut StepBudget::default())?, FlowValue::Boolean(true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Expression {
    span: Span,
    tree: parser::Syntax,
}

/// Parses a text, which stands at `span`.
///
/// # Errors
/// The text is not an expression; the finding has the place of the mistake.
pub fn parse(text: &str, span: Span) -> Result<Expression, Vec<Diagnostic>> {
    if text.len() > MAX_EXPRESSION_BYTES {
        let message = format!("the expression has more than {MAX_EXPRESSION_BYTES} bytes");
        return Err(vec![Diagnostic::new("TG0012", span, message)]);
    }
    match parser::tree(text) {
        Ok(tree) => Ok(Expression { span, tree }),
        Err(error) => {
            // At the end of the text, the caret stands on its last character.
            let (mut start, mut end) = (error.start, error.end.max(error.start));
            if start >= text.len() {
                let last = text.trim_end().char_indices().next_back();
                (start, end) = last.map_or((0, 0), |(at, last)| (at, at + last.len_utf8()));
            }
            let mut found = Diagnostic::new(error.code, span.part(start, end), error.message);
            found.help = error.help;
            Err(vec![found])
        }
    }
}

/// The steps that an evaluation may still take.
///
/// ```
/// use tidegate_flow::expression::StepBudget;
/// let mut budget = StepBudget::of(2);
/// assert!(budget.spend(2).is_ok());
/// assert_eq!(budget.spend(1).unwrap_err().code.as_str(), "expr.budget");
/// ```
#[derive(Debug, Clone)]
pub struct StepBudget {
    left: u32,
    of: u32,
    is_exhausted: bool,
}

impl Default for StepBudget {
    fn default() -> Self {
        Self::of(EXPRESSION_STEPS)
    }
}

impl StepBudget {
    /// A budget of so many steps.
    #[must_use]
    pub const fn of(steps: u32) -> Self {
        Self {
            left: steps,
            of: steps,
            is_exhausted: false,
        }
    }

    /// Takes steps.
    ///
    /// # Errors
    /// Not so many are left: `expr.budget`.
    #[inline]
    pub fn spend(&mut self, steps: usize) -> Result<(), Box<EvaluationFailure>> {
        match (self.left as usize).checked_sub(steps) {
            Some(left) => {
                // It was a number of this size before.
                self.left = u32::try_from(left).unwrap_or(0);
                Ok(())
            }
            None => Err(self.exhausted()),
        }
    }

    #[cold]
    fn exhausted(&mut self) -> Box<EvaluationFailure> {
        self.is_exhausted = true;
        let message = format!("the expression takes more than {} steps", self.of);
        EvaluationFailure::new("expr.budget", message)
    }
}

/// An expression that has no value for a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct EvaluationFailure {
    /// Permanent, unless a registered function says otherwise.
    pub class: FailureClass,
    /// Its code, for instance `expr.overflow`.
    pub code: Code,
    /// The failure in words.
    pub message: String,
}

impl EvaluationFailure {
    /// A permanent failure. It is boxed, because it is rare and values are small.
    #[must_use]
    pub fn new(code: &'static str, message: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            class: FailureClass::Permanent,
            code: Code::from_static(code),
            message: message.into(),
        })
    }

    pub(crate) fn kind(message: impl Into<String>) -> Box<Self> {
        Self::new("expr.type", message)
    }
}

impl From<ValueError> for Box<EvaluationFailure> {
    fn from(error: ValueError) -> Self {
        EvaluationFailure::kind(error.0)
    }
}

impl From<EvaluationFailure> for Failure {
    fn from(failure: EvaluationFailure) -> Self {
        Self::new(failure.class, failure.code, failure.message)
    }
}
