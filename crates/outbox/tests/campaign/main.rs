//! Relays as processes of their own, which are killed and stopped past their lease all the time.
//!
//! In a long run broker and database are restarted as well. The topic is read by kcat, which is not ours:
//! nothing is lost, and first occurrences are in the order of their keys. Repetitions are counted and printed;
//! there are at most as many as batches were on their way.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests read addresses from the environment and run in real time"
)]
#![expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a campaign says what was done"
)]

#[path = "../../../log/tests/kafka/broker.rs"]
mod broker;
mod broker_trouble;
mod full_disk;
mod scene;
#[path = "../../../queue/tests/campaign/server.rs"]
mod server;
#[path = "../../../log/tests/space/small_room.rs"]
mod small_room;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use tidegate_core::books::AuditVerdict;
use tidegate_core::env::Env;
use tidegate_core::{Component, Shutdown, Topic};
use tidegate_log::TopicConfig;
use tidegate_outbox::{Outbox, OutboxComponent, OutboxOptions, Relay, migrate};
use tidegate_sim::is_long;

use scene::{Addresses, RelayProcess, insert, read_by_kcat, run_sql, until_there};

const LEASE: Duration = Duration::from_secs(2);
const BATCH: u32 = 50;
/// Batches that a relay has on their way at once.
const LANES: usize = 4;
const KEYS: u64 = 40;

fn unique(name: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("{name}_{}_{}", since.as_nanos(), std::process::id())
}

