//! `+ - * / %`: whole numbers fail when they overflow, decimals when they would lose a digit.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a value of any other type is refused, also of one that is added later"
)]

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use rust_decimal::Decimal;

use super::EvaluationFailure;
use super::evaluate::{Evaluated, EvaluationResult, Evaluator};
use super::parser::BinaryOperator;
use crate::value::{FlowValue, exact, in_range};

use BinaryOperator as Op;
use FlowValue as V;

fn overflow(operator: Op) -> Box<EvaluationFailure> {
    let message = format!("the result of `{}` is too large", operator.symbol());
    EvaluationFailure::new("expr.overflow", message)
}

fn division_by_zero() -> Box<EvaluationFailure> {
    EvaluationFailure::new("expr.division-by-zero", "a number is divided by zero")
}

pub(super) fn arithmetic<'a>(
    evaluator: &mut Evaluator<'_, '_>,
    operator: Op,
    a: FlowValue<'a>,
    b: FlowValue<'a>,
) -> Evaluated<'a> {
    if let Some(result) = numbers(operator, &a, &b) {
        return result;
    }
    match (a, b) {
        (V::String(a), V::String(b)) if operator == Op::Add => {
            evaluator.pay(a.len() + b.len())?;
            let mut text = a.into_owned();
            text.push_str(&b);
            Ok(V::String(Cow::Owned(text)))
        }
        (V::Bytes(a), V::Bytes(b)) if operator == Op::Add => {
            evaluator.pay(a.len() + b.len())?;
            let mut bytes = a.into_owned();
            bytes.extend_from_slice(&b);
            Ok(V::Bytes(Cow::Owned(bytes)))
        }
        (V::List(a), V::List(b)) if operator == Op::Add => {
            evaluator.pay((a.len() + b.len()) * 4)?;
            let mut values = Arc::unwrap_or_clone(a);
            values.extend(b.iter().cloned());
            Ok(V::list(values))
        }
        (a, b) => times(operator, &a, &b).unwrap_or_else(|| {
            let (a, b) = (a.kind(), b.kind());
            let message = format!("`{}` does not take {a} and {b}", operator.symbol());
            Err(EvaluationFailure::kind(message))
        }),
    }
}

/// Operations on numbers; none where one of them is none.
fn numbers<'a>(operator: Op, a: &FlowValue<'_>, b: &FlowValue<'_>) -> Option<Evaluated<'a>> {
    Some(match (a, b) {
        (V::Integer(a), V::Integer(b)) => integers(operator, *a, *b).map(V::Integer),
        (V::Unsigned(a), V::Unsigned(b)) => unsigned(operator, *a, *b).map(V::Unsigned),
        (V::Double(a), V::Double(b)) => doubles(operator, *a, *b),
        // Static types are never mixed; without a schema, `10` and `12.5` are numbers of one field.
        #[expect(
            clippy::cast_precision_loss,
            reason = "the other one is a double already"
        )]
        (V::Integer(a), V::Double(b)) => doubles(operator, *a as f64, *b),
        #[expect(
            clippy::cast_precision_loss,
            reason = "the other one is a double already"
        )]
        (V::Double(a), V::Integer(b)) => doubles(operator, *a, *b as f64),
        (V::Decimal(a), V::Decimal(b)) => decimals(operator, *a, *b),
        (V::Decimal(a), V::Integer(b)) => decimals(operator, *a, Decimal::from(*b)),
        (V::Integer(a), V::Decimal(b)) => decimals(operator, Decimal::from(*a), *b),
        (V::Decimal(a), V::Unsigned(b)) => decimals(operator, *a, Decimal::from(*b)),
        (V::Unsigned(a), V::Decimal(b)) => decimals(operator, Decimal::from(*a), *b),
        _ => return None,
    })
}

/// The sum of two numbers, for aggregates.
///
/// # Errors
/// They have no sum, or it is too large.
pub fn add(a: &FlowValue<'_>, b: &FlowValue<'_>) -> Evaluated<'static> {
    let refuse = || EvaluationFailure::kind(format!("{} and {} have no sum", a.kind(), b.kind()));
    numbers(Op::Add, a, b).unwrap_or_else(|| Err(refuse()))
}

