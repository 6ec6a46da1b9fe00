//! Test files of flows on the real runtime: what a stage has made of the records that were sent to it.
//!
//! The stage has one partition of each input, and each of its epochs has one record or one batch of timers. So nothing
//! waits for the clock, and the results are those of the model at the same time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{Account, AuditVerdict};
use tidegate_core::dead_letter::name;
use tidegate_core::env::Env;
use tidegate_core::{DeadLetter, EventId, Mutex, NameError, Offset, Topic};
use tidegate_flow::model::{ModelDeadLetter, ModelInput, ModelScript};
use tidegate_flow::plan::{FlowPlan, ModePlan, ProcessPlan};
use tidegate_flow::scenario::{ScenarioLook, ScenarioStep, ScenarioStop};
use tidegate_log::{
    Append, Log, LogError, Read, Record, StoredRecord, TopicConfig, TopicPartition,
};

use crate::books::StageBooks;
use crate::operators::RegisteredFunctions;
use crate::options::{StageOptions, StreamOptions, written};
use crate::stage::Stage;

/// A stage on which a test is played, and the log that it is played on.
pub struct PlayedStage {
    plan: Arc<FlowPlan>,
    process: ProcessPlan,
    options: StageOptions,
    functions: Arc<RegisteredFunctions>,
    log: Arc<dyn Log>,
    /// Records that were sent to each stream.
    sent: Mutex<BTreeMap<String, i64>>,
}

impl fmt::Debug for PlayedStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlayedStage({})", self.options.process)
    }
}

fn failed(error: impl fmt::Display) -> ScenarioStop {
    ScenarioStop::Failure(error.to_string())
}

impl PlayedStage {
    /// A stage of a process, with the world outside that a script describes. Every topic has this prefix, so that tests
    /// can share a log.
    ///
    /// # Errors
    /// The runtime cannot play such a test, or a name is none that a topic can have.
    pub fn new(
        plan: &FlowPlan,
        process: &str,
        script: ModelScript,
        (log, prefix): (Arc<dyn Log>, &str),
    ) -> ScenarioStep<Self> {
        let Some(found) = plan.processes.get(process).cloned() else {
            return Err(failed(format!("there is no process `{process}`")));
        };
        if !script.sinks.is_empty() {
            let why = "the streams of a stage are topics of its log, which refuse nothing for good";
            return Err(ScenarioStop::Skipped(why.to_owned()));
        }
        let options = options(process, &found, prefix).map_err(failed)?;
        Ok(Self {
            plan: Arc::new(plan.clone()),
            process: found,
            options,
            functions: Arc::new(functions(script)),
            log,
            sent: Mutex::default(),
        })
    }

    /// Whether it ends by itself, once everything is read.
    #[must_use]
    pub fn is_batch(&self) -> bool {
        self.process.mode == ModePlan::Batch
    }

    /// Makes the topics of its inputs.
    ///
    /// # Errors
    /// The log does not make them.
    pub async fn make_inputs(&self) -> ScenarioStep {
        for source in &self.process.sources {
            let topic = self.options.topic(&source.stream).map_err(failed)?;
            let made = self.log.create_topic(&topic, TopicConfig::new(1)).await;
            made.map_err(failed)?;
        }
        Ok(())
    }

    /// Another life of the stage, on the log as this program calls it.
    ///
    /// # Errors
    /// The process cannot run.
    pub fn stage(&self, log: Arc<dyn Log>, env: &Env) -> ScenarioStep<Stage> {
        let (plan, functions) = (Arc::clone(&self.plan), Arc::clone(&self.functions));
        Stage::new(plan, self.options.clone(), functions, log, env).map_err(failed)
    }

    /// Its books.
    ///
    /// # Errors
    /// A stream has no name that a topic can have.
    pub fn books(&self, env: &Env) -> ScenarioStep<StageBooks> {
        let (log, plan) = (Arc::clone(&self.log), Arc::clone(&self.plan));
        StageBooks::new(log, env, plan, self.options.clone()).map_err(failed)
    }

    /// Appends a record that is sent at a time, and gives it the id that the model gives it.
    ///
    /// # Errors
    /// The log does not take it.
    pub async fn send(&self, input: ModelInput, at_ms: u64) -> ScenarioStep {
        let number = {
            let mut sent = self.sent.lock();
            let number = sent.entry(input.stream.clone()).or_default();
            *number += 1;
            *number - 1
        };
        let made = EventId::derived(&[&input.stream, &number.to_string()]);
        let sources = &self.process.sources;
        if !sources.iter().any(|source| source.stream == input.stream) {
            return Ok(());
        }
        let mut record = Record::new(input.value)
            .event_id(input.id.unwrap_or(made))
            .timestamp_ms(at_ms);
        for (name, value) in &input.headers {
            record = record.header(name, value);
        }
        if let Some(key) = input.key {
            record = record.key(key);
        }
        let topic = self.options.topic(&input.stream).map_err(failed)?;
        let append = Append::new(topic, record).partition(0);
        self.log.append(vec![append]).await.map_err(failed)?;
        Ok(())
    }

    /// Whether everything that was sent is read and committed, here and behind topics of its own.
    ///
    /// # Errors
    /// The log does not answer.
    pub async fn is_read(&self, books: &StageBooks) -> ScenarioStep<bool> {
        let accounts = books.accounts().await.map_err(failed)?;
        let is_read = accounts.iter().all(|one| one.account.queued == 0);
        Ok(is_read && accounts.len() >= self.sources().len())
    }

