//! The eight steps of a start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Failure, FailureClass, Topic};
use tidegate_flow::plan::ModePlan;
use tidegate_log::{Join, Log, LogError, Session, StartAt, TopicConfig, TopicDescription};
use tokio::sync::mpsc;

use super::{CLEAN_INTERVAL, RECORD_ROOM, Stage, failure, named};
use crate::batch::BatchInputs;
use crate::chain::TaskOperators;
use crate::lifecycle::InitStep;
use crate::machine::{Machine, MachineOptions, NewOperators, SinkTopic};
use crate::operators::{ChainOptions, TaskChain};
use crate::options::{dead_letters, written};
use crate::shard::{Shard, ShardQuestion};

impl Stage {
    /// A step of the start: its failure has the code of the step.
    async fn step<T>(
        &self,
        step: InitStep,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let clock = &self.0.env.clock;
        let began = clock.elapsed();
        let done = work.await.map_err(|error| {
            let class = error.class;
            let is_own = error.code.as_str().starts_with("stage.");
            match is_own {
                true => error,
                false => failure(class, step.code(), error.to_string()).with_source(error),
            }
        })?;
        let took = clock.elapsed().saturating_sub(began);
        tracing::info!(
            stage = self.name(),
            step = step.word(),
            ?took,
            "a step of a start is done"
        );
        Ok(done)
    }

    /// The eight steps of a start.
    pub(super) async fn start(&self) -> Result<(ReadyShards, Option<BatchInputs>), Failure> {
        let inner = &*self.0;
        let changelog = self
            .step(InitStep::Configuration, async {
                self.operators(false, BTreeMap::new())()?;
                inner.options.changelog().map_err(named)
            })
            .await?;
        self.step(InitStep::Metrics, async {
            inner.telemetry.describe();
            Ok(())
        })
        .await?;
        let sources = self.step(InitStep::Sources, self.sources()).await?;
        let sinks = self
            .step(InitStep::Sinks, self.sinks(sources.partitions))
            .await?;
        self.step(InitStep::State, async {
            let config = TopicConfig::new(sources.partitions);
            match inner.log.create_topic(&changelog, config).await {
                Err(LogError::TopicConfig { why, .. }) => {
                    let message =
                        format!("the changelog `{changelog}` was made for other inputs: {why}");
                    Err(failure(
                        FailureClass::System,
                        "stage.partitions.changed",
                        message,
                    ))
                }
                made => Ok(made?),
            }
        })
        .await?;
        // Lookups over the network, and data that is read ahead, are not known yet: both steps have nothing to do.
        self.step(InitStep::Services, async { Ok(()) }).await?;
        self.step(InitStep::WarmUp, async { Ok(()) }).await?;
        self.step(InitStep::Ready, async {
            let batch = self.batch(&sources).await?;
            let shards = self.shards(&sources, &sinks, &changelog).await?;
            Ok((shards, batch))
        })
        .await
    }

    /// The ends of the inputs, in `mode batch`.
    async fn batch(&self, sources: &Sources) -> Result<Option<BatchInputs>, Failure> {
        let inner = &*self.0;
        if inner.process.mode != ModePlan::Batch {
            return Ok(None);
        }
        let chain = self.operators(sources.partitions > 1, BTreeMap::new())()?;
        let own = chain.inputs().iter().map(|input| input.is_repartition);
        let topics = sources.topics.iter().cloned().zip(own).collect();
        let (log, clock) = (Arc::clone(&inner.log), Arc::clone(&inner.env.clock));
        let inputs = BatchInputs::new(log, clock, inner.options.group.clone(), topics).await?;
        Ok(Some(inputs))
    }

