//! The one list of all rules.

/// Calls a macro with the list of all rules: `$with! { [$args] module: rule, rule; module: rule; }`.
#[doc(hidden)]
#[macro_export]
macro_rules! with_log_rules {
    ($with:path, [$($args:tt)*]) => {
        $with! {
            [$($args)*]
            appends:
                t01_records_lie_in_the_order_of_their_appends,
                t02_appended_records_are_there_after_a_restart,
                appends_of_many_tasks_are_all_there_once,
                an_explicit_partition_is_kept,
                t03_a_key_decides_about_the_partition,
                a_record_without_a_key_lies_where_the_answer_says,
                absent_and_empty_are_told_apart,
                headers_come_back_as_they_were,
                a_value_of_one_mebibyte_comes_back_whole,
                t04_a_record_above_the_limit_is_refused_by_name,
                a_header_above_the_limit_is_refused_by_name,
                an_unknown_topic_or_partition_is_refused_by_name,
                a_record_has_a_time,
                a_delivery_adds_records_in_order_and_tells_of_each,
                appending_nothing_adds_nothing;
            reads:
                t05_small_helpings_add_up_to_everything,
                a_read_begins_where_it_is_asked_to,
                a_record_larger_than_asked_for_is_handed_out,
                a_read_for_nothing_gets_one_record,
                t06_an_offset_that_is_not_there_is_out_of_range,
                a_waiting_read_gets_the_record_that_comes,
                a_read_that_waits_in_vain_ends_in_time,
                an_offset_is_found_by_time,
                deleting_moves_the_start,
                t32_deleting_does_not_skip_a_group_in_silence;
            topics:
                a_topic_is_described_as_it_was_made,
                making_a_topic_again_changes_its_settings,
                another_number_of_partitions_is_refused,
                topics_are_listed_by_name;
            groups:
                the_only_member_gets_everything_in_order,
                a_group_starts_where_it_says,
                t13_where_a_group_starts_last_is_remembered_for_each_partition,
                t11_the_next_owner_goes_on_at_the_committed_offset,
                two_groups_do_not_disturb_each_other,
                a_group_is_registered_until_it_is_forgotten,
                a_poll_hands_out_no_more_than_asked_for,
                a_member_with_the_smallest_buffer_gets_everything,
                a_canceled_poll_misses_nothing,
                lag_is_counted_in_records_and_in_time,
                a_closed_session_says_so,
                closing_ends_a_waiting_poll;
            pauses:
                t14_a_paused_partition_rests_and_goes_on_without_a_gap,
                a_pause_holds_once_it_has_returned,
                a_pause_outlasts_a_rebalance,
                a_seek_says_what_comes_next,
                a_poll_under_way_does_not_undo_a_seek,
                a_seek_needs_the_present_fence,
                t15_a_position_that_is_not_there_stops_its_partition_alone;
            rebalances:
                t10_members_share_the_partitions,
                t12_records_in_flight_are_handed_out_again_after_a_rebalance,
                a_commit_before_letting_go_counts,
                a_member_that_let_go_commits_nothing,
                a_partition_that_is_not_let_go_in_time_moves_on,
                a_commit_after_the_time_is_up_is_refused,
                nothing_more_comes_of_what_is_asked_for,
                the_partitions_of_a_dropped_session_move_on,
                fences_ascend_with_every_assignment;
            co_partitioned:
                t16_topics_read_together_share_their_owners,
                topics_that_cannot_be_read_together_are_refused_by_name,
                t20_topics_read_together_are_committed_together,
                what_is_read_together_is_paused_and_sought_apart,
                what_is_read_together_is_let_go_together,
                t21_a_zombie_commits_nothing_of_what_is_read_together,
                what_is_read_together_starts_and_is_kept_alike;
            commits:
                an_offset_reads_back_with_its_metadata,
                metadata_has_a_limit_with_a_name,
                t20_records_and_offsets_are_committed_together,
                a_refused_commit_leaves_nothing,
                a_refused_commit_does_not_end_the_session,
                t22_a_commit_never_goes_back,
                an_empty_commit_does_nothing,
                a_commit_of_records_alone_adds_them,
                t23_commits_under_way_keep_their_order,
                t23_a_commit_with_records_is_not_overtaken,
                t24_a_committed_read_waits_for_commits_under_way,
                t20_a_canceled_commit_is_whole_or_not_there;
            lost_answers:
                t25_a_lost_answer_repeats_no_record,
                a_commit_of_records_whose_answer_is_lost_is_done_once,
                a_commit_of_offsets_whose_answer_is_lost_is_counted_once,
                commits_behind_one_whose_answer_is_lost_leave_no_hole_in_the_books;
            books:
                t26_postings_are_booked_with_their_commit,
                the_next_owner_goes_on_with_the_books,
                a_refused_commit_posts_nothing,
                t23_commits_behind_a_failed_one_are_refused_too,
                a_failure_that_was_not_told_holds_up_its_partitions,
                the_outcome_of_a_dropped_commit_is_told_by_the_next_one,
                a_commit_behind_a_failed_one_holds_up_its_other_partitions,
                records_passed_without_a_posting_are_missing,
                each_place_has_a_tally_of_its_own,
                a_zombie_posts_nothing,
                records_before_the_start_of_a_group_are_not_in_its_books;
            owned:
                the_books_of_a_group_are_the_sum_over_its_groups,
                records_marked_as_settled_do_not_wait,
                dead_letters_of_a_group_are_told_apart_by_their_input,
                an_event_that_is_in_no_place_is_named;
            fences:
                t21_a_zombie_commits_nothing,
                a_zombie_is_told;
        }
    };
}

/// One test per rule, and `RULES`, the names of the rules that were made tests of.
///
/// `$run` is a macro that is given the path of a rule and plays it; what follows it stands above each
/// test, as in `log_conformance!(run, #[ignore = "needs Kafka"])`.
#[macro_export]
macro_rules! log_conformance {
    ($run:path $(, $(#[$above:meta])+)?) => {
        $crate::with_log_rules!($crate::log_conformance_tests, [$run, [$($(#[$above])+)?]]);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! log_conformance_tests {
    ([$run:path, $above:tt] $($module:ident: $($rule:ident),+;)+) => {
        /// The rules that are tested here.
        pub(crate) const RULES: &[&str] = &[$($(concat!(stringify!($module), " ", stringify!($rule))),+),+];
        $($($crate::log_conformance_test!($run, $above, $module, $rule);)+)+
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! log_conformance_test {
    ($run:path, [$(#[$above:meta])*], $module:ident, $rule:ident) => {
        #[test]
        $(#[$above])*
        fn $rule() {
            use $crate::conformance::$module as rules;
            $run!(rules::$rule);
        }
    };
}

/// The same for the rules of the port of operators.
#[macro_export]
macro_rules! log_admin_conformance {
    ($run:path $(, $(#[$above:meta])+)?) => {
        $crate::log_admin_tests!([$run, [$($(#[$above])+)?]]
            t37_a_group_that_is_moved_back_reads_again,
            t37_records_that_a_group_is_moved_past_are_lost_to_it,
            t37_a_group_with_members_is_left_alone,
            a_trial_changes_nothing,
            t38_a_group_is_forgotten_with_what_it_has_not_read,
            t39_a_topic_is_removed_only_when_it_is_read_or_by_force,
        );
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! log_admin_tests {
    ([$run:path, $above:tt] $($rule:ident,)+) => {
        $($crate::log_conformance_test!($run, $above, administration, $rule);)+
    };
}
