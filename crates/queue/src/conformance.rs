//! The rules that every store of the queue must keep, and what the queue does on each of them.
//!
//! Each rule is a function named as a sentence; [`queue_conformance!`](crate::queue_conformance)
//! makes one test of each. The same rules run on PostgreSQL, on SQLite and on the model that
//! simulations use. Rules whose name begins with a number keep the promise of that number.

pub mod abandoned;
pub mod claims;
pub mod dispatchers;
pub mod endless;
pub mod fences;
pub mod keys;
pub mod latecomers;
pub mod limits;
pub mod operators;
pub mod projections;
pub mod rebuilds;
pub mod recounts;
pub mod removed;
pub mod retention;
pub mod settles;
pub mod stops;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tidegate_core::EventIds;
use tidegate_core::env::{Clock, Env, Sleep};

use crate::event::NewEvent;
use crate::port::{
    ClaimRequest, ClaimedEvent, Disposition, HandlerFilter, Lane, LeaseId, QueueStore, Settlement,
    Transition,
};

/// A lease that is long beside a test.
pub const LONG: Duration = Duration::from_secs(60);
/// A lease that a test waits out. Nothing may depend on what happens before it ends: a busy machine takes
/// longer for anything.
pub const SHORT: Duration = Duration::from_millis(60);
/// How long a rule waits for what is to come.
const POISON_STARVATION: Duration = Duration::from_secs(60);

/// A store with an empty queue, and what is needed around it.
#[derive(Debug)]
pub struct World {
    /// The store.
    pub store: Arc<dyn QueueStore>,
    /// The ports.
    pub env: Env,
    /// Ids for events.
    pub ids: EventIds,
}

impl World {
    /// A world around an empty store.
    #[must_use]
    pub fn new(store: Arc<dyn QueueStore>) -> Self {
        let env = Env::system();
        let ids = EventIds::new(Arc::clone(&env.clock), env.entropy.fork("ids"));
        Self { store, env, ids }
    }

    /// A new event of a type.
    pub fn event(&self, type_name: &str) -> NewEvent {
        NewEvent::raw(self.ids.mint(), type_name, r#"{"n":1}"#).unwrap()
    }

    /// Publishes `count` events of a type and gives their numbers.
    pub async fn publish(&self, type_name: &str, count: usize) -> Vec<i64> {
        let events: Vec<NewEvent> = (0..count).map(|_| self.event(type_name)).collect();
        self.store.publish(&events).await.unwrap()
    }

    /// Publishes one event with a key.
    pub async fn publish_keyed(&self, type_name: &str, key: &str) -> i64 {
        let event = self.event(type_name).with_key(key);
        self.store.publish(&[event]).await.unwrap()[0]
    }

    /// Claims up to `limit` events of any kind.
    pub async fn claim(&self, limit: u32, lease: Duration) -> Vec<ClaimedEvent> {
        self.claim_as("tester", limit, lease, HandlerFilter::All)
            .await
    }

    /// Claims for some handlers.
    pub async fn claim_as(
        &self,
        owner: &str,
        limit: u32,
        lease: Duration,
        filter: HandlerFilter,
    ) -> Vec<ClaimedEvent> {
        let request = ClaimRequest {
            owner: owner.to_owned(),
            limit,
            lease,
            filter,
            reclaim_expired: true,
            include_delayed: true,
            include_poison: true,
            isolate: false,
        };
        self.store.claim(&request).await.unwrap().events
    }

    /// Settles these events the same way and gives the stale ones.
    pub async fn settle(&self, events: &[ClaimedEvent], to: &Disposition) -> Vec<i64> {
        let transitions = events.iter().map(|event| Transition {
            claim: event.claim.clone(),
            key: event.key.clone(),
            to: to.clone(),
            states: Vec::new(),
        });
        let mut settlement = Settlement {
            registry: None,
            transitions: transitions.collect(),
            finished: Vec::new(),
        };
        // Rules settle whole batches, unless they build a settlement of their own.
        let batches: BTreeSet<LeaseId> = events.iter().map(|event| event.claim.lease).collect();
        settlement.finished.extend(batches);
        self.store.settle(&settlement).await.unwrap()
    }

    /// Settles one event of a batch, of which others are left.
    pub async fn settle_part(&self, event: &ClaimedEvent, to: &Disposition) {
        let settlement = Settlement {
            registry: None,
            transitions: vec![Transition {
                claim: event.claim.clone(),
                key: event.key.clone(),
                to: to.clone(),
                states: Vec::new(),
            }],
            finished: vec![event.claim.lease],
        };
        let stale = self.store.settle(&settlement).await.unwrap();
        assert_eq!(stale, [0_i64; 0]);
    }

    /// Waits.
    pub async fn wait(&self, span: Duration) {
        self.env.clock.sleep(span).await;
    }

    /// Waits until something is so, for as long as the slowest machine takes.
    pub async fn until(&self, is_so: impl AsyncFn() -> bool) {
        let began = self.env.clock.elapsed();
        while !is_so().await {
            if self.env.clock.elapsed() - began > POISON_STARVATION {
                panic!("{:?}", self.store.account().await);
            }
            self.wait(Duration::from_millis(5)).await;
        }
    }

    /// Checks that books and tables agree.
    pub async fn audit(&self) {
        let recount = self.store.recount().await.unwrap();
        assert!(recount.books.is_balanced(), "{:?}", recount.books);
        assert_eq!(recount.missing, [], "books and tables differ");
        let account = self.store.account().await.unwrap();
        assert!(account.is_balanced(), "{account:?}");
    }
}

/// A clock that counts who sleeps by it: whoever does has looked, and found nothing to do.
#[derive(Debug)]
pub struct CountedSleeps {
    clock: Arc<dyn Clock>,
    sleeps: AtomicU64,
}

impl CountedSleeps {
    /// Counts the sleeps by the clock of this environment from now on.
    pub fn of(env: &mut Env) -> Arc<Self> {
        let counted = Arc::new(Self {
            clock: Arc::clone(&env.clock),
            sleeps: AtomicU64::new(0),
        });
        env.clock = Arc::clone(&counted) as Arc<dyn Clock>;
        counted
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.sleeps.load(Ordering::SeqCst)
    }
}

impl Clock for CountedSleeps {
    fn now(&self) -> SystemTime {
        self.clock.now()
    }

    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.sleeps.fetch_add(1, Ordering::SeqCst);
        self.clock.sleep(duration)
    }
}

