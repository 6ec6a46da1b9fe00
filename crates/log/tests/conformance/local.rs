//! The rules of a log within this process beyond those of all logs.

use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_core::{GroupName, Offset, Topic};
use tidegate_log::{
    Append, Commit, EmbeddedLog, Join, Log, OffsetCommit, Record, SessionEvent, TopicConfig,
    TopicPartition,
};
use tidegate_sim::{LogFault, LogRates, Sim, SimLog};

use super::embedded::small;

/// A log whose reads take a while, with one record that a member has not seen yet.
async fn slow_log(env: &Env) -> (SimLog, Join, TopicPartition) {
    let log = SimLog::new(env);
    let topic = Topic::new("topic").unwrap();
    let at = TopicPartition::new(topic.clone(), 0);
    log.create_topic(&topic, TopicConfig::new(1)).await.unwrap();
    let append = Append::new(topic.clone(), Record::new("a"));
    log.append(vec![append]).await.unwrap();
    let join = Join::new(GroupName::new("group").unwrap(), vec![topic]);
    (log, join, at)
}

#[test]
fn a_poll_under_way_heeds_a_pause() {
    for seed in 0..50 {
        let mut sim = Sim::new(seed);
        let node = sim.node("a");
        let env = node.env();
        sim.block_on(&node, async move {
            let (log, join, at) = slow_log(&env).await;
            let session = log.join(join).await.unwrap();
            let assigned = session.poll().await.unwrap();
            assert!(matches!(assigned, SessionEvent::Assigned(_)));
            log.set_rates(LogRates {
                delay: Duration::from_millis(100),
                ..LogRates::default()
            });
            let partitions = [at];
            let pause = async {
                env.clock.sleep(Duration::from_micros(1)).await;
                session.pause(&partitions).await.unwrap();
                env.clock.sleep(Duration::from_secs(1)).await;
                session.resume(&partitions).await.unwrap();
                env.clock.elapsed()
            };
            let poll = async {
                let event = session.poll().await.unwrap();
                assert!(matches!(event, SessionEvent::Records { .. }));
                env.clock.elapsed()
            };
            let (resumed, handed_out) = tokio::join!(pause, poll);
            assert!(
                handed_out >= resumed,
                "{handed_out:?} is before {resumed:?}"
            );
        });
    }
}

/// The partition and the length of each batch that a member gets of one partition with much to read and
/// two with little.
async fn batches(log: &dyn Log) -> Vec<(i32, usize)> {
    let topic = Topic::new("topic").unwrap();
    log.create_topic(&topic, TopicConfig::new(3)).await.unwrap();
    for (partition, count) in [(0, 500), (1, 30), (2, 30)] {
        let append =
            |n: usize| Append::new(topic.clone(), Record::new(n.to_string())).partition(partition);
        log.append((0..count).map(append).collect()).await.unwrap();
    }
    let join = Join {
        max_poll_records: 20,
        ..Join::new(GroupName::new("group").unwrap(), vec![topic])
    };
    let session = log.join(join).await.unwrap();
    let mut batches = Vec::new();
    let mut seen = 0;
    while seen < 560 {
        if let SessionEvent::Records { batch, .. } = session.poll().await.unwrap() {
            seen += batch.records.len();
            batches.push((batch.at.partition.0, batch.records.len()));
        }
    }
    batches
}

/// While others have something to read, no partition has two turns one behind the other.
fn assert_in_turn(batches: &[(i32, usize)]) {
    let last = batches.iter().rposition(|(partition, _)| *partition != 0);
    let mixed = &batches[..=last.unwrap()];
    let is_repeated = mixed.windows(2).any(|pair| pair[0].0 == pair[1].0);
    assert!(!is_repeated, "{batches:?}");
    assert!(mixed.len() + 10 < batches.len(), "the long one is longer");
}

#[test]
fn a_long_partition_does_not_starve_a_short_one() {
    for seed in 0..5 {
        let mut sim = Sim::new(seed);
        let node = sim.node("a");
        let env = node.env();
        let batches = sim.block_on(&node, async move { batches(&SimLog::new(&env)).await });
        assert_in_turn(&batches);
    }
}

#[test]
fn a_long_partition_of_an_embedded_log_does_not_starve_a_short_one() {
    for seed in 0..5 {
        let mut sim = Sim::new(seed);
        let node = sim.node("a");
        let env = node.env();
        let batches = sim.block_on(&node, async move {
            let log = EmbeddedLog::open(&env, small("/log".as_ref())).unwrap();
            batches(&log).await
        });
        assert_in_turn(&batches);
    }
}

