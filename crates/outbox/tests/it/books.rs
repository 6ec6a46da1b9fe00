//! The findings of an audit.

use std::sync::Arc;

use tidegate_core::books::{AuditVerdict, Audited, Discrepancy, NotCompared, Place};
use tidegate_core::env::Env;
use tidegate_core::{Component, Topic};
use tidegate_log::{Log, TopicConfig, TopicPartition, partition_of};
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
    a01_a_partition_that_retention_emptied_hides_no_loss_in_the_others,
    a01_a_row_is_looked_for_in_the_topic_that_it_was_sent_to,
    a01_a_dead_letter_that_is_not_there_is_a_finding_and_no_loss,
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

/// Of the partitions one has had no records for a while.
async fn a01_a_partition_that_retention_emptied_hides_no_loss_in_the_others(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    let keys: Vec<String> = (0..12).map(|key| format!("key-{key}")).collect();
    let events: Vec<_> = keys.iter().map(|key| event(key, 1)).collect();
    let ids = outbox.insert(&events).await.unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    let of = |key: &String| partition_of(key.as_bytes(), 3).0;
    let quiet = of(&keys[0]);
    let emptied = keys.iter().filter(|key| of(key) == quiet).count();
    let described = backend.log.describe(&backend.topic).await.unwrap();
    let mut partitions = described.partitions.into_iter();
    let partition = partitions.find(|one| one.partition.0 == quiet).unwrap();
    let at = TopicPartition::new(backend.topic.clone(), quiet);
    backend.log.delete_before(&at, partition.end).await.unwrap();
    // Rows of both kinds of partitions are called sent, and no relay has published them.
    let other = keys.iter().find(|key| of(key) != quiet).unwrap();
    let mut forged = Vec::new();
    for key in [&keys[0], other] {
        let event = event(key, 2);
        let added = outbox.insert(&[event]).await.unwrap();
        let sql = format!(
            "UPDATE outbox_event SET status = 'SENT', sent = true, sent_at = created_at WHERE event_id = '{}'",
            added[0]
        );
        run(&backend.store, &sql).await;
        forged.extend(added);
    }
    let component = OutboxComponent::inspected(outbox, Some(Arc::clone(&backend.log)));
    let audited = component.audit().await.unwrap().remove(0);
    let delivered = |one: &&Discrepancy| one.place == Place::Delivered && one.count == 1;
    let missing = audited.missing.iter().filter(delivered);
    let missing: Vec<_> = missing.filter_map(|one| one.id).collect();
    assert_eq!(missing, [forged[1]], "{audited:?}");
    assert_eq!(audited.unverifiable, emptied as u64 + 1);
    assert!(ids.len() > emptied);
}

async fn a01_a_row_is_looked_for_in_the_topic_that_it_was_sent_to(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    outbox.insert(&[event("a", 1)]).await.unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    let renamed = Topic::new(format!("{}-renamed", backend.topic)).unwrap();
    let made = backend.log.create_topic(&renamed, TopicConfig::new(1));
    made.await.unwrap();
    let options = OutboxOptions {
        topic: Some(renamed),
        ..backend.options()
    };
    let outbox = backend.another(options).await;
    outbox.insert(&[event("a", 2)]).await.unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    audit(&outbox, &backend.log).await;
}

async fn a01_a_dead_letter_that_is_not_there_is_a_finding_and_no_loss(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    let bad = event("a", 1).topic("no-such-topic");
    let ids = outbox.insert(&[bad]).await.unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    audit(&outbox, &backend.log).await;
    let options = OutboxOptions {
        dlq_topic: format!("{}-other-letters", backend.topic),
        ..backend.options()
    };
    let outbox = backend.another(options.clone()).await;
    let audited = async || {
        let log = Some(Arc::clone(&backend.log));
        let component = OutboxComponent::inspected(outbox.clone(), log);
        component.audit().await.unwrap().remove(0)
    };
    let found = audited().await;
    assert_eq!(found.verdict(), AuditVerdict::Findings, "{found:?}");
    assert_eq!(found.findings[0].code, "outbox.topic-gone");
    let letters = Topic::new(options.dlq_topic).unwrap();
    let made = backend.log.create_topic(&letters, TopicConfig::new(1));
    made.await.unwrap();
    let found = audited().await;
    assert_eq!(found.verdict(), AuditVerdict::Findings, "{found:?}");
    assert_eq!(found.findings[0].code, "outbox.letter-missing");
    assert_eq!(found.findings[0].id, Some(ids[0]));
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
    assert_eq!(audited.verdict(), AuditVerdict::Findings);
    assert_eq!(audited.findings[0].code, "outbox.topic-gone");
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

/// A table of the same name that another program has made.
async fn refused(store: &tidegate_store::Store) {
    run(store, "CREATE TABLE outbox_event (id bigint, status text)").await;
    let error = migrate(store, &OutboxOptions::default()).await.unwrap_err();
    assert_eq!(error.code().as_str(), "outbox.other-table", "{error}");
    assert!(error.to_string().contains("another program"), "{error}");
    run(store, "INSERT INTO outbox_event VALUES (1, 'NEW')").await;
}

#[test]
fn a_table_of_another_program_is_refused_and_left_as_it_is_on_sqlite() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        refused(&sqlite(&dir).await).await;
    });
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
    fn a_table_of_another_program_is_refused_and_left_as_it_is_on_postgres() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            refused(&store).await;
            drop_schema(&store, &schema).await;
        });
    }

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
