//! Storage on top of the model: writes take time, calls fail, crashes lose what was not written.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Clock, Env, Spawn};
use tidegate_core::{GroupName, Mutex, Offset, Topic};
use tidegate_log::local::{GroupOffset, RecordStorage, Write};
use tidegate_log::{
    Batch, Committed, GroupSnapshot, LogError, LogFuture, Read, RecordPosition, TopicConfig,
    TopicDescription, TopicPartition,
};
use tokio::sync::{Notify, oneshot};

use super::faults::{Fate, LogFaults};
use super::model::LogModel;

/// How long a lost connection takes to come back.
const RECONNECT: Duration = Duration::from_millis(20);

/// Storage on top of the model.
pub(super) struct ModelStorage {
    clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
    pub(super) state: Arc<Mutex<SimLogState>>,
    /// Notified when something was written, or the storage crashed.
    grown: Arc<Notify>,
}

pub(super) struct SimLogState {
    pub(super) model: LogModel,
    pub(super) faults: LogFaults,
    /// Writes that were handed over and are not done yet, in their order.
    queue: VecDeque<(u64, Write)>,
    /// Answers that were not fetched yet, by the number of the write.
    done: BTreeMap<u64, oneshot::Sender<Result<Vec<RecordPosition>, LogError>>>,
    last_write: u64,
    /// Writes that were done.
    pub(super) written: u64,
}

impl ModelStorage {
    pub(super) fn new(env: &Env) -> Self {
        let state = SimLogState {
            model: LogModel::default(),
            faults: LogFaults::new(env.entropy.fork("log faults")),
            queue: VecDeque::new(),
            done: BTreeMap::new(),
            last_write: 0,
            written: 0,
        };
        Self {
            clock: Arc::clone(&env.clock),
            spawn: Arc::clone(&env.spawn),
            state: Arc::new(Mutex::new(state)),
            grown: Arc::new(Notify::new()),
        }
    }

    /// Loses what was handed over and is not done.
    pub(super) fn crash(&self) {
        let mut state = self.state.lock();
        state.queue.clear();
        // Waiting callers find out that there is no answer.
        state.done.clear();
        drop(state);
        self.grown.notify_waiters();
    }

    /// Hands a write over. It is done after `delay`, whoever waits for it; all writes handed over
    /// before it are done by then too, as in a group commit.
    fn hand_over(
        &self,
        write: Write,
        delay: Duration,
    ) -> oneshot::Receiver<Result<Vec<RecordPosition>, LogError>> {
        let (tell, told) = oneshot::channel();
        let mut state = self.state.lock();
        state.last_write += 1;
        let number = state.last_write;
        state.queue.push_back((number, write));
        state.done.insert(number, tell);
        drop(state);
        let (shared, grown) = (Arc::clone(&self.state), Arc::clone(&self.grown));
        let clock = Arc::clone(&self.clock);
        let writing = async move {
            clock.sleep(delay).await;
            let mut state = shared.lock();
            state.write_up_to(number, clock.now_ms());
            drop(state);
            grown.notify_waiters();
        };
        drop(self.spawn.spawn("model-write", Box::pin(writing)));
        told
    }

    async fn meet(&self, fate: Fate) -> Result<(), LogError> {
        if !fate.delay.is_zero() {
            self.clock.sleep(fate.delay).await;
        }
        if fate.is_refused {
            return Err(away());
        }
        Ok(())
    }

    /// Meets the fate of a call that changes nothing.
    pub(super) async fn pass(&self) -> Result<(), LogError> {
        let fate = self.state.lock().faults.of_call();
        self.meet(fate).await
    }

    async fn on_time<T>(
        &self,
        act: impl FnOnce(&mut LogModel) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let fate = self.state.lock().faults.of_call();
        self.meet(fate).await?;
        act(&mut self.state.lock().model)
    }
}

impl SimLogState {
    fn write_up_to(&mut self, number: u64, now_ms: u64) {
        while let Some((next, _)) = self.queue.front()
            && *next <= number
        {
            let Some((next, write)) = self.queue.pop_front() else {
                return;
            };
            let answer = match in_turn(&write) {
                Ok(()) => {
                    self.written += 1;
                    Ok(self.model.apply(write, now_ms))
                }
                Err(refused) => Err(refused),
            };
            if let Some(tell) = self.done.remove(&next) {
                // The caller may be gone.
                tell.send(answer).ok();
            }
        }
    }
}

