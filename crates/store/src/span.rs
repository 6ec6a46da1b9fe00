//! Spans of time as the databases take them.

use std::time::Duration;

/// The longest span there is for a database: a hundred years. "For ever" is written as any number, and
/// what is added to the time of day must stay a date that both databases have.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Milliseconds of a span, a hundred years at most.
#[must_use]
pub fn span_ms(span: Duration) -> i64 {
    // A hundred years are far below the largest number.
    i64::try_from(span.min(LONGEST).as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_without_end_is_a_hundred_years() {
        assert_eq!(span_ms(Duration::from_millis(1_500)), 1_500);
        assert_eq!(span_ms(Duration::ZERO), 0);
        assert_eq!(span_ms(Duration::MAX), 3_153_600_000_000);
    }
}
