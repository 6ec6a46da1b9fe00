//! The findings of an audit.

use std::sync::Arc;

use tidegate_core::books::{Audited, NotCompared};
use tidegate_core::env::Env;
use tidegate_core::{Component, Topic};
use tidegate_log::{Log, TopicConfig, TopicPartition};
use tidegate_outbox::conformance::{BUCKETS, LONG_LEASE, OutboxWorld};
use tidegate_outbox::model::OutboxModel;
use tidegate_outbox::{
    Outbox, OutboxComponent, OutboxOptions, OutboxStore, migrate, migration_sql,
};
use tidegate_sim::SimLog;
use tidegate_store::Dialect;

use crate::backend::{Backend, RunningRelay, audit, event, on_embedded, on_servers, until_drained};
use crate::stores::{drop_schema, postgres, run, runtime, sqlite};

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
    a01_a_row_deleted_by_hand_and_one_that_never_was_in_its_topic_are_named,
    a_record_that_retention_removed_is_unverifiable,
    where_finds_the_row,
);

async fn a01_a_row_deleted_by_hand_and_one_that_never_was_in_its_topic_are_named(
    backend: &Backend,
) {
    let outbox = backend.outbox(backend.options()).await;
    let ids = outbox
        .insert(&[event("a", 1), event("b", 2), event("c", 3)])
        .await
        .unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    audit(&outbox, &backend.log).await;
    let missing = async || {
        let log = Some(Arc::clone(&backend.log));
        let component = OutboxComponent::inspected(outbox.clone(), log);
        let audited = component.audit().await.unwrap().remove(0);
        assert_eq!(audited.unaccounted > 0, !audited.missing.is_empty());
        let ids = audited.missing.iter().filter_map(|one| one.id);
        ids.collect::<Vec<_>>()
    };
    let delete = format!("DELETE FROM outbox_event WHERE event_id = '{}'", ids[1]);
    run(&backend.store, &delete).await;
    assert_eq!(missing().await, [ids[1]]);
    // Somebody calls a row sent that no relay has published.
    let forged = "INSERT INTO outbox_event (aggregate_id, type, payload) VALUES ('d', 'T', '4')";
    run(&backend.store, forged).await;
    let forged = "UPDATE outbox_event SET status = 'SENT', sent = true, sent_at = created_at WHERE aggregate_id = 'd'";
    run(&backend.store, forged).await;
    let filter = tidegate_outbox::OutboxFilter {
        status: Some(tidegate_outbox::OutboxStatus::Sent),
        aggregate_id: Some("d".to_owned()),
        ..Default::default()
    };
    let forged = outbox.list(&filter).await.unwrap()[0].event_id;
    assert!(missing().await.contains(&forged));
}

async fn a_record_that_retention_removed_is_unverifiable(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    outbox
        .insert(&[event("a", 1), event("b", 2), event("c", 3)])
        .await
        .unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    for partition in backend
        .log
        .describe(&backend.topic)
        .await
        .unwrap()
        .partitions
    {
        let at = TopicPartition::new(backend.topic.clone(), partition.partition.0);
        backend.log.delete_before(&at, partition.end).await.unwrap();
    }
    let component = OutboxComponent::inspected(outbox.clone(), Some(Arc::clone(&backend.log)));
    let audited = component.audit().await.unwrap().remove(0);
    assert_eq!((audited.unaccounted, audited.unverifiable), (0, 3));
    // Without the log nothing is compared, and that is said.
    let component = OutboxComponent::inspected(outbox, None);
    let delivered = component.delivered().await.unwrap();
    assert_eq!(delivered.len(), 1);
}

/// The audit of three sent rows of which the log has none.
fn audited_without_records(config: Option<TopicConfig>) -> Audited {
    runtime().block_on(async {
        let options = OutboxOptions {
            buckets: BUCKETS,
            ..OutboxOptions::default()
        };
        let model = Arc::new(OutboxModel::new(&options, &Env::system()));
        let world = OutboxWorld::new(Arc::clone(&model) as Arc<dyn OutboxStore>);
        for key in ["a", "b", "c"] {
            world.add(key).await;
        }
        let relay = world.relay("one", LONG_LEASE).await;
        assert_eq!(world.send_all(&relay).await.len(), 3);
        let log: Arc<dyn Log> = Arc::new(SimLog::new(&Env::system()));
        if let Some(config) = config {
            let topic = Topic::new("t").unwrap();
            log.create_topic(&topic, config).await.unwrap();
        }
        let outbox = Outbox::of_store(model, options);
        let component = OutboxComponent::inspected(outbox, Some(log));
        component.audit().await.unwrap().remove(0)
    })
}

#[test]
fn a01_rows_without_records_are_missing_but_for_what_compaction_may_have_removed() {
    let audited = audited_without_records(Some(TopicConfig::new(1)));
    assert_eq!((audited.unaccounted, audited.unverifiable), (3, 0));
    assert_eq!(audited.paths, []);
    let compacted = TopicConfig {
        compact: true,
        ..TopicConfig::new(1)
    };
    let audited = audited_without_records(Some(compacted));
    assert_eq!((audited.unaccounted, audited.unverifiable), (0, 3));
    assert_eq!(audited.paths, []);
}

#[test]
fn a01_a_topic_that_is_gone_is_named() {
    let audited = audited_without_records(None);
    assert_eq!((audited.unaccounted, audited.unverifiable), (0, 3));
    let path = &audited.paths[0];
    assert_eq!((path.to.as_deref(), path.not_compared), (Some("t"), 3));
    assert_eq!(path.reason, Some(NotCompared::TopicGone));
}

async fn where_finds_the_row(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    let ids = outbox.insert(&[event("a", 1)]).await.unwrap();
    let component = OutboxComponent::inspected(outbox, None);
    let found = component.locate(ids[0]).await.unwrap();
    assert_eq!(found[0].place.to_string(), "queued");
    assert_eq!(found[0].details["aggregate_id"], "a");
    assert!(
        component
            .locate(tidegate_core::EventId::from_u128(5))
            .await
            .unwrap()
            .is_empty()
    );
}

/// The printed SQL makes the same tables, and other settings are refused afterwards.
async fn printed(store: &tidegate_store::Store, dialect: Dialect) {
    let options = OutboxOptions {
        order: tidegate_outbox::EventOrder::Strict,
        ..OutboxOptions::new("loans")
    };
    assert!(
        Outbox::open(store, options.clone(), &Env::system())
            .await
            .is_err()
    );
    run(store, &migration_sql(dialect, &options).unwrap()).await;
    assert_eq!(migrate(store, &options).await.unwrap(), 0);
    let outbox = Outbox::open(store, options.clone(), &Env::system())
        .await
        .unwrap();
    outbox
        .insert(&[event("a", 1), event("a", 2)])
        .await
        .unwrap();
    assert_eq!(outbox.store().recount().await.unwrap().unaccounted(), 0);
    let other = OutboxOptions {
        buckets: 32,
        ..options
    };
    let error = migrate(store, &other).await.unwrap_err();
    assert_eq!(error.code().as_str(), "outbox.other-table");
}

#[test]
fn printed_migrations_are_the_migrations_on_sqlite() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        printed(&sqlite(&dir).await, Dialect::Sqlite).await;
    });
}

mod needs_postgres {
    use super::*;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn printed_migrations_are_the_migrations_on_postgres() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            printed(&store, Dialect::Postgres).await;
            drop_schema(&store, &schema).await;
        });
    }
}
