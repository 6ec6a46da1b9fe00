//! The settings of a stage.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::{GroupName, NameError, Topic};
use tidegate_flow::plan::{ModePlan, ProcessPlan};
use tidegate_log::{OwnedGroup, StartAt};

use crate::checkpoint::CheckpointOptions;

/// Where a stream of a flow lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamOptions {
    /// The topic; without one, the name of the stream.
    pub topic: Option<Topic>,
    /// Partitions of the topic: checked, and used when it is made.
    pub partitions: Option<u32>,
    /// Where a group without an offset begins.
    pub start: StartAt,
    /// How long an input without records holds back the watermark.
    pub idle_timeout: Duration,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            topic: None,
            partitions: None,
            start: StartAt::Fail,
            idle_timeout: Duration::from_secs(30),
        }
    }
}

/// How a failed stage starts again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RestartOptions {
    /// The first wait.
    pub initial_delay: Duration,
    /// The longest wait.
    pub max_delay: Duration,
    /// How much each wait is longer than the one before.
    pub multiplier: f64,
    /// Starts in a row; 0 is no limit.
    pub max_attempts: u32,
}

impl Default for RestartOptions {
    fn default() -> Self {
        Self {
            initial_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(60),
            multiplier: 2.0,
            max_attempts: 0,
        }
    }
}

/// The settings of one stage.
#[derive(Debug, Clone, PartialEq)]
pub struct StageOptions {
    /// The process of the plan.
    pub process: String,
    /// The consumer group.
    pub group: GroupName,
    /// The streams by their names; one that is not there has the defaults.
    pub streams: BTreeMap<String, StreamOptions>,
    /// Shards at once; without it what the flow says, or 1.
    pub parallelism: Option<u32>,
    /// The name of this program among those that run the same process; each shard adds its number.
    pub instance: String,
    /// Records that close an epoch.
    pub epoch_records: u64,
    /// The time that closes an epoch; without it what the flow says, or 1 s.
    pub epoch_interval: Option<Duration>,
    /// The largest commit of the log; half of it closes an epoch.
    pub max_commit_size: u64,
    /// After this time without a sign of life a broker takes a shard for dead.
    pub session_timeout: Duration,
    /// How long the start may take.
    pub init_timeout: Duration,
    /// How long the stop may take.
    pub drain_timeout: Duration,
    /// How a failed stage starts again.
    pub restart: RestartOptions,
    /// The first part of the names of metrics.
    pub namespace: String,
    /// The topic of the changelog; without one, `stage.<process>.changelog`.
    pub changelog: Option<Topic>,
    /// Where checkpoints are kept; none takes none.
    pub checkpoints: Option<CheckpointOptions>,
    /// Whether input topics that are missing are made with the usual number of partitions.
    pub makes_inputs: bool,
}

impl StageOptions {
    /// The usual settings of a process.
    ///
    /// # Errors
    /// The name of the process is no name of a group.
    pub fn new(process: &str) -> Result<Self, NameError> {
        Ok(Self {
            process: process.to_owned(),
            group: GroupName::new(process)?,
            streams: BTreeMap::new(),
            parallelism: None,
            instance: format!("local-{process}"),
            epoch_records: 10_000,
            epoch_interval: None,
            max_commit_size: 16 * 1024 * 1024,
            session_timeout: Duration::from_secs(45),
            init_timeout: Duration::from_secs(300),
            drain_timeout: Duration::from_secs(600),
            restart: RestartOptions::default(),
            namespace: "tidegate".to_owned(),
            changelog: None,
            checkpoints: None,
            makes_inputs: false,
        })
    }

    /// The settings of a stream.
    #[must_use]
    pub fn stream(&self, name: &str) -> StreamOptions {
        self.streams.get(name).cloned().unwrap_or_default()
    }

    /// The topic of a stream.
    ///
    /// # Errors
    /// The name of the stream is no name of a topic.
    pub fn topic(&self, stream: &str) -> Result<Topic, NameError> {
        match self.streams.get(stream).and_then(|one| one.topic.clone()) {
            Some(topic) => Ok(topic),
            None => Topic::new(stream),
        }
    }

    /// The topic of the changelog.
    ///
    /// # Errors
    /// The name of the process is too long for it.
    pub fn changelog(&self) -> Result<Topic, NameError> {
        match &self.changelog {
            Some(topic) => Ok(topic.clone()),
            None => Topic::new(format!("stage.{}.changelog", self.process)),
        }
    }

    /// The longest epoch of a process.
    #[must_use]
    pub fn interval(&self, process: &ProcessPlan) -> Duration {
        let of_flow = match process.mode {
            ModePlan::MicroBatch(interval_ms) => Some(Duration::from_millis(interval_ms)),
            ModePlan::Stream | ModePlan::Batch => None,
        };
        let interval = of_flow.or(self.epoch_interval);
        interval.unwrap_or(Duration::from_secs(1))
    }

    /// The groups on topics for whose books the stage answers.
    ///
    /// # Errors
    /// A stream or the process has no name that fits.
    pub fn owned_groups(&self, process: &ProcessPlan) -> Result<Vec<OwnedGroup>, NameError> {
        let repartitions = process.sources.iter().flat_map(|one| &one.repartition);
        let steps = process.steps.iter().flat_map(|step| &step.repartition);
        let streams = process.sources.iter().map(|source| &source.stream);
        let mut topics: Vec<Topic> = Vec::new();
        for stream in streams.chain(repartitions).chain(steps) {
            let topic = self.topic(stream)?;
            if !topics.contains(&topic) {
                topics.push(topic);
            }
        }
        let letters = dead_letters(&self.process, process);
        let letters = letters.iter().map(|stream| self.topic(stream));
        let letters = letters.collect::<Result<Vec<Topic>, NameError>>()?;
        let owned = topics.into_iter().map(|topic| OwnedGroup {
            dead_letters: letters.clone(),
            ..OwnedGroup::new(topic, self.group.clone())
        });
        Ok(owned.collect())
    }
}

/// Every stream that a process may write to: sinks, dead letters and its own topics.
pub(crate) fn written(name: &str, process: &ProcessPlan) -> Vec<String> {
    let sinks = process.sinks.iter().map(|sink| sink.stream.clone());
    let completions = process.completions.iter().map(|one| one.stream.clone());
    let ways = process.ways_out.iter().filter_map(|way| way.stream.clone());
    let sources = process
        .sources
        .iter()
        .flat_map(|one| one.repartition.clone());
    let steps = process
        .steps
        .iter()
        .flat_map(|step| step.repartition.clone());
    let mut all: Vec<String> = sinks.chain(completions).chain(ways).collect();
    all.extend(sources.chain(steps));
    all.push(format!("{name}_dlq"));
    all.sort();
    all.dedup();
    all
}

/// The streams of dead letters of a process.
pub(crate) fn dead_letters(name: &str, process: &ProcessPlan) -> Vec<String> {
    use tidegate_flow::plan::LedgerPlace;
    let ways = process.ways_out.iter();
    let letters = ways.filter(|way| way.place == LedgerPlace::DeadLettered);
    let mut all: Vec<String> = letters.filter_map(|way| way.stream.clone()).collect();
    all.push(format!("{name}_dlq"));
    all.sort();
    all.dedup();
    all
}