/// Whether a write may still be done.
fn in_turn(write: &Write) -> Result<(), LogError> {
    let is_rejected = |offset: &&GroupOffset| offset.ticket.is_rejected();
    match write.offsets.iter().find(is_rejected) {
        Some(offset) => Err(LogError::PrecedingCommitFailed {
            at: offset.at.clone(),
        }),
        None => Ok(()),
    }
}

fn away() -> LogError {
    LogError::Unavailable {
        servers: "the simulated log".to_owned(),
        why: "it refuses by script".to_owned(),
    }
}

fn unknown(doing: &'static str, why: &str) -> LogError {
    LogError::OutcomeUnknown {
        doing,
        why: why.to_owned(),
    }
}

impl RecordStorage for ModelStorage {
    fn cluster(&self) -> &str {
        "sim"
    }

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()> {
        Box::pin(self.on_time(move |model| model.create_topic(topic, config)))
    }

    fn topics(&self) -> Vec<Topic> {
        self.state.lock().model.topics()
    }

    fn describe(&self, topic: &Topic) -> Option<TopicDescription> {
        self.state.lock().model.describe(topic)
    }

    fn write(&self, write: Write) -> LogFuture<'_, Vec<RecordPosition>> {
        Box::pin(async move {
            let fate = {
                let mut state = self.state.lock();
                state.model.check(&write)?;
                if state.faults.is_full && write.offsets.is_empty() {
                    return Err(LogError::Full { used: 1, limit: 1 });
                }
                state.faults.of_write()
            };
            in_turn(&write)?;
            if fate.is_refused {
                return Err(away());
            }
            let is_commit = !write.offsets.is_empty();
            if fate.is_request_lost && is_commit {
                self.state.lock().model.abort(&write);
                // Those behind it may arrive before anybody hears of this.
                write.offsets.iter().for_each(|offset| offset.ticket.fail());
                self.clock.sleep(RECONNECT).await;
                return Err(unknown("a commit", "the connection broke"));
            }
            let told = self.hand_over(write, fate.delay);
            let positions = told
                .await
                .map_err(|_| unknown("a write", "the log crashed"))??;
            if fate.is_answer_lost {
                self.clock.sleep(RECONNECT).await;
                if is_commit {
                    return Err(unknown("a commit", "the connection broke"));
                }
            }
            Ok(positions)
        })
    }

    fn read<'a>(&'a self, read: &'a Read) -> LogFuture<'a, Batch> {
        Box::pin(self.on_time(move |model| model.read(read)))
    }

    fn wait_for<'a>(&'a self, at: &'a TopicPartition, from: Offset) -> LogFuture<'a, ()> {
        Box::pin(async move {
            loop {
                let mut notified = std::pin::pin!(self.grown.notified());
                notified.as_mut().enable();
                let end = self.state.lock().model.end(at)?;
                if end > from {
                    return Ok(());
                }
                notified.await;
            }
        })
    }

    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> LogFuture<'a, Offset> {
        Box::pin(self.on_time(move |model| model.offset_at(at, timestamp_ms)))
    }

    fn delete_before<'a>(
        &'a self,
        at: &'a TopicPartition,
        offset: Offset,
    ) -> LogFuture<'a, Offset> {
        Box::pin(self.on_time(move |model| model.delete_before(at, offset)))
    }

    fn groups(&self) -> Vec<GroupName> {
        self.state.lock().model.groups()
    }

    fn committed(&self, group: &GroupName, at: &TopicPartition) -> Option<Committed> {
        self.state.lock().model.committed(group, at)
    }

    fn register_group<'a>(
        &'a self,
        group: &'a GroupName,
        topics: &'a [Topic],
    ) -> LogFuture<'a, ()> {
        Box::pin(self.on_time(move |model| {
            model.register_group(group, topics);
            Ok(())
        }))
    }

    fn skip_to_end<'a>(
        &'a self,
        group: &'a GroupName,
        partitions: &'a [TopicPartition],
    ) -> LogFuture<'a, ()> {
        Box::pin(self.on_time(move |model| {
            model.skip_to_end(group, partitions);
            Ok(())
        }))
    }

    fn group_books(&self, asked: &[(GroupName, Topic)]) -> Vec<GroupSnapshot> {
        let state = self.state.lock();
        let asked = asked.iter();
        asked
            .map(|(group, topic)| state.model.group_books(self.cluster(), group, topic))
            .collect()
    }

    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()> {
        Box::pin(self.on_time(move |model| {
            model.forget_group(group);
            Ok(())
        }))
    }
}

impl fmt::Debug for ModelStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelStorage({} writes)", self.state.lock().written)
    }
}