fn options(topic: &str) -> OutboxOptions {
    OutboxOptions {
        topic: Some(Topic::new(topic.to_owned()).unwrap()),
        batch_size: BATCH,
        lease: LEASE,
        poll_delay: Duration::from_millis(10),
        ..OutboxOptions::default()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

/// Not a test of its own: a relay in a process, until it is killed.
#[test]
#[ignore = "a relay in a process of its own"]
fn child_relay() {
    let Ok(schema) = std::env::var("OUTBOX_CAMPAIGN_SCHEMA") else {
        return;
    };
    let topic = std::env::var("OUTBOX_CAMPAIGN_TOPIC").unwrap();
    runtime().block_on(async {
        let env = Env::system();
        let addresses = Addresses::of_environment();
        let store = addresses.store(Some(&schema)).await;
        let outbox = until_there(|| Outbox::open(&store, options(&topic), &env)).await;
        let relay = Relay::new(outbox, addresses.log().await, &env);
        let (_trigger, stop) = Shutdown::new();
        relay.run(stop).await;
    });
}

/// How long relays work, and how often one of them is killed. After each kill another one is stopped past its lease.
struct Campaign {
    addresses: Addresses,
    relays: usize,
    span: Duration,
    between: Duration,
}

/// A server that is taken away and brought back beside the campaign.
type Restart = Box<dyn FnOnce() + Send>;

async fn play(campaign: Campaign, restarts: Vec<Restart>) {
    let addresses = &campaign.addresses;
    let schema = unique("outbox_campaign");
    let admin = addresses.store(None).await;
    run_sql(&admin, format!("CREATE SCHEMA {schema}")).await;
    let store = addresses.store(Some(&schema)).await;
    let log = addresses.log().await;
    let topic = unique("campaign");
    let named = Topic::new(topic.clone()).unwrap();
    until_there(|| log.create_topic(&named, TopicConfig::new(4))).await;
    let env = Env::system();
    migrate(&store, &options(&topic)).await.unwrap();
    let outbox = Outbox::open(&store, options(&topic), &env).await.unwrap();
    let start = || RelayProcess::start(addresses, &schema, &topic);
    let mut relays: Vec<RelayProcess> = (0..campaign.relays).map(|_| start()).collect();
    let (mut numbers, mut kills, mut stops) = (0_u64, 0_usize, 0_usize);
    let away = restarts.len();
    let pause = campaign.span / u32::try_from(away + 1).unwrap();
    let restarting = std::thread::spawn(move || {
        for restart in restarts {
            std::thread::sleep(pause);
            restart();
        }
    });
    let began = Instant::now();
    let mut next_kill = began + campaign.between;
    let mut next_stop: Option<(usize, Instant)> = None;
    let mut stopped: Option<(usize, Instant)> = None;
    while began.elapsed() < campaign.span || !restarting.is_finished() {
        insert(&outbox, &store, numbers).await;
        numbers += 1;
        if let Some((index, until)) = stopped
            && Instant::now() > until
        {
            relays[index].signal(Signal::CONT);
            stopped = None;
        }
        if Instant::now() > next_kill {
            next_kill = Instant::now() + campaign.between;
            let index = kills % relays.len();
            kills += 1;
            // Dropping it kills it, as -9 does.
            relays[index] = start();
            // The one that is killed next comes back from its stop before.
            let next = (kills % relays.len(), Instant::now() + campaign.between / 5);
            next_stop = Some(next);
        }
        if let Some((index, at)) = next_stop
            && stopped.is_none()
            && Instant::now() > at
        {
            stops += 1;
            relays[index].signal(Signal::STOP);
            stopped = Some((index, Instant::now() + LEASE * 3 / 2));
            next_stop = None;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    restarting.join().unwrap();
    if let Some((index, _)) = stopped {
        relays[index].signal(Signal::CONT);
    }
    let ended = Instant::now();
    loop {
        let stats = until_there(|| outbox.stats()).await;
        if stats.pending + stats.claimed == 0 {
            break;
        }
        assert!(ended.elapsed() < Duration::from_secs(60), "{stats:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for relay in &mut relays {
        let ended = relay.0.try_wait().unwrap();
        assert_eq!(ended, None, "no relay ends by itself");
    }
    drop(relays);
    let mut first: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut repeated = 0;
    for (key, number) in read_by_kcat(&addresses.bootstrap, &topic) {
        let seen = first.entry(key).or_default();
        match seen.contains(&number) {
            true => repeated += 1,
            false => seen.push(number),
        }
    }
    let expect: Vec<u64> = (0..numbers).collect();
    assert_eq!(first.len(), usize::try_from(KEYS).unwrap());
    for (key, seen) in &first {
        assert_eq!(*seen, expect, "{key}");
    }
    // A server that goes away interrupts every relay.
    let interrupted = kills + stops + away * campaign.relays;
    let most = interrupted * LANES * usize::try_from(BATCH).unwrap();
    eprintln!(
        "{} relays, {} events, {kills} kills, {stops} stops, {away} restarts of servers: {repeated} repeated, \
         at most {most} may be",
        campaign.relays,
        numbers * KEYS
    );
    assert!(repeated <= most, "{repeated} of at most {most}");
    let component = OutboxComponent::inspected(outbox, Some(log));
    let audited = component.audit().await.unwrap().remove(0);
    // The command exits with 0 then.
    assert_eq!(audited.verdict(), AuditVerdict::Clean, "{audited:?}");
    assert_eq!(audited.unverifiable, 0, "{audited:?}");
    // The connections of before are gone with the server.
    let admin = addresses.store(None).await;
    run_sql(&admin, format!("DROP SCHEMA {schema} CASCADE")).await;
}

mod needs_kcat {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::broker::Broker;
    use super::server::{Server, Stop};
    use super::*;

    /// Campaigns are played one after the other.
    fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    #[ignore = "needs PostgreSQL, Kafka and kcat"]
    fn o12_relays_that_are_killed_and_stopped_lose_nothing_and_keep_the_order() {
        let _turn = turn();
        let campaign = Campaign {
            addresses: Addresses::of_environment(),
            relays: 2,
            span: Duration::from_secs(10),
            between: Duration::from_secs(4),
        };
        runtime().block_on(play(campaign, Vec::new()));
    }

    /// Broker and database of one's own go away twice each, the database once as by a crash.
    fn with_restarts(relays: usize) {
        if !is_long() {
            return;
        }
        let _turn = turn();
        let broker = Arc::new(Mutex::new(Broker::start()));
        let server = Arc::new(Mutex::new(Server::start()));
        let addresses = Addresses {
            database: server.lock().unwrap().url("campaign"),
            bootstrap: broker.lock().unwrap().servers(),
        };
        let of_broker = || -> Restart {
            let broker = Arc::clone(&broker);
            Box::new(move || {
                let mut broker = broker.lock().unwrap();
                broker.kill();
                broker.restart();
            })
        };
        let of_database = |how| -> Restart {
            let server = Arc::clone(&server);
            Box::new(move || server.lock().unwrap().restart(how))
        };
        let restarts = vec![
            of_broker(),
            of_database(Stop::Immediate),
            of_broker(),
            of_database(Stop::Fast),
        ];
        let campaign = Campaign {
            addresses,
            relays,
            span: Duration::from_secs(150),
            between: Duration::from_secs(5),
        };
        runtime().block_on(play(campaign, restarts));
    }

    macro_rules! with_restarts {
        ($($name:ident = $relays:literal),* $(,)?) => {
            $(
                #[test]
                #[ignore = "needs PostgreSQL, Kafka and kcat"]
                fn $name() {
                    with_restarts($relays);
                }
            )*
        };
    }

    with_restarts!(
        o12_one_relay_survives_kills_stops_and_restarts_of_both_servers = 1,
        o12_two_relays_survive_kills_stops_and_restarts_of_both_servers = 2,
        o12_four_relays_survive_kills_stops_and_restarts_of_both_servers = 4,
        o12_eight_relays_survive_kills_stops_and_restarts_of_both_servers = 8,
    );
}
