//! The promises of the outbox, once on SQLite with the embedded log and once on PostgreSQL with Kafka.

mod delivery;
mod failures;

use delivery::{
    a05_an_event_keeps_its_id_in_topic_dead_letter_and_retry,
    a10_a_database_that_does_not_answer_is_cut_and_asked_again,
    o01_event_and_business_row_commit_together_or_not_at_all,
    o01_values_that_no_claim_can_read_are_refused,
    o02_rows_of_a_relay_that_died_go_to_another_after_its_lease,
    o02_several_relays_publish_each_event_once,
    o04_events_of_a_key_stay_in_order_with_eight_relays_and_failures,
    o10_records_carry_type_id_and_trace, o11_a_log_that_is_away_costs_no_attempt_and_loses_nothing,
    o13_a_batch_is_one_claim_and_one_settle, o17_a_stop_under_load_releases_everything,
    o19_sent_rows_are_cleaned_up_after_their_time,
};
use failures::{
    a06_a_refusal_for_good_is_not_tried_again_and_an_outage_counts_nothing,
    a09_a_payload_that_is_given_up_on_is_found_byte_for_byte,
    o06_a_blocked_key_waits_and_goes_on_when_it_can, o06_a_failing_event_holds_up_only_its_key,
    o06_a_topic_that_the_broker_forbids_holds_up_only_its_rows,
    o07_attempts_error_and_next_attempt_are_in_the_row,
    o08_a_payload_that_the_dlq_refuses_stays_in_its_row,
    o08_a_row_that_is_given_up_on_is_in_the_dlq_with_its_history,
    o08_headers_that_no_log_takes_make_a_dead_letter, o09_a_dead_row_is_retried_and_sent,
    o16_health_names_a_missing_topic_and_a_log_that_is_away,
};

use crate::backend::{on_embedded, on_servers};

macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod embedded {
            $(#[test] fn $name() { super::on_embedded(super::$name); })*
        }
        mod needs_kafka {
            $(#[test] #[ignore = "needs PostgreSQL and Kafka"] fn $name() { super::on_servers(super::$name); })*
        }
    };
}

on_both!(
    a05_an_event_keeps_its_id_in_topic_dead_letter_and_retry,
    a06_a_refusal_for_good_is_not_tried_again_and_an_outage_counts_nothing,
    a09_a_payload_that_is_given_up_on_is_found_byte_for_byte,
    a10_a_database_that_does_not_answer_is_cut_and_asked_again,
    o02_rows_of_a_relay_that_died_go_to_another_after_its_lease,
    o01_event_and_business_row_commit_together_or_not_at_all,
    o01_values_that_no_claim_can_read_are_refused,
    o02_several_relays_publish_each_event_once,
    o04_events_of_a_key_stay_in_order_with_eight_relays_and_failures,
    o06_a_failing_event_holds_up_only_its_key,
    o06_a_blocked_key_waits_and_goes_on_when_it_can,
    o06_a_topic_that_the_broker_forbids_holds_up_only_its_rows,
    o08_headers_that_no_log_takes_make_a_dead_letter,
    o07_attempts_error_and_next_attempt_are_in_the_row,
    o08_a_row_that_is_given_up_on_is_in_the_dlq_with_its_history,
    o08_a_payload_that_the_dlq_refuses_stays_in_its_row,
    o09_a_dead_row_is_retried_and_sent,
    o10_records_carry_type_id_and_trace,
    o11_a_log_that_is_away_costs_no_attempt_and_loses_nothing,
    o13_a_batch_is_one_claim_and_one_settle,
    o16_health_names_a_missing_topic_and_a_log_that_is_away,
    o17_a_stop_under_load_releases_everything,
    o19_sent_rows_are_cleaned_up_after_their_time,
);
