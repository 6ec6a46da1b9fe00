//! Processes that are killed or stopped in the middle of a hand-off, clients that are not ours, and a
//! service that refuses.

mod needs_kafka {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::os::unix::process::ExitStatusExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, Ordering};
    use std::time::Duration;

    use tidegate_connector::{
        BindingBooks, BindingOptions, BoundHandler, ContainerState, HttpHandler,
    };
    use tidegate_core::{Mutex, TierIndex};
    use tidegate_sim::is_long;
    use tidegate_testkit::child::{ChildLines, pause, resume};

    use crate::child::{self, Part};
    use crate::scene::{LIMIT, Scene, Script, on_embedded, on_kafka, text};

    /// The calls that a process reports, as they come.
    fn heard(lines: ChildLines) -> Arc<Mutex<Vec<String>>> {
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let hear = Arc::clone(&said);
        std::thread::spawn(move || lines.for_each(|line| hear.lock().push(line)));
        said
    }

    /// How often each value lies in the first tier.
    async fn copies(scene: &Scene, options: &BindingOptions) -> BTreeMap<String, usize> {
        let tier = options.tier_topic(TierIndex(1)).unwrap();
        let mut copies = BTreeMap::new();
        for stored in scene.records(&tier, 0).await {
            *copies
                .entry(text(stored.record.value.as_ref()))
                .or_default() += 1;
        }
        copies
    }

    async fn assert_audited(scene: &Scene, options: &BindingOptions) {
        let books = BindingBooks::new(Arc::clone(&scene.log), vec![options.clone()]);
        let audited = books.audit().await.unwrap();
        let found = (audited[0].unaccounted, audited[0].missing.len());
        assert_eq!(found, (0, 0), "{audited:?}");
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn c24_a_process_that_is_killed_in_a_hand_off_makes_no_second_copy() {
        on_kafka(|scene: Scene| async move {
            let topic = scene.topic("killed", 1).await;
            let group = scene.name("group");
            let options = child::options(topic.as_str(), &group, true);
            let within: &[u64] = match is_long() {
                true => &[
                    100, 300, 600, 1_000, 2_000, 3_000, 5_000, 8_000, 12_000, 20_000, 1_000_000,
                ],
                false => &[500, 2_000, 1_000_000],
            };
            let mut parts = vec![Part::DieBefore];
            parts.extend(within.iter().map(|micros| Part::DieWithin(*micros)));
            let mut sent = 0;
            for (n, part) in parts.into_iter().enumerate() {
                let (bad, good) = (format!("bad-{n}"), format!("good-{n}"));
                scene.send(&topic, 0, &[&bad, &good]).await;
                sent += 2;
                let (mut process, lines) = child::start(part, topic.as_str(), &group, true);
                let said = heard(lines);
                let dead = tokio::task::spawn_blocking(move || process.wait().unwrap());
                let dead = tokio::time::timeout(LIMIT, dead).await.unwrap().unwrap();
                assert_eq!(dead.signal(), Some(9), "{part:?}");
                assert!(!said.lock().is_empty(), "{part:?}: it had the record");
                // One that is not disturbed goes on.
                let (mut process, lines) = child::start(Part::Calm, topic.as_str(), &group, true);
                let said = heard(lines);
                let main = scene.until_passed(&options.group, &topic, sent - 1);
                main.await;
                let tier = options.tier_topic(TierIndex(1)).unwrap();
                let last = scene.records(&tier, 0).await.last().unwrap().offset.0;
                let tier_group = options.tier_group(TierIndex(1)).unwrap();
                scene.until_passed(&tier_group, &tier, last).await;
                process.kill().unwrap();
                process.wait().unwrap();
                let copies = copies(&scene, &options).await;
                assert_eq!(copies.get(&bad), Some(&1), "{part:?}: {copies:?}");
                assert_eq!(copies.len(), n + 1, "{copies:?}");
                drop(said);
            }
            assert_audited(&scene, &options).await;
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn c07_a_process_that_stood_still_past_its_session_writes_nothing() {
        on_kafka(|scene: Scene| async move {
            const COUNT: usize = 300;
            let topic = scene.topic("zombie", 1).await;
            let group = scene.name("group");
            let options = child::options(topic.as_str(), &group, false);
            let names: Vec<String> = (0..COUNT)
                .map(|n| match n % 3 {
                    0 => format!("bad-{n}"),
                    _ => format!("good-{n}"),
                })
                .collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            scene.send(&topic, 0, &names).await;
            let (mut process, lines) = child::start(Part::Slow, topic.as_str(), &group, false);
            let said = heard(lines);
            scene.until("it works", || said.lock().len() >= 20).await;
            // SIGSTOP: no destructor runs, no connection is closed.
            pause(&process).unwrap();
            let before = said.lock().len();
            assert!(
                before < COUNT / 2,
                "it stands still in the middle: {before}"
            );
            // Another one gets its partition once the group has forgotten it.
            let calls: Arc<Mutex<Vec<String>>> = Arc::default();
            let note = Arc::clone(&calls);
            let tells = move |value: &str, tier| note.lock().push(format!("{value} {tier}"));
            let handler = child::handler(tells, Duration::ZERO);
            let connector = scene.start(options.clone(), handler).await;
            let main = || calls.lock().iter().any(|call| call.ends_with(" 0"));
            scene.until("the other has it", main).await;
            resume(&process).unwrap();
            let end = i64::try_from(COUNT).unwrap();
            scene.until_passed(&options.group, &topic, end - 1).await;
            // It comes to itself: it goes on with what it has in hand, and learns that nothing of it is its own.
            let is_awake = || said.lock()[before..].iter().any(|line| line == "lost");
            scene.until("it is told", is_awake).await;
            let tier = options.tier_topic(TierIndex(1)).unwrap();
            let last = scene.records(&tier, 0).await.last().unwrap().offset.0;
            let tier_group = options.tier_group(TierIndex(1)).unwrap();
            scene.until_passed(&tier_group, &tier, last).await;
            process.kill().unwrap();
            process.wait().unwrap();
            connector.stop("orders").await.unwrap();
            let copies = copies(&scene, &options).await;
            assert_eq!(copies.len(), COUNT / 3);
            assert!(copies.values().all(|count| *count == 1), "{copies:?}");
            assert_audited(&scene, &options).await;
        });
    }

    /// A service that answers every request with the status it is told to.
    fn service(status: &Arc<AtomicU16>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/orders", listener.local_addr().unwrap());
        let status = Arc::clone(status);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                        break;
                    }
                    let lower = line.to_lowercase();
                    if let Some(value) = lower.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).ok();
                let status = status.load(Ordering::SeqCst);
                let answer = format!(
                    "HTTP/1.1 {status} So\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
                reader.get_mut().write_all(answer.as_bytes()).ok();
            }
        });
        url
    }

    async fn wrong_token(scene: Scene) {
        let status = Arc::new(AtomicU16::new(401));
        let url = service(&status);
        let topic = scene.topic("token", 1).await;
        let options = scene.options(&topic);
        let handler = BoundHandler::new(HttpHandler::new(url).unwrap());
        scene.send(&topic, 0, &["a", "b", "c"]).await;
        let connector = scene.start(options.clone(), handler).await;
        let paused = || connector.state("orders").unwrap() == ContainerState::Paused;
        scene.until("it pauses", paused).await;
        let message = connector.binding_health("orders").unwrap().message;
        assert!(message.unwrap().contains("access.denied"));
        assert_eq!(scene.letters(&options).await, []);
        assert_eq!(
            scene
                .committed(&options.group, &topic, 0)
                .await
                .unwrap_or(0),
            0
        );
        status.store(200, Ordering::SeqCst);
        scene.until_committed(&options.group, &topic, 3).await;
        connector.stop("orders").await.unwrap();
        assert_eq!(scene.letters(&options).await, []);
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_wrong_token_pauses_until_it_is_right() {
        on_kafka(wrong_token);
    }

    #[test]
    fn a_wrong_token_pauses_an_embedded_binding_too() {
        on_embedded(wrong_token);
    }

    mod needs_kcat {
        use super::*;
        use crate::scene::transient;

        /// Every header of a dead letter that went through two tiers.
        const HEADERS: [&str; 19] = [
            "x-eventbus-original-topic",
            "x-eventbus-original-partition",
            "x-eventbus-original-offset",
            "x-eventbus-original-timestamp",
            "x-eventbus-dlt-reason",
            "x-eventbus-dlt-timestamp",
            "x-eventbus-total-attempts",
            "x-eventbus-first-failure-timestamp",
            "x-eventbus-last-exception-class",
            "x-eventbus-last-exception-message",
            "x-eventbus-last-exception-stacktrace",
            "x-eventbus-retry-tier",
            "x-eventbus-tier0-exception",
            "x-eventbus-tier0-exhausted-at",
            "x-eventbus-tier1-exception",
            "x-eventbus-tier1-exhausted-at",
            "x-eventbus-tier2-exception",
            "x-eventbus-tier2-exhausted-at",
            "x-tidegate-event-id",
        ];

        #[test]
        #[ignore = "needs Kafka"]
        fn c26_c27_kcat_reads_every_header_of_a_dead_letter() {
            on_kafka(|scene: Scene| async move {
                let topic = scene.topic("kcat", 1).await;
                let mut options = scene.options(&topic);
                options.retry.tiers.truncate(2);
                let script = Script::new(&scene);
                let handler = script.answers(|_| transient("timeout.read"));
                scene.send(&topic, 0, &["poison"]).await;
                let connector = scene.start(options.clone(), handler).await;
                scene.until_letters(&options, 1).await;
                connector.stop("orders").await.unwrap();
                let servers = std::env::var("KAFKA_BOOTSTRAP").unwrap();
                let dlt = options.dlt_topic().unwrap();
                let read = std::process::Command::new("kcat")
                    .args([
                        "-b",
                        &servers,
                        "-C",
                        "-t",
                        dlt.as_str(),
                        "-e",
                        "-q",
                        "-f",
                        "%h\n%s\n",
                    ])
                    .output()
                    .expect("kcat is installed");
                let text = String::from_utf8(read.stdout).unwrap();
                let (headers, value) = text.trim_end().rsplit_once('\n').unwrap();
                assert_eq!(value, "poison");
                let found: BTreeMap<&str, &str> = headers
                    .split(',')
                    .filter_map(|header| header.split_once('='))
                    .collect();
                for name in HEADERS {
                    assert!(found.contains_key(name), "{name} in {headers}");
                }
                assert_eq!(found["x-eventbus-original-topic"], topic.as_str());
                assert_eq!(found["x-eventbus-original-offset"], "0");
                assert_eq!(found["x-eventbus-dlt-reason"], "RETRIES_EXHAUSTED");
                assert_eq!(found["x-eventbus-retry-tier"], "2");
                assert_eq!(found["x-eventbus-total-attempts"], "21");
                assert_eq!(found["x-eventbus-last-exception-class"], "timeout.read");
            });
        }
    }
}
