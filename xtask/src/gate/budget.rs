//! How long the tests of each part may take.
//!
//! Everybody waits for all of them, so a part that grows takes the time from the others. Over budget
//! is a warning and no failure: a busy machine is not a defect.

use std::time::Duration;

/// Seconds for all tests together, on two cores and without the build.
const ALL: u64 = 10 * 60;
/// Seconds of a part that is not in the table.
const NEW: u64 = 60;
/// Seconds by part. Tests beyond them belong behind `--long`.
const PARTS: &[(&str, u64)] = &[
    ("tidegate-core", 5),
    ("tidegate-config", 10),
    ("tidegate-sim", 5),
    ("tidegate-log", 110),
    ("tidegate-store", 15),
    ("tidegate-logger", 40),
    ("tidegate-eventlog", 12),
    ("tidegate-queue", 60),
    ("tidegate-outbox", 60),
    ("tidegate-connector", 60),
    ("tidegate-flow", 20),
    ("tidegate-stage", 40),
    ("tidegate-testkit", 5),
    ("tidegate-client", 3),
    ("tidegate-server", 5),
    ("tidegate", 50),
    ("order-groups", 3),
    ("orders", 3),
    ("pet-resort", 3),
    ("loans", 5),
    ("shipping", 3),
    ("tidegate-bench", 1),
    ("xtask", 10),
    ("doctests", 20),
];

/// The name of all tests, where that of a part is asked for.
pub(crate) const TOGETHER: &str = "all tests";

/// The time that the tests of `part` may take.
pub(crate) fn of(part: &str) -> Duration {
    let listed = PARTS.iter().find(|(name, _)| *name == part);
    let seconds = match listed {
        Some((_, seconds)) => *seconds,
        None if part == TOGETHER => ALL,
        None => NEW,
    };
    Duration::from_secs(seconds)
}

/// The warning about `name` when it took longer than it may.
pub(crate) fn warning(name: &str, took: Duration, budget: Duration) -> Option<String> {
    (took > budget).then(|| {
        format!(
            "warning: {name} took {:.1} s more than its {} s",
            (took - budget).as_secs_f64(),
            budget.as_secs()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fit_into_the_whole() {
        let sum: u64 = PARTS.iter().map(|(_, seconds)| seconds).sum();
        assert!(sum <= ALL, "{sum} s of {ALL}");
    }

    #[test]
    fn a_part_over_its_budget_is_named() {
        let (less, more) = (Duration::from_secs(59), Duration::from_millis(61_500));
        assert_eq!(warning("a", less, of("unlisted")), None);
        assert_eq!(
            warning("a", more, of("unlisted")).unwrap(),
            "warning: a took 1.5 s more than its 60 s"
        );
    }
}
