//! Groups on a real broker.

use tidegate_core::books::{Place, postings};
use tidegate_core::env::system::system_entropy;
use tidegate_core::env::{Entropy, Env};
use tidegate_core::{EventId, GroupName, Offset, Topic};

use crate::kafka::{KafkaConfig, KafkaLog};
use crate::{
    Append, Assignment, Commit, Join, Log, OffsetCommit, Record, Session, SessionEvent, StartAt,
    TopicConfig,
};

use crate::inspect::lag::look;
use crate::inspect::{LogScope, OpenLog};

/// A log, and a topic with one partition that a group is bound to.
struct Scene {
    opened: OpenLog,
    log: KafkaLog,
    topic: Topic,
    group: GroupName,
}

impl Scene {
    #[expect(
        clippy::disallowed_methods,
        reason = "the runner of the tests says where the broker is"
    )]
    async fn new() -> Self {
        let servers = std::env::var("KAFKA_BOOTSTRAP").expect("KAFKA_BOOTSTRAP names a broker");
        let config = KafkaConfig::new("default", servers);
        let log = KafkaLog::connect(config, Env::system()).await.unwrap();
        let unique = system_entropy().next_u64();
        let topic = Topic::new(format!("cli-topic-{unique:016x}")).unwrap();
        let group = GroupName::new(format!("cli-group-{unique:016x}")).unwrap();
        log.create_topic(&topic, TopicConfig::new(1)).await.unwrap();
        let scope = LogScope {
            topics: vec![topic.clone()],
            groups: vec![group.clone()],
            bindings: [(topic.clone(), group.clone())].into(),
            owned: Vec::new(),
        };
        Self {
            opened: OpenLog::Kafka {
                log: log.clone(),
                scope,
            },
            log,
            topic,
            group,
        }
    }

    fn record(&self, number: u128) -> Append {
        let record = Record::new("x").event_id(EventId::from_u128(number));
        Append::new(self.topic.clone(), record)
    }

    async fn join(&self, start: StartAt) -> (std::sync::Arc<dyn Session>, Assignment) {
        let join = Join {
            start,
            ..Join::new(self.group.clone(), vec![self.topic.clone()])
        };
        let session = self.log.join(join).await.unwrap();
        loop {
            if let SessionEvent::Assigned(ours) = session.poll().await.unwrap() {
                return (session, ours[0].clone());
            }
        }
    }

    /// Where an event is, and which group says so.
    async fn place(&self, number: u128) -> (Place, String) {
        let found = self.opened.find(EventId::from_u128(number)).await.unwrap();
        let now = found.last().cloned().unwrap();
        (now.place, now.component)
    }
}

fn settle(ours: &Assignment, next: i64, numbers: std::ops::Range<u128>) -> OffsetCommit {
    let moved = numbers.map(EventId::from_u128);
    OffsetCommit {
        at: ours.at.clone(),
        fence: ours.fence,
        next: Offset(next),
        metadata: String::new(),
        postings: postings(moved, Some(Place::Queued), Some(Place::Delivered)),
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.enable_all().worker_threads(2).build().unwrap();
    runtime.block_on(test);
    runtime.shutdown_background();
}

#[test]
#[ignore = "needs Kafka"]
fn a_group_that_begins_behind_an_event_has_nothing_to_do_with_it() {
    run(async {
        let scene = Scene::new().await;
        scene.log.append(vec![scene.record(1)]).await.unwrap();
        let (session, ours) = scene.join(StartAt::Latest).await;
        // The group has committed 1, which is where it began; nobody has read the event.
        let topic = scene.topic.to_string();
        assert_eq!(scene.place(1).await, (Place::Queued, topic.clone()));
        scene.log.append(vec![scene.record(2)]).await.unwrap();
        let group = format!("{}@{topic}", scene.group);
        assert_eq!(scene.place(2).await, (Place::Queued, group.clone()));
        let commit = Commit {
            appends: vec![],
            offsets: vec![settle(&ours, 2, 2..3)],
        };
        session.commit(commit).await.unwrap();
        assert_eq!(scene.place(2).await, (Place::Delivered, group));
        assert_eq!(scene.place(1).await, (Place::Queued, topic));
    });
}

#[test]
#[ignore = "needs Kafka"]
fn a_bound_group_that_has_committed_nothing_is_behind_by_all_there_is() {
    run(async {
        let scene = Scene::new().await;
        let records = (0..3).map(|number| scene.record(number)).collect();
        scene.log.append(records).await.unwrap();
        let (scope, readers) = (scene.opened.scope(), scene.opened.readers());
        let clock = Env::system().clock;
        let (found, errors) = look(&scene.log, &*clock, scope.as_ref(), &readers).await;
        assert!(errors.is_empty(), "{errors:?}");
        let [(group, at, lag)] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(
            (group, &at.topic, lag.records),
            (&scene.group, &scene.topic, 3)
        );
        assert!(!lag.age.is_zero(), "its oldest record raises the alarm");
        // An event that nobody has read waits for whoever is to read it.
        let group = format!("{}@{}", scene.group, scene.topic);
        assert_eq!(scene.place(1).await, (Place::Queued, group));
    });
}

#[test]
#[ignore = "needs Kafka"]
fn the_end_of_a_transaction_is_no_event_that_waits() {
    run(async {
        let scene = Scene::new().await;
        let (session, ours) = scene.join(StartAt::Earliest).await;
        scene.log.append(vec![scene.record(1)]).await.unwrap();
        // It adds a record to the topic itself, and with it the end of its transaction.
        let commit = Commit {
            appends: vec![scene.record(2)],
            offsets: vec![settle(&ours, 1, 1..2)],
        };
        session.commit(commit).await.unwrap();
        let commit = Commit {
            appends: vec![],
            offsets: vec![settle(&ours, 2, 2..3)],
        };
        session.commit(commit).await.unwrap();
        let described = scene.log.describe(&scene.topic).await.unwrap();
        assert_eq!(
            described.partitions[0].end,
            Offset(3),
            "two records, one end"
        );
        let components = scene.opened.accounts().await.unwrap();
        let account = &components[0].account;
        assert_eq!((account.queued, account.delivered), (0, 2), "{account:?}");
        let audit = scene.opened.audit().await.unwrap();
        assert_eq!(audit[0].books.accepted, 2);
        assert_eq!((audit[0].unaccounted, audit[0].unverifiable), (0, 0));
        let (scope, readers) = (scene.opened.scope(), scene.opened.readers());
        let clock = Env::system().clock;
        let (found, _) = look(&scene.log, &*clock, scope.as_ref(), &readers).await;
        assert_eq!(found[0].2.records, 0);
    });
}
