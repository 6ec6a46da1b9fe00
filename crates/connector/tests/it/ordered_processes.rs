//! Ordered keys in several processes that come, go and are killed. Each call is written down with its time, so that
//! the order of each key can be checked over all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_connector::{
    Binding, BindingOptions, BoundHandler, ConcurrencyMode, Connector, OrderingMode, TierOptions,
};
use tidegate_core::env::Env;
use tidegate_log::Log;

use crate::child::SESSION;
use crate::scene::{text, transient};
use crate::stores;

/// A key of which every record fails at first, and one in ten for ever.
const BAD_KEY: &str = "k0";

/// The binding of all processes.
pub(crate) fn options(topic: &str, group: &str) -> BindingOptions {
    let mut options = BindingOptions::new("orders", topic, group).unwrap();
    options.session_timeout = SESSION;
    options.heartbeat_interval = Duration::from_secs(1);
    options.ordering = OrderingMode::KeyOrdered;
    options.concurrency_mode = ConcurrencyMode::Key;
    options.retry.tier0.max_attempts = 1;
    options.retry.tiers = [100, 200]
        .map(|ms| TierOptions {
            max_attempts: 1,
            ..TierOptions::new(Duration::from_millis(ms))
        })
        .into();
    options
}

fn now() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_nanos()
}

/// Values are `key.number`. Says `time partition value begin`, and then `done` or `failed`.
fn handler(tells: impl Fn(String) + Send + Sync + 'static) -> BoundHandler {
    let tells = Arc::new(tells);
    BoundHandler::from_fn(move |record| {
        let tells = Arc::clone(&tells);
        async move {
            let (value, partition) = (text(record.value()), record.partition());
            tells(format!("{} {partition} {value} begin", now()));
            tokio::time::sleep(Duration::from_millis(1)).await;
            let (key, number) = value.split_once('.').unwrap();
            let is_poison = number.parse::<u64>().unwrap() % 10 == 9;
            let fails = key == BAD_KEY && (is_poison || record.tier().0 == 0);
            let outcome = if fails { "failed" } else { "done" };
            tells(format!("{} {partition} {value} {outcome}", now()));
            match fails {
                true => transient("timeout.read"),
                false => Ok(()),
            }
        }
    })
}

/// Starts the binding in this process.
pub(crate) async fn start(
    log: Arc<dyn Log>,
    env: &Env,
    topic: &str,
    group: &str,
    tells: impl Fn(String) + Send + Sync + 'static,
) -> Connector {
    let connector = Connector::new(log, env).with_store(stores::postgres().await);
    let binding = Binding::new(options(topic, group), handler(tells));
    connector.register(binding).unwrap();
    connector.start("orders").await.unwrap();
    connector
}

/// When a record was first called, last called, and first done.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    first: u128,
    last: u128,
    done: Option<u128>,
}

/// The calls by partition and key, then by number.
type Calls = BTreeMap<(String, String), BTreeMap<u64, Seen>>;

fn read(lines: &[String]) -> Calls {
    let mut sorted: Vec<(u128, &str, &str, &str)> = lines
        .iter()
        .map(|line| {
            let mut words = line.split(' ');
            let mut next = || words.next().unwrap();
            (next().parse().unwrap(), next(), next(), next())
        })
        .collect();
    sorted.sort_unstable();
    let mut calls = Calls::new();
    for (time, partition, value, what) in sorted {
        let (key, number) = value.split_once('.').unwrap();
        let of_key = calls
            .entry((partition.to_owned(), key.to_owned()))
            .or_default();
        let seen = of_key.entry(number.parse().unwrap()).or_default();
        match what {
            "begin" => {
                seen.first = if seen.first == 0 { time } else { seen.first };
                seen.last = time;
            }
            "done" => seen.done = seen.done.or(Some(time)),
            _ => {}
        }
    }
    calls
}

/// No record was called before those of its key in front of it were done, or given up.
fn assert_ordered(calls: &Calls) {
    for (key, of_key) in calls {
        for ((before, one), (after, two)) in of_key.iter().zip(of_key.iter().skip(1)) {
            let over = one.done.unwrap_or(one.last);
            assert!(
                over < two.first,
                "{key:?}: {after} began before {before} was over: {one:?} {two:?}"
            );
        }
    }
}

