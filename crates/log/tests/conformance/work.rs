//! The work of nodes in a simulation: producers that append, members that copy each record to another
//! topic in the commit that settles it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::books::{Place, postings};
use tidegate_core::env::{Entropy, Env};
use tidegate_core::{EventId, EventIds, GroupName, Offset, Topic};
use tidegate_log::{
    Append, Batch, Commit, Fence, Join, Log, LogError, OffsetCommit, Read, Record, Session,
    SessionEvent, StoredRecord, TopicPartition,
};

/// The topics and the group that are worked on.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) group: GroupName,
    pub(crate) from: Topic,
    pub(crate) to: Topic,
    pub(crate) partitions: i32,
}

impl Job {
    pub(crate) fn new() -> Self {
        Self {
            group: GroupName::new("copiers").unwrap(),
            from: Topic::new("from").unwrap(),
            to: Topic::new("to").unwrap(),
            partitions: 3,
        }
    }

    pub(crate) fn sources(&self) -> Vec<TopicPartition> {
        let at = |number| TopicPartition::new(self.from.clone(), number);
        (0..self.partitions).map(at).collect()
    }
}

/// The promises, kept outside of every node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Witness {
    /// Events whose append was answered as done.
    pub(crate) accepted: Arc<Mutex<BTreeSet<EventId>>>,
    /// How often something was seen, to know that a run tried what it is about.
    pub(crate) counts: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

impl Witness {
    pub(crate) fn counted(&self, what: &'static str) -> u64 {
        self.counts.lock().unwrap().get(what).copied().unwrap_or(0)
    }

    pub(crate) fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }
}

/// Appends events until each was answered, trying again with the same id.
pub(crate) async fn produce(log: Arc<dyn Log>, env: Env, job: Job, witness: Witness, count: u64) {
    let ids = EventIds::new(Arc::clone(&env.clock), env.entropy.fork("ids"));
    let mut random = env.entropy.fork("producer");
    for _ in 0..count {
        let id = ids.mint();
        let partition = i32::try_from(random.below(3)).unwrap();
        let record = Record::new("event").event_id(id);
        let append = Append::new(job.from.clone(), record).partition(partition);
        while let Err(error) = log.append(vec![append.clone()]).await {
            assert_is_expected(&error);
            witness.count("append repeated");
            env.clock.sleep(Duration::from_millis(20)).await;
        }
        witness.accepted.lock().unwrap().insert(id);
        let pause = Duration::from_millis(random.below(40));
        env.clock.sleep(pause).await;
    }
    witness.count("producer done");
}

/// Joins the group and works in it, again and again, until the node ends.
pub(crate) async fn copy(log: Arc<dyn Log>, env: Env, job: Job, witness: Witness) {
    let mut copier = Copier {
        random: env.entropy.fork("copier"),
        log,
        env,
        job,
        witness,
        owned: BTreeMap::new(),
    };
    loop {
        let join = Join {
            release_timeout: Duration::from_millis(300),
            max_poll_records: 1 + usize::try_from(copier.random.below(8)).unwrap(),
            ..Join::new(copier.job.group.clone(), vec![copier.job.from.clone()])
        };
        match copier.log.join(join).await {
            Ok(session) => copier.work(&*session).await,
            Err(error) => assert_is_expected(&error),
        }
        copier.owned.clear();
        copier.env.clock.sleep(Duration::from_millis(30)).await;
    }
}

struct Copier {
    log: Arc<dyn Log>,
    env: Env,
    job: Job,
    witness: Witness,
    random: Box<dyn Entropy>,
    /// The partitions that are ours, and the next offset of each.
    owned: BTreeMap<TopicPartition, (Fence, Offset)>,
}

impl Copier {
    async fn work(&mut self, session: &dyn Session) {
        loop {
            match session.poll().await {
                Ok(SessionEvent::Assigned(assigned)) => {
                    for assignment in assigned {
                        let committed = assignment.committed.map_or(Offset(0), |done| done.next);
                        assert_eq!(
                            assignment.position, committed,
                            "a group goes on where it was"
                        );
                        let ours = (assignment.fence, assignment.position);
                        let before = self.owned.insert(assignment.at, ours);
                        assert_eq!(before, None, "assigned once");
                    }
                }
                Ok(SessionEvent::Revoking(asked)) => {
                    // Now and then longer than anybody waits.
                    let longest = if self.random.below(4) == 0 { 900 } else { 100 };
                    self.think(longest).await;
                    self.owned.retain(|at, _| !asked.contains(at));
                    self.witness.count("let go");
                    if session.release(&asked).await.is_err() {
                        return;
                    }
                }
                Ok(SessionEvent::Lost(lost)) => {
                    self.witness.count("lost");
                    self.owned.retain(|at, _| !lost.contains(at));
                }
                Ok(SessionEvent::Records { fence, batch }) => {
                    let (known, next) = self.owned[&batch.at];
                    assert_eq!(known, fence);
                    assert_eq!(
                        batch.records[0].offset, next,
                        "nothing is skipped or repeated"
                    );
                    self.owned.insert(batch.at.clone(), (fence, batch.next));
                    let longest = if self.random.below(20) == 0 { 900 } else { 30 };
                    self.think(longest).await;
                    if !self.settle(session, fence, &batch).await {
                        return;
                    }
                }
                // A log that has stopped says so at every poll.
                Err(LogError::Closed | LogError::Stopped { .. }) => return,
                Err(error) => assert_is_expected(&error),
            }
        }
    }

