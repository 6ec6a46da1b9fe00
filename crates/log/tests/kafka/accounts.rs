//! The books of a group in the metadata of its offsets, and the recount beside them.

mod needs_kafka {
    use tidegate_core::Offset;
    use tidegate_core::books::{Place, Posting, postings};
    use tidegate_log::kafka::{KafkaLog, recount_group};
    use tidegate_log::{Commit, Join, Log, OffsetCommit, TopicPartition};

    use crate::scene::{append, append_of, assigned, group, id, log, run, topic};

    fn delivered(numbers: impl Iterator<Item = u64>) -> Vec<Posting> {
        postings(
            numbers.map(id),
            Some(Place::InFlight),
            Some(Place::Delivered),
        )
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn books_and_topic_agree_and_one_missing_event_is_named() {
        run(async {
            let log = log().await;
            let at = TopicPartition::new(topic(&log, 2).await, 0);
            let out = TopicPartition::new(topic(&log, 1).await, 0);
            append(&log, &at, 0..30).await;
            let group = group();
            let join = Join::new(group.clone(), vec![at.topic.clone()]);
            let session = log.join(join.clone()).await.unwrap();
            let fence = assigned(&*session).await[&at].fence;
            let commit = |next: i64, postings: Vec<Posting>| OffsetCommit {
                at: at.clone(),
                fence,
                next: Offset(next),
                metadata: format!("after {next}"),
                postings,
            };
            // Offsets alone, and offsets with records, go into the same books.
            let alone = vec![commit(10, delivered(0..10))];
            let with = vec![commit(20, delivered(10..20))];
            session
                .commit(Commit {
                    appends: vec![],
                    offsets: alone,
                })
                .await
                .unwrap();
            let appends = vec![append_of(&out, 1)];
            session
                .commit(Commit {
                    appends,
                    offsets: with,
                })
                .await
                .unwrap();
            check(&log, &group, &at, 20).await;
            session.close().await.unwrap();

            // The next owner goes on with them.
            let session = log.join(join).await.unwrap();
            let begun = assigned(&*session).await[&at].clone();
            assert_eq!(begun.committed.unwrap().metadata, "after 20");
            let missing = 24;
            let most = delivered((20..30).filter(|number| *number != missing));
            let offsets = vec![OffsetCommit {
                fence: begun.fence,
                ..commit(30, most)
            }];
            session
                .commit(Commit {
                    appends: vec![],
                    offsets,
                })
                .await
                .unwrap();
            let recount = recount_group(&log, &group, &at.topic).await.unwrap();
            let found = &recount.partitions[0];
            assert!(found.is_verifiable() && !found.agrees());
            assert_eq!(found.missing(), (1, id(missing).as_u128()));
        });
    }

    async fn check(
        log: &KafkaLog,
        group: &tidegate_core::GroupName,
        at: &TopicPartition,
        next: i64,
    ) {
        let recount = recount_group(log, group, &at.topic).await.unwrap();
        assert_eq!(
            recount.partitions.len(),
            1,
            "only what was committed is counted"
        );
        let found = &recount.partitions[0];
        assert_eq!((&found.at, found.committed), (at, Offset(next)));
        assert!(found.is_verifiable() && found.agrees(), "{found:?}");
        assert_eq!(found.count, u64::try_from(next).unwrap());
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn records_removed_by_the_broker_are_not_verifiable_and_the_next_owner_begins_anew() {
        run(async {
            let log = log().await;
            let at = TopicPartition::new(topic(&log, 1).await, 0);
            append(&log, &at, 0..20).await;
            let group = group();
            let join = Join::new(group.clone(), vec![at.topic.clone()]);
            for (next, from) in [(10, 0), (20, 10)] {
                let session = log.join(join.clone()).await.unwrap();
                let fence = assigned(&*session).await[&at].fence;
                let offset = OffsetCommit {
                    at: at.clone(),
                    fence,
                    next: Offset(next),
                    metadata: String::new(),
                    postings: delivered(from..u64::try_from(next).unwrap()),
                };
                let offsets = vec![offset];
                session
                    .commit(Commit {
                        appends: vec![],
                        offsets,
                    })
                    .await
                    .unwrap();
                session.close().await.unwrap();
                log.delete_before(&at, Offset(5)).await.unwrap();
            }
            let recount = recount_group(&log, &group, &at.topic).await.unwrap();
            let found = &recount.partitions[0];
            let books = found.books.clone().unwrap();
            assert_eq!((books.base, books.earlier), (Offset(10), 10));
            assert_eq!(books.settled(), 20, "the count never falls");
            assert!(found.is_verifiable() && found.agrees(), "{found:?}");
            assert_eq!((found.start, found.count), (Offset(5), 10));
        });
    }
}