mod needs_kafka {
    use std::collections::BTreeSet;
    use std::process::Child;

    use tidegate_connector::{BindingBooks, ConcurrencyMode};
    use tidegate_core::{Mutex, Topic};
    use tidegate_log::{Append, Record, TopicPartition};
    use tidegate_sim::is_long;
    use tidegate_testkit::child::{ChildLines, pause, resume};

    use super::*;
    use crate::child::{self, Part};
    use crate::scene::{Scene, Script, on_kafka_within};

    const PARTITIONS: i32 = 4;
    const KEYS: u64 = 8;

    type Lines = Arc<Mutex<Vec<String>>>;

    fn hear(lines: ChildLines, all: &Lines) {
        let all = Arc::clone(all);
        std::thread::spawn(move || lines.for_each(|line| all.lock().push(line)));
    }

    fn process(topic: &Topic, group: &str, all: &Lines) -> Child {
        let (process, lines) = child::start(Part::Ordered, topic.as_str(), group, false);
        hear(lines, all);
        process
    }

    /// The next records of every key, in a partition by key.
    async fn send(scene: &Scene, topic: &Topic, from: u64, count: u64) {
        let appends = (from..from + count).flat_map(|number| {
            (0..KEYS).map(move |key| {
                let record = Record::new(format!("k{key}.{number}")).key(format!("k{key}"));
                let partition = i32::try_from(key).unwrap() % PARTITIONS;
                Append::new(topic.clone(), record).partition(partition)
            })
        });
        scene.log.append(appends.collect()).await.unwrap();
    }

    /// Waits until every record was passed and no row is left.
    async fn until_drained(scene: &Scene, books: &BindingBooks, limit: Duration) {
        let until = scene.env.clock.elapsed() + limit;
        loop {
            let account = books.accounts().await.unwrap().remove(0).account;
            if account.queued + account.retrying + account.parked == 0 {
                return;
            }
            assert!(scene.env.clock.elapsed() < until, "{account:?}");
            scene.env.clock.sleep(Duration::from_millis(200)).await;
        }
    }

    #[test]
    #[ignore = "needs Kafka and PostgreSQL"]
    fn c33_keys_stay_in_order_while_processes_come_go_and_are_killed() {
        let long = Duration::from_secs(if is_long() { 300 } else { 6 });
        on_kafka_within(long * 2 + Duration::from_secs(120), |scene| async move {
            let topic = scene.topic("ordered", 4).await;
            let group = scene.name("group");
            let all: Lines = Arc::default();
            let mut stays = process(&topic, &group, &all);
            let mut falls = process(&topic, &group, &all);
            let clock = Arc::clone(&scene.env.clock);
            let (began, mut rounds, mut sent) = (clock.elapsed(), 0, 0);
            // Every few seconds somebody comes and goes, is killed, or stands still past its session.
            while clock.elapsed() - began < long {
                let own = Arc::clone(&all);
                let tells = move |line| own.lock().push(line);
                let log = Arc::clone(&scene.log);
                let guest = start(log, &scene.env, topic.as_str(), &group, tells).await;
                for _ in 0..10 {
                    send(&scene, &topic, sent, 1).await;
                    sent += 1;
                    clock.sleep(Duration::from_millis(250)).await;
                }
                guest.stop("orders").await.unwrap();
                for _ in 0..10 {
                    send(&scene, &topic, sent, 1).await;
                    sent += 1;
                    clock.sleep(Duration::from_millis(250)).await;
                }
                match rounds % 4 {
                    0 => {
                        falls.kill().unwrap();
                        falls.wait().unwrap();
                        falls = process(&topic, &group, &all);
                    }
                    2 => {
                        pause(&stays).unwrap();
                        clock.sleep(SESSION + Duration::from_secs(6)).await;
                        resume(&stays).unwrap();
                    }
                    _ => {}
                }
                rounds += 1;
            }
            let options = options(topic.as_str(), &group);
            let books = BindingBooks::new(Arc::clone(&scene.log), vec![options.clone()]);
            let books = books.with_store(Some(scene.store().await));
            until_drained(&scene, &books, long + Duration::from_secs(90)).await;
            for process in [&mut stays, &mut falls] {
                process.kill().unwrap();
                process.wait().unwrap();
            }
            let calls = read(&all.lock());
            assert_ordered(&calls);
            let mut letters = BTreeSet::new();
            for partition in 0..PARTITIONS {
                let dlt = options.dlt_topic().unwrap();
                for stored in scene.records(&dlt, partition).await {
                    let is_new = letters.insert(text(stored.record.value.as_ref()));
                    assert!(is_new, "one letter for each");
                }
            }
            for key in 0..KEYS {
                let at = ((key % 4).to_string(), format!("k{key}"));
                for number in 0..sent {
                    let is_done = calls[&at]
                        .get(&number)
                        .is_some_and(|seen| seen.done.is_some());
                    let is_letter = letters.contains(&format!("k{key}.{number}"));
                    assert!(
                        is_done != is_letter,
                        "k{key}.{number}: {is_done} {is_letter}"
                    );
                }
            }
            let audited = books.audit().await.unwrap();
            let found = (audited[0].unaccounted, audited[0].missing.len());
            assert_eq!(found, (0, 0), "{audited:?}");
            let count = all.lock().len() / 2;
            println!(
                "{rounds} rounds, {} records, {count} calls, {} letters",
                sent * KEYS,
                letters.len()
            );
        });
    }

