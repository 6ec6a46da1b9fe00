//! A binding: its options and its handler, and the consumers that work for it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::breaker::BreakerState;
use tidegate_core::env::{Clock, Entropy, Spawn, Task};
use tidegate_core::{
    Failure, HealthFinding, Mutex, Offset, PauseReason, PauseReasons, TierIndex, Topic, error_chain,
};
use tidegate_log::{Log, TopicPartition};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

use crate::classify::{ExceptionClassifier, ExceptionRouting};
use crate::consumer::{ConsumerSeat, GiveUpRequest, consume};
use crate::dlt::{DltHandlerFn, DltRecord, watch_letters};
use crate::error::ConnectorError;
use crate::gate::BindingGate;
use crate::gauges;
use crate::handler::BoundHandler;
use crate::ladder::Ladder;
use crate::lifecycle::{ContainerState, LifecycleCommand};
use crate::options::{BindingOptions, ConcurrencyMode, HandOff, ListenerType, OrderingMode};
use crate::parked::ParkedStore;
use crate::signal::StopSignal;
use crate::status::BindingStatus;
use crate::{span, topics};

/// A topic, a group and a handler, on their way to a [`Connector`](crate::Connector).
///
/// ```
/// use tidegate_connector::{Binding, BindingOptions, BoundHandler};
/// let options = BindingOptions::new("orders", "orders.events", "order-processing")?;
/// let binding = Binding::new(options, BoundHandler::from_fn(|record| async move {
///     println!("{:?}", record.value());
///     Ok(())
/// }));
/// # drop(binding);
/// # Ok::<(), tidegate_core::NameError>(())
/// ```
#[derive(Debug)]
#[must_use = "a binding works once it is registered"]
pub struct Binding {
    pub(crate) options: BindingOptions,
    pub(crate) handler: BoundHandler,
    pub(crate) classifier: ExceptionClassifier,
    pub(crate) letters: Option<LetterHandler>,
}

/// Takes dead letters, after they were written.
#[derive(Clone)]
pub(crate) struct LetterHandler(pub(crate) Arc<DltHandlerFn>);

impl fmt::Debug for LetterHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LetterHandler")
    }
}

impl Binding {
    /// A binding whose codes decide about failures.
    pub fn new(options: BindingOptions, handler: BoundHandler) -> Self {
        let classifier = ExceptionClassifier::Codes(options.retry.codes.clone());
        Self {
            options,
            handler,
            classifier,
            letters: None,
        }
    }

    /// Lets a function decide about failures, in place of the codes. It is given the tier, 0 for the main
    /// topic. Failures of class System are not asked about: they pause the binding.
    pub fn classifier(
        mut self,
        decide: impl Fn(&Failure, TierIndex) -> ExceptionRouting + Send + Sync + 'static,
    ) -> Self {
        self.classifier = ExceptionClassifier::Function(Arc::new(decide));
        self
    }

    /// Takes the dead letters of this binding, for the strategies ALERT_AND_STORE and CUSTOM. It is called
    /// at least once for each, after the commit, and never holds up the binding.
    pub fn on_dead_letter<R>(mut self, act: impl Fn(DltRecord) -> R + Send + Sync + 'static) -> Self
    where
        R: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.letters = Some(LetterHandler(Arc::new(move |letter| Box::pin(act(letter)))));
        self
    }

    /// Everything that is wrong with it.
    pub(crate) fn problems(&self) -> Vec<String> {
        let options = &self.options;
        let mut problems = options.problems();
        if self.handler.is_batch() && options.listener_type != ListenerType::Batch {
            problems.push("the handler takes batches, and `listener-type` is SINGLE".to_owned());
        }
        if self.handler.is_batch() && options.concurrency_mode != ConcurrencyMode::Partition {
            problems.push(
                "the handler takes batches, and `concurrency-mode` is not PARTITION".to_owned(),
            );
        }
        if self.handler.is_batch() && options.ordering == OrderingMode::KeyOrdered {
            problems.push(
                "the handler takes batches, and `ordering-mode` is KEY_ORDERED: a record would be in one \
                 call with those behind it"
                    .to_owned(),
            );
        }
        let is_early = options.hand_off == HandOff::AtLeastOnce;
        if self.handler.sends && !options.transactional && !is_early {
            problems.push(match options.ordering {
                OrderingMode::KeyOrdered => {
                    "the handler writes each record in one commit with its offset, and `ordering-mode` is \
                     KEY_ORDERED, whose records settle in the store: set `hand-off` to at-least-once, or keep \
                     another order"
                        .to_owned()
                }
                OrderingMode::RelaxedInRetry | OrderingMode::Strict => {
                    "the handler writes records, and `transactional` is false: set it, or set `hand-off` to \
                     at-least-once"
                        .to_owned()
                }
            });
        }
        if options.dlt.tells() && self.letters.is_none() {
            problems.push(
                "`dlt.strategy` is ALERT_AND_STORE or CUSTOM, and nothing takes the dead letters"
                    .to_owned(),
            );
        }
        problems
    }
}

