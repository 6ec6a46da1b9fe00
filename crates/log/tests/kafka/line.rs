//! Answers that are lost between us and the broker, one kind of request after the other.

mod needs_kafka {
    use std::time::Duration;

    use tidegate_core::Offset;
    use tidegate_core::books::{Place, postings};
    use tidegate_log::kafka::{KafkaLog, recount_group};
    use tidegate_log::{
        Assignment, Commit, Join, Log, LogError, OffsetCommit, SessionEvent, TopicPartition,
    };

    use crate::proxy::{END_TXN, Loss, OFFSET_COMMIT, PRODUCE, Proxy};
    use crate::scene::{
        self, append, append_of, assigned, committed, config, group, id, numbers, numbers_once,
        open, poll, run, topic, variable,
    };

    /// Requests of a transaction before its end: a producer's number, partitions and a group that are
    /// added to it, offsets.
    const INIT_PRODUCER_ID: i16 = 22;
    const ADD_PARTITIONS: i16 = 24;
    const ADD_OFFSETS: i16 = 25;
    const TXN_OFFSET_COMMIT: i16 = 28;

    fn line() -> Proxy {
        Proxy::start(&variable("KAFKA_BOOTSTRAP"))
    }

    /// Settles a range of numbers, with a copy of the last one or without.
    fn settling(ours: &Assignment, numbers: std::ops::Range<u64>) -> OffsetCommit {
        OffsetCommit {
            at: ours.at.clone(),
            fence: ours.fence,
            next: Offset(i64::try_from(numbers.end).unwrap()),
            metadata: format!("to {}", numbers.end),
            postings: postings(numbers.map(id), Some(Place::Queued), Some(Place::Delivered)),
        }
    }

