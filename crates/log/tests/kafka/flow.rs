//! Records through limits: small buffers, small topics, many callers, holes.

mod needs_kafka {
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate_core::{Offset, Topic};
    use tidegate_log::kafka::KafkaLog;
    use tidegate_log::{
        Append, Commit, Fence, Join, Log, OffsetCommit, Read, Record, Session, SessionEvent,
        TopicConfig, TopicPartition,
    };

    use crate::heard;
    use crate::scene::{
        LIMIT, append, append_of, assigned, committed, config, everything_once, group, log, number,
        numbers_once, open, poll, run, topic, topic_with, variable,
    };

    #[test]
    #[ignore = "needs Kafka"]
    fn a_slow_reader_with_a_small_buffer_gets_everything_once_in_order() {
        run(async {
            heard::listen();
            let mut config = config(&variable("KAFKA_BOOTSTRAP"));
            config.session_buffer = 20_000;
            let log = open(config).await;
            let topic = topic(&log, 2).await;
            let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
            for at in &all {
                append(&log, at, 0..5_000).await;
            }
            let join = Join {
                max_poll_records: 300,
                ..Join::new(group(), vec![topic])
            };
            let session = log.join(join).await.unwrap();
            let mut next = [0_u64; 2];
            let mut is_first = true;
            while next != [5_000; 2] {
                if let SessionEvent::Records { batch, .. } = poll(&*session).await.unwrap() {
                    let seen = &mut next[usize::try_from(batch.at.partition.0).unwrap()];
                    for stored in &batch.records {
                        assert_eq!(number(stored), *seen, "in order, each once");
                        *seen += 1;
                    }
                    if std::mem::take(&mut is_first) {
                        // Each has more than fits, so nothing flows until we go on.
                        for at in &all {
                            heard::until_said(&format!("paused fetching {at}:")).await;
                        }
                    }
                }
            }
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_topic_that_takes_little_at_once_takes_many() {
        run(async {
            let log = log().await;
            let small = TopicConfig {
                max_record_size: 2_000,
                ..TopicConfig::new(1)
            };
            let at = TopicPartition::new(topic_with(&log, small).await, 0);
            let large = TopicPartition::new(topic(&log, 1).await, 0);
            let record = |at: &TopicPartition| {
                Append::new(at.topic.clone(), Record::new(vec![b'x'; 1_900])).partition(0)
            };
            let positions = log
                .append((0..1_000).map(|_| record(&at)).collect())
                .await
                .unwrap();
            assert_eq!(positions.len(), 1_000);
            let session = log
                .join(Join::new(group(), vec![large.topic.clone()]))
                .await
                .unwrap();
            let both = (0..500)
                .flat_map(|_| [record(&large), record(&at)])
                .collect();
            let commit = Commit {
                appends: both,
                offsets: vec![],
            };
            session.commit(commit).await.unwrap();
            assert_eq!(everything_once(&log, &at, 1_500).await.len(), 1_500);
            assert_eq!(everything_once(&log, &large, 500).await.len(), 500);
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_read_goes_on_behind_the_marks_of_transactions() {
        run(async {
            let log = log().await;
            let at = TopicPartition::new(topic(&log, 1).await, 0);
            let other = topic(&log, 1).await;
            let session = log.join(Join::new(group(), vec![other])).await.unwrap();
            for number in 0..3 {
                let appends = vec![append_of(&at, number)];
                session
                    .commit(Commit {
                        appends,
                        offsets: vec![],
                    })
                    .await
                    .unwrap();
            }
            // Each commit leaves a mark behind its record, and the broker writes the last one after its answer.
            let end = Offset(6);
            while log.describe(&at.topic).await.unwrap().partitions[0].end < end {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let batch = log.read(Read::new(at.clone(), Offset(0))).await.unwrap();
            assert_eq!((batch.records.len(), batch.next), (3, end));
            // From a mark, and at the end, there is nothing and nothing is waited for.
            for from in [5, 6] {
                let batch = log.read(Read::new(at.clone(), Offset(from))).await.unwrap();
                assert_eq!((batch.records.len(), batch.next), (0, end));
            }
        });
    }

    async fn join_after_appends(
        log: &KafkaLog,
        topic: &Topic,
        count: u64,
    ) -> (Arc<dyn Session>, Fence) {
        let at = TopicPartition::new(topic.clone(), 0);
        append(log, &at, 0..count).await;
        let session = log
            .join(Join::new(group(), vec![topic.clone()]))
            .await
            .unwrap();
        let fence = assigned(&*session).await[&at].fence;
        (session, fence)
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn commits_of_many_callers_are_all_answered_and_the_highest_stands() {
        run(async {
            let log = log().await;
            let topic = topic(&log, 1).await;
            let at = TopicPartition::new(topic.clone(), 0);
            let (session, fence) = join_after_appends(&log, &topic, 400).await;
            let commits = (1..=400).map(|next| {
                session.commit(Commit {
                    appends: vec![],
                    offsets: vec![OffsetCommit {
                        at: at.clone(),
                        fence,
                        next: Offset(next),
                        metadata: String::new(),
                        postings: vec![],
                    }],
                })
            });
            // Begun in order, so that none goes back; answered in any.
            let mut set = Vec::new();
            for mut commit in commits {
                let mut answer = None;
                std::future::poll_fn(|context| {
                    if let std::task::Poll::Ready(ready) = commit.as_mut().poll(context) {
                        answer = Some(ready);
                    }
                    std::task::Poll::Ready(())
                })
                .await;
                set.push((commit, answer));
            }
            for (commit, answer) in set {
                match answer {
                    Some(answer) => answer.map(|_| ()).unwrap(),
                    None => commit.await.map(|_| ()).unwrap(),
                }
            }
            let lag = session.lag().await.unwrap();
            assert_eq!((lag.len(), lag[0].records), (1, 0));
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_session_that_commits_all_the_time_survives_members_that_come_and_go() {
        run(async {
            const GUESTS: u64 = 4;
            const MORE: u64 = 50;
            let log = log().await;
            let topic = topic(&log, 4).await;
            let out = TopicPartition::new(self::topic(&log, 1).await, 0);
            let all = [0, 1, 2, 3].map(|number| TopicPartition::new(topic.clone(), number));
            let group = group();
            let join = Join {
                max_poll_records: 5,
                ..Join::new(group.clone(), vec![topic.clone()])
            };
            let done = Arc::new(tokio::sync::Notify::new());
            let worker = |begun: Arc<tokio::sync::Notify>| {
                let (log, out, done) = (log.clone(), out.clone(), Arc::clone(&done));
                let join = join.clone();
                async move {
                    let session = log.join(join).await.unwrap();
                    loop {
                        tokio::select! {
                            () = done.notified() => break,
                            event = session.poll() => {
                                let event = event.unwrap();
                                if matches!(event, SessionEvent::Assigned(_)) {
                                    begun.notify_one();
                                }
                                copy(&*session, event, &out).await;
                            }
                        }
                    }
                    session.close().await.unwrap();
                }
            };
            let steady = tokio::spawn(worker(Arc::default()));
            for guest in 0..GUESTS {
                for (at, number) in all.iter().zip(0..) {
                    let from = number * 1_000 + guest * MORE;
                    append(&log, at, from..from + MORE).await;
                }
                // Others come, get their share and leave without a word.
                let begun = Arc::new(tokio::sync::Notify::new());
                let guest = tokio::spawn(worker(Arc::clone(&begun)));
                tokio::time::timeout(LIMIT, begun.notified())
                    .await
                    .expect("a guest gets its share");
                guest.abort();
            }
            let last = Offset((GUESTS * MORE).try_into().unwrap());
            tokio::time::timeout(LIMIT, async {
                for at in &all {
                    while committed(&log, &group, at).await != Some(last) {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            })
            .await
            .expect("everything is settled");
            done.notify_one();
            steady.await.unwrap();
            let expected: Vec<u64> = (0..4)
                .flat_map(|number| number * 1_000..number * 1_000 + GUESTS * MORE)
                .collect();
            let mut found = numbers_once(&log, &out, expected.len()).await;
            found.sort_unstable();
            assert_eq!(found, expected, "each record was copied exactly once");
        });
    }

    /// Copies what comes, one commit per batch, and lets go when asked.
    async fn copy(session: &dyn Session, event: SessionEvent, out: &TopicPartition) {
        match event {
            SessionEvent::Records { fence, batch } => {
                let appends = batch
                    .records
                    .iter()
                    .map(|stored| append_of(out, number(stored)));
                let commit = Commit {
                    appends: appends.collect(),
                    offsets: vec![OffsetCommit {
                        at: batch.at,
                        fence,
                        next: batch.next,
                        metadata: String::new(),
                        postings: vec![],
                    }],
                };
                match session.commit(commit).await {
                    Ok(_) | Err(tidegate_log::LogError::Fenced { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            SessionEvent::Revoking(asked) => session.release(&asked).await.unwrap(),
            SessionEvent::Assigned(_) | SessionEvent::Lost(_) => {}
        }
    }
}