    /// `max_stream_bytes` has what the topics of the streams take.
    pub(super) fn operators(
        &self,
        is_repartitioned: bool,
        max_stream_bytes: BTreeMap<String, usize>,
    ) -> NewOperators {
        let inner = &*self.0;
        let limit = TopicConfig::MAX_RECORD_SIZE.saturating_sub(RECORD_ROOM);
        let streams = inner.options.streams.iter();
        let idle = streams.map(|(name, stream)| {
            let idle = u64::try_from(stream.idle_timeout.as_millis()).unwrap_or(u64::MAX);
            (name.clone(), idle)
        });
        let options = ChainOptions {
            instance: inner.options.instance.clone(),
            max_record_bytes: usize::try_from(limit).unwrap_or(usize::MAX),
            max_stream_bytes,
            idle_timeout_ms: idle.collect(),
            is_repartitioned,
            functions: Arc::clone(&inner.functions),
        };
        let (plan, name) = (Arc::clone(&inner.plan), inner.options.process.clone());
        Arc::new(move || {
            let chain = TaskChain::new(Arc::clone(&plan), &name, options.clone());
            let chain = chain.map_err(|error| {
                failure(
                    FailureClass::Permanent,
                    InitStep::Configuration.code(),
                    error.to_string(),
                )
            })?;
            Ok(Box::new(chain) as Box<dyn TaskOperators>)
        })
    }

    /// The inputs are there and have as many partitions as each other; topics of the stage's own are made.
    async fn sources(&self) -> Result<Sources, Failure> {
        let inner = &*self.0;
        let log = &*inner.log;
        let mut partitions: Option<(Topic, u32)> = None;
        for input in self.operators(false, BTreeMap::new())()?.inputs() {
            let topic = inner.options.topic(&input.stream).map_err(named)?;
            let stream = inner.options.stream(&input.stream);
            let wanted = stream.partitions.or_else(|| {
                let makes = inner.options.makes_inputs;
                makes.then_some(TopicConfig::PARTITIONS)
            });
            let found = find(log, &topic).await?;
            let found = match (found, wanted) {
                (Some(found), _) => found,
                (None, Some(wanted)) => {
                    log.create_topic(&topic, TopicConfig::new(wanted)).await?;
                    log.describe(&topic).await?
                }
                (None, None) => {
                    let message = format!(
                        "topic `{topic}` of stream `{}` does not exist; `streams.{}.partitions` makes it",
                        input.stream, input.stream
                    );
                    return Err(failure(
                        FailureClass::Transient,
                        "stage.init.sources",
                        message,
                    ));
                }
            };
            let count = u32::try_from(found.partitions.len()).unwrap_or(u32::MAX);
            if let Some(wanted) = stream.partitions.filter(|wanted| *wanted != count) {
                let message = format!(
                    "topic `{topic}` has {count} partitions, and `streams.{}.partitions` says {wanted}",
                    input.stream
                );
                return Err(failure(
                    FailureClass::System,
                    "stage.partitions.differ",
                    message,
                ));
            }
            match &partitions {
                None => partitions = Some((topic, count)),
                Some((first, of_first)) if *of_first != count => {
                    let message = format!(
                        "`{first}` has {of_first} partitions and `{topic}` has {count}: inputs of one process need as many"
                    );
                    return Err(failure(
                        FailureClass::System,
                        "stage.partitions.differ",
                        message,
                    ));
                }
                Some(_) => {}
            }
        }
        let partitions = partitions.map_or(1, |(_, count)| count);
        let mut topics = Vec::new();
        for input in self.operators(partitions > 1, BTreeMap::new())()?.inputs() {
            let topic = inner.options.topic(&input.stream).map_err(named)?;
            if input.is_repartition {
                log.create_topic(&topic, TopicConfig::new(partitions))
                    .await?;
            }
            topics.push(topic);
        }
        Ok(Sources { topics, partitions })
    }

    /// The topics of every stream that is written to; those that are missing are made.
    async fn sinks(&self, partitions: u32) -> Result<BTreeMap<String, SinkTopic>, Failure> {
        let inner = &*self.0;
        let letters = dead_letters(self.name(), &inner.process);
        let mut sinks = BTreeMap::new();
        for stream in written(self.name(), &inner.process) {
            let topic = inner.options.topic(&stream).map_err(named)?;
            let wanted = inner
                .options
                .stream(&stream)
                .partitions
                .unwrap_or(partitions);
            let found = match find(&*inner.log, &topic).await? {
                Some(found) => found,
                None => {
                    let mut config = TopicConfig::new(wanted);
                    if letters.contains(&stream) {
                        // The envelope holds the record as text, which is longer than the record.
                        config.max_record_size = 2 * TopicConfig::MAX_RECORD_SIZE;
                    }
                    inner.log.create_topic(&topic, config).await?;
                    inner.log.describe(&topic).await?
                }
            };
            let partitions = u32::try_from(found.partitions.len()).unwrap_or(u32::MAX);
            let limit = found.config.max_record_size.saturating_sub(RECORD_ROOM);
            let max_record_bytes = usize::try_from(limit).unwrap_or(usize::MAX);
            let sink = SinkTopic {
                topic,
                partitions,
                max_record_bytes,
            };
            sinks.insert(stream, sink);
        }
        Ok(sinks)
    }

