//! Rules of topics.

use std::time::Duration;

use tidegate_core::{Offset, Partition, Topic};

use super::scene::{Scene, code};
use crate::{PartitionDescription, TopicConfig, TopicPartition};

/// A topic is described as it was made, also after a restart.
pub async fn a_topic_is_described_as_it_was_made(scene: Scene) {
    let config = TopicConfig {
        partitions: 3,
        retention: Some(Duration::from_secs(86_400)),
        retention_bytes: Some(50_000_000),
        compact: false,
        max_record_size: 2_000_000,
    };
    let plain = scene.topic(1).await;
    let topic = scene.topic_with(config.clone()).await;
    let compacted = TopicConfig {
        compact: true,
        ..TopicConfig::new(1)
    };
    let by_key = scene.topic_with(compacted.clone()).await;
    let scene = scene.reopened().await;
    let found = scene.log.describe(&topic).await.unwrap();
    assert_eq!((found.topic, found.config), (topic, config));
    let empty = |number| PartitionDescription {
        partition: Partition(number),
        start: Offset(0),
        end: Offset(0),
    };
    assert_eq!(found.partitions, [empty(0), empty(1), empty(2)]);
    assert_eq!(
        scene.log.describe(&plain).await.unwrap().config,
        TopicConfig::new(1)
    );
    assert_eq!(scene.log.describe(&by_key).await.unwrap().config, compacted);
}

/// Making a topic again changes its settings and keeps its records.
pub async fn making_a_topic_again_changes_its_settings(scene: Scene) {
    let topic = scene.topic(2).await;
    let at = TopicPartition::new(topic.clone(), 1);
    scene.append(&at, &["kept"]).await;
    let changed = TopicConfig {
        retention: Some(Duration::from_secs(3_600)),
        max_record_size: 100_000,
        ..TopicConfig::new(2)
    };
    for _ in 0..2 {
        scene
            .log
            .create_topic(&topic, changed.clone())
            .await
            .unwrap();
        let found = scene.log.describe(&topic).await.unwrap();
        assert_eq!(found.config, changed);
    }
    let back = TopicConfig::new(2);
    scene.log.create_topic(&topic, back.clone()).await.unwrap();
    assert_eq!(scene.log.describe(&topic).await.unwrap().config, back);
    assert_eq!(scene.values(&at).await, ["kept"]);
}

/// Another number of partitions is refused, because keys would move; so is none at all.
pub async fn another_number_of_partitions_is_refused(scene: Scene) {
    let topic = scene.topic(2).await;
    for partitions in [0, 1, 3] {
        let other = scene.log.create_topic(&topic, TopicConfig::new(partitions));
        assert_eq!(code(other.await), "log.topic-config");
    }
    let found = scene.log.describe(&topic).await.unwrap();
    assert_eq!(found.partitions.len(), 2);
    let none = Topic::new(scene.name("none")).unwrap();
    let refused = scene.log.create_topic(&none, TopicConfig::new(0));
    assert_eq!(code(refused.await), "log.topic-config");
    assert_eq!(code(scene.log.describe(&none).await), "log.unknown-topic");
}

/// Topics are listed by name.
pub async fn topics_are_listed_by_name(scene: Scene) {
    let mut made = vec![scene.topic(1).await, scene.topic(1).await];
    made.sort();
    let listed = scene.log.topics().await.unwrap();
    assert!(listed.is_sorted());
    let ours: Vec<Topic> = listed
        .into_iter()
        .filter(|topic| made.contains(topic))
        .collect();
    assert_eq!(ours, made);
}