/// The ports of a connector.
#[derive(Clone)]
pub(crate) struct ConnectorPorts {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) spawn: Arc<dyn Spawn>,
    pub(crate) host: String,
    pub(crate) store: Option<Arc<dyn ParkedStore>>,
}

/// Everything that the consumers of a binding share.
pub(crate) struct BindingContext {
    pub(crate) options: BindingOptions,
    pub(crate) handler: BoundHandler,
    pub(crate) classifier: ExceptionClassifier,
    pub(crate) letters: Option<LetterHandler>,
    pub(crate) gate: BindingGate,
    pub(crate) ladder: Ladder,
    pub(crate) tier_topics: Vec<Topic>,
    pub(crate) dlt_topic: Topic,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) spawn: Arc<dyn Spawn>,
    pub(crate) entropy: Mutex<Box<dyn Entropy>>,
    pub(crate) host: String,
    pub(crate) store: Option<Arc<dyn ParkedStore>>,
    pub(crate) status: Mutex<BindingStatus>,
    limits: Mutex<BTreeMap<Topic, u64>>,
    pub(crate) stop: StopSignal,
}

impl BindingContext {
    /// The largest record that a topic takes, as far as it is known.
    pub(crate) fn record_limit(&self, topic: &Topic) -> u64 {
        self.limits.lock().get(topic).copied().unwrap_or(u64::MAX)
    }

    /// A topic takes no larger records than these.
    pub(crate) fn limit_records(&self, topic: &Topic, limit: u64) {
        self.limits.lock().insert(topic.clone(), limit);
    }

    /// A number for a row of progress that no other row has.
    pub(crate) fn new_progress_id(&self) -> i64 {
        i64::try_from(self.entropy.lock().next_u64() >> 1).unwrap_or(0)
    }

    /// Asks all consumers to stop.
    pub(crate) fn stop_all(&self) {
        self.stop.set(true);
    }
}

/// A binding that is registered.
pub(crate) struct RegisteredBinding {
    pub(crate) context: Arc<BindingContext>,
    /// Commands of one binding come one after the other.
    commands: tokio::sync::Mutex<()>,
    running: Mutex<RunningConsumers>,
}

#[derive(Default)]
struct RunningConsumers {
    tasks: Vec<Task>,
    requests: Vec<mpsc::UnboundedSender<GiveUpRequest>>,
}

/// How long a consumer may take to say whether it holds a record.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long consumers may take beyond their stop timeout before they are cut off.
const CUT_OFF: Duration = Duration::from_secs(5);

impl RegisteredBinding {
    pub(crate) fn new(
        binding: Binding,
        ports: &ConnectorPorts,
        entropy: Box<dyn Entropy>,
    ) -> Result<Self, ConnectorError> {
        let mut problems = binding.problems();
        if binding.options.ordering == OrderingMode::KeyOrdered && ports.store.is_none() {
            problems.push(
                "`ordering-mode` is KEY_ORDERED, and the connector has no store for its records"
                    .to_owned(),
            );
        }
        if let Some(store) = &ports.store
            && ports.log.is_shared()
            && !store.is_shared()
        {
            problems.push(
                "the store is SQLite, whose rows do not follow a partition to another machine, and the log \
                 is shared by machines: use PostgreSQL"
                    .to_owned(),
            );
        }
        let Binding {
            options,
            handler,
            classifier,
            letters,
        } = binding;
        if !problems.is_empty() {
            let binding = options.name;
            return Err(ConnectorError::ConfigurationValidation { binding, problems });
        }
        let tiers = options.tier_indexes().map(|tier| options.tier_topic(tier));
        let context = BindingContext {
            gate: BindingGate::new(&options.name, &options.breaker, Arc::clone(&ports.clock)),
            ladder: options.ladder(),
            tier_topics: tiers.collect::<Result<_, _>>()?,
            dlt_topic: options.dlt_topic()?,
            log: Arc::clone(&ports.log),
            clock: Arc::clone(&ports.clock),
            spawn: Arc::clone(&ports.spawn),
            entropy: Mutex::new(entropy),
            host: ports.host.clone(),
            store: ports.store.clone(),
            status: Mutex::default(),
            limits: Mutex::default(),
            stop: StopSignal::default(),
            options,
            handler,
            classifier,
            letters,
        };
        Ok(Self {
            context: Arc::new(context),
            commands: tokio::sync::Mutex::new(()),
            running: Mutex::default(),
        })
    }

