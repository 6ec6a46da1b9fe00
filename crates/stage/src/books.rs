//! The books of a stage: one component `group@topic` for each input, with what is parked in the changelog and what
//! lies among the dead letters.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use tidegate_core::books::{Audited, Books, ComponentAccount, Place};
use tidegate_core::dead_letter::name;
use tidegate_core::env::{Clock, Env};
use tidegate_core::{EventId, EventLocation, Failure, Topic, iso_time};
use tidegate_flow::plan::{FlowPlan, ProcessPlan};
use tidegate_log::{Log, LogError, NoMarks, OwnedGroup, TopicPartition, copies_of};

use crate::chain::{PendingRecord, TaskOperators, TaskTime};
use crate::operators::{ChainOptions, TaskChain};
use crate::options::{StageOptions, dead_letters};
use crate::recovery::InputCommitted;
use crate::shard::RecoverySettings;
use crate::stage::{named, partitions_of};
use crate::state::LayeredState;

/// How often a stage that seems to lack events is looked at while it runs.
const LOOKS: usize = 5;

/// The books of one stage, read from its log.
#[derive(Debug)]
pub struct StageBooks {
    log: Arc<dyn Log>,
    clock: Arc<dyn Clock>,
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

    /// Counts the events of each input where they lie, and compares that with the books.
    ///
    /// # Errors
    /// The log does not answer, or the state cannot be read.
    pub async fn audit(&self) -> Result<Vec<Audited>, Failure> {
        let mut look = 1;
        loop {
            let before = self.committed().await?;
            let parked = self.parked().await?;
            let mut audited = Vec::new();
            for (input, owned) in self.owned.iter().enumerate() {
                match owned.audit(&*self.log, &NoMarks).await {
                    Ok(found) => {
                        let ids = parked.get(&input).cloned().unwrap_or_default();
                        audited.push(found.with_store(&Books::default(), ids).audited());
                    }
                    Err(LogError::UnknownTopic { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            // State and topics are read one after the other; what differs while it runs is looked at again.
            let is_clean = audited.iter().all(|one| one.missing.is_empty());
            if is_clean || look == LOOKS || self.committed().await? == before {
                return Ok(audited);
            }
            look += 1;
        }
    }

    /// The committed offsets of all inputs, by partition.
    async fn committed(&self) -> Result<Vec<Vec<InputCommitted>>, Failure> {
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

    /// Every task as its last committed epoch left it.
    async fn tasks(&self) -> Result<Vec<ReadTask>, Failure> {
        let all = self.committed().await?;
        let settings = RecoverySettings {
            log: Arc::clone(&self.log),
            clock: Arc::clone(&self.clock),
            changelog: self.changelog.clone(),
            partitions: u32::try_from(all.len()).unwrap_or(0),
            is_batch: false,
        };
        let mut tasks = Vec::new();
        let is_repartitioned = all.len() > 1;
        for (partition, committed) in all.into_iter().enumerate() {
            if committed.iter().all(|input| input.committed.is_none()) {
                continue;
            }
            let partition = i32::try_from(partition).unwrap_or(i32::MAX);
            let recovered = settings.read_committed(partition, &committed).await?;
            let options = ChainOptions {
                is_repartitioned,
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
            tasks.push(ReadTask {
                chain,
                state,
                time,
                committed,
            });
        }
        Ok(tasks)
    }

    /// The events that wait in the state, by input.
    async fn parked(&self) -> Result<BTreeMap<usize, Vec<EventId>>, Failure> {
        let mut parked: BTreeMap<usize, Vec<EventId>> = BTreeMap::new();
        for task in self.tasks().await? {
            task.chain.pending(&task.state, &mut |record| {
                parked.entry(record.input).or_default().push(record.id);
            });
        }
        Ok(parked)
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
                let component = self.owned.iter().find(of_input).map(OwnedGroup::name);
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
