//! Takes checkpoints of a stage, and goes back to one: through the log alone, so a stage need not run for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::books::{Place, Posting, postings};
use tidegate_core::env::{Clock, Env};
use tidegate_core::{Code, EventId, Failure, FailureClass, Offset, Topic};
use tidegate_log::{
    Append, Assignment, Commit, Join, LogError, OffsetCommit, Read, Record, Session, SessionEvent,
    StartAt, TopicPartition,
};

use crate::books::StageBooks;
use crate::changelog::InputOffset;
use crate::changelog_reader::refused as unreadable;
use crate::checkpoint::{CheckpointManifest, CheckpointStore, CopiedTask, TaskSnapshot, is_gap};
use crate::machine::AlignedTask;
use crate::recovery::{InputCommitted, committed_mark};

/// How often a changelog is read again that was cut meanwhile.
const LOOKS: usize = 5;
/// How long the partitions of a stage that was stopped are waited for.
const ASSIGN_LIMIT: Duration = Duration::from_secs(60);
/// Pieces that are appended at once.
const PIECES_AT_ONCE: usize = 8;

/// The checkpoints of one stage.
#[derive(Debug)]
pub struct StageCheckpoints {
    books: StageBooks,
    clock: Arc<dyn Clock>,
    /// Part of the names of files, so that two programs never write the same.
    unique: String,
    store: Option<Arc<CheckpointStore>>,
}

/// The result of a restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RestoredStage {
    /// The checkpoint; none where the changelog was enough.
    pub checkpoint: Option<u64>,
    /// The tasks, with their epochs.
    pub tasks: BTreeMap<i32, u64>,
    /// Records that are read again. Their outputs come again, with the same ids.
    pub again: u64,
}

fn refused(code: &'static str, message: impl Into<String>) -> Failure {
    Failure::new(FailureClass::System, Code::from_static(code), message)
}

impl StageCheckpoints {
    /// The checkpoints of the stage that these books are of; without options there are none.
    ///
    /// # Errors
    /// This build cannot keep them where the options say.
    pub fn new(books: StageBooks, env: &Env) -> Result<Self, Failure> {
        let mut entropy = env.entropy.fork("checkpoints");
        Ok(Self {
            clock: Arc::clone(&env.clock),
            unique: format!("{:08x}", entropy.next_u64() >> 32),
            store: books.checkpoints()?,
            books,
        })
    }

    fn store(&self) -> Result<&CheckpointStore, Failure> {
        self.store.as_deref().ok_or_else(|| {
            let message =
                "the configuration names no place for checkpoints: set `checkpoints.default.path`";
            refused("stage.checkpoint.unset", message)
        })
    }

    /// The numbers of the checkpoints, the newest first.
    ///
    /// # Errors
    /// The storage does not answer.
    pub async fn numbers(&self) -> Result<Vec<u64>, Failure> {
        self.store()?.numbers().await
    }

    /// Writes down the state of every task at its last committed epoch. The stage may run meanwhile.
    ///
    /// # Errors
    /// The log or the storage does not answer, or the state cannot be read.
    pub async fn take(&self) -> Result<CheckpointManifest, Failure> {
        self.take_at(&BTreeMap::new()).await
    }

    /// The same, with these tasks at the epochs to which they were aligned.
    pub(crate) async fn take_at(
        &self,
        aligned: &BTreeMap<i32, AlignedTask>,
    ) -> Result<CheckpointManifest, Failure> {
        let store = self.store()?;
        let mut look = 1;
        let manifest = loop {
            match self.write(store, aligned).await {
                // The changelog was cut while it was read.
                Err(failure) if is_gap(&failure) && aligned.is_empty() && look < LOOKS => look += 1,
                written => break written?,
            }
        };
        if store.options.shared {
            self.cut(store, &manifest).await?;
        }
        Ok(manifest)
    }

