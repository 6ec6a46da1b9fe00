//! A log as one node calls it, which can end the node at any of its calls.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{GroupName, Mutex, Offset, Topic};
use tidegate_log::{
    Append, Batch, Commit, Committed, Fence, GroupSnapshot, Join, Lag, Log, LogError, LogFuture,
    Read, RecordPosition, Session, SessionEvent, TopicConfig, TopicDescription, TopicPartition,
};

use crate::disk::Killed;
use crate::node::Node;

/// The call at which a node ends, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogKill {
    /// Nothing of the call is done.
    Before(u64),
    /// The call is done, and nobody hears of it.
    After(u64),
}

impl LogKill {
    /// Every end of a scenario that makes so many calls.
    pub fn each(calls: u64) -> impl Iterator<Item = Self> {
        (1..=calls).flat_map(|call| [Self::Before(call), Self::After(call)])
    }
}

/// A log as one node calls it: it counts the calls, of its sessions too, and can take the power from the
/// node at one of them.
///
/// So a test enumerates the ends of a scenario: it runs it once to count the calls, and then once for each
/// [`LogKill`]. Every log behind the port can be called like this. A call that is dropped before it is
/// answered counts as well. The count goes on when the node restarts.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tidegate_core::Topic;
/// use tidegate_log::{Append, Log, Record, TopicConfig};
/// use tidegate_sim::{LogKill, NodeLog, Sim, SimLog};
///
/// let mut sim = Sim::new(7);
/// let (broker, node) = (sim.node("broker"), sim.node("node"));
/// let log = SimLog::new(&broker.env());
/// let of_node = NodeLog::new(Arc::new(log.clone()), &node);
/// of_node.kill(LogKill::After(2));
/// let topic = Topic::new("orders")?;
/// let task = node.start("append", async move {
///     of_node.create_topic(&topic, TopicConfig::new(1)).await.unwrap();
///     let record = Append::new(topic, Record::new("placed"));
///     of_node.append(vec![record]).await.unwrap();
///     unreachable!("the node ends before it hears of its second call");
/// });
/// assert!(sim.run_until(Duration::from_secs(1), || !node.is_up()));
/// let topic = Topic::new("orders")?;
/// let found = sim.block_on(&broker, async move { log.describe(&topic).await.unwrap() });
/// assert_eq!(found.partitions[0].end.0, 1);
/// # drop(task);
/// # Ok::<(), tidegate_core::NameError>(())
/// ```
pub struct NodeLog {
    log: Arc<dyn Log>,
    calls: Calls,
}

#[derive(Clone)]
struct Calls {
    node: Node,
    state: Arc<Mutex<(u64, Option<LogKill>)>>,
}

impl NodeLog {
    /// The calls of a node.
    #[must_use]
    pub fn new(log: Arc<dyn Log>, node: &Node) -> Self {
        Self {
            log,
            calls: Calls {
                node: node.clone(),
                state: Arc::default(),
            },
        }
    }

    /// Ends the node at this call, once. Another one that was set and has not happened is forgotten.
    pub fn kill(&self, at: LogKill) {
        self.calls.state.lock().1 = Some(at);
    }

    /// How many calls there were so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.state.lock().0
    }
}

impl Calls {
    fn call<'a, T: 'a>(&self, call: LogFuture<'a, T>) -> LogFuture<'a, T> {
        let calls = self.clone();
        let number = {
            let mut state = calls.state.lock();
            state.0 += 1;
            state.0
        };
        Box::pin(async move {
            calls.pass(LogKill::Before(number));
            let answer = call.await;
            calls.pass(LogKill::After(number));
            answer
        })
    }

    /// Ends the node here if it is to end here, or has ended already and somebody caught the unwinding.
    fn pass(&self, here: LogKill) {
        let disk = self.node.disk();
        let is_last = self.state.lock().1.take_if(|at| *at == here).is_some();
        if is_last || disk.is_killed() {
            disk.kill();
            std::panic::resume_unwind(Box::new(Killed));
        }
    }
}

impl fmt::Debug for NodeLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeLog({:?}, {:?})", self.calls.node, self.log)
    }
}