/// The time decides, and not whether somebody has looked at it.
#[test]
fn a_commit_after_the_time_is_up_is_refused_though_nobody_has_asked_since() {
    let mut sim = Sim::new(1);
    let node = sim.node("a");
    let env = node.env();
    sim.block_on(&node, async move {
        let (log, join, at) = slow_log(&env).await;
        let timeout = join.release_timeout;
        let session = log.join(join.clone()).await.unwrap();
        let SessionEvent::Assigned(ours) = session.poll().await.unwrap() else {
            panic!("it is assigned first");
        };
        log.rebalance(&join.group);
        let asked = loop {
            match session.poll().await.unwrap() {
                SessionEvent::Revoking(asked) => break asked,
                SessionEvent::Records { .. } => {}
                other @ (SessionEvent::Assigned(_) | SessionEvent::Lost(_)) => panic!("{other:?}"),
            }
        };
        assert_eq!(asked, std::slice::from_ref(&at));
        env.clock.sleep(timeout).await;
        let late = Commit {
            appends: Vec::new(),
            offsets: vec![OffsetCommit {
                at: at.clone(),
                fence: ours[0].fence,
                next: Offset(1),
                metadata: String::new(),
                postings: Vec::new(),
            }],
        };
        let refused = session.commit(late).await.unwrap_err();
        assert_eq!(refused.code().to_string(), "log.fenced");
        let found = log.committed(&join.group, &[at]).await.unwrap();
        assert_eq!(found, [None]);
    });
}

#[test]
fn a_closed_log_ends_its_sessions_and_answers_closed() {
    let mut sim = Sim::new(1);
    let node = sim.node("a");
    let env = node.env();
    sim.block_on(&node, async move {
        let (log, join, _) = slow_log(&env).await;
        let session = log.join(join.clone()).await.unwrap();
        log.crash();
        assert_eq!(
            session.poll().await.unwrap_err().code().to_string(),
            "log.closed"
        );
        session.close().await.unwrap();
        let next = log.join(join).await.unwrap();
        let assigned = next.poll().await.unwrap();
        assert!(
            matches!(assigned, SessionEvent::Assigned(_)),
            "the next life begins"
        );
    });
}

#[test]
fn a_member_that_waits_is_woken_when_the_log_is_closed() {
    let mut sim = Sim::new(1);
    let node = sim.node("a");
    let env = node.env();
    sim.block_on(&node, async move {
        let (log, join, at) = slow_log(&env).await;
        let session = log.join(join).await.unwrap();
        let assigned = session.poll().await.unwrap();
        assert!(matches!(assigned, SessionEvent::Assigned(_)));
        // Nothing else wakes a member whose partitions are all paused.
        session.pause(&[at]).await.unwrap();
        let close = async {
            env.clock.sleep(Duration::from_secs(1)).await;
            log.crash();
            env.clock.sleep(Duration::from_secs(60)).await;
        };
        let woken = tokio::select! {
            woken = session.poll() => woken,
            () = close => panic!("the member still waits"),
        };
        assert_eq!(woken.unwrap_err().code().to_string(), "log.closed");
    });
}

#[test]
fn commits_behind_one_whose_request_is_lost_are_refused() {
    for seed in 0..20 {
        let mut sim = Sim::new(seed);
        let node = sim.node("a");
        let env = node.env();
        sim.block_on(&node, async move {
            let (log, join, at) = slow_log(&env).await;
            let session = log.join(join.clone()).await.unwrap();
            let SessionEvent::Assigned(ours) = session.poll().await.unwrap() else {
                panic!("it is assigned first");
            };
            let more = |_| Append::new(at.topic.clone(), Record::new("more"));
            log.append((0..9).map(more).collect()).await.unwrap();
            log.set_rates(LogRates {
                delay: Duration::from_millis(seed),
                ..LogRates::default()
            });
            let call = |next| {
                session.commit(Commit {
                    appends: Vec::new(),
                    offsets: vec![OffsetCommit {
                        at: at.clone(),
                        fence: ours[0].fence,
                        next: Offset(next),
                        metadata: String::new(),
                        postings: Vec::new(),
                    }],
                })
            };
            log.inject(LogFault::LoseRequest);
            let (first, second) = tokio::join!(call(3), call(6));
            assert_eq!(first.unwrap_err().code().to_string(), "log.outcome-unknown");
            assert_eq!(
                second.unwrap_err().code().to_string(),
                "log.preceding-commit-failed"
            );
            let found = log.committed(&join.group, std::slice::from_ref(&at)).await;
            assert_eq!(found.unwrap(), [None]);
            call(6).await.unwrap();
        });
    }
}
