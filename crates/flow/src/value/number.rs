//! Comparison and exact arithmetic of numbers.

use std::cmp::Ordering;

use rust_decimal::Decimal;

use super::{FlowValue, ValueError};

/// How two numbers are ordered; none where one is not a number.
///
/// # Errors
/// One of them is no number at all, or a decimal meets a double.
pub(crate) fn compare_numbers(
    a: &FlowValue<'_>,
    b: &FlowValue<'_>,
) -> Result<Option<Ordering>, ValueError> {
    use FlowValue::{Decimal as Exact, Double, Integer, Unsigned};
    Ok(match (a, b) {
        (Integer(a), Integer(b)) => Some(a.cmp(b)),
        (Unsigned(a), Unsigned(b)) => Some(a.cmp(b)),
        (Double(a), Double(b)) => a.partial_cmp(b),
        (Exact(a), Exact(b)) => Some(a.cmp(b)),
        (Integer(a), Unsigned(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Unsigned(a), Integer(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Integer(a), Double(b)) => whole_against_double(i128::from(*a), *b),
        (Unsigned(a), Double(b)) => whole_against_double(i128::from(*a), *b),
        (Double(a), Integer(b)) => whole_against_double(i128::from(*b), *a).map(Ordering::reverse),
        (Double(a), Unsigned(b)) => whole_against_double(i128::from(*b), *a).map(Ordering::reverse),
        (Exact(a), Integer(b)) => Some(a.cmp(&Decimal::from(*b))),
        (Exact(a), Unsigned(b)) => Some(a.cmp(&Decimal::from(*b))),
        (Integer(a), Exact(b)) => Some(Decimal::from(*a).cmp(b)),
        (Unsigned(a), Exact(b)) => Some(Decimal::from(*a).cmp(b)),
        (a, b) => {
            return Err(ValueError(format!(
                "{} and {} cannot be compared",
                a.kind(),
                b.kind()
            )));
        }
    })
}

/// Exact: the double is never rounded to the whole number or the other way around.
fn whole_against_double(whole: i128, double: f64) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    // Beyond this, a double is larger than every number of 64 bits.
    const BEYOND: f64 = 1e20;
    if double >= BEYOND {
        return Some(Ordering::Less);
    }
    if double <= -BEYOND {
        return Some(Ordering::Greater);
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the fraction is looked at below"
    )]
    let floor = double.floor() as i128;
    let has_fraction = double.fract() != 0.0;
    let at_floor = whole == floor && has_fraction;
    Some(if at_floor {
        Ordering::Less
    } else {
        whole.cmp(&floor)
    })
}

/// An operation on two decimals; none where its exact result has more than 28 digits.
pub(crate) fn exact(
    a: Decimal,
    b: Decimal,
    scale_of: fn(Decimal, Decimal) -> u32,
    operate: fn(Decimal, Decimal) -> Option<Decimal>,
) -> Option<Decimal> {
    let result = operate(a, b)?;
    if result.scale() >= scale_of(a, b) {
        return Some(result);
    }
    // Digits were dropped. Zeros at the end of the operands may be the only ones.
    let (a, b) = (a.normalize(), b.normalize());
    let result_of_short = operate(a, b)?;
    (result_of_short.scale() >= scale_of(a, b)).then_some(result)
}
