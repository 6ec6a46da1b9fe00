//! A node that ends at each of its calls of the log.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{GroupName, Topic};
use tidegate_log::{
    Append, Commit, Join, Log, OffsetCommit, Read, Record, SessionEvent, TopicConfig,
    TopicPartition,
};
use tidegate_sim::{LogKill, Node, NodeLog, Sim, SimLog};

const LIMIT: Duration = Duration::from_secs(600);

fn at(topic: &str) -> TopicPartition {
    TopicPartition::new(Topic::new(topic).unwrap(), 0)
}

/// Copies five records, each in the commit that settles it, then leaves.
async fn copy(log: Arc<NodeLog>) {
    let join = Join {
        max_poll_records: 1,
        ..Join::new(GroupName::new("copiers").unwrap(), vec![at("from").topic])
    };
    let session = log.join(join).await.unwrap();
    loop {
        match session.poll().await.unwrap() {
            SessionEvent::Assigned(all) if all[0].position.0 == 5 => break,
            SessionEvent::Records { fence, batch } => {
                let is_last = batch.next.0 == 5;
                let copies = batch.records.into_iter();
                let copies = copies.map(|stored| Append::new(at("to").topic, stored.record));
                let offset = OffsetCommit {
                    at: batch.at,
                    fence,
                    next: batch.next,
                    metadata: String::new(),
                    postings: Vec::new(),
                };
                let commit = Commit {
                    appends: copies.collect(),
                    offsets: vec![offset],
                };
                session.commit(commit).await.unwrap();
                if is_last {
                    break;
                }
            }
            SessionEvent::Assigned(_) | SessionEvent::Revoking(_) | SessionEvent::Lost(_) => {}
        }
    }
    session.close().await.unwrap();
}

/// Runs the copier to its end, or the node's; says whether it was the node's.
fn run(sim: &mut Sim, node: &Node, log: &Arc<NodeLog>) -> bool {
    let task = node.start("copy", copy(Arc::clone(log)));
    let observer = sim.node("observer");
    let outcome = sim.block_on(&observer, task.join());
    !node.is_up() && outcome == tidegate_core::env::TaskOutcome::Aborted
}

#[test]
fn a_node_ends_before_or_after_each_of_its_calls() {
    let mut kills = vec![None];
    let mut tried = 0;
    while let Some(kill) = kills.pop() {
        let mut sim = Sim::new(7);
        let (broker, node) = (sim.node("broker"), sim.node("node"));
        let log = SimLog::new(&broker.env());
        let filled = log.clone();
        sim.block_on(&broker, async move {
            for topic in ["from", "to"] {
                let topic = at(topic).topic;
                filled
                    .create_topic(&topic, TopicConfig::new(1))
                    .await
                    .unwrap();
            }
            let number =
                |number: u32| Append::new(at("from").topic, Record::new(number.to_string()));
            filled.append((0..5).map(number).collect()).await.unwrap();
        });
        let of_node = Arc::new(NodeLog::new(Arc::new(log.clone()), &node));
        match kill {
            None => {
                assert!(!run(&mut sim, &node, &of_node));
                // It joins, hears of its partition, polls and commits five records, and leaves.
                assert_eq!(of_node.calls(), 13);
                kills.extend(LogKill::each(of_node.calls()).map(Some));
            }
            Some(kill) => {
                of_node.kill(kill);
                assert!(run(&mut sim, &node, &of_node), "{kill:?}");
                let (LogKill::Before(call) | LogKill::After(call)) = kill;
                assert_eq!(of_node.calls(), call, "nothing is called after the end");
                sim.restart(&node);
                assert!(
                    !run(&mut sim, &node, &of_node),
                    "it is killed once: {kill:?}"
                );
                tried += 1;
            }
        }
        assert!(sim.now() < LIMIT);
        let copied = sim.block_on(&broker, async move {
            log.read(Read::new(at("to"), tidegate_core::Offset(0)))
                .await
                .unwrap()
        });
        let values = copied
            .records
            .iter()
            .map(|stored| stored.record.value.clone().unwrap());
        let values: Vec<_> = values.collect();
        assert_eq!(values, ["0", "1", "2", "3", "4"], "{kill:?}");
    }
    assert_eq!(tried, 26);
}
