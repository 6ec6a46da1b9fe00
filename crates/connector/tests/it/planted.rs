//! Planted bugs: each is caught by a rule on the model, or by a seed of the simulation.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tidegate_connector::{PlantedBug, plant};

use crate::conformance::{breaker, faults, offsets, tiers};
use crate::model_only;
use crate::parked_only;
use crate::scene::on_model;
use crate::simulation;

/// Seeds that a bug may take; most are caught by the first.
const SEEDS: u64 = 100;

/// Whether this work fails with the bug, and only with it.
fn catches(bug: PlantedBug, work: impl Fn()) -> bool {
    plant(Some(bug));
    let caught = catch_unwind(AssertUnwindSafe(&work)).is_err();
    plant(None);
    caught
}

/// The first seed of the simulation that catches a bug.
fn seed_that_catches(bug: PlantedBug) -> Option<u64> {
    (0..SEEDS).find(|seed| {
        catches(bug, || {
            simulation::play(*seed);
        })
    })
}

#[test]
fn planted_bugs_are_caught_by_rules() {
    type Work = fn();
    let rules: [(PlantedBug, Work); 10] = [
        (PlantedBug::CommitBeforeHandling, || {
            on_model(offsets::c01_a_record_is_settled_before_its_offset_is_committed);
        }),
        (PlantedBug::OffsetOffByOne, || {
            on_model(offsets::c01_a_record_is_settled_before_its_offset_is_committed);
        }),
        (PlantedBug::TierOffByOne, || {
            on_model(tiers::c20_c21_a_failing_record_climbs_the_ladder);
        }),
        (PlantedBug::EarlyTier, || {
            on_model(tiers::c23_a_record_is_not_handled_before_its_time);
        }),
        (PlantedBug::ResumesForAll, || {
            on_model(breaker::a07_a_breaker_never_resumes_what_an_operator_paused);
        }),
        (PlantedBug::ForeignMarks, || {
            on_model(offsets::foreign_commit_metadata_is_ignored);
        }),
        (PlantedBug::EmptiedTombstone, || {
            on_model(tiers::c26_c28_origin_and_bytes_are_kept);
        }),
        (PlantedBug::MissingTopicPassed, || {
            on_model(faults::c22_a_missing_tier_keeps_the_record);
        }),
        (
            PlantedBug::ZombieCommit,
            model_only::c07_a_member_that_is_taken_for_dead_at_any_moment_hands_off_once,
        ),
        (
            PlantedBug::ParkAfterCommit,
            parked_only::c33_a_store_that_is_away_holds_the_partition,
        ),
    ];
    for (bug, work) in rules {
        work();
        assert!(catches(bug, work), "{bug:?} was not caught");
    }
}

#[test]
fn sim_planted_bugs_are_caught_by_the_simulation() {
    for bug in [
        PlantedBug::CommitBeforeHandling,
        PlantedBug::OffsetOffByOne,
        PlantedBug::CommitPastGap,
        PlantedBug::FlushAfterRevoke,
        PlantedBug::LostWakeUp,
        PlantedBug::SwallowedLetter,
    ] {
        let seed = seed_that_catches(bug);
        let seed = seed.unwrap_or_else(|| panic!("{bug:?} was not caught by {SEEDS} seeds"));
        println!("{bug:?}: caught by seed {seed:#x} of the simulation");
    }
}
