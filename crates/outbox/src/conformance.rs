//! The rules that every store of the outbox must keep.
//!
//! Each rule is a function named as a sentence; [`outbox_conformance!`](crate::outbox_conformance) makes one
//! test of each. The same rules run on PostgreSQL, on SQLite and on the model that simulations use. Rules
//! whose name begins with a number keep the promise of that number.

pub mod claims;
pub mod leases;
pub mod operators;
pub mod settles;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::EventId;

use crate::NewOutboxEvent;
use crate::port::{
    BatchSettlement, BucketCursor, BucketLease, ClaimedRow, ClaimedRows, OutboxStore, RowClaim,
    Settled, SettledRow, SettledTo,
};

/// A lease that is long beside a test.
pub const LONG_LEASE: Duration = Duration::from_secs(60);
/// A lease that a test waits out.
pub const SHORT_LEASE: Duration = Duration::from_millis(60);
/// Buckets of the table.
pub const BUCKETS: u32 = 8;

/// The topic of rows that name none.
pub const USUAL_TOPIC: &str = "usual";

/// A store with an empty table of [`BUCKETS`] buckets, whose relay has [`USUAL_TOPIC`].
#[derive(Debug)]
pub struct OutboxWorld {
    /// The store.
    pub store: Arc<dyn OutboxStore>,
}

/// A relay by hand: it has all buckets.
#[derive(Debug, Clone)]
pub struct HandRelay {
    /// Its name.
    pub worker: String,
    /// Its buckets.
    pub leases: Vec<BucketLease>,
}

impl OutboxWorld {
    /// A world around an empty store.
    #[must_use]
    pub fn new(store: Arc<dyn OutboxStore>) -> Self {
        Self { store }
    }

    /// Adds an event of a key, and gives its id.
    pub async fn add(&self, key: &str) -> EventId {
        let event = NewOutboxEvent::new(key, "T", "{}").topic("t");
        self.store.insert(&[event]).await.unwrap()[0]
    }

    /// A relay that has all buckets for this time.
    pub async fn relay(&self, worker: &str, span: Duration) -> HandRelay {
        self.store.renew(worker, &[], span).await.unwrap();
        HandRelay {
            worker: worker.to_owned(),
            leases: self.store.acquire(worker, BUCKETS, span).await.unwrap(),
        }
    }

    /// Lets the leases of a relay run out, and gives them all to another one. Buckets run out one by one, so
    /// that it may take several looks.
    pub async fn take_over(&self, first: &HandRelay, worker: &str) -> HandRelay {
        let leases = &first.leases;
        let shortened = self.store.renew(&first.worker, leases, SHORT_LEASE).await;
        assert_eq!(shortened.unwrap().held.len(), leases.len());
        let mut second = self.relay(worker, LONG_LEASE).await;
        while second.leases.len() < leases.len() {
            second
                .leases
                .extend(self.relay(worker, LONG_LEASE).await.leases);
        }
        second
    }

    /// Claims from the beginning.
    pub async fn claim(&self, relay: &HandRelay, limit: u32) -> ClaimedRows {
        self.claim_between(relay, 0, None, limit).await
    }

    /// Claims behind a number and up to another.
    pub async fn claim_between(
        &self,
        relay: &HandRelay,
        after: i64,
        up_to: Option<i64>,
        limit: u32,
    ) -> ClaimedRows {
        let cursor = |lease: &BucketLease| BucketCursor {
            lease: *lease,
            after,
        };
        let claim = RowClaim {
            worker: relay.worker.clone(),
            lane: 0,
            buckets: relay.leases.iter().map(cursor).collect(),
            up_to,
            limit,
            per_bucket: limit,
        };
        self.store.claim(claim).await.unwrap()
    }

    /// Settles rows, all in the same way.
    pub async fn settle(&self, relay: &HandRelay, rows: &[ClaimedRow], to: SettledTo) -> Settled {
        let row = |row: &ClaimedRow| SettledRow {
            id: row.id,
            event_id: row.event_id,
            attempts_before: row.attempts,
            to: to.clone(),
        };
        let settlement = BatchSettlement {
            worker: relay.worker.clone(),
            lane: 0,
            leases: relay.leases.clone(),
            rows: rows.iter().map(row).collect(),
        };
        self.store.settle(&settlement).await.unwrap()
    }

    /// Claims and sends whatever is there.
    pub async fn send_all(&self, relay: &HandRelay) -> Vec<EventId> {
        let claimed = self.claim(relay, 1_000).await;
        let settled = self.settle(relay, &claimed.rows, SettledTo::Sent).await;
        assert_eq!(settled, Settled::Done);
        events(&claimed)
    }

    /// The books agree with the table and balance.
    pub async fn audit(&self) {
        let recount = self.store.recount().await.unwrap();
        assert_eq!(recount.missing, []);
        assert!(recount.books.is_balanced());
        assert!(self.store.account().await.unwrap().is_balanced());
    }
}

/// A failed attempt that waits this long.
#[must_use]
pub fn retry_in(wait: Duration) -> SettledTo {
    SettledTo::Retry {
        wait,
        error: "why".to_owned(),
    }
}

/// A row that was given up on.
#[must_use]
pub fn dead() -> SettledTo {
    SettledTo::Dead {
        error: "why".to_owned(),
    }
}

/// The events of a claim, in its order.
#[must_use]
pub fn events(claimed: &ClaimedRows) -> Vec<EventId> {
    claimed.rows.iter().map(|row| row.event_id).collect()
}

/// One test per rule, each through the macro `$on` of the caller.
#[macro_export]
macro_rules! outbox_conformance {
    ($(#[$attribute:meta])* $on:ident) => {
        $crate::outbox_conformance! { @list [$(#[$attribute])*] $on
            claims: events_of_a_key_are_claimed_in_their_order,
            claims: o02_a_claim_needs_the_leases_that_it_names,
            claims: o06_a_row_that_waits_holds_up_its_key_and_no_other,
            claims: a_claim_goes_on_behind_the_one_before_up_to_where_it_saw,
            claims: a_due_row_behind_the_cursor_holds_up_its_key,
            claims: a_claimed_row_is_shown_so_and_the_books_do_not_move,
            settles: o03_a_settle_after_the_buckets_were_taken_over_changes_nothing,
            settles: o07_a_failed_attempt_is_written_down_and_waits,
            settles: o08_a_row_that_is_given_up_on_is_dead_and_not_sent,
            settles: rows_that_somebody_else_has_removed_are_told_and_the_others_settled,
            settles: a04_a_second_settle_changes_nothing,
            settles: a01_a_row_that_is_sent_names_the_topic_that_it_went_to,
            leases: every_bucket_has_one_owner_and_its_token_grows,
            leases: o17_what_is_released_can_be_taken_at_once,
            leases: relays_that_are_alive_are_counted,
            operators: rows_are_listed_by_status_and_key_and_shown_whole,
            operators: o09_dead_rows_are_retried_by_number_by_event_and_all,
            operators: o09_a_retried_row_keeps_its_place_in_its_key,
            operators: o09_a_row_that_is_due_already_is_left_alone_by_a_retry,
            operators: o19_purge_and_clean_up_remove_only_what_is_finished,
            operators: stats_count_what_waits,
        }
    };
    (@list $attributes:tt $on:ident $($module:ident: $rule:ident,)*) => {
        $($crate::outbox_conformance! { @one $attributes $on $module $rule })*
    };
    (@one [$(#[$attribute:meta])*] $on:ident $module:ident $rule:ident) => {
        #[test]
        $(#[$attribute])*
        fn $rule() {
            $on!($crate::conformance::$module::$rule);
        }
    };
}
