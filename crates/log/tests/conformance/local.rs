//! What a log within this process keeps beyond the rules of all logs.

use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_core::{GroupName, Offset, Topic};
use tidegate_log::{
    Append, Commit, Happening, Join, Log, OffsetCommit, Record, TopicConfig, TopicPartition,
};
use tidegate_sim::{LogFault, LogRates, Sim, SimLog};

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
            assert!(matches!(assigned, Happening::Assigned(_)));
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
                let happening = session.poll().await.unwrap();
                assert!(matches!(happening, Happening::Records { .. }));
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
            matches!(assigned, Happening::Assigned(_)),
            "the next life begins"
        );
    });
}

#[test]
fn what_was_called_behind_a_commit_whose_request_is_lost_is_refused() {
    for seed in 0..20 {
        let mut sim = Sim::new(seed);
        let node = sim.node("a");
        let env = node.env();
        sim.block_on(&node, async move {
            let (log, join, at) = slow_log(&env).await;
            let session = log.join(join.clone()).await.unwrap();
            let Happening::Assigned(ours) = session.poll().await.unwrap() else {
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
            assert_eq!(first.unwrap_err().code().to_string(), "log.unknown");
            assert_eq!(second.unwrap_err().code().to_string(), "log.out-of-turn");
            let found = log.committed(&join.group, std::slice::from_ref(&at)).await;
            assert_eq!(found.unwrap(), [None]);
            call(6).await.unwrap();
        });
    }
}
