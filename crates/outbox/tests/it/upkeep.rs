//! The clean-up of a large table, and a loop that dies, in simulated time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::{Component, HealthStatus, Shutdown, Topic};
use tidegate_log::{Append, Log, LogError, LogFuture, TopicConfig};
use tidegate_outbox::conformance::{BUCKETS, LONG_LEASE, OutboxWorld, dead};
use tidegate_outbox::model::{OutboxModel, OutboxRates};
use tidegate_outbox::port::SettledTo;
use tidegate_outbox::{
    NewOutboxEvent, Outbox, OutboxComponent, OutboxFilter, OutboxOptions, OutboxStatus,
    OutboxStore, Relay,
};
use tidegate_sim::{Sim, SimLog};

use crate::front_log::{FrontLog, Outcomes, Weather};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn o17_a_stop_ends_a_large_clean_up_and_the_numbers_go_on_during_it() {
    const ROWS: u32 = 100_000;
    let mut sim = Sim::new(1);
    let node = sim.node("relay");
    let env = node.env();
    let options = OutboxOptions {
        buckets: BUCKETS,
        retention: Some(SECOND),
        ..OutboxOptions::default()
    };
    let model = OutboxModel::new(&options, &env);
    let prepared = model.clone();
    sim.block_on(&node, async move {
        let world = OutboxWorld::new(Arc::new(prepared.clone()));
        let event = |number| NewOutboxEvent::new(format!("k{number}"), "T", "{}").topic("t");
        let events: Vec<_> = (0..=ROWS).map(event).collect();
        drop(prepared.begin_insert(&events).commit());
        let hand = world.relay("hand", LONG_LEASE).await;
        let rows = world.claim(&hand, ROWS + 1).await.rows;
        world.settle(&hand, &rows[1..], SettledTo::Sent).await;
        world.settle(&hand, &rows[..1], dead()).await;
        let released = prepared.release("hand", &hand.leases, true);
        released.await.unwrap();
    });
    sim.run_for(SECOND * 2);
    // Each call takes its time, so that the clean-up alone would take longer than a stop may.
    model.set_rates(OutboxRates {
        delay: SECOND * 6,
        ..OutboxRates::default()
    });
    let outbox = Outbox::of_store(Arc::new(model.clone()), options);
    let relay = Relay::new(outbox, Arc::new(SimLog::new(&env)), &env);
    let relay = Arc::new(relay);
    let (trigger, stop) = Shutdown::new();
    let (running, has_ended) = (Arc::clone(&relay), Arc::new(AtomicBool::new(false)));
    let ended = Arc::clone(&has_ended);
    drop(node.start("relay", async move {
        running.run(stop).await;
        ended.store(true, Ordering::SeqCst);
    }));
    let left = |sim: &mut Sim| {
        let (model, filter) = (
            model.clone(),
            OutboxFilter {
                status: Some(OutboxStatus::Sent),
                limit: ROWS,
                ..OutboxFilter::default()
            },
        );
        sim.block_on(
            &node,
            async move { model.list(&filter).await.unwrap().len() },
        )
    };
    sim.run_for(SECOND * 12);
    assert_eq!(relay.status().dead_rows, 1);
    let purge = tidegate_outbox::PurgeRequest {
        status: OutboxStatus::Dead,
        before_ms: i64::MAX,
        limit: 1,
    };
    let purging = model.clone();
    let purged = sim.block_on(&node, async move { purging.purge(purge).await });
    assert_eq!(purged.unwrap(), 1);
    sim.run_for(SECOND * 20);
    let during = left(&mut sim);
    assert!(
        (5_000..ROWS as usize).contains(&during),
        "{during} are left"
    );
    assert_eq!(relay.status().dead_rows, 0, "it is counted meanwhile");
    trigger.stop();
    sim.run_for(SECOND * 30);
    assert!(has_ended.load(Ordering::SeqCst), "it goes on cleaning");
    assert!(left(&mut sim) > 0);
}

/// A log whose client has a bug.
#[derive(Debug)]
struct Broken;