    fn sources(&self) -> Vec<&str> {
        let streams = self.process.sources.iter();
        let mut streams: Vec<&str> = streams.map(|source| source.stream.as_str()).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// The process as it is now. The recount must agree with the books. Metrics are counted by the stage that runs; none
    /// where it did not run all the time.
    ///
    /// # Errors
    /// The log does not answer, or the books are wrong.
    pub async fn look(
        &self,
        books: &StageBooks,
        stage: Option<&Stage>,
        counts_metrics: bool,
    ) -> ScenarioStep<ScenarioLook> {
        let mut look = ScenarioLook::default();
        let mut letters: Vec<(u64, ModelDeadLetter)> = Vec::new();
        for stream in written(&self.options.process, &self.process) {
            let topic = self.options.topic(&stream).map_err(failed)?;
            let mut written = Vec::new();
            for stored in self.read(&topic).await? {
                let text = |bytes: Option<&bytes::Bytes>| {
                    bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
                };
                let record = &stored.record;
                let value = text(record.value.as_ref()).unwrap_or_default();
                if record.headers.get(name::GROUP).is_some() {
                    let letter = DeadLetter::from_envelope(&value).map_err(failed)?;
                    letters.push((record.timestamp_ms, shown(&stream, &letter)));
                } else {
                    written.push((text(record.key.as_ref()), value));
                }
            }
            look.outputs.insert(stream, written);
        }
        letters.sort_by_key(|(at, _)| *at);
        look.dead_letters = letters.into_iter().map(|(_, letter)| letter).collect();
        look.account = self.account(books).await?;
        for audited in books.audit().await.map_err(failed)? {
            if audited.verdict() != AuditVerdict::Clean {
                return Err(failed(format!("the recount is not the books: {audited:?}")));
            }
        }
        let states = self.process.state.iter();
        let names = states.filter_map(|state| state.id.strip_prefix("state/"));
        for name in names {
            let values = match stage {
                Some(stage) => stage.values(name).await,
                None => books.values(name).await.map_err(failed)?,
            };
            look.state.insert(name.to_owned(), values);
        }
        look.pending = books.pending().await.map_err(failed)?.len();
        let metrics = stage.filter(|_| counts_metrics);
        look.metrics = metrics.map(|stage| {
            let counts = stage.status().metrics.into_iter();
            let count = |count| usize::try_from(count).unwrap_or(usize::MAX);
            counts.map(|(name, of)| (name, count(of))).collect()
        });
        Ok(look)
    }

    /// The books of the inputs together.
    async fn account(&self, books: &StageBooks) -> ScenarioStep<Account> {
        let mut names = Vec::new();
        for stream in self.sources() {
            let topic = self.options.topic(stream).map_err(failed)?;
            names.push(format!("{}@{topic}", self.options.group));
        }
        let mut sum = Account::default();
        for one in books.accounts().await.map_err(failed)? {
            if !one.account.is_balanced() {
                return Err(failed(format!("the books do not balance: {one:?}")));
            }
            if names.contains(&one.name) {
                sum = sum.plus(&one.account);
            }
        }
        Ok(sum)
    }

    async fn read(&self, topic: &Topic) -> ScenarioStep<Vec<StoredRecord>> {
        let described = match self.log.describe(topic).await {
            Ok(described) => described,
            Err(LogError::UnknownTopic { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut all = Vec::new();
        for partition in described.partitions {
            let at = TopicPartition::new(topic.clone(), partition.partition.0);
            let mut from = Offset(partition.start.0);
            while from < partition.end {
                let batch = self.log.read(Read::new(at.clone(), from)).await;
                let batch = batch.map_err(failed)?;
                all.extend(batch.records);
                if batch.next <= from {
                    break;
                }
                from = batch.next;
            }
        }
        Ok(all)
    }
}

fn shown(stream: &str, letter: &DeadLetter) -> ModelDeadLetter {
    let value = letter.value.as_deref().unwrap_or_default();
    ModelDeadLetter {
        stream: stream.to_owned(),
        code: letter.failure.code.to_string(),
        message: letter.failure.message.clone(),
        attempts: letter.attempts,
        value: String::from_utf8_lossy(value).into_owned(),
    }
}

fn options(process: &str, plan: &ProcessPlan, prefix: &str) -> Result<StageOptions, NameError> {
    let mut options = StageOptions::new(process)?;
    options.group = tidegate_core::GroupName::new(format!("{prefix}{process}"))?;
    options.changelog = Some(Topic::new(format!("{prefix}stage.{process}.changelog"))?);
    options.parallelism = Some(1);
    options.epoch_records = 1;
    options.epoch_interval = Some(Duration::ZERO);
    let sources = plan.sources.iter().map(|source| source.stream.clone());
    for stream in sources.chain(written(process, plan)) {
        let of_stream = StreamOptions {
            topic: Some(Topic::new(format!("{prefix}{stream}"))?),
            partitions: Some(1),
            ..StreamOptions::default()
        };
        options.streams.insert(stream, of_stream);
    }
    Ok(options)
}

/// The functions and lookups that a script describes.
fn functions(script: ModelScript) -> RegisteredFunctions {
    let mut functions = RegisteredFunctions::default();
    for (name, transform) in script.transforms.clone() {
        functions = functions.transform(name, move |record, _| transform(record));
    }
    for (name, rule) in script.rules.clone() {
        functions = functions.rule(name, rule);
    }
    let lookups: Vec<String> = script.lookups.keys().cloned().collect();
    let script = Arc::new(Mutex::new(script));
    for name in lookups {
        let (script, lookup) = (Arc::clone(&script), name.clone());
        functions = functions.lookup(name, move |key| script.lock().ask(&lookup, key));
    }
    functions
}
