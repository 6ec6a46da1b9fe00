//! The numbers of tests that passed, failed, or were left out.

use std::fmt;
use std::ops::AddAssign;

/// Counts of tests and checks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    pub(crate) const FAILED: Self = Self {
        passed: 0,
        failed: 1,
        skipped: 0,
    };

    /// One check that either holds or does not.
    pub(crate) fn of_check(well: bool) -> Self {
        if well {
            Self {
                passed: 1,
                ..Self::default()
            }
        } else {
            Self::FAILED
        }
    }

    /// Adds up the result lines of one run of a test binary.
    ///
    /// A run that went wrong counts as a failure even if no line says so. It may have been killed, or
    /// may have aborted before it could print one. So does a run that began and has no result,
    /// however it ended: a test that exits takes all others with it. A run that went well and never
    /// began is a test with a `main` of its own.
    ///
    /// An entry of the harness that is no test does not count: see [`is_no_test`].
    pub(crate) fn of_run(output: &str, went_well: bool) -> Self {
        let mut total = Self::default();
        let (mut begun, mut results, mut no_tests) = (0_u64, 0_u64, 0_u64);
        for line in output.lines() {
            begun += u64::from(is_beginning(line));
            no_tests += u64::from(is_no_test(line));
            if let Some(tally) = result_line(line) {
                total += tally;
                results += 1;
            }
        }
        total.passed = total.passed.saturating_sub(no_tests);
        total.failed += begun.saturating_sub(results);
        if !went_well && total.failed == 0 {
            total.failed = 1;
        }
        if went_well && begun == 0 && results == 0 {
            total.passed = 1;
        }
        total
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// Whether the line is `running 3 tests`, with which the harness begins.
fn is_beginning(line: &str) -> bool {
    let counted = line.strip_prefix("running ").and_then(|rest| {
        let (count, what) = rest.split_once(' ')?;
        matches!(what, "test" | "tests").then(|| count.parse::<u64>().is_ok())
    });
    counted == Some(true)
}

/// Whether the line is the success of something that tests nothing. That is the entry by which a test
/// starts its own program once more, or a writer of files that are kept. Both do nothing when the gate runs
/// them.
fn is_no_test(line: &str) -> bool {
    let passed = line
        .strip_prefix("test ")
        .and_then(|rest| rest.strip_suffix(" ... ok"));
    passed.is_some_and(|path| {
        path.split("::")
            .any(|part| part == "child_process_entry" || part.starts_with("write_the_fixture"))
    })
}

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; …`.
///
/// A test that was filtered out counts as skipped: the gate filters only what this machine cannot run.
fn result_line(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut tally = Tally::default();
    for part in counts.split(';') {
        let Some((count, what)) = part.trim().split_once(' ') else {
            continue;
        };
        let Ok(count) = count.parse::<u64>() else {
            continue;
        };
        match what {
            "passed" => tally.passed += count,
            "failed" => tally.failed += count,
            "ignored" | "filtered out" => tally.skipped += count,
            _ => {}
        }
    }
    Some(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &str = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s";
    const BAD: &str = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s";

    fn tally(passed: u64, failed: u64, skipped: u64) -> Tally {
        Tally {
            passed,
            failed,
            skipped,
        }
    }

    #[test]
    fn result_lines_add_up() {
        let output = format!("running 6 tests\n{OK}\nrunning 3 tests\n{BAD}\n");
        assert_eq!(Tally::of_run(&output, false), tally(4, 2, 3));
    }

    #[test]
    fn a_killed_run_is_a_failure_without_a_line() {
        assert_eq!(Tally::of_run("running 6 tests\n", false), tally(0, 1, 0));
        assert_eq!(Tally::of_run(OK, false), tally(3, 1, 3));
    }

    #[test]
    fn a_run_that_ends_without_its_result_is_a_failure() {
        assert_eq!(Tally::of_run("running 6 tests\n", true), tally(0, 1, 0));
        assert_eq!(Tally::of_run("running 1 test\n", true), tally(0, 1, 0));
        let second = format!("running 6 tests\n{OK}\nrunning 2 tests\n");
        assert_eq!(Tally::of_run(&second, true), tally(3, 1, 3));
        assert_eq!(
            Tally::of_run(&format!("running 6 tests\n{OK}\n"), true),
            tally(3, 0, 3)
        );
        // Words of a test itself are no beginning.
        assert_eq!(Tally::of_run("running all tests", true), tally(1, 0, 0));
    }

    #[test]
    fn a_test_with_its_own_main_counts_once() {
        assert_eq!(Tally::of_run("all good", true), tally(1, 0, 0));
    }

    #[test]
    fn a_name_that_tests_nothing_does_not_count() {
        let output = format!(
            "running 6 tests\ntest child::child_process_entry ... ok\n\
             test room::child_process_entry::full ... ok\n\
             test child::a_child_is_killed ... ok\n{OK}\n"
        );
        assert_eq!(Tally::of_run(&output, true), tally(1, 0, 3));
    }

    #[test]
    fn the_last_line_has_its_fixed_form() {
        assert_eq!(tally(1, 2, 3).to_string(), "1 passed, 2 failed, 3 skipped");
    }
}