    async fn write(
        &self,
        store: &CheckpointStore,
        aligned: &BTreeMap<i32, AlignedTask>,
    ) -> Result<CheckpointManifest, Failure> {
        let all = self.books.committed().await?;
        let reader = self.books.reader(all.len())?;
        let before = store.newest().await?;
        let number = store.numbers().await?.first().map_or(1, |last| last + 1);
        let process = self.books.process_name();
        let partitions = u32::try_from(all.len()).unwrap_or(0);
        let mut manifest = store.begin(process, number, partitions, self.clock.now_ms());
        for (partition, committed) in (0..).zip(&all) {
            let committed = match aligned.get(&partition) {
                Some((mark, offsets)) => of_aligned(mark, offsets),
                None => committed.clone(),
            };
            let mark = committed_mark(partition, &committed).map_err(unreadable)?;
            let Some(mark) = mark else { continue };
            let tasks = before.iter().flat_map(|before| &before.tasks);
            let before = tasks.into_iter().find(|task| task.partition == partition);
            let task = CopiedTask { partition, mark };
            let name = (number, self.unique.as_str());
            let copied = store.copy(name, &task, before, &reader).await?;
            manifest.tasks.push(copied);
        }
        store.finish(&manifest).await?;
        Ok(manifest)
    }

    /// Cuts the changelog behind the oldest checkpoint that is kept.
    async fn cut(
        &self,
        store: &CheckpointStore,
        newest: &CheckpointManifest,
    ) -> Result<(), Failure> {
        let kept = store.kept().await?;
        for task in &newest.tasks {
            let of_task = kept.iter().map(|manifest| {
                let mut tasks = manifest.tasks.iter();
                let found = tasks.find(|one| one.partition == task.partition);
                found.map(|one| one.next)
            });
            // A checkpoint without the task needs the changelog from its beginning.
            let oldest: Option<Vec<i64>> = of_task.collect();
            let Some(oldest) = oldest.and_then(|offsets| offsets.into_iter().min()) else {
                continue;
            };
            let at = TopicPartition::new(self.books.changelog(), task.partition);
            if let Err(error) = self.books.log().delete_before(&at, Offset(oldest)).await {
                // It is cut with the next checkpoint.
                tracing::warn!(%error, %at, "the changelog was not cut");
            }
        }
        Ok(())
    }

    /// Goes back to a checkpoint: the one of this number, or the newest that is whole. The stage is stopped.
    ///
    /// # Errors
    /// The stage runs, the checkpoint cannot be used, or the log does not answer. Calling again begins anew.
    pub async fn restore(&self, number: Option<u64>) -> Result<RestoredStage, Failure> {
        let (manifest, tasks) = self.store()?.read(number).await?;
        let partitions = self.books.committed().await?.len();
        if manifest.partitions as usize != partitions {
            let message = format!(
                "checkpoint {} has {} partitions, and now there are {partitions}",
                manifest.number, manifest.partitions
            );
            return Err(refused("stage.partitions.changed", message));
        }
        self.begin_at(Some(manifest.number), tasks).await
    }

    /// Goes on from the offsets in the last frames of the changelog, where those of the group are gone.
    ///
    /// # Errors
    /// The stage runs, a frame cannot be read, or the log does not answer. Calling again begins anew.
    pub async fn restore_offsets(&self) -> Result<RestoredStage, Failure> {
        let partitions = self.books.committed().await?.len();
        let settings = self.books.reader(partitions)?;
        let mut tasks = Vec::new();
        for partition in 0..i32::try_from(partitions).unwrap_or(0) {
            if let Some((recovered, inputs)) = settings.read_last(partition).await? {
                tasks.push(TaskSnapshot {
                    partition,
                    recovered,
                    inputs,
                });
            }
        }
        self.begin_at(None, tasks).await
    }

