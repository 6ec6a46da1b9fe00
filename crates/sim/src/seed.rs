//! Which seeds a test runs, and how a failure is repeated.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tidegate_core::env::{Entropy, Stream};

/// Whether the full counts are asked for, by `TIDEGATE_LONG=1`.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "tests are steered by their environment"
)]
pub fn is_long() -> bool {
    std::env::var("TIDEGATE_LONG").is_ok_and(|value| value == "1")
}

/// The full count in a long run, else about a twentieth of it, at least one.
#[must_use]
pub fn scaled(full: u64) -> u64 {
    if is_long() { full } else { full.div_ceil(20) }
}

/// Whether `TIDEGATE_SEED` names the one seed to play.
///
/// A test that judges the sum over its seeds ("some run was fenced") does so only when this is false:
/// one seed is played to repeat a failure, and must pass once the failure is mended.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// let heads = AtomicU64::new(0);
/// tidegate_sim::seeds!(20, |seed| {
///     heads.fetch_add(seed & 1, Ordering::Relaxed);
/// });
/// assert!(tidegate_sim::is_one_seed() || heads.into_inner() > 0);
/// ```
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "tests are steered by their environment"
)]
pub fn is_one_seed() -> bool {
    std::env::var("TIDEGATE_SEED").is_ok()
}

/// Runs `test` for `count` seeds, or for the one that `TIDEGATE_SEED` names. Use
/// [`seeds!`](crate::seeds), which fills in the package.
///
/// The seeds are the same in every run, so that a test which passes keeps passing.
///
/// # Panics
/// When `test` panics: it prints the seed and the command that repeats it, and panics on.
#[expect(
    clippy::disallowed_methods,
    reason = "tests are steered by their environment"
)]
pub fn for_each_seed(package: &str, count: u64, test: impl Fn(u64)) {
    let chosen = std::env::var("TIDEGATE_SEED").ok().map(|text| {
        parse(&text).unwrap_or_else(|| panic!("TIDEGATE_SEED is `{text}`, not a number"))
    });
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("main").to_owned();
    let mut draw = Stream::new(0).stream(&name);
    let seeds: Vec<u64> = match chosen {
        Some(seed) => vec![seed],
        None => (0..count).map(|_| draw.next_u64()).collect(),
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            let long = if is_long() { "TIDEGATE_LONG=1 " } else { "" };
            print_failure(&format!(
                "failed with seed {seed:#x}; to repeat it:\n  \
                 {long}TIDEGATE_SEED={seed:#x} cargo test -p {package} {name} -- --exact"
            ));
            resume_unwind(panic);
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "libtest captures it and shows it with the failure"
)]
fn print_failure(text: &str) {
    eprintln!("{text}");
}

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Runs a test for many seeds: `seeds!(100, |seed| { … })`.
///
/// Prints the seed and the one command that repeats a failure.
#[macro_export]
macro_rules! seeds {
    ($count:expr, $test:expr) => {
        $crate::for_each_seed(env!("CARGO_PKG_NAME"), $count, $test)
    };
}
