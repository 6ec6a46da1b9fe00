//! A member with a name that is killed, and the next process of that name.

mod needs_kafka {
    use std::collections::BTreeMap;

    use tidegate_log::{Commit, Join, Log, OffsetCommit, SessionEvent, TopicPartition};

    use crate::child::{self, STATIC_SESSION};
    use crate::scene::{
        append, append_of, assigned, group, log, number, numbers_once, poll, run, topic, variable,
    };

    const EACH: u64 = 1_000;

    #[test]
    #[ignore = "needs Kafka"]
    fn the_successor_of_a_killed_member_waits_for_no_session() {
        run(async {
            let log = log().await;
            let [one, two, out] = [
                TopicPartition::new(topic(&log, 1).await, 0),
                TopicPartition::new(topic(&log, 1).await, 0),
                TopicPartition::new(topic(&log, 1).await, 0),
            ];
            append(&log, &one, 0..EACH).await;
            append(&log, &two, EACH..2 * EACH).await;
            let join = Join {
                co_partitioned: vec![two.topic.clone()],
                instance: Some("left".to_owned()),
                session_timeout: STATIC_SESSION,
                ..Join::new(group(), vec![one.topic.clone()])
            };
            let servers = variable("KAFKA_BOOTSTRAP");
            let (mut process, lines) = child::start_static(&servers, &join, &out.topic);
            let done = lines
                .filter(|line| line.starts_with("done"))
                .take(20)
                .count();
            assert_eq!(done, 20);
            process.kill().unwrap();
            process.wait().unwrap();

            // The session of the killed one is longer than this is waited for.
            let killed = std::time::Instant::now();
            let session = log.join(join).await.unwrap();
            let begun = assigned(&*session).await;
            println!("assigned {:?} after the kill", killed.elapsed());
            let positions = begun.iter().map(|(at, one)| (at.clone(), one.position.0));
            let mut positions: BTreeMap<TopicPartition, i64> = positions.collect();
            assert_eq!(positions.len(), 2);
            assert!(positions.values().sum::<i64>() >= 20, "{positions:?}");
            // One commit has both topics: the one without new records goes along.
            while positions
                .values()
                .any(|next| *next < i64::try_from(EACH).unwrap())
            {
                let SessionEvent::Records { fence, batch } = poll(&*session).await.unwrap() else {
                    panic!("nobody else is in the group");
                };
                positions.insert(batch.at.clone(), batch.next.0);
                let copies = batch.records.iter();
                let copies = copies.map(|stored| append_of(&out, number(stored)));
                let offsets = positions.iter().map(|(at, next)| OffsetCommit {
                    at: at.clone(),
                    fence,
                    next: tidegate_core::Offset(*next),
                    metadata: String::new(),
                    postings: vec![],
                });
                let commit = Commit {
                    appends: copies.collect(),
                    offsets: offsets.collect(),
                };
                session.commit(commit).await.unwrap();
            }
            let mut found = numbers_once(&log, &out, 2_000).await;
            found.sort_unstable();
            let expected: Vec<u64> = (0..2 * EACH).collect();
            assert_eq!(found, expected, "each record was copied once");
            session.close().await.unwrap();
        });
    }
}