    async fn check_books(log: &KafkaLog, group: &tidegate_core::GroupName, at: &TopicPartition) {
        let recount = recount_group(log, group, &at.topic).await.unwrap();
        let found = &recount.partitions[0];
        assert!(found.is_verifiable() && found.agrees(), "{found:?}");
        assert_eq!(i64::try_from(found.count).unwrap(), found.committed.0);
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_delivery_waits_for_a_line_that_is_dead_and_adds_each_record_once() {
        run(async {
            let line = line();
            let mut short = config(&line.servers());
            short.request_timeout = Duration::from_secs(2);
            let log = open(short).await;
            let at = TopicPartition::new(topic(&log, 1).await, 0);
            append(&log, &at, 0..1).await;
            line.lose_next_answer(&[PRODUCE], Loss::Dead);
            let records = (1..11).map(|number| append_of(&at, number)).collect();
            let delivering = {
                let log = log.clone();
                tokio::spawn(async move { log.deliver(records).await })
            };
            while line.lost() == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // Each of these takes as long as a request may.
            for _ in 0..2 {
                assert!(log.topics().await.is_err());
            }
            assert!(!delivering.is_finished());
            line.mend();
            let outcomes = delivering.await.unwrap().unwrap();
            assert!(
                outcomes.len() == 10 && outcomes.iter().all(Result::is_ok),
                "{outcomes:?}"
            );
            let expect: Vec<u64> = (0..11).collect();
            assert_eq!(numbers_once(&log, &at, 11).await, expect);
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t25_whichever_answer_of_a_commit_is_lost_it_is_done_once() {
        run(async {
            let line = line();
            let log = open(config(&line.servers())).await;
            let at = TopicPartition::new(topic(&log, 1).await, 0);
            let out = TopicPartition::new(topic(&log, 1).await, 0);
            append(&log, &at, 0..100).await;
            let group = group();
            let join = Join::new(group.clone(), vec![at.topic.clone()]);
            let session = log.join(join).await.unwrap();
            let ours = assigned(&*session).await[&at].clone();
            let mut done = 0;
            let mut copies = Vec::new();
            for (request, with_records) in [
                (INIT_PRODUCER_ID, true),
                (ADD_PARTITIONS, true),
                (PRODUCE, true),
                (ADD_OFFSETS, true),
                (TXN_OFFSET_COMMIT, true),
                (END_TXN, true),
                (OFFSET_COMMIT, false),
            ] {
                let lost = line.lost();
                line.lose_next_answer(&[request], Loss::Cut);
                let mut appends = Vec::new();
                if with_records {
                    copies.push(done + 9);
                    appends.push(append_of(&out, done + 9));
                }
                let offsets = vec![settling(&ours, done..done + 10)];
                let answer = session.commit(Commit { appends, offsets }).await;
                assert!(answer.is_ok(), "request {request}: {answer:?}");
                assert_eq!(line.lost(), lost + 1, "an answer to {request} was lost");
                done += 10;
                let found = committed(&log, &group, &at).await.unwrap();
                assert_eq!(found.0, i64::try_from(done).unwrap(), "request {request}");
                let found = numbers_once(&log, &out, copies.len()).await;
                assert_eq!(found, copies, "request {request}");
                check_books(&log, &group, &at).await;
            }
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn an_append_whose_answer_is_lost_is_there_once_and_in_order() {
        run(async {
            let line = line();
            let log = open(config(&line.servers())).await;
            let at = TopicPartition::new(topic(&log, 1).await, 0);
            append(&log, &at, 0..1).await;
            let rounds = tidegate_sim::scaled(160).max(5);
            for number in 1..=rounds {
                let lost = line.lost();
                line.lose_next_answer(&[PRODUCE], Loss::Cut);
                // Several requests are on their way when the connection breaks.
                let calls: Vec<_> = (0..4)
                    .map(|call| log.append(vec![append_of(&at, number * 4 + call)]))
                    .collect();
                for call in calls {
                    call.await.unwrap();
                }
                assert_eq!(line.lost(), lost + 1);
            }
            let found = numbers(&log, &at).await;
            let expected: Vec<u64> = (0..1).chain(4..(rounds + 1) * 4).collect();
            assert_eq!(found, expected);
        });
    }

    /// Loses the end of a commit and with it the line, until the caller was told that nobody knows.
    async fn lose_for_good(request: i16, with_records: bool) {
        let line = line();
        let mut config = config(&line.servers());
        // Waited out once, and longer than a busy broker takes for anything else.
        config.request_timeout = Duration::from_secs(20);
        let patient = scene::log().await;
        let at = TopicPartition::new(topic(&patient, 1).await, 0);
        let out = TopicPartition::new(topic(&patient, 1).await, 0);
        append(&patient, &at, 0..30).await;
        let log = open(config).await;
        let group = group();
        let join = Join::new(group.clone(), vec![at.topic.clone()]);
        let session = log.join(join).await.unwrap();
        let ours = assigned(&*session).await[&at].clone();
        let commit = |numbers: std::ops::Range<u64>| Commit {
            appends: if with_records {
                vec![append_of(&out, numbers.end)]
            } else {
                vec![]
            },
            offsets: vec![settling(&ours, numbers)],
        };
        session.commit(commit(0..10)).await.unwrap();
        line.lose_next_answer(&[request], Loss::Dead);
        let error = session.commit(commit(10..20)).await.unwrap_err();
        assert!(matches!(error, LogError::OutcomeUnknown { .. }), "{error}");
        assert_eq!(line.lost(), 1);
        line.mend();
        // The committed offset tells: the broker had done it.
        let found = loop {
            match log.committed(&group, std::slice::from_ref(&at)).await {
                Ok(found) => break found[0].clone().unwrap(),
                Err(LogError::Unavailable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!((found.next, found.metadata.as_str()), (Offset(20), "to 20"));
        // A member that goes on from there counts nothing twice.
        session.commit(commit(20..30)).await.unwrap();
        check_books(&log, &group, &at).await;
        if with_records {
            assert_eq!(numbers_once(&log, &out, 3).await, [10, 20, 30]);
        }
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_transaction_whose_end_nobody_heard_of_is_told_by_what_is_committed() {
        run(lose_for_good(END_TXN, true));
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn offsets_whose_commit_nobody_heard_of_are_told_by_what_is_committed() {
        run(lose_for_good(OFFSET_COMMIT, false));
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t21_a_member_that_lets_go_while_its_records_are_delivered_commits_nothing() {
        run(async {
            let line = line();
            let mut config = config(&line.servers());
            // Longer than a rebalance takes on any machine: the commit must be refused, not be late.
            config.request_timeout = Duration::from_secs(240);
            let log = open(config).await;
            let topic = topic(&log, 2).await;
            let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
            for at in &all {
                append(&log, at, 0..10).await;
            }
            let out = TopicPartition::new(self::topic(&log, 1).await, 0);
            let group = group();
            let join = Join {
                session_timeout: Duration::from_secs(180),
                release_timeout: Duration::from_secs(120),
                ..Join::new(group.clone(), vec![topic])
            };
            let session = log.join(join.clone()).await.unwrap();
            let ours = assigned(&*session).await;
            assert_eq!(ours.len(), 2);
            let commit = Commit {
                appends: vec![append_of(&out, 1)],
                offsets: ours.values().map(|ours| settling(ours, 0..10)).collect(),
            };
            line.hold(PRODUCE);
            let committing = tokio::spawn({
                let session = std::sync::Arc::clone(&session);
                async move { session.commit(commit).await }
            });
            line.wait_until_held();
            // The broker has the record, and the group wants a partition back before we hear of it.
            let next = log.join(join).await.unwrap();
            let asked = loop {
                if let SessionEvent::Revoking(asked) = poll(&*session).await.unwrap() {
                    break asked;
                }
            };
            session.release(&asked).await.unwrap();
            line.let_through();
            let error = committing.await.unwrap().unwrap_err();
            assert!(matches!(error, LogError::Fenced { .. }), "{error}");
            for at in &all {
                assert_eq!(committed(&log, &group, at).await, None, "{at}");
            }
            assert_eq!(
                numbers(&log, &out).await,
                [0_u64; 0],
                "nor is its record there"
            );
            let begun = assigned(&*next).await;
            assert_eq!(begun[&asked[0]].position, Offset(0));
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t43_a_client_that_gets_no_records_any_more_is_given_up_aloud() {
        run(async {
            let line = line();
            let mut config = config(&line.servers());
            config.stall_after = Duration::from_secs(1);
            let log = open(config).await;
            let at = TopicPartition::new(topic(&log, 1).await, 0);
            append(&log, &at, 0..1).await;
            let join = Join::new(group(), vec![at.topic.clone()]);
            let session = log.join(join).await.unwrap();
            while !matches!(poll(&*session).await.unwrap(), SessionEvent::Records { .. }) {}
            // The client believes that it is connected, and waits.
            line.dry_up();
            append(&log, &at, 1..2).await;
            let error = loop {
                match tokio::time::timeout(Duration::from_secs(40), session.poll()).await {
                    Ok(Ok(SessionEvent::Lost(_))) => {}
                    Ok(Ok(other)) => panic!("{other:?}"),
                    Ok(Err(error)) => break error,
                    Err(_) => panic!("nobody noticed that nothing comes"),
                }
            };
            assert!(matches!(error, LogError::Stopped { .. }), "{error}");
            assert!(error.to_string().contains("is stalled at"), "{error}");
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t43_a_producer_that_failed_for_good_is_replaced() {
        run(async {
            let line = line();
            let log = open(config(&line.servers())).await;
            let at = TopicPartition::new(topic(&log, 1).await, 0);
            append(&log, &at, 0..1).await;
            line.rewrite(out_of_order);
            let error = log.append(vec![append_of(&at, 1)]).await.unwrap_err();
            assert!(matches!(error, LogError::OutcomeUnknown { .. }), "{error}");
            assert!(line.has_rewritten());
            append(&log, &at, 2..5).await;
            assert_eq!(numbers(&log, &at).await, [0, 1, 2, 3, 4]);
        });
    }

    /// Says of the first partition of a produce request that its sequence is broken, after which a
    /// client takes nothing more.
    fn out_of_order(request: i16, version: i16, frame: &mut [u8]) -> bool {
        const NAME: &[u8] = b"topic-";
        const HEX: usize = 16;
        const OUT_OF_ORDER_SEQUENCE: i16 = 45;
        let name = frame.windows(NAME.len()).position(|bytes| bytes == NAME);
        let (PRODUCE, Some(name)) = (request, name) else {
            return false;
        };
        // Behind the name: the number of partitions, short in later versions, and that of the first.
        let partitions = if version >= 9 { 1 } else { 4 };
        let at = name + NAME.len() + HEX + partitions + 4;
        frame[at..at + 2].copy_from_slice(&OUT_OF_ORDER_SEQUENCE.to_be_bytes());
        true
    }
}
