//! The books of a stage: one component `group@topic` for each input, with what is parked in the changelog and what
//! lies among the dead letters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;
use tidegate_core::books::{AuditFinding, AuditVerdict, Audited, Books, ComponentAccount, Place};
use tidegate_core::dead_letter::name;
use tidegate_core::env::{Clock, Disk, Env};
use tidegate_core::{EventId, EventLocation, Failure, GroupName, Topic, iso_time};
use tidegate_flow::plan::{FlowPlan, ProcessPlan};
use tidegate_log::{
    Log, LogError, NoMarks, OwnedGroup, PartitionProgress, Read, TopicPartition, copies_of,
};

use crate::chain::{PendingRecord, TaskOperators, TaskTime};
use crate::changelog_reader::ChangelogReader;
use crate::checkpoint::CheckpointStore;
use crate::operators::{ChainOptions, TaskChain};
use crate::options::{StageOptions, dead_letters};
use crate::recovery::{InputCommitted, RecoveredTask};
use crate::stage::{named, partitions_of};
use crate::state::LayeredState;

/// How often a stage that seems to lack events is looked at while it runs.
const LOOKS: usize = 5;

/// The books of one stage, read from its log.
#[derive(Debug)]
pub struct StageBooks {
    log: Arc<dyn Log>,
    clock: Arc<dyn Clock>,
    disk: Arc<dyn Disk>,
    plan: Arc<FlowPlan>,
    process: ProcessPlan,
    options: StageOptions,
    owned: Vec<OwnedGroup>,
    changelog: Topic,
}

/// A task as its last committed epoch left it.
struct ReadTask {
    chain: TaskChain,
    state: LayeredState,
    time: TaskTime,
    committed: Vec<InputCommitted>,
}

impl StageBooks {
    /// The books of a process on this log.
    ///
    /// # Errors
    /// A stream has no name that a topic can have.
    pub fn new(
        log: Arc<dyn Log>,
        env: &Env,
        plan: Arc<FlowPlan>,
        options: StageOptions,
    ) -> Result<Self, Failure> {
        let process = plan
            .processes
            .get(&options.process)
            .cloned()
            .unwrap_or_default();
        let owned = options.owned_groups(&process).map_err(named)?;
        let changelog = options.changelog().map_err(named)?;
        Ok(Self {
            log,
            clock: Arc::clone(&env.clock),
            disk: Arc::clone(&env.disk),
            plan,
            process,
            options,
            owned,
            changelog,
        })
    }