impl Weather for Broken {
    fn deliver<'a>(&'a self, _: &'a dyn Log, _: Vec<Append>) -> LogFuture<'a, Outcomes> {
        Box::pin(async { broken() })
    }
}

fn broken() -> Result<Outcomes, LogError> {
    panic!("a bug of the client")
}

#[test]
fn o16_a_lane_that_died_is_told_as_a_standstill() {
    let mut sim = Sim::new(1);
    let node = sim.node("relay");
    let env = node.env();
    let topic = Topic::new("events").unwrap();
    let options = OutboxOptions {
        topic: Some(topic.clone()),
        ..OutboxOptions::default()
    };
    let model = OutboxModel::new(&options, &env);
    drop(
        model
            .begin_insert(&[NewOutboxEvent::new("k", "T", "{}")])
            .commit(),
    );
    let log = SimLog::new(&env);
    let made = log.clone();
    sim.block_on(&node, async move {
        let made = made.create_topic(&topic, TopicConfig::new(1));
        made.await.unwrap();
    });
    let log = FrontLog {
        beneath: Arc::new(log),
        weather: Broken,
    };
    let outbox = Outbox::of_store(Arc::new(model), options);
    let component = Arc::new(OutboxComponent::new(outbox, Arc::new(log), &env));
    let (_trigger, stop) = Shutdown::new();
    drop(node.start("relay", Arc::clone(&component).run(stop)));
    sim.run_for(SECOND * 20);
    assert_eq!(component.stalled(), None, "it may still be at work");
    sim.run_for(SECOND * 20);
    let stalled = component.stalled().unwrap();
    assert!(stalled.starts_with("lane-"), "{stalled}");
    let asked = Arc::clone(&component);
    let health = sim.block_on(&node, async move { asked.health().await });
    assert_eq!(health.status, HealthStatus::Down);
    assert!(health.message.unwrap().contains("stands still"));
}

mod needs_postgres {
    use super::*;
    use crate::stores::{ask, drop_schema, postgres, run, runtime};
    use tidegate_core::env::Env;
    use tidegate_outbox::{PurgeRequest, migrate};

    /// How long the server may take until it shows its statistics.
    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn o19_clean_up_and_purge_find_old_rows_by_an_index() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let options = OutboxOptions::default();
            migrate(&store, &options).await.unwrap();
            let outbox = Outbox::open(&store, options, &Env::system()).await.unwrap();
            run(
                &store,
                "INSERT INTO outbox_event (aggregate_id, type, payload, created_at, status, sent, sent_at)
                 SELECT 'k' || n, 'T', repeat('x', 500), at, 'SENT', true, at FROM (
                     SELECT n, now() - n * interval '1 minute' + interval '30 seconds' AS at
                     FROM generate_series(1, 20000) n) rows",
            )
            .await;
            run(&store, "ANALYZE outbox_event").await;
            let none = PurgeRequest {
                status: OutboxStatus::Sent,
                before_ms: 0,
                limit: 100,
            };
            // Often enough that the driver and the server prepare the statements; 800 rows are that old.
            let retention = Some(SECOND * 60 * 19_200);
            for round in 0..10 {
                let cleaned = outbox.store().clean(retention, 100).await.unwrap();
                assert_eq!(cleaned, if round < 8 { 100 } else { 0 });
                assert_eq!(outbox.store().purge(none).await.unwrap(), 0);
            }
            let scans = format!(
                "SELECT coalesce(sum(idx_scan), 0)::int8 FROM pg_stat_user_indexes
                 WHERE indexrelname = 'outbox_event_created_at' AND schemaname = '{schema}'"
            );
            let shown = async {
                // A server process shows what it did at its next statement after a second.
                while ask(&store, &scans).await < 20 {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            };
            let shown = tokio::time::timeout(LIMIT, shown).await;
            assert!(shown.is_ok(), "{} of 20 read the index", ask(&store, &scans).await);
            drop_schema(&store, &schema).await;
        });
    }
}