    #[test]
    #[ignore = "needs Kafka and PostgreSQL"]
    fn c02_a_million_settled_records_above_the_commit_survive_a_restart() {
        let open: usize = if is_long() { 1_000_000 } else { 4_000 };
        on_kafka_within(Duration::from_secs(900), move |scene| async move {
            let topic = scene.topic("million", 1).await;
            let mut options = scene.options(&topic);
            options.concurrency_mode = ConcurrencyMode::Unordered;
            options.max_ahead = 3_000_000;
            options.max_poll_records = 5_000;
            // A partition that was held back goes on at half of eight times this, and a million records wait.
            options.max_in_flight = 300_000;
            // Every second one waits for its second attempt, longer than the test takes.
            options.retry.tier0.max_attempts = 2;
            options.retry.tier0.initial_backoff = Duration::from_secs(3_600);
            options.retry.tier0.max_backoff = Duration::from_secs(3_600);
            options.max_poll_interval = Duration::from_secs(100_000_000);
            for first in (0..open).step_by(2_500) {
                let appends = (2 * first..2 * open.min(first + 2_500))
                    .map(|n| Append::new(topic.clone(), Record::new(n.to_string())).partition(0));
                scene.log.append(appends.collect()).await.unwrap();
            }
            let is_even = |value: &str| value.ends_with(['0', '2', '4', '6', '8']);
            let script = Script::new(&scene);
            let handler = script.answers(move |record| match is_even(&text(record.value())) {
                true => transient("timeout.read"),
                false => Ok(()),
            });
            let connector = scene.start_with_store(options.clone(), handler).await;
            let clock = Arc::clone(&scene.env.clock);
            while script.len() < 2 * open {
                clock.sleep(Duration::from_millis(200)).await;
            }
            connector.stop("orders").await.unwrap();
            let at = TopicPartition::new(topic.clone(), 0);
            let held = scene.log.committed(&options.group, &[at]).await.unwrap();
            let held = held[0].clone().unwrap();
            println!("committed {} with {} bytes", held.next, held.metadata.len());
            assert_eq!(held.next.0, 0);
            let again = Script::new(&scene);
            let began = clock.elapsed();
            let connector = scene
                .start_with_store(options.clone(), again.answers(|_| Ok(())))
                .await;
            let end = i64::try_from(2 * open).unwrap();
            while scene.committed(&options.group, &topic, 0).await != Some(end) {
                clock.sleep(Duration::from_millis(200)).await;
            }
            println!("handled the rest in {:?}", clock.elapsed() - began);
            connector.stop("orders").await.unwrap();
            let values = again.values();
            assert_eq!(values.len(), open);
            assert!(values.iter().all(|value| is_even(value)));
        });
    }
}