    /// Joins the group once for each shard.
    async fn shards(
        &self,
        sources: &Sources,
        sinks: &BTreeMap<String, SinkTopic>,
        changelog: &Topic,
    ) -> Result<ReadyShards, Failure> {
        let inner = &*self.0;
        let options = &inner.options;
        let of_flow = inner.process.parallelism.map(|plan| plan.tasks);
        let of_flow = of_flow.map(|tasks| u32::try_from(tasks).unwrap_or(u32::MAX));
        let wanted = options.parallelism.or(of_flow).unwrap_or(1);
        let count = wanted.clamp(1, sources.partitions.max(1));
        let limits = sinks.iter();
        let limits = limits.map(|(stream, sink)| (stream.clone(), sink.max_record_bytes));
        let new_operators = self.operators(sources.partitions > 1, limits.collect());
        let clean_ms = inner.process.checkpoint.every_ms;
        let reader = self.books()?.reader(sources.partitions as usize)?;
        let mut shards = Vec::new();
        for number in 0..count {
            let (first, others) = match sources.topics.split_first() {
                Some((first, others)) => (first.clone(), others.to_vec()),
                None => {
                    return Err(failure(
                        FailureClass::Permanent,
                        "stage.init.sources",
                        "no inputs",
                    ));
                }
            };
            let mut join = Join::new(options.group.clone(), vec![first]);
            join.co_partitioned = others;
            join.instance = Some(format!("{}-{number}", options.instance));
            join.name = Some(format!("stage-{}-{number}", options.process));
            join.start = self.start_at();
            join.release_timeout = Duration::from_secs(30);
            join.session_timeout = options.session_timeout;
            join.max_poll_records = 2_000;
            let session: Arc<dyn Session> = inner.log.join(join).await?;
            let machine = MachineOptions {
                cluster: inner.log.cluster().to_owned(),
                inputs: sources.topics.clone(),
                partitions: sources.partitions,
                sinks: sinks.clone(),
                changelog: changelog.clone(),
                epoch_records: options.epoch_records,
                epoch_interval: options.interval(&inner.process),
                epoch_bytes: usize::try_from(options.max_commit_size / 2).unwrap_or(usize::MAX),
                rolls_base: reader.shared.is_none(),
                clean_interval: clean_ms.map_or(CLEAN_INTERVAL, Duration::from_millis),
                group: options.group.to_string(),
            };
            let (ask, questions) = mpsc::unbounded_channel();
            let shard = Shard {
                session,
                group: options.group.clone(),
                machine: Machine::new(machine, Arc::clone(&new_operators)),
                recovery: reader.clone(),
                spawn: Arc::clone(&inner.env.spawn),
                questions,
                status: Arc::default(),
                number,
                telemetry: Arc::clone(&inner.telemetry),
            };
            shards.push((shard, ask));
        }
        Ok(shards)
    }

    /// Where a group without an offset begins: at the earliest record, unless the streams say the latest.
    fn start_at(&self) -> StartAt {
        let streams = self.0.process.sources.iter();
        let mut starts = streams.map(|source| self.0.options.stream(&source.stream).start);
        match starts.all(|start| start == StartAt::Latest) {
            true => StartAt::Latest,
            false => StartAt::Earliest,
        }
    }
}

/// Shards that are ready to run, each with the way to ask it.
type ReadyShards = Vec<(Shard, mpsc::UnboundedSender<ShardQuestion>)>;

struct Sources {
    topics: Vec<Topic>,
    partitions: u32,
}

async fn find(log: &dyn Log, topic: &Topic) -> Result<Option<TopicDescription>, LogError> {
    match log.describe(topic).await {
        Ok(found) => Ok(Some(found)),
        Err(LogError::UnknownTopic { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