/// A sum divided by a count; whole numbers have an average with a fraction.
///
/// # Errors
/// The sum is no number.
pub fn average(sum: &FlowValue<'_>, count: usize) -> Evaluated<'static> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let is_exact = matches!(sum, V::Decimal(_));
    #[expect(clippy::cast_precision_loss, reason = "an average of doubles is one")]
    let count = if is_exact {
        V::Integer(count)
    } else {
        V::Double(count as f64)
    };
    let sum = match sum {
        #[expect(
            clippy::cast_precision_loss,
            reason = "no count of records is that large"
        )]
        V::Unsigned(sum) => V::Double(*sum as f64),
        other => other.clone().into_owned(),
    };
    let refuse = || EvaluationFailure::kind(format!("{} has no average", sum.kind()));
    numbers(Op::Divide, &sum, &count).unwrap_or_else(|| Err(refuse()))
}

/// The operations of a type of whole numbers, each of which fails where its result does not fit.
macro_rules! whole_numbers {
    ($name:ident, $number:ty) => {
        fn $name(operator: Op, a: $number, b: $number) -> EvaluationResult<$number> {
            let result = match operator {
                Op::Add => a.checked_add(b),
                Op::Subtract => a.checked_sub(b),
                Op::Multiply => a.checked_mul(b),
                Op::Divide | Op::Remainder if b == 0 => return Err(division_by_zero()),
                Op::Divide => a.checked_div(b),
                // The checker refused every other operator.
                _ => a.checked_rem(b),
            };
            result.ok_or_else(|| overflow(operator))
        }
    };
}

whole_numbers!(integers, i64);
whole_numbers!(unsigned, u64);

fn doubles<'a>(operator: Op, a: f64, b: f64) -> Evaluated<'a> {
    Ok(V::Double(match operator {
        Op::Add => a + b,
        Op::Subtract => a - b,
        Op::Multiply => a * b,
        Op::Divide => a / b,
        _ => {
            let message = format!("`{}` does not take doubles", operator.symbol());
            return Err(EvaluationFailure::kind(message));
        }
    }))
}

fn decimals<'a>(operator: Op, a: Decimal, b: Decimal) -> Evaluated<'a> {
    let longer = |a: Decimal, b: Decimal| a.scale().max(b.scale());
    let result = match operator {
        Op::Add => exact(a, b, longer, Decimal::checked_add),
        Op::Subtract => exact(a, b, longer, Decimal::checked_sub),
        Op::Multiply => exact(a, b, |a, b| a.scale() + b.scale(), Decimal::checked_mul),
        Op::Divide | Op::Remainder if b.is_zero() => return Err(division_by_zero()),
        Op::Divide => a.checked_div(b),
        _ => a.checked_rem(b),
    };
    result.map(V::Decimal).ok_or_else(|| overflow(operator))
}

/// Operations on times; none where there is none for these values.
fn times<'a>(operator: Op, a: &FlowValue<'_>, b: &FlowValue<'_>) -> Option<Evaluated<'a>> {
    let moved = |time: Result<Timestamp, jiff::Error>| time.ok().and_then(in_range);
    let result = match (operator, a, b) {
        (Op::Add, V::Timestamp(time), V::Duration(length))
        | (Op::Add, V::Duration(length), V::Timestamp(time)) => {
            moved(time.checked_add(*length)).map(V::Timestamp)
        }
        (Op::Subtract, V::Timestamp(time), V::Duration(length)) => {
            moved(time.checked_sub(*length)).map(V::Timestamp)
        }
        (Op::Subtract, V::Timestamp(a), V::Timestamp(b)) => Some(V::Duration(a.duration_since(*b))),
        (Op::Add, V::Duration(a), V::Duration(b)) => a.checked_add(*b).map(V::Duration),
        (Op::Subtract, V::Duration(a), V::Duration(b)) => a.checked_sub(*b).map(V::Duration),
        _ => return None,
    };
    Some(result.ok_or_else(|| overflow(operator)))
}
