//! Plays a scene in many orders.

use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

/// The orders are the same in every run, so that a test which passes keeps passing.
const SEED: u64 = 0x7469_6465;
/// How often one who could go on is overtaken, in half of the orders: most mistakes need one or two of
/// that, and at random it seldom stays so few.
const DETOURS: usize = 3;
/// A task has no more than this; events are large.
const STACK: usize = 512 * 1024;
/// No scene takes as many steps, unless somebody goes round in circles.
const STEPS: usize = 50_000;

/// Plays a scene in so many orders in a long run, else in about a twentieth of them: one half by chance,
/// the other with few detours. An order that fails is printed, and `TIDEGATE_SCHEDULE` plays only that.
#[expect(
    clippy::disallowed_methods,
    reason = "tests are steered by their environment"
)]
pub(crate) fn play(full: u64, scene: impl Fn() + Send + Sync + 'static) {
    let scene = Arc::new(scene);
    if let Ok(schedule) = std::env::var("TIDEGATE_SCHEDULE") {
        return run(&scene, ReplayScheduler::new_from_encoded(schedule.trim()));
    }
    let half = usize::try_from(tidegate_sim::scaled(full) / 2)
        .unwrap()
        .max(1);
    run(&scene, RandomScheduler::new_from_seed(SEED, half));
    run(&scene, PctScheduler::new_from_seed(SEED, DETOURS, half));
}

fn run(scene: &Arc<impl Fn() + Send + Sync + 'static>, scheduler: impl Scheduler + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.silence_warnings = true;
    let scene = Arc::clone(scene);
    Runner::new(scheduler, config).run(move || scene());
}