    /// Begins the group and the changelog anew with these tasks.
    async fn begin_at(
        &self,
        checkpoint: Option<u64>,
        tasks: Vec<TaskSnapshot>,
    ) -> Result<RestoredStage, Failure> {
        let log = self.books.log();
        let before = self.books.committed().await?;
        let group = self.books.group();
        match log.forget_group(&group).await {
            Ok(()) => {}
            Err(error @ LogError::Refused { .. }) => {
                let message = format!("the stage still runs; stop it first ({error})");
                return Err(refused("stage.restore.running", message));
            }
            Err(error) => return Err(error.into()),
        }
        let topics = self.books.inputs().await?;
        let Some((first, others)) = topics.split_first() else {
            return Err(refused("stage.init.sources", "the inputs do not exist"));
        };
        let mut join = Join::new(group, vec![first.clone()]);
        join.co_partitioned = others.to_vec();
        join.name = Some("stage-restore".to_owned());
        join.start = StartAt::Earliest;
        let session = log.join(join).await?;
        let known: BTreeSet<i32> = tasks.iter().map(|task| task.partition).collect();
        let done = self.commit_tasks(&*session, tasks, &before).await;
        session.close().await.ok();
        let (tasks, mut again) = done?;
        for (partition, inputs) in (0..).zip(&before) {
            if !known.contains(&partition) {
                again += self.begin_empty(partition, inputs).await?;
            }
        }
        Ok(RestoredStage {
            checkpoint,
            tasks,
            again,
        })
    }

    /// A task that had committed nothing begins again without state. Says how much it reads again.
    async fn begin_empty(&self, partition: i32, inputs: &[InputCommitted]) -> Result<u64, Failure> {
        let log = self.books.log();
        let at = TopicPartition::new(self.books.changelog(), partition);
        let described = log.describe(&at.topic).await?.partitions;
        let found = described.iter().find(|one| one.partition == at.partition);
        if let Some(found) = found.filter(|found| found.end > found.start) {
            log.delete_before(&at, found.end).await?;
        }
        let mut again = 0;
        for input in inputs {
            let Some((next, _)) = &input.committed else {
                continue;
            };
            let topic = self.books.inputs().await?.into_iter();
            let mut topic = topic;
            let topic = topic.find(|topic| topic.as_str() == input.topic);
            let Some(topic) = topic else { continue };
            let described = log.describe(&topic).await?.partitions;
            let found = described.iter().find(|one| one.partition == at.partition);
            let start = found.map_or(0, |found| found.start.0);
            again += u64::try_from(next - start).unwrap_or(0);
        }
        Ok(again)
    }

    async fn commit_tasks(
        &self,
        session: &dyn Session,
        tasks: Vec<TaskSnapshot>,
        before: &[Vec<InputCommitted>],
    ) -> Result<(BTreeMap<i32, u64>, u64), Failure> {
        let wanted: usize = tasks.iter().map(|task| task.inputs.len()).sum();
        let owned = self.assigned(session, wanted).await?;
        let partitions = u32::try_from(before.len()).unwrap_or(0);
        let (mut restored, mut again) = (BTreeMap::new(), 0);
        for task in tasks {
            let partition = task.partition;
            let (recovered, parked) = self.books.parked_in(task.recovered, before.len())?;
            let frames = TaskSnapshot { recovered, ..task }.frames(partitions);
            let base = self.append_pieces(partition, &frames.pieces).await?;
            let metadata = frames.mark(base).to_string();
            let mut commit = Commit::default();
            let delta = Record::new(frames.delta.clone());
            let changelog = self.books.changelog();
            commit
                .appends
                .push(Append::new(changelog.clone(), delta).partition(partition));
            for input in &frames.inputs {
                let Some(assignment) = owned.get(&(input.topic.clone(), partition)) else {
                    continue;
                };
                let (at, next) = (assignment.at.clone(), Offset(input.next));
                let postings = self.postings(&at, next, &parked).await?;
                again += went_back(before, partition, input);
                commit.offsets.push(OffsetCommit {
                    at,
                    fence: assignment.fence,
                    next,
                    metadata: metadata.clone(),
                    postings,
                });
            }
            session.commit(commit).await?;
            let at = TopicPartition::new(changelog, partition);
            if let Err(error) = self.books.log().delete_before(&at, Offset(base)).await {
                // It is cut again with the next base.
                tracing::warn!(%error, %at, "the changelog was not cut");
            }
            restored.insert(partition, frames.epoch);
        }
        Ok((restored, again))
    }

