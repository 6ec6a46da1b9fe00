//! Reads beside transactions of others that are open, aborted or committed.

mod needs_kafka {
    use std::time::Duration;

    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
    use rdkafka::{ClientConfig, TopicPartitionList};
    use tidegate_core::Offset;
    use tidegate_core::books::{Place, postings};
    use tidegate_log::kafka::recount_group;
    use tidegate_log::{
        Commit, Join, Log, OffsetCommit, Read, Session, SessionEvent, StoredRecord, TopicPartition,
    };

    use crate::scene::{
        append, assigned, group, id, log, number, numbered, numbers, poll, run, topic, variable,
    };

    const WAIT: Duration = Duration::from_secs(30);

    /// A program of somebody else that writes numbers in transactions.
    struct Stranger(BaseProducer);

    impl Stranger {
        fn new(at: &TopicPartition) -> Self {
            let producer: BaseProducer = ClientConfig::new()
                .set("bootstrap.servers", variable("KAFKA_BOOTSTRAP"))
                .set("transactional.id", format!("stranger-{}", at.topic))
                .create()
                .unwrap();
            producer.init_transactions(WAIT).unwrap();
            Self(producer)
        }

        /// Begins a transaction and writes numbers in it, which the broker has when this returns.
        fn begin(&self, at: &TopicPartition, numbers: std::ops::Range<u64>) {
            self.0.begin_transaction().unwrap();
            for number in numbers {
                let record = numbered(number);
                let headers = rdkafka::message::OwnedHeaders::new();
                let headers = headers.insert(rdkafka::message::Header {
                    key: "x-tidegate-event-id",
                    value: Some(&id(number).to_string()),
                });
                let sent = BaseRecord::<(), [u8]>::to(at.topic.as_str())
                    .partition(at.partition.0)
                    .headers(headers)
                    .payload(record.value.as_deref().unwrap());
                self.0.send(sent).unwrap();
            }
            self.0.flush(WAIT).unwrap();
        }
    }

    /// Reads on until so many records have come in all. Whatever should not have come is among them: they
    /// come in the order of their offsets.
    async fn until_seen(session: &dyn Session, seen: &mut Vec<StoredRecord>, count: usize) {
        while seen.len() < count {
            match poll(session).await.unwrap() {
                SessionEvent::Records { batch, .. } => seen.extend(batch.records),
                other @ (SessionEvent::Assigned(_)
                | SessionEvent::Revoking(_)
                | SessionEvent::Lost(_)) => {
                    panic!("{other:?}")
                }
            }
        }
        let expected: Vec<u64> = (0..).take(count).collect();
        assert_eq!(seen.iter().map(number).collect::<Vec<_>>(), expected);
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t42_open_transactions_are_not_read_and_aborted_ones_never_are() {
        run(async {
            let log = log().await;
            let at = TopicPartition::new(topic(&log, 1).await, 0);
            append(&log, &at, 0..5).await;
            let stranger = Stranger::new(&at);
            stranger.begin(&at, 100..103);
            // Behind a transaction that has not ended, others wait with it.
            append(&log, &at, 5..7).await;

            let group = group();
            let join = Join::new(group.clone(), vec![at.topic.clone()]);
            let session = log.join(join).await.unwrap();
            let fence = assigned(&*session).await[&at].fence;
            let mut seen = Vec::new();
            until_seen(&*session, &mut seen, 5).await;
            assert_eq!(numbers(&log, &at).await, [0, 1, 2, 3, 4]);
            let open_at = Offset(5);
            let end = log.describe(&at.topic).await.unwrap().partitions[0].end;
            assert_eq!(end, open_at, "the end is that of what can be read");
            let waiting = Read {
                wait: Duration::from_millis(500),
                ..Read::new(at.clone(), open_at)
            };
            assert_eq!(log.read(waiting).await.unwrap().records, []);
            assert_eq!(session.lag().await.unwrap()[0].records, 5);

            // It ends, and what it wrote was never there.
            stranger.0.abort_transaction(WAIT).unwrap();
            until_seen(&*session, &mut seen, 7).await;
            assert_eq!(numbers(&log, &at).await, (0..7).collect::<Vec<_>>());

            // Another one is committed, and is read from then on.
            stranger.begin(&at, 7..9);
            assert_eq!(numbers(&log, &at).await, (0..7).collect::<Vec<_>>());
            stranger.0.commit_transaction(WAIT).unwrap();
            until_seen(&*session, &mut seen, 9).await;

            // Books and recount have what was read: neither holes nor what was aborted.
            let next = Offset(seen.last().unwrap().offset.0 + 1);
            assert!(next.0 > 9 + 3, "aborted records and ends take offsets");
            let settled = OffsetCommit {
                at: at.clone(),
                fence,
                next,
                metadata: String::new(),
                postings: postings((0..9).map(id), Some(Place::Queued), Some(Place::Delivered)),
            };
            let commit = Commit {
                appends: vec![],
                offsets: vec![settled],
            };
            session.commit(commit).await.unwrap();
            let recount = recount_group(&log, &group, &at.topic).await.unwrap();
            let found = &recount.partitions[0];
            assert!(found.is_verifiable() && found.agrees(), "{found:?}");
            assert_eq!(found.count, 9);

            // An open one behind what is committed does not disturb the recount.
            stranger.begin(&at, 200..203);
            let again = recount_group(&log, &group, &at.topic).await.unwrap();
            assert_eq!(again, recount);
            stranger.0.abort_transaction(WAIT).unwrap();
            // The records behind it come, and nothing of it.
            append(&log, &at, 9..10).await;
            until_seen(&*session, &mut seen, 10).await;
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_transaction_that_a_killed_process_left_open_does_not_hold_up_its_successor() {
        run(async {
            let log = log().await;
            let at = TopicPartition::new(topic(&log, 1).await, 0);
            append(&log, &at, 0..5).await;
            let group = group();
            // Its predecessor, of the same name, was killed between the offsets and the end. Left alone, the
            // broker would tell no offsets of the group for five minutes, which is longer than anybody waits here.
            let predecessor: BaseProducer = ClientConfig::new()
                .set("bootstrap.servers", variable("KAFKA_BOOTSTRAP"))
                .set("transactional.id", format!("tidegate-{group}/a"))
                .set("transaction.timeout.ms", "300000")
                .create()
                .unwrap();
            predecessor.init_transactions(WAIT).unwrap();
            let predecessor = Stranger(predecessor);
            predecessor.begin(&at, 100..103);
            let member: BaseConsumer = ClientConfig::new()
                .set("bootstrap.servers", variable("KAFKA_BOOTSTRAP"))
                .set("group.id", group.as_str())
                .create()
                .unwrap();
            let mut offsets = TopicPartitionList::new();
            let place = rdkafka::Offset::Offset(3);
            offsets
                .add_partition_offset(at.topic.as_str(), 0, place)
                .unwrap();
            let as_member = member.group_metadata().unwrap();
            predecessor
                .0
                .send_offsets_to_transaction(&offsets, &as_member, WAIT)
                .unwrap();

            let join = Join {
                instance: Some("a".to_owned()),
                ..Join::new(group.clone(), vec![at.topic.clone()])
            };
            let session = log.join(join).await.unwrap();
            let begun = assigned(&*session).await[&at].clone();
            assert_eq!((begun.committed, begun.position), (None, Offset(0)));
            let mut seen = Vec::new();
            until_seen(&*session, &mut seen, 5).await;
            assert!(predecessor.0.commit_transaction(WAIT).is_err());
        });
    }
}