    async fn think(&mut self, longest_ms: u64) {
        let pause = Duration::from_millis(self.random.below(longest_ms));
        self.env.clock.sleep(pause).await;
    }

    /// Commits a batch and its copies; says whether the session goes on.
    async fn settle(&mut self, session: &dyn Session, fence: Fence, batch: &Batch) -> bool {
        loop {
            match session.commit(self.commit_of(fence, batch)).await {
                Ok(_) => {
                    self.witness.count("committed");
                    return true;
                }
                Err(LogError::Fenced { .. }) => {
                    self.witness.count("fenced");
                    return true;
                }
                Err(LogError::Closed) => return false,
                Err(LogError::OutcomeUnknown { .. }) => {
                    self.witness.count("commit unknown");
                    match self.committed(&batch.at).await {
                        Some(next) if next >= batch.next => return true,
                        Some(_) | None => {}
                    }
                }
                Err(error) => {
                    assert_is_expected(&error);
                    self.env.clock.sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    /// The committed offset, asked until there is an answer.
    async fn committed(&self, at: &TopicPartition) -> Option<Offset> {
        loop {
            let asked = std::slice::from_ref(at);
            match self.log.committed(&self.job.group, asked).await {
                Ok(found) => return found[0].as_ref().map(|committed| committed.next),
                Err(error) => assert_is_expected(&error),
            }
            self.env.clock.sleep(Duration::from_millis(10)).await;
        }
    }

    fn commit_of(&self, fence: Fence, batch: &Batch) -> Commit {
        let copy = |stored: &StoredRecord| {
            let source = format!("{} {}", batch.at.partition, stored.offset);
            let record = Record::new(source).event_id(id_of(stored));
            Append::new(self.job.to.clone(), record).partition(batch.at.partition.0)
        };
        let ids = batch.records.iter().map(id_of);
        Commit {
            appends: batch.records.iter().map(copy).collect(),
            offsets: vec![OffsetCommit {
                at: batch.at.clone(),
                fence,
                next: batch.next,
                metadata: format!("fence {}", fence.0),
                postings: postings(ids, Some(Place::Queued), Some(Place::Delivered)),
            }],
        }
    }
}

pub(crate) fn id_of(stored: &StoredRecord) -> EventId {
    stored.record.headers.event_id().unwrap()
}

/// Errors that a fault may bring; anything else is a broken promise.
fn assert_is_expected(error: &LogError) {
    let is_expected = matches!(
        error,
        LogError::Unavailable { .. }
            | LogError::Closed
            | LogError::Disk { .. }
            | LogError::Full { .. }
            | LogError::Stopped { .. }
            | LogError::OutcomeUnknown { .. }
    );
    assert!(is_expected, "{error:?}");
}

/// The content of the topics in the end: the source's events, and the copies.
pub(crate) async fn recount(
    log: &dyn Log,
    job: &Job,
) -> (Vec<(String, EventId)>, Vec<(String, EventId)>) {
    let mut sources = Vec::new();
    let mut copies = Vec::new();
    for at in job.sources() {
        for stored in everything(log, &at).await {
            sources.push((
                format!("{} {}", at.partition, stored.offset),
                id_of(&stored),
            ));
        }
        let at = TopicPartition::new(job.to.clone(), at.partition.0);
        for stored in everything(log, &at).await {
            let value = stored.record.value.clone().unwrap();
            copies.push((String::from_utf8(value.to_vec()).unwrap(), id_of(&stored)));
        }
    }
    (sources, copies)
}

async fn everything(log: &dyn Log, at: &TopicPartition) -> Vec<StoredRecord> {
    let end = log.describe(&at.topic).await.unwrap().partitions
        [usize::try_from(at.partition.0).unwrap()]
    .end;
    let (mut from, mut all) = (Offset(0), Vec::new());
    while from < end {
        let batch = log.read(Read::new(at.clone(), from)).await.unwrap();
        from = batch.next;
        all.extend(batch.records);
    }
    all
}

/// Whether a group has settled everything.
pub(crate) async fn is_drained(log: &dyn Log, job: &Job) -> bool {
    let Ok(there) = log.describe(&job.from).await else {
        return false;
    };
    let Ok(committed) = log.committed(&job.group, &job.sources()).await else {
        return false;
    };
    let next = committed
        .iter()
        .map(|found| found.as_ref().map_or(Offset(0), |done| done.next));
    next.zip(&there.partitions)
        .all(|(next, partition)| next == partition.end)
}