    /// Waits until all partitions are ours.
    async fn assigned(
        &self,
        session: &dyn Session,
        wanted: usize,
    ) -> Result<BTreeMap<(String, i32), Assignment>, Failure> {
        let mut owned = BTreeMap::new();
        let until = self.clock.elapsed() + ASSIGN_LIMIT;
        while owned.len() < wanted {
            let left = until.saturating_sub(self.clock.elapsed());
            let Some(event) = self.clock.within(left, session.poll()).await else {
                let message = "the partitions of the stage were not let go; is it still running?";
                return Err(refused("stage.restore.running", message));
            };
            if let SessionEvent::Assigned(assignments) = event? {
                for assignment in assignments {
                    let place = (assignment.at.topic.to_string(), assignment.at.partition.0);
                    owned.insert(place, assignment);
                }
            }
        }
        Ok(owned)
    }

    /// Appends the state of a task, and says where it begins.
    async fn append_pieces(&self, partition: i32, pieces: &[Vec<u8>]) -> Result<i64, Failure> {
        let changelog = self.books.changelog();
        let mut base = None;
        for some in pieces.chunks(PIECES_AT_ONCE) {
            let appends = some.iter().map(|piece| {
                Append::new(changelog.clone(), Record::new(piece.clone())).partition(partition)
            });
            let placed = self.books.log().append(appends.collect()).await?;
            base = base.or_else(|| placed.first().map(|first| first.offset.0));
        }
        base.ok_or_else(|| refused("stage.changelog.gap", "a state has no pieces"))
    }

    /// The postings of an input that is read up to an offset: what is there was delivered, or waits.
    async fn postings(
        &self,
        at: &TopicPartition,
        next: Offset,
        parked: &[(String, EventId)],
    ) -> Result<Vec<Posting>, Failure> {
        let log = self.books.log();
        let letters = self.books.letters_of(&at.topic).await?;
        let parked = parked.iter();
        let parked = parked.filter(|(topic, _)| topic.as_str() == at.topic.as_str());
        let parked: BTreeSet<EventId> = parked.map(|(_, id)| *id).collect();
        let described = log.describe(&at.topic).await?.partitions;
        let found = described.iter().find(|one| one.partition == at.partition);
        let mut from = found.map_or(Offset(0), |found| found.start);
        let mut by_place: BTreeMap<Place, Vec<EventId>> = BTreeMap::new();
        while from < next {
            let batch = log.read(Read::new(at.clone(), from)).await?;
            for stored in batch.records.iter().filter(|stored| stored.offset < next) {
                let id = stored.event_id(log.cluster(), at);
                let place = if parked.contains(&id) {
                    Place::Parked
                } else if letters.contains(&id) {
                    Place::DeadLettered
                } else {
                    Place::Delivered
                };
                by_place.entry(place).or_default().push(id);
            }
            if batch.next <= from {
                break;
            }
            from = batch.next;
        }
        let posted = by_place
            .into_iter()
            .flat_map(|(place, ids)| postings(ids, Some(Place::Queued), Some(place)));
        Ok(posted.collect())
    }
}

/// The committed offsets of a task, as it was aligned.
fn of_aligned(mark: &str, offsets: &[(Topic, i64)]) -> Vec<InputCommitted> {
    let inputs = offsets.iter().map(|(topic, next)| InputCommitted {
        topic: topic.to_string(),
        committed: Some((*next, mark.to_owned())),
    });
    inputs.collect()
}

/// How many offsets an input goes back by.
fn went_back(before: &[Vec<InputCommitted>], partition: i32, input: &InputOffset) -> u64 {
    let inputs = usize::try_from(partition)
        .ok()
        .and_then(|at| before.get(at));
    let held = inputs.and_then(|inputs| inputs.iter().find(|one| one.topic == input.topic));
    let next = held
        .and_then(|held| held.committed.as_ref())
        .map_or(0, |held| held.0);
    u64::try_from(next.saturating_sub(input.next)).unwrap_or(0)
}
