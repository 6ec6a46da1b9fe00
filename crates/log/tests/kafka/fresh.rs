//! Topics that are used the moment they were made.

mod needs_kafka {
    use tidegate_core::Offset;
    use tidegate_log::{Join, Log, StartAt, TopicConfig, TopicPartition};

    use crate::scene::{append_of, assigned, group, log, run, topic};

    const PARTITIONS: u32 = 24;

    #[test]
    #[ignore = "needs Kafka"]
    fn t07_a_topic_that_was_just_made_can_be_used_by_everybody() {
        run(async {
            let makes = log().await;
            // Clients that know nothing of the topic, as those of another process.
            let (looks, writes) = (log().await, log().await);
            for _ in 0..tidegate_sim::scaled(120) {
                let topic = topic(&makes, PARTITIONS).await;
                let described = looks.describe(&topic).await.unwrap();
                assert_eq!(described.partitions.len(), PARTITIONS as usize);
                let records = (0..PARTITIONS).map(|number| {
                    let at = TopicPartition::new(topic.clone(), number.try_into().unwrap());
                    append_of(&at, number.into())
                });
                let placed = writes.append(records.collect()).await.unwrap();
                assert!(placed.iter().all(|position| position.offset == Offset(0)));
            }
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_topic_that_several_make_at_once_is_there_for_each() {
        run(async {
            let logs = [log().await, log().await, log().await];
            for _ in 0..tidegate_sim::scaled(60) {
                let name = crate::scene::topic_name();
                let make = |log: tidegate_log::kafka::KafkaLog| {
                    let name = name.clone();
                    async move {
                        log.create_topic(&name, TopicConfig::new(PARTITIONS))
                            .await?;
                        log.describe(&name).await
                    }
                };
                let made = logs.clone().map(|log| tokio::spawn(make(log)));
                for made in made {
                    let described = made.await.unwrap().unwrap();
                    assert_eq!(described.partitions.len(), PARTITIONS as usize);
                }
            }
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_group_begins_at_the_end_of_a_topic_that_was_just_made() {
        run(async {
            let log = log().await;
            let topic = topic(&log, PARTITIONS).await;
            let join = Join {
                start: StartAt::Latest,
                ..Join::new(group(), vec![topic])
            };
            let session = log.join(join).await.unwrap();
            let ours = assigned(&*session).await;
            let begins = |at: &tidegate_log::Assignment| at.position == Offset(0);
            assert!(ours.len() == PARTITIONS as usize && ours.values().all(begins));
        });
    }
}