impl Log for NodeLog {
    fn cluster(&self) -> &str {
        self.log.cluster()
    }

    fn is_shared(&self) -> bool {
        self.log.is_shared()
    }

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()> {
        self.calls.call(self.log.create_topic(topic, config))
    }

    fn topics(&self) -> LogFuture<'_, Vec<Topic>> {
        self.calls.call(self.log.topics())
    }

    fn describe<'a>(&'a self, topic: &'a Topic) -> LogFuture<'a, TopicDescription> {
        self.calls.call(self.log.describe(topic))
    }

    fn append(&self, records: Vec<Append>) -> LogFuture<'_, Vec<RecordPosition>> {
        self.calls.call(self.log.append(records))
    }

    fn deliver(&self, records: Vec<Append>) -> LogFuture<'_, Vec<Result<(), LogError>>> {
        self.calls.call(self.log.deliver(records))
    }

    fn read(&self, read: Read) -> LogFuture<'_, Batch> {
        self.calls.call(self.log.read(read))
    }

    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> LogFuture<'a, Offset> {
        self.calls.call(self.log.offset_at(at, timestamp_ms))
    }

    fn delete_before<'a>(
        &'a self,
        at: &'a TopicPartition,
        offset: Offset,
    ) -> LogFuture<'a, Offset> {
        self.calls.call(self.log.delete_before(at, offset))
    }

    fn committed<'a>(
        &'a self,
        group: &'a GroupName,
        partitions: &'a [TopicPartition],
    ) -> LogFuture<'a, Vec<Option<Committed>>> {
        self.calls.call(self.log.committed(group, partitions))
    }

    fn group_books<'a>(
        &'a self,
        asked: &'a [(GroupName, Topic)],
    ) -> LogFuture<'a, Vec<GroupSnapshot>> {
        self.calls.call(self.log.group_books(asked))
    }

    fn groups(&self) -> LogFuture<'_, Vec<GroupName>> {
        self.calls.call(self.log.groups())
    }

    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()> {
        self.calls.call(self.log.forget_group(group))
    }

    fn join(&self, join: Join) -> LogFuture<'_, Arc<dyn Session>> {
        let calls = self.calls.clone();
        let joined = self.calls.call(self.log.join(join));
        Box::pin(async move {
            let session = joined.await?;
            Ok(Arc::new(NodeSession { session, calls }) as Arc<dyn Session>)
        })
    }
}

/// A session of a node.
struct NodeSession {
    session: Arc<dyn Session>,
    calls: Calls,
}

impl fmt::Debug for NodeSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeSession({:?}, {:?})", self.calls.node, self.session)
    }
}

impl Session for NodeSession {
    fn poll(&self) -> LogFuture<'_, SessionEvent> {
        self.calls.call(self.session.poll())
    }

    fn release<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        self.calls.call(self.session.release(partitions))
    }

    fn pause<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        self.calls.call(self.session.pause(partitions))
    }

    fn resume<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        self.calls.call(self.session.resume(partitions))
    }

    fn seek<'a>(
        &'a self,
        at: &'a TopicPartition,
        fence: Fence,
        offset: Offset,
    ) -> LogFuture<'a, ()> {
        self.calls.call(self.session.seek(at, fence, offset))
    }

    fn commit(&self, commit: Commit) -> LogFuture<'_, Vec<RecordPosition>> {
        self.calls.call(self.session.commit(commit))
    }

    fn lag(&self) -> LogFuture<'_, Vec<Lag>> {
        self.calls.call(self.session.lag())
    }

    fn close(&self) -> LogFuture<'_, ()> {
        self.calls.call(self.session.close())
    }
}
