//! A database server whose file system really has no room left, until it goes down.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::env::Env;
use tidegate_core::{Component, HealthStatus, Shutdown, Topic};
use tidegate_log::{EmbeddedConfig, EmbeddedLog, Log, TopicConfig};
use tidegate_outbox::{NewOutboxEvent, Outbox, OutboxComponent, OutboxError, migrate};

use crate::scene::{Addresses, try_to_run, until_there};
use crate::server::{Server, Stop};
use crate::small_room::{fill_up, room, run_in_small_room};
use crate::{options, runtime};

mod needs_postgres {
    use super::*;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn o16_a_full_file_system_below_postgres_is_told_and_rows_go_on_when_there_is_room() {
        // The server runs as another user, whom only root can become.
        if !rustix::process::geteuid().is_root() {
            println!("skipped: this user may not run a server on a file system of its own");
            return;
        }
        run_in_small_room("full_disk::needs_postgres::child_process_entry", 96);
    }

    #[test]
    #[ignore = "not a test: does nothing without a room"]
    fn child_process_entry() {
        if let Some(room) = room() {
            runtime().block_on(with_full_server(&room));
        }
    }
}

/// Waits for a fact about the health of the relay.
async fn until_health(
    component: &OutboxComponent,
    is_so: impl Fn(HealthStatus, &str) -> bool,
) -> String {
    let began = Instant::now();
    loop {
        let health = component.health().await;
        let message = health.message.unwrap_or_default();
        if is_so(health.status, &message) {
            return message;
        }
        assert!(began.elapsed() < Duration::from_secs(90), "{message}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn with_full_server(room: &Path) {
    let mut server = Server::start_below(room);
    let addresses = Addresses {
        database: server.url("campaign"),
        bootstrap: String::new(),
    };
    let store = addresses.store(None).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let env = Env::system();
    let config = EmbeddedConfig::new(elsewhere.path().join("log"));
    let embedded = EmbeddedLog::open(&env, config).unwrap();
    let log: Arc<dyn Log> = Arc::new(embedded.clone());
    let topic = Topic::new("events").unwrap();
    log.create_topic(&topic, TopicConfig::new(2)).await.unwrap();
    let options = options(topic.as_str());
    migrate(&store, &options).await.unwrap();
    let outbox = Outbox::open(&store, options, &env).await.unwrap();
    let component = Arc::new(OutboxComponent::new(outbox.clone(), Arc::clone(&log), &env));
    let (trigger, stop) = Shutdown::new();
    let running = tokio::spawn(Arc::clone(&component).run(stop));

    let event = |number: u64, bytes: usize| {
        // It does not get smaller by compression.
        let payload = (0..bytes as u64 / 16).map(|n| {
            format!(
                "{:016x}",
                (number + n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            )
        });
        NewOutboxEvent::new(format!("k{}", number % 5), "T", payload.collect::<String>())
    };
    let ballast = fill_up(room);
    // A little room is left, for some of the rows.
    let file = std::fs::File::options().write(true).open(&ballast).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 4 * 1024 * 1024).unwrap();
    drop(file);
    let mut accepted = 0;
    let refusal = loop {
        match outbox.insert(&[event(accepted, 100_000)]).await {
            Ok(_) => accepted += 1,
            Err(refusal) => break refusal,
        }
        assert!(accepted < 2_000, "it is never full");
    };
    assert_eq!(refusal.code().as_str(), "store.broken", "{refusal:?}");
    assert!(accepted > 10, "{accepted} fit");
    // Then the files of its log run out, and the server goes down.
    let mut unknown = 0;
    loop {
        match outbox.insert(&[event(accepted, 16)]).await {
            Ok(_) => accepted += 1,
            Err(OutboxError::Store(error)) if error.code().as_str() == "store.broken" => {}
            Err(error) => {
                unknown += u64::from(error.may_have_happened());
                break;
            }
        }
        assert!(accepted < 5_000, "it never goes down");
        try_to_run(&store, "SELECT pg_switch_wal()").await.ok();
    }
    let message = until_health(&component, |status, _| status == HealthStatus::Down).await;
    assert!(message.starts_with("store."), "{message}");
    assert_eq!(component.stalled(), None, "waiting is not standing still");
    std::fs::remove_file(ballast).unwrap();
    server.restart(Stop::Immediate);
    until_health(&component, |status, _| status == HealthStatus::Up).await;
    let began = Instant::now();
    loop {
        let stats = until_there(|| outbox.stats()).await;
        if stats.pending + stats.claimed == 0 {
            assert_eq!(stats.dead, 0);
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{stats:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    trigger.stop();
    running.await.unwrap();
    let audited = OutboxComponent::inspected(outbox, Some(log));
    let audited = audited.audit().await.unwrap().remove(0);
    assert_eq!(
        (audited.unaccounted, audited.unverifiable),
        (0, 0),
        "{audited:?}"
    );
    let sent = audited.books.delivered;
    let expect = i64::try_from(accepted).unwrap()..=i64::try_from(accepted + unknown).unwrap();
    assert!(expect.contains(&sent), "{sent} of {expect:?}");
    println!("{sent} events, the server went down once");
    embedded.close().await;
    drop(store);
}
