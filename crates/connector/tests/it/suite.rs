//! Every rule on every log.

use crate::scene::{on_embedded, on_kafka, on_model};

macro_rules! rules {
    ($on:ident $(, #[$ignore:meta])?) => {
        rules!(@ $on, [$(#[$ignore])?],
            offsets::c01_a_record_is_settled_before_its_offset_is_committed,
            offsets::c02_finished_records_above_the_commit_survive_a_restart,
            offsets::c03_a_batch_with_a_failure_goes_on_behind_it,
            offsets::c05_a_batch_that_continues_dead_letters_its_failures,
            offsets::c06_a_second_consumer_misses_nothing,
            offsets::c09_past_the_budget_the_rest_is_handed_back,
            offsets::c10_after_a_resume_the_next_record_is_our_own,
            offsets::keys_run_beside_each_other_and_stay_in_order,
            offsets::foreign_commit_metadata_is_ignored,
            offsets::a_batch_handler_answers_for_each_record,
            tiers::c20_c21_a_failing_record_climbs_the_ladder,
            tiers::c23_a_record_is_not_handled_before_its_time,
            tiers::c23_a_due_record_waits_at_most_the_delay_of_its_tier,
            tiers::c25_codes_decide_about_the_way,
            tiers::c26_c28_origin_and_bytes_are_kept,
            tiers::c30_an_undecodable_record_is_a_dead_letter_at_once,
            tiers::c32_strict_order_has_no_tiers_and_keeps_the_record,
            tiers::two_groups_share_the_tiers_of_a_topic,
            tiers::dead_letters_are_told_to_their_handler,
            tiers::the_books_of_a_binding_agree_with_a_recount,
            tiers::outputs_are_written_with_the_offset,
            ordered::c33_records_behind_a_failing_one_wait_and_other_keys_flow,
            ordered::c33_order_holds_after_a_restart,
            ordered::c33_an_exhausted_record_is_a_dead_letter_and_its_key_goes_on,
            ordered::c33_a_blocked_key_waits_until_it_is_given_up,
            ordered::c33_records_without_a_key_have_no_order,
            ordered::c33_a_partition_with_too_many_parked_records_waits,
            ordered::a_record_that_fits_nowhere_waits_in_the_store,
            ordered::c02_marks_that_do_not_fit_survive_in_the_store,
            breaker::c40_c41_an_open_breaker_keeps_every_record,
            breaker::a07_a_breaker_never_resumes_what_an_operator_paused,
            breaker::a_system_failure_pauses_until_it_is_gone,
            breaker::a_panic_and_an_overrun_are_transient_failures,
            outages::c22_a_missing_dead_letter_topic_keeps_the_record,
            outages::c11_a_partition_that_was_held_back_flows_when_it_comes_back,
            outages::c12_an_offset_that_stands_still_is_an_alarm,
            outages::c42_a_back_off_is_no_slow_call,
            outages::a_record_that_fits_nowhere_is_kept,
            lifecycle::c44_commands_work_in_their_states_only,
            lifecycle::c47_a_shutdown_finishes_what_is_in_hand,
            lifecycle::an_operator_gives_a_record_up,
            faults::c04_past_the_budget_no_partition_is_passed_over,
            faults::c04_c09_a_record_that_was_handed_back_is_not_passed,
            faults::records_that_the_log_removed_are_posted_as_lost,
            faults::c06_settled_records_are_committed_when_a_partition_is_let_go,
            faults::c07_a_member_whose_place_is_taken_writes_nothing,
            faults::c08_c24_a_commit_that_fails_skips_nothing_and_doubles_nothing,
            faults::c22_a_missing_tier_keeps_the_record,
            faults::c31_a_dead_letter_that_cannot_be_written_comes_back,
            copies::c24_a_hand_off_without_its_offset_is_found_again,
            copies::c24_an_append_without_an_answer_is_not_made_twice,
            copies::c24_a_second_copy_is_not_handled_also_after_a_restart,
            copies::c24_a_letter_of_an_ordered_key_is_found_again,
            refusals::c08_hand_offs_that_fit_no_commit_are_parted,
            refusals::c22_outputs_that_are_refused_are_dead_letters,
            refusals::c31_a_letter_that_is_refused_is_kept_alone,
            states::a_binding_that_cannot_start_is_down,
            states::c22_topics_that_do_not_fit_are_refused_by_name,
            states::c44_a_pause_holds_the_tiers_and_a_resume_lets_them_go,
            states::c44_a_binding_is_destroyed_from_every_state,
            states::c25_a_code_pauses_and_a_resume_begins_at_attempt_1,
            states::an_operator_gives_up_a_record_of_a_tier,
            states::a_damaged_offset_holds_its_partition_alone,
            states::c47_a_shutdown_waits_for_a_binding_that_stopped_itself,
            history::a05_an_event_keeps_its_id_up_to_the_dead_letters,
            history::c27_each_tier_tells_its_own_failure,
            history::c29_the_largest_record_fits_through_every_hop,
            time::c12_an_idle_group_commits_again,
            time::c43_an_outage_leaves_the_dead_letters_empty,
            time::c46_contradictions_are_refused_with_both_values,
        );
    };
    (@ $on:ident, $ignore:tt, $($module:ident::$rule:ident),* $(,)?) => {
        /// The names of the rules that are played here.
        pub(crate) const RULES: &[&str] = &[$(stringify!($rule)),*];
        $(rules!(@one $on, $ignore, $module, $rule);)*
    };
    (@one $on:ident, [$($ignore:tt)*], $module:ident, $rule:ident) => {
        #[test]
        $($ignore)*
        fn $rule() {
            $on(crate::conformance::$module::$rule);
        }
    };
}

pub(crate) mod model {
    use super::*;
    rules!(on_model);
}

pub(crate) mod embedded {
    use super::*;
    rules!(on_embedded);
}

pub(crate) mod needs_kafka {
    use super::*;
    rules!(on_kafka, #[ignore = "needs Kafka and PostgreSQL"]);
}
