//! Rules of [`Clock`].

use std::time::{Duration, UNIX_EPOCH};

use crate::env::Clock;

/// Elapsed time never goes back.
pub async fn elapsed_never_goes_back(clock: &dyn Clock) {
    let mut before = clock.elapsed();
    for _ in 0..1_000 {
        let now = clock.elapsed();
        assert!(now >= before, "{now:?} came after {before:?}");
        before = now;
    }
}

/// A sleep ends no earlier than asked.
pub async fn a_sleep_ends_no_earlier_than_asked(clock: &dyn Clock) {
    for ms in [0, 1, 7, 20] {
        let asked = Duration::from_millis(ms);
        let before = clock.elapsed();
        clock.sleep(asked).await;
        let slept = clock.elapsed().saturating_sub(before);
        assert!(slept >= asked, "slept {slept:?} of {asked:?}");
    }
}

/// The wall clock moves with the measured time.
pub async fn the_wall_clock_moves_on_during_a_sleep(clock: &dyn Clock) {
    let before = clock.now();
    assert!(before > UNIX_EPOCH);
    clock.sleep(Duration::from_millis(20)).await;
    assert!(clock.now() > before);
}

/// One test per rule; `$run` is given a closure from a clock to a future.
#[macro_export]
macro_rules! clock_conformance {
    ($run:path) => {
        $crate::conformance_tests!(
            $run,
            $crate::conformance::clock,
            [
                elapsed_never_goes_back,
                a_sleep_ends_no_earlier_than_asked,
                the_wall_clock_moves_on_during_a_sleep,
            ]
        );
    };
}

/// Makes one test of each rule of a module, each run by `$run!(rule)`.
#[macro_export]
macro_rules! conformance_tests {
    ($run:path, $rules:path, [$($rule:ident),* $(,)?]) => {
        $(
            #[test]
            fn $rule() {
                use $rules as rules;
                $run!(rules::$rule);
            }
        )*
    };
}