/// Completed by one handler.
#[must_use]
pub fn completed() -> Disposition {
    Disposition::Finalize {
        errors: Vec::new(),
        handlers: Some("one".to_owned()),
    }
}

/// The numbers of events.
#[must_use]
pub fn numbers(events: &[ClaimedEvent]) -> Vec<i64> {
    events.iter().map(|event| event.claim.id).collect()
}

/// A claimer with these handlers.
#[must_use]
pub fn handler_filter(handlers: &[(&str, &str)]) -> HandlerFilter {
    let mut mine: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (type_name, handler) in handlers {
        mine.entry((*type_name).to_owned())
            .or_default()
            .insert((*handler).to_owned());
    }
    HandlerFilter::Handlers(mine)
}

/// A lane of type `a` that wants handler `one`.
#[must_use]
pub fn lane() -> Lane {
    Lane::new("a", ["one"])
}

/// One test per rule: `$run!(rule)` runs it on a fresh world.
#[macro_export]
macro_rules! queue_conformance {
    ($(#[$attribute:meta])* $run:path) => {
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, claims, [
            q01_a_published_event_is_claimed_once,
            a_claim_names_the_trace_of_its_event,
            q02_of_five_claims_of_one_event_one_wins,
            q03_a_claim_gives_at_most_what_was_asked_for_oldest_first,
            q03_no_event_goes_to_two_claimers,
            q04_an_abandoned_event_comes_back_when_its_lease_ends,
            q04_an_abandoned_event_comes_back_before_newer_ones,
            q04_a_large_abandoned_batch_comes_back_in_parts,
            q05_a_renewed_lease_is_kept,
            q08_rolled_back_events_were_never_published,
            q08_many_that_are_rolled_back_were_never_published,
            q08_committed_events_are_published,
            q10_a_retry_waits_for_its_time_and_not_for_the_lease,
            a_late_commit_is_not_passed_over,
            many_events_are_published_at_once,
            rows_are_claimed_by_those_who_serve_their_lane,
            events_of_one_key_are_handed_out_one_after_the_other,
            a_key_is_released_when_its_first_event_is_done,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, settles, [
            q06_finalizing_moves_an_event_to_the_log,
            q06_finalizing_twice_gives_one_row,
            q06_an_unknown_number_is_an_error,
            q07_an_event_that_left_its_batch_is_not_settled_by_it_again,
            a04_q07_a_stale_claim_settles_nothing,
            q07_a_stale_claim_renews_and_records_nothing,
            q09_handler_states_are_kept_and_cleaned_up,
            q16_result_guard_and_follow_up_come_together_or_not_at_all,
            q17_a_guard_holds_for_its_own_sub_task_only,
            q17_of_two_events_with_the_same_id_one_does_the_side_effect,
            a_batch_is_settled_in_parts,
            a_batch_that_is_reopened_has_what_is_left,
            a01_the_books_follow_every_move,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, endless, [
            a_lease_may_have_no_end,
            a_retry_may_wait_for_ever,
            a_retention_may_have_no_end,
            a_dispatcher_may_have_no_limits,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, fences, [
            a04_q07_of_two_claims_of_one_event_only_the_newest_is_settled,
            a04_q07_of_two_claims_of_one_batch_only_the_newest_is_settled,
            a04_q07_a_claim_of_a_batch_that_was_taken_over_in_part_is_stale,
            a04_q07_a_claim_that_is_settled_twice_at_once_moves_its_event_once,
            a04_q07_a_claim_from_before_an_event_was_given_back_is_stale,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, operators, [
            an_event_with_errors_is_given_back,
            a_waiting_event_can_be_hastened,
            a_waiting_event_can_be_canceled,
            canceling_an_event_releases_its_key,
            a_claimed_event_cannot_be_canceled,
            an_event_whose_lease_is_over_can_be_canceled,
            events_are_listed_and_found,
            an_id_that_was_published_twice_is_found_twice,
            q22_stats_count_what_is_there,
            retention_never_passes_a_projection,
            a_turn_has_one_owner_at_a_time,
            handlers_are_registered_and_unregistered,
            events_that_waited_for_an_unregistered_handler_are_brought_to_their_end,
            q19_positions_have_no_holes,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, dispatchers, [
            every_handler_gets_every_event,
            q05_a_slow_handler_keeps_its_lease,
            q09_only_the_handler_that_failed_runs_again,
            q10_each_wait_is_longer_and_none_is_the_lease,
            q11_attempts_that_are_used_up_end_the_event,
            q12_a_fatal_error_ends_the_event,
            q13_a_panic_or_a_hang_is_a_transient_failure,
            q14_an_event_without_handler_is_kept_or_completed,
            q15_a_handler_id_is_refused_twice,
            q16_follow_ups_come_with_the_success,
            two_processes_with_different_handlers_share_an_event,
            events_of_one_key_are_handled_in_order,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, stops, [
            stopping_gives_back_what_was_not_begun,
            stopping_does_not_wait_for_what_a_handler_holds,
            a_dispatcher_that_is_dropped_calls_no_more_handlers,
            handlers_with_a_transaction_do_not_wait_for_each_other,
            a06_a_system_failure_stops_the_dispatcher_and_loses_nothing,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, abandoned, [
            q11_an_event_that_kills_its_process_is_ended,
            an_event_that_kills_its_process_holds_nobody_up,
            events_abandoned_twice_are_handed_out_one_at_a_time,
            an_event_given_back_or_unknown_is_not_abandoned,
            a_row_that_was_abandoned_twice_is_a_suspect_until_somebody_answers,
            a_suspect_that_has_waited_for_long_comes_first_and_alone,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, latecomers, [
            a_handler_that_registers_late_gets_what_is_not_finalized,
            a_handler_that_is_unregistered_while_it_fails_did_not_succeed,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, keys, [
            an_event_given_back_keeps_the_order_of_its_key,
            an_event_given_back_waits_for_the_one_at_work_on_its_key,
            an_event_canceled_unclaimed_comes_back_behind_the_earlier_ones,
            events_behind_one_that_nobody_wants_are_counted,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, limits, [
            a_header_with_a_zero_byte_is_refused,
            a_failure_with_a_zero_byte_in_its_text_harms_nobody,
            one_stale_event_does_not_cost_its_batch,
            a_key_or_type_that_is_too_long_is_refused,
            a_lost_release_is_found_among_many_parked_keys,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, projections, [
            q18_q20_a_projection_applies_every_event_exactly_once,
            q18_an_event_that_is_retried_while_others_go_by_is_not_passed_over,
            retention_waits_for_a_projection_that_never_came_far,
            q21_a_rebuild_swaps_the_view_whole,
            a_rebuild_without_removed_events_is_done_only_when_that_is_asked_for,
            q21_a_rebuild_that_is_asked_for_is_done_by_whoever_runs_the_projection,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, rebuilds, [
            a_rebuild_is_touched_only_by_whoever_has_its_turn,
            a_projection_that_was_forgotten_is_built_anew,
            a_step_from_another_position_comes_to_nothing,
            events_removed_while_a_rebuild_waits_are_not_lost,
            a_request_is_served_only_from_a_log_that_is_whole,
            a_request_is_written_down_for_everybody_who_asks,
            a_swap_takes_its_marks_away,
            a_rebuild_that_failed_leaves_nothing_behind,
            tables_of_a_rebuild_that_nobody_makes_are_dropped,
            a_projection_that_was_forgotten_and_is_rebuilt_by_hand_is_whole_again,
            a_request_beside_a_forgetting_leaves_nothing_behind,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, retention, [
            a_dispatcher_alone_removes_what_is_old,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, removed, [
            q06_finalizing_again_after_retention_changes_nothing,
            q17_a_guard_outlives_one_of_two_events_with_the_same_id,
            an_event_that_is_published_once_is_there_once,
        ]);
        $crate::queue_conformance!(@ [$(#[$attribute])*] $run, recounts, [
            a01_a_recount_finds_every_event_wherever_it_is,
        ]);
    };
    (@ $attributes:tt $run:path, $module:ident, [$($rule:ident),* $(,)?]) => {
        $($crate::queue_conformance!(@one $attributes $run, $module, $rule);)*
    };
    (@one [$($attribute:tt)*] $run:path, $module:ident, $rule:ident) => {
            #[test]
            $($attribute)*
            fn $rule() {
                use $crate::conformance::$module as rules;
                $run!(rules::$rule);
            }
    };
}