    pub(crate) fn options(&self) -> &BindingOptions {
        &self.context.options
    }

    /// The state that people see: paused means that its own set of reasons is not empty.
    pub(crate) fn state(&self) -> ContainerState {
        self.context.gate.shown()
    }

    fn allow(&self, command: LifecycleCommand) -> Result<(), ConnectorError> {
        let refused =
            |refused: crate::lifecycle::RefusedTransition| ConnectorError::InvalidContainerState {
                binding: self.options().name.clone(),
                state: refused.from,
                command: refused.command,
            };
        self.state().next(command).map(drop).map_err(refused)
    }

    pub(crate) async fn start(&self) -> Result<(), ConnectorError> {
        let _alone = self.commands.lock().await;
        self.allow(LifecycleCommand::Start)?;
        // One that stopped by itself may still be on its way out.
        self.end_consumers().await;
        let context = &self.context;
        let found = topics::prepare(&*context.log, &context.options).await;
        let found = found.inspect_err(|error| {
            context.status.lock().not_started = Some(error_chain(error));
        })?;
        *context.limits.lock() = found.limits;
        *context.status.lock() = BindingStatus::started(found.warning);
        context.gate.reset(&context.options.breaker);
        context.stop.set(false);
        // Before a consumer can stop it again.
        context.gate.set_lifecycle(ContainerState::Running);
        self.begin_consumers()?;
        tracing::info!(binding = context.options.name, "started");
        Ok(())
    }

    fn begin_consumers(&self) -> Result<(), ConnectorError> {
        let context = &self.context;
        let options = &context.options;
        let mut seats = Vec::new();
        let main = (
            TierIndex(0),
            options.topic.clone(),
            options.group.clone(),
            options.concurrency,
        );
        let mut places = vec![main];
        for (tier, topic) in options.tier_indexes().zip(&context.tier_topics) {
            let index = usize::try_from(tier.0 - 1).unwrap_or(usize::MAX);
            let concurrency = options
                .retry
                .tiers
                .get(index)
                .map_or(1, |tier| tier.concurrency);
            places.push((tier, topic.clone(), options.tier_group(tier)?, concurrency));
        }
        for (tier, topic, group, concurrency) in places {
            for index in 0..concurrency {
                let (topic, group) = (topic.clone(), group.clone());
                seats.push(ConsumerSeat {
                    tier,
                    index,
                    topic,
                    group,
                });
            }
        }
        let mut running = self.running.lock();
        for seat in seats {
            let (send, requests) = mpsc::unbounded_channel();
            running.requests.push(send);
            let name = options.container_name(seat.tier);
            let span = span::consumer(options, &seat, &context.host);
            let work = consume(Arc::clone(context), seat, requests).instrument(span);
            running
                .tasks
                .push(context.spawn.spawn(&name, Box::pin(work)));
        }
        let name = format!("eventbus-{}-gauges", options.name);
        let work = gauges::watch(Arc::clone(context));
        running
            .tasks
            .push(context.spawn.spawn(&name, Box::pin(work)));
        if let Some(letters) = &context.letters
            && options.dlt.tells()
        {
            let (letters, group) = (letters.clone(), options.dlt_group()?);
            let work = watch_letters(Arc::clone(context), group, letters);
            let name = format!("eventbus-{}-dlt", options.name);
            running
                .tasks
                .push(context.spawn.spawn(&name, Box::pin(work)));
        }
        Ok(())
    }

    /// Asks the consumers to stop, and waits until they have.
    async fn end_consumers(&self) {
        self.context.stop_all();
        let tasks = {
            let mut running = self.running.lock();
            running.requests.clear();
            std::mem::take(&mut running.tasks)
        };
        let limit = self.context.options.stop_timeout.saturating_add(CUT_OFF);
        let ended = async {
            let mut ending = EndingTasks(tasks);
            while let Some(task) = ending.0.pop() {
                task.join().await;
            }
        };
        if self.context.clock.within(limit, ended).await.is_none() {
            tracing::error!(binding = self.options().name, "a consumer was cut off");
        }
    }