    /// Where the events of each input are by the books.
    ///
    /// # Errors
    /// The log does not answer.
    pub async fn accounts(&self) -> Result<Vec<ComponentAccount>, Failure> {
        let mut accounts = Vec::new();
        for owned in &self.owned {
            match owned.account(&*self.log, &NoMarks, &Books::default()).await {
                Ok(account) => accounts.push(account),
                // A stage that never started has no topics yet.
                Err(LogError::UnknownTopic { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(accounts)
    }

    /// Records behind the committed offsets.
    ///
    /// # Errors
    /// The log does not answer.
    pub async fn lag(&self) -> Result<u64, Failure> {
        let accounts = self.accounts().await?;
        let queued = accounts.iter().map(|one| one.account.queued.max(0));
        Ok(u64::try_from(queued.sum::<i64>()).unwrap_or(0))
    }

    /// Counts the events of each input where they lie, and compares that with the books. A state that cannot be read
    /// is a finding, and what waited in it is missing.
    ///
    /// # Errors
    /// The log does not answer.
    pub async fn audit(&self) -> Result<Vec<Audited>, Failure> {
        let mut look = 1;
        loop {
            let before = self.committed().await?;
            let (mut audited, mut parts) = (Vec::new(), BTreeSet::new());
            for (input, owned) in self.owned.iter().enumerate() {
                let found = match owned.audit(&*self.log, &NoMarks).await {
                    Ok(found) => found,
                    Err(LogError::UnknownTopic { .. }) => continue,
                    Err(error) => return Err(error.into()),
                };
                // The state of the very epochs that the books were read with.
                let (parked, faults) = self.parked(input, &found.progress).await?;
                let found = found.with_store(&Books::default(), parked).audited();
                // The state is one for all inputs, and so is what is wrong with it.
                let faults = faults
                    .into_iter()
                    .filter(|fault| parts.insert(fault.clone()));
                audited.push(found.with_findings(faults.collect::<Vec<_>>()));
            }
            let is_clean = |one: &Audited| one.verdict() == AuditVerdict::Clean;
            let is_still = self.committed().await? == before;
            if is_still || audited.iter().all(is_clean) {
                return Ok(audited);
            }
            if look == LOOKS {
                audited.iter_mut().for_each(doubt_surplus);
                return Ok(audited);
            }
            look += 1;
        }
    }

    pub(crate) fn log(&self) -> &dyn Log {
        &*self.log
    }

    pub(crate) fn process_name(&self) -> &str {
        &self.options.process
    }

    pub(crate) fn group(&self) -> GroupName {
        self.options.group.clone()
    }

    pub(crate) fn changelog(&self) -> Topic {
        self.changelog.clone()
    }

    /// The topics that the stage reads and that are there.
    pub(crate) async fn inputs(&self) -> Result<Vec<Topic>, Failure> {
        let mut topics = Vec::new();
        for owned in &self.owned {
            match self.log.describe(&owned.topic).await {
                Ok(_) => topics.push(owned.topic.clone()),
                Err(LogError::UnknownTopic { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(topics)
    }

    /// The events that wait in a state, each with the topic in whose books it waits.
    pub(crate) fn parked_in(
        &self,
        recovered: RecoveredTask,
        partitions: usize,
    ) -> Result<(RecoveredTask, Vec<(String, EventId)>), Failure> {
        let (epoch, base) = (recovered.epoch, recovered.base);
        let (clock_ms, replayed_bytes) = (recovered.clock_ms, recovered.replayed_bytes);
        let task = self.read_task(recovered, Vec::new(), partitions)?;
        let mut parked = Vec::new();
        task.chain.pending(&task.state, &mut |record| {
            let topic = self.owned.get(record.input);
            parked.extend(topic.map(|owned| (owned.topic.to_string(), record.id)));
        });
        let recovered = RecoveredTask {
            backend: task.state.into_backend(),
            epoch,
            base,
            clock_ms,
            replayed_bytes,
        };
        Ok((recovered, parked))
    }

    /// The events of an input that lie among the dead letters.
    pub(crate) async fn letters_of(&self, input: &Topic) -> Result<BTreeSet<EventId>, Failure> {
        let mut ids = BTreeSet::new();
        for stream in dead_letters(&self.options.process, &self.process) {
            let topic = self.options.topic(&stream).map_err(named)?;
            let described = match self.log.describe(&topic).await {
                Ok(described) => described,
                Err(LogError::UnknownTopic { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            for partition in described.partitions {
                let at = TopicPartition::new(topic.clone(), partition.partition.0);
                let mut from = partition.start;
                while from < partition.end {
                    let batch = self.log.read(Read::new(at.clone(), from)).await?;
                    for stored in &batch.records {
                        let headers = &stored.record.headers;
                        let has = |name, value: &str| headers.get(name) == Some(value.as_bytes());
                        let is_ours = has(name::GROUP, self.options.group.as_str())
                            && has(name::INPUT, input.as_str());
                        ids.extend(headers.event_id().filter(|_| is_ours));
                        let mut owned = self.owned.iter();
                        if let Some(owned) = owned.find(|owned| owned.topic == *input) {
                            ids.extend(owned.also_in(stored));
                        }
                    }
                    if batch.next <= from {
                        break;
                    }
                    from = batch.next;
                }
            }
        }
        Ok(ids)
    }

    /// The committed offsets of all inputs, by partition.
    pub(crate) async fn committed(&self) -> Result<Vec<Vec<InputCommitted>>, Failure> {
        let Some(first) = self.owned.first() else {
            return Ok(Vec::new());
        };
        let described = match self.log.describe(&first.topic).await {
            Ok(described) => described,
            Err(LogError::UnknownTopic { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let count = u32::try_from(described.partitions.len()).unwrap_or(0);
        let mut all: Vec<Vec<InputCommitted>> = vec![Vec::new(); count as usize];
        for owned in &self.owned {
            if matches!(
                self.log.describe(&owned.topic).await,
                Err(LogError::UnknownTopic { .. })
            ) {
                continue;
            }
            let partitions: Vec<TopicPartition> = partitions_of(&owned.topic, count).collect();
            let found = self.log.committed(&owned.group, &partitions).await?;
            for (of_task, held) in all.iter_mut().zip(found) {
                of_task.push(InputCommitted {
                    topic: owned.topic.to_string(),
                    committed: held.map(|held| (held.next.0, held.metadata)),
                });
            }
        }
        Ok(all)
    }

    pub(crate) fn reader(&self, partitions: usize) -> Result<ChangelogReader, Failure> {
        let checkpoints = self.checkpoints()?;
        Ok(ChangelogReader {
            log: Arc::clone(&self.log),
            clock: Arc::clone(&self.clock),
            changelog: self.changelog.clone(),
            partitions: u32::try_from(partitions).unwrap_or(0),
            shared: checkpoints.filter(|store| store.options.shared),
        })
    }

    /// Where its checkpoints are kept.
    pub(crate) fn checkpoints(&self) -> Result<Option<Arc<CheckpointStore>>, Failure> {
        let options = self.options.checkpoints.clone();
        let store = options.map(|options| CheckpointStore::open(&self.disk, options));
        Ok(store.transpose()?.map(Arc::new))
    }

    /// A task with the state that was read for it.
    fn read_task(
        &self,
        recovered: RecoveredTask,
        committed: Vec<InputCommitted>,
        partitions: usize,
    ) -> Result<ReadTask, Failure> {
        let options = ChainOptions {
            is_repartitioned: partitions > 1,
            ..ChainOptions::default()
        };
        let chain = TaskChain::new(Arc::clone(&self.plan), &self.options.process, options);
        let mut chain = chain.map_err(|error| {
            let code = tidegate_core::Code::from_static("stage.init.configuration");
            Failure::permanent(code, error.to_string())
        })?;
        let state = LayeredState::new(recovered.backend);
        let time = TaskTime {
            now_ms: recovered.clock_ms,
            epoch_start_ms: recovered.clock_ms,
        };
        chain.reload(&state, time);
        Ok(ReadTask {
            chain,
            state,
            time,
            committed,
        })
    }

    /// Every task as its last committed epoch left it.
    async fn tasks(&self) -> Result<Vec<ReadTask>, Failure> {
        let all = self.committed().await?;
        let partitions = all.len();
        let settings = self.reader(partitions)?;
        let mut tasks = Vec::new();
        for (partition, committed) in (0..).zip(all) {
            if committed.iter().all(|input| input.committed.is_none()) {
                continue;
            }
            let recovered = settings.read_committed(partition, &committed).await?;
            tasks.push(self.read_task(recovered, committed, partitions)?);
        }
        Ok(tasks)
    }

    /// The events of an input that wait in the state, at the epochs of these offsets, and what of the state cannot be
    /// read.
    async fn parked(
        &self,
        input: usize,
        progress: &[PartitionProgress],
    ) -> Result<(Vec<EventId>, Vec<AuditFinding>), Failure> {
        let (mut parked, mut findings) = (Vec::new(), Vec::new());
        let settings = self.reader(progress.len())?;
        for of_input in progress {
            let Some(held) = &of_input.committed else {
                continue;
            };
            let committed = vec![InputCommitted {
                topic: of_input.at.topic.to_string(),
                committed: Some((held.next.0, held.metadata.clone())),
            }];
            let partition = of_input.at.partition.0;
            let (recovered, faults) = settings.read_audit(partition, &committed).await?;
            findings.extend(
                faults
                    .iter()
                    .map(|fault| AuditFinding::new(fault.code(), fault.to_string())),
            );
            let task = self.read_task(recovered, committed, progress.len())?;
            task.chain.pending(&task.state, &mut |record| {
                if record.input == input {
                    parked.push(record.id);
                }
            });
        }
        Ok((parked, findings))
    }

    /// The records that wait, as the last committed epochs left them, the soonest first.
    ///
    /// # Errors
    /// The log does not answer, or the state cannot be read.
    pub async fn pending(&self) -> Result<Vec<PendingRecord>, Failure> {
        let mut all = Vec::new();
        for task in self.tasks().await? {
            task.chain
                .pending(&task.state, &mut |record| all.push(record));
        }
        all.sort_by(|a, b| {
            (a.due_ms, &a.step, &a.key, a.id).cmp(&(b.due_ms, &b.step, &b.key, b.id))
        });
        Ok(all)
    }

    /// The values of a declared state, as the last committed epochs left them: JSON by key.
    ///
    /// # Errors
    /// The log does not answer, or the state cannot be read.
    pub async fn values(&self, name: &str) -> Result<BTreeMap<String, String>, Failure> {
        let mut all = BTreeMap::new();
        for task in self.tasks().await? {
            all.extend(task.chain.values(&task.state, name, task.time));
        }
        Ok(all)
    }

    /// How far each input was committed, by partition.
    ///
    /// # Errors
    /// The log does not answer, or the state cannot be read.
    pub async fn offsets(&self) -> Result<Vec<(String, i64)>, Failure> {
        let mut all = Vec::new();
        for task in self.tasks().await? {
            let held = task.committed.into_iter();
            all.extend(held.filter_map(|one| Some((one.topic, one.committed?.0))));
        }
        Ok(all)
    }

    /// Where the stage has an event that left its topic: waiting in a step, or among the dead letters.
    ///
    /// # Errors
    /// The log does not answer, or the state cannot be read.
    pub async fn locate(&self, id: EventId) -> Result<Vec<EventLocation>, Failure> {
        let mut seen = Vec::new();
        for task in self.tasks().await? {
            let mut found: Option<PendingRecord> = None;
            task.chain.pending(&task.state, &mut |record| {
                if record.id == id {
                    found = Some(record);
                }
            });
            let Some(record) = found else { continue };
            let component = self.owned.get(record.input).map(OwnedGroup::name);
            let time = |ms: i64| iso_time(u64::try_from(ms).unwrap_or(0));
            let details = json!({
                "step": record.step, "key": record.key, "since": time(record.since_ms), "due": time(record.due_ms),
            });
            seen.push(EventLocation {
                at: time(record.since_ms),
                ..EventLocation::new(component.unwrap_or_default(), Place::Parked, details)
            });
        }
        for stream in dead_letters(&self.options.process, &self.process) {
            let topic = self.options.topic(&stream).map_err(named)?;
            for (at, stored) in copies_of(&*self.log, &topic, &self.options.group, id).await? {
                let input = stored.record.headers.get(name::INPUT).unwrap_or_default();
                let of_input = |owned: &&OwnedGroup| owned.topic.as_str().as_bytes() == input;
                let also = |owned: &&OwnedGroup| owned.also_in(&stored).any(|other| other == id);
                let component = self.owned.iter().find(also);
                let component = component.or_else(|| self.owned.iter().find(of_input));
                let component = component.map(OwnedGroup::name);
                let details = json!({
                    "topic": at.topic, "partition": at.partition, "offset": stored.offset,
                });
                seen.push(EventLocation {
                    at: iso_time(stored.record.timestamp_ms),
                    ..EventLocation::new(
                        component.unwrap_or_default(),
                        Place::DeadLettered,
                        details,
                    )
                });
            }
        }
        Ok(seen)
    }
}

/// Books that moved all the time: what came after they were read is there, and that proves nothing.
fn doubt_surplus(audited: &mut Audited) {
    let doubtful = audited.missing.extract_if(.., |one| one.count < 0);
    let count: u64 = doubtful.map(|one| one.count.unsigned_abs()).sum();
    audited.unverifiable += count;
    audited.unaccounted -= count.min(audited.unaccounted);
}
