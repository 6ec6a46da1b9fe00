//! A broker that is killed with -9 while everything is under way, and comes back.

mod needs_kafka {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use tidegate_core::books::{Place, postings};
    use tidegate_core::env::Env;
    use tidegate_core::{GroupName, Offset};
    use tidegate_log::kafka::{KafkaLog, recount_group};
    use tidegate_log::{
        Batch, Commit, Fence, Join, Log, LogError, OffsetCommit, Session, SessionEvent,
        TopicPartition,
    };

    use crate::broker::Broker;
    use crate::child::SESSION;
    use crate::scene::{
        LIMIT, append, append_of, assigned, config, group, id, number, numbers, numbers_once, open,
        poll, run, run_within, topic,
    };

    /// How far writing and copying have come, in records.
    #[derive(Default)]
    struct Progress {
        written: AtomicUsize,
        copied: AtomicUsize,
    }

    impl Progress {
        /// Waits until so many more were written, and so many more copied.
        async fn wait_for(&self, more: usize) {
            let now = || [&self.written, &self.copied].map(|count| count.load(Ordering::Relaxed));
            let begin = now();
            let waiting = async {
                while now()
                    .iter()
                    .zip(begin)
                    .any(|(now, begin)| *now < begin + more)
                {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let waited = tokio::time::timeout(LIMIT, waiting).await;
            assert!(waited.is_ok(), "{:?} after {begin:?}", now());
        }
    }

    /// Appends numbers for as long as it is told to. Returns what was acknowledged, and what may be
    /// there or not.
    async fn write(
        log: KafkaLog,
        at: TopicPartition,
        goes_on: Arc<AtomicBool>,
        progress: Arc<Progress>,
    ) -> (Vec<u64>, Vec<u64>) {
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        let mut next = 0;
        while goes_on.load(Ordering::Relaxed) {
            let some: Vec<u64> = (next..next + 10).collect();
            next += 10;
            let appends = some.iter().map(|number| append_of(&at, *number)).collect();
            match log.append(appends).await {
                Ok(_) => {
                    progress.written.fetch_add(some.len(), Ordering::Relaxed);
                    known.extend(some);
                }
                Err(LogError::OutcomeUnknown { .. } | LogError::Unavailable { .. }) => {
                    unknown.extend(some)
                }
                Err(other) => panic!("{other}"),
            }
            // A pace that the copier can keep up with.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        (known, unknown)
    }

    /// Copies a partition to another, a transaction per batch, until it is settled up to `end`.
    struct Copier {
        log: KafkaLog,
        group: GroupName,
        out: TopicPartition,
        end: Arc<AtomicI64>,
        progress: Arc<Progress>,
    }

    impl Copier {
        async fn run(self, join: Join) {
            let session = self.log.join(join).await.unwrap();
            let mut reached = 0;
            // Where the end is may be known only after it was reached, when nothing happens any more; so
            // the wait is cut now and then.
            while reached < self.end.load(Ordering::Relaxed) {
                let polled = tokio::time::timeout(Duration::from_millis(200), session.poll()).await;
                let Ok(event) = polled else {
                    continue;
                };
                if let SessionEvent::Records { fence, batch } = event.unwrap() {
                    self.settle(&*session, fence, &batch).await;
                    reached = batch.next.0;
                    let copied = &self.progress.copied;
                    copied.fetch_add(batch.records.len(), Ordering::Relaxed);
                }
            }
            session.close().await.unwrap();
        }

        async fn settle(&self, session: &dyn Session, fence: Fence, batch: &Batch) {
            loop {
                let moved = batch.records.iter().map(|stored| id(number(stored)));
                let offset = OffsetCommit {
                    at: batch.at.clone(),
                    fence,
                    next: batch.next,
                    metadata: String::new(),
                    postings: postings(moved, Some(Place::InFlight), Some(Place::Delivered)),
                };
                let appends = batch.records.iter();
                let appends = appends.map(|stored| append_of(&self.out, number(stored)));
                let commit = Commit {
                    appends: appends.collect(),
                    offsets: vec![offset],
                };
                match session.commit(commit).await {
                    Ok(_) => return,
                    // Surely not done: once more.
                    Err(LogError::Unavailable { .. }) => {}
                    Err(LogError::OutcomeUnknown { .. }) => {
                        if self.is_committed(&batch.at, batch.next).await {
                            return;
                        }
                    }
                    // Uncommitted records come again.
                    Err(LogError::Fenced { .. }) => return,
                    Err(other) => panic!("{other}"),
                }
            }
        }

        /// The committed offset tells the outcome of a commit.
        async fn is_committed(&self, at: &TopicPartition, next: Offset) -> bool {
            loop {
                match self
                    .log
                    .committed(&self.group, std::slice::from_ref(at))
                    .await
                {
                    Ok(found) => return found[0].as_ref().is_some_and(|found| found.next >= next),
                    Err(LogError::Unavailable { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t40_a_broker_killed_and_restarted_loses_and_repeats_nothing() {
        let kills = if std::env::var_os("TIDEGATE_LONG").is_some() {
            20
        } else {
            1
        };
        let mut broker = Broker::start();
        // Each restart takes the time that a busy machine gives it.
        run_within(LIMIT * (4 + kills as u32), async move {
            let log = open(config(&broker.servers())).await;
            let at = TopicPartition::new(topic(&log, 1).await, 0);
            let out = TopicPartition::new(topic(&log, 1).await, 0);
            let group = group();
            let goes_on = Arc::new(AtomicBool::new(true));
            let end = Arc::new(AtomicI64::new(i64::MAX));
            let progress = Arc::new(Progress::default());
            let writer = write(
                log.clone(),
                at.clone(),
                Arc::clone(&goes_on),
                Arc::clone(&progress),
            );
            let writer = tokio::spawn(writer);
            let copier = Copier {
                log: log.clone(),
                group: group.clone(),
                out: out.clone(),
                end: Arc::clone(&end),
                progress: Arc::clone(&progress),
            };
            let join = Join {
                max_poll_records: 50,
                ..Join::new(group.clone(), vec![at.topic.clone()])
            };
            let copier = tokio::spawn(copier.run(join));
            for kill in 0..kills {
                // At another point of their work each time.
                progress.wait_for(500 + kill * 37).await;
                broker.kill();
                broker.restart();
            }
            progress.wait_for(500).await;
            goes_on.store(false, Ordering::Relaxed);
            let (known, unknown) = writer.await.unwrap();
            // One more, so that there is something behind the last.
            append(&log, &at, 1_000_000..1_000_001).await;
            let there = log.describe(&at.topic).await.unwrap().partitions[0].end;
            end.store(there.0, Ordering::Relaxed);
            copier.await.unwrap();

            let found = numbers(&log, &at).await;
            assert!(found.is_sorted_by(|a, b| a < b), "in order and each once");
            let lost: Vec<_> = known
                .iter()
                .filter(|number| !found.contains(number))
                .collect();
            assert!(lost.is_empty(), "acknowledged and gone: {lost:?}");
            assert_eq!(
                numbers_once(&log, &out, found.len()).await,
                found,
                "copied exactly once, in order"
            );
            let recount = recount_group(&log, &group, &at.topic).await.unwrap();
            let counted = &recount.partitions[0];
            assert!(counted.is_verifiable() && counted.agrees(), "{counted:?}");
            assert_eq!(counted.count, found.len() as u64);
            println!(
                "{kills} kills: {} acknowledged, {} without an answer, {} there and copied once",
                known.len(),
                unknown.len(),
                found.len()
            );
            assert!(known.len() > 100, "{} are no proof", known.len());
        });
    }

    /// Asks until there is an answer, for whoever waits only a little for each.
    async fn until_there<T, F: Future<Output = Result<T, LogError>>>(
        mut ask: impl FnMut() -> F,
    ) -> T {
        let asking = async {
            loop {
                match ask().await {
                    Ok(answer) => return answer,
                    Err(LogError::Unavailable { .. } | LogError::OutcomeUnknown { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        };
        let answer = tokio::time::timeout(LIMIT, asking).await;
        answer.expect("the broker answers in time")
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t41_while_the_broker_is_away_every_call_ends_in_time_and_so_does_leaving() {
        let mut broker = Broker::start();
        run(async move {
            // A broker that has just started takes its time, which is not what this is about.
            let patient = open(config(&broker.servers())).await;
            let at = TopicPartition::new(topic(&patient, 1).await, 0);
            append(&patient, &at, 0..10).await;
            let mut config = config(&broker.servers());
            config.request_timeout = Duration::from_secs(2);
            let log = until_there(|| KafkaLog::connect(config.clone(), Env::system())).await;
            let group = group();
            let join = Join {
                session_timeout: SESSION,
                ..Join::new(group.clone(), vec![at.topic.clone()])
            };
            let session = until_there(|| log.join(join.clone())).await;
            let fence = assigned(&*session).await[&at].fence;
            let offset = |next| OffsetCommit {
                at: at.clone(),
                fence,
                next: Offset(next),
                metadata: String::new(),
                postings: vec![],
            };
            let offsets = |next| Commit {
                appends: vec![],
                offsets: vec![offset(next)],
            };
            until_there(|| session.commit(offsets(1))).await;
            broker.kill();
            // Far from both: the two seconds that were asked for and the thirty that are usual.
            let limit = Duration::from_secs(20);
            let appending = async {
                let begin = Instant::now();
                let error = log.append(vec![append_of(&at, 10)]).await.unwrap_err();
                assert!(matches!(error, LogError::OutcomeUnknown { .. }), "{error}");
                let took = begin.elapsed();
                assert!(took < limit, "an append took {took:?}");
            };
            let committing = async {
                for records in [vec![], vec![append_of(&at, 11)]] {
                    let begin = Instant::now();
                    let commit = Commit {
                        appends: records,
                        ..offsets(2)
                    };
                    let error = session.commit(commit).await.unwrap_err();
                    // A member that hears nothing for long enough has lost its partitions.
                    let is_no = matches!(
                        error,
                        LogError::OutcomeUnknown { .. }
                            | LogError::Unavailable { .. }
                            | LogError::Fenced { .. }
                    );
                    assert!(is_no, "{error}");
                    let took = begin.elapsed();
                    assert!(took < limit, "a commit took {took:?}");
                }
            };
            tokio::join!(appending, committing);
            let asking = async {
                let begin = Instant::now();
                let found = log.committed(&group, std::slice::from_ref(&at)).await;
                let error = found.unwrap_err();
                assert!(matches!(error, LogError::Unavailable { .. }), "{error}");
                assert!(log.describe(&at.topic).await.is_err());
                let took = begin.elapsed();
                assert!(took < limit, "questions took {took:?}");
            };
            let leaving = async {
                let begin = Instant::now();
                session.close().await.unwrap();
                let took = begin.elapsed();
                assert!(took < limit * 2, "closing took {took:?}");
            };
            tokio::join!(asking, leaving);
            drop(session);

            broker.restart();
            // The next one gets the partition, as soon as the group has forgotten the first.
            let next = patient.join(join).await.unwrap();
            let begun = assigned(&*next).await[&at].clone();
            assert!(
                begun.position <= Offset(2) && begun.position >= Offset(1),
                "{begun:?}"
            );
            while !matches!(poll(&*next).await.unwrap(), SessionEvent::Records { .. }) {}
        });
    }
}