    pub(crate) async fn stop(&self) -> Result<(), ConnectorError> {
        let _alone = self.commands.lock().await;
        self.allow(LifecycleCommand::Stop)?;
        self.end_consumers().await;
        self.context.gate.set_lifecycle(ContainerState::Stopped);
        tracing::info!(binding = self.options().name, "stopped");
        Ok(())
    }

    /// Waits until nothing of it works any more, also where it stopped by itself.
    pub(crate) async fn end(&self) {
        let _alone = self.commands.lock().await;
        self.end_consumers().await;
        if self.context.gate.lifecycle() == ContainerState::Running {
            self.context.gate.set_lifecycle(ContainerState::Stopped);
        }
    }

    /// The end of the process: nothing new begins, what is in hand is finished.
    pub(crate) fn begin_shutdown(&self) {
        self.context.gate.add(PauseReason::Shutdown, None);
        self.context.stop_all();
    }

    pub(crate) async fn pause(&self) -> Result<(), ConnectorError> {
        let _alone = self.commands.lock().await;
        let is_operator = self.context.gate.reasons().contains(PauseReason::Operator);
        // A binding that something else paused can be paused by an operator as well.
        if self.state() != ContainerState::Paused || is_operator {
            self.allow(LifecycleCommand::Pause)?;
        }
        self.context.gate.add(PauseReason::Operator, None);
        Ok(())
    }

    /// Takes the operator's reason away, and says which others remain.
    pub(crate) async fn resume(&self) -> Result<PauseReasons, ConnectorError> {
        let _alone = self.commands.lock().await;
        self.allow(LifecycleCommand::Resume)?;
        Ok(self.context.gate.remove(PauseReason::Operator))
    }

    pub(crate) async fn destroy(&self) -> Result<(), ConnectorError> {
        let _alone = self.commands.lock().await;
        self.allow(LifecycleCommand::Destroy)?;
        self.end_consumers().await;
        self.context.gate.set_lifecycle(ContainerState::Destroyed);
        Ok(())
    }

    pub(crate) async fn dead_letter(
        &self,
        at: TopicPartition,
        offset: Offset,
    ) -> Result<(), ConnectorError> {
        let _alone = self.commands.lock().await;
        let requests = self.running.lock().requests.clone();
        for consumer in requests {
            let (answer, given_up) = oneshot::channel();
            let request = GiveUpRequest {
                at: at.clone(),
                offset,
                answer,
            };
            // One that is no member of its group just now holds nothing, and may not answer for long.
            let is_asked = consumer.send(request).is_ok();
            let answer = self.context.clock.within(ANSWER_LIMIT, given_up);
            if is_asked && matches!(answer.await, Some(Ok(true))) {
                return Ok(());
            }
        }
        let binding = self.options().name.clone();
        Err(ConnectorError::RecordNotHeld {
            binding,
            at,
            offset,
        })
    }

    pub(crate) fn circuit(&self) -> BreakerState {
        self.context.gate.breaker_state()
    }

    pub(crate) fn reasons(&self) -> PauseReasons {
        self.context.gate.reasons()
    }

    pub(crate) fn positions(&self) -> BTreeMap<TopicPartition, Option<i64>> {
        self.context.status.lock().positions()
    }

    pub(crate) fn health(&self) -> HealthFinding {
        let context = &self.context;
        let not_started = context.status.lock().not_started.clone();
        match (context.gate.lifecycle(), not_started) {
            (ContainerState::Running, _) => {}
            (ContainerState::Created | ContainerState::Stopped, Some(why)) => {
                return HealthFinding::down(format!("it does not start: {why}"));
            }
            (ContainerState::Created | ContainerState::Paused | ContainerState::Destroyed, _) => {
                return HealthFinding::up();
            }
            (ContainerState::Stopped, None) => return HealthFinding::degraded("stopped"),
        }
        let now = context.clock.elapsed();
        context
            .status
            .lock()
            .health(&context.options, &context.gate, now)
    }
}

/// Tasks that are cut off if nobody waits for them any more.
struct EndingTasks(Vec<Task>);

impl Drop for EndingTasks {
    fn drop(&mut self) {
        self.0.iter().for_each(Task::abort);
    }
}
