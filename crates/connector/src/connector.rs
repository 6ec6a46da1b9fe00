//! The registry of bindings, and every operation on them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use tidegate_core::env::{Entropy, Env};
use tidegate_core::{HealthFinding, HealthStatus, Mutex, Offset, Partition, PauseReasons, Topic};
use tidegate_log::{Log, TopicPartition};

use crate::binding::{Binding, ConnectorPorts, RegisteredBinding};
use crate::books::BindingBooks;
use crate::error::ConnectorError;
use crate::lifecycle::ContainerState;
use crate::options::BindingOptions;
use crate::parked::ParkedStore;

/// The bindings of a process, and everything that can be asked of them.
///
/// Clones are the same connector. Dropping the last one lets running bindings go on until their process
/// ends; [`shutdown`](Self::shutdown) ends them.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_connector::{Binding, BindingOptions, BoundHandler, Connector, ContainerState};
/// use tidegate_core::env::Env;
/// use tidegate_log::{EmbeddedConfig, EmbeddedLog};
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let env = Env::system();
/// let log = EmbeddedLog::open(&env, EmbeddedConfig::new(dir.path()))?;
/// let connector = Connector::new(Arc::new(log), &env);
/// let options = BindingOptions::new("orders", "orders.events", "order-processing")?;
/// connector.register(Binding::new(options, BoundHandler::from_fn(|_| async { Ok(()) })))?;
/// assert_eq!(connector.state("orders")?, ContainerState::Created);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Connector {
    inner: Arc<Inner>,
}

struct Inner {
    ports: ConnectorPorts,
    entropy: Box<dyn Entropy>,
    bindings: Mutex<BTreeMap<String, Arc<RegisteredBinding>>>,
    is_stopping: AtomicBool,
}

/// A binding as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BindingView {
    /// Its name.
    pub name: String,
    /// Its topic.
    pub topic: Topic,
    /// Its group.
    pub group: String,
    /// Its state.
    pub state: ContainerState,
    /// Why it is paused.
    pub reasons: PauseReasons,
    /// Its breaker: CLOSED, OPEN or HALF_OPEN.
    pub circuit: String,
}

impl Connector {
    /// A connector without bindings, on this log.
    #[must_use]
    pub fn new(log: Arc<dyn Log>, env: &Env) -> Self {
        Self::on_host(log, env, "localhost")
    }

    /// The same with the name of this machine, which is part of the identity of static members.
    #[must_use]
    pub fn on_host(log: Arc<dyn Log>, env: &Env, host: &str) -> Self {
        let env = env.fork("connector");
        let ports = ConnectorPorts {
            log,
            clock: Arc::clone(&env.clock),
            spawn: Arc::clone(&env.spawn),
            host: host.to_owned(),
            store: None,
        };
        Self {
            inner: Arc::new(Inner {
                ports,
                entropy: env.entropy,
                bindings: Mutex::default(),
                is_stopping: AtomicBool::new(false),
            }),
        }
    }

    /// The same with a store, which bindings with ordered keys need. Others keep what fits nowhere else in it.
    /// Registered bindings are those of a new connector: none.
    #[must_use]
    pub fn with_store(self, store: Arc<dyn ParkedStore>) -> Self {
        let ports = ConnectorPorts {
            store: Some(store),
            ..self.inner.ports.clone()
        };
        Self {
            inner: Arc::new(Inner {
                ports,
                entropy: self.inner.entropy.fork("with-store"),
                bindings: Mutex::default(),
                is_stopping: AtomicBool::new(false),
            }),
        }
    }

    /// Adds a binding. It does not start yet.
    ///
    /// # Errors
    /// Its options contradict each other, its name is taken, or another binding has its topic and group.
    pub fn register(&self, binding: Binding) -> Result<(), ConnectorError> {
        self.refuse_when_stopping()?;
        let name = binding.options.name.clone();
        let entropy = self.inner.entropy.fork(&name);
        let registered = RegisteredBinding::new(binding, &self.inner.ports, entropy)?;
        let mut bindings = self.inner.bindings.lock();
        if bindings.contains_key(&name) {
            return Err(ConnectorError::BindingAlreadyExists { binding: name });
        }
        let options = registered.options();
        let twin = bindings.values().find(|other| {
            let other = other.options();
            other.topic == options.topic && other.group == options.group
        });
        if let Some(twin) = twin {
            return Err(ConnectorError::BoundTwice {
                binding: name,
                other: twin.options().name.clone(),
                topic: options.topic.clone(),
                group: options.group.to_string(),
            });
        }
        bindings.insert(name, Arc::new(registered));
        Ok(())
    }

    /// Forgets a binding; one that runs is stopped first. It is [`destroy`](Self::destroy) by another name: topics,
    /// offsets, dead letters and rows stay.
    ///
    /// # Errors
    /// There is no such binding.
    pub async fn unregister(&self, name: &str) -> Result<(), ConnectorError> {
        self.destroy(name).await
    }

    /// Makes the topics of a binding where they are missing, joins its groups and takes records.
    ///
    /// # Errors
    /// It is running, or its topics are not as they must be, or the log does not answer.
    pub async fn start(&self, name: &str) -> Result<(), ConnectorError> {
        self.refuse_when_stopping()?;
        self.find(name)?.start().await
    }

    /// Finishes what is in hand, commits and leaves the groups.
    ///
    /// # Errors
    /// It is not running.
    pub async fn stop(&self, name: &str) -> Result<(), ConnectorError> {
        self.find(name)?.stop().await
    }

    /// Takes no more records of the main topic or of any tier, and stays in the groups.
    ///
    /// # Errors
    /// It is not running, or an operator paused it before.
    pub async fn pause(&self, name: &str) -> Result<(), ConnectorError> {
        self.find(name)?.pause().await
    }

    /// Takes back what an operator paused. Returns the reasons that remain: it flows when there is none.
    ///
    /// # Errors
    /// It is not paused.
    pub async fn resume(&self, name: &str) -> Result<PauseReasons, ConnectorError> {
        self.find(name)?.resume().await
    }

    /// Stops a binding in whatever state it is, and forgets it.
    ///
    /// # Errors
    /// There is no such binding.
    pub async fn destroy(&self, name: &str) -> Result<(), ConnectorError> {
        self.find(name)?.destroy().await?;
        self.inner.bindings.lock().remove(name);
        Ok(())
    }

    /// Gives up on a record that is held, such as one that paused its binding. It goes to the dead letters
    /// with the reason MANUAL. [`dead_letter_at`](Self::dead_letter_at) does the same in a tier.
    ///
    /// # Errors
    /// The binding does not hold that record now.
    pub async fn dead_letter(
        &self,
        name: &str,
        partition: Partition,
        offset: Offset,
    ) -> Result<(), ConnectorError> {
        let binding = self.find(name)?;
        let at = TopicPartition::new(binding.options().topic.clone(), partition.0);
        binding.dead_letter(at, offset).await
    }

    /// Gives up on a record that is held, in the topic of the binding or in that of a tier. It waits there, or it
    /// paused the binding.
    ///
    /// # Errors
    /// The binding does not hold that record now.
    pub async fn dead_letter_at(
        &self,
        name: &str,
        at: &TopicPartition,
        offset: Offset,
    ) -> Result<(), ConnectorError> {
        self.find(name)?.dead_letter(at.clone(), offset).await
    }

    /// The state of a binding.
    ///
    /// # Errors
    /// There is no such binding.
    pub fn state(&self, name: &str) -> Result<ContainerState, ConnectorError> {
        Ok(self.find(name)?.state())
    }

    /// The options of a binding.
    ///
    /// # Errors
    /// There is no such binding.
    pub fn options(&self, name: &str) -> Result<BindingOptions, ConnectorError> {
        Ok(self.find(name)?.options().clone())
    }

    /// The partitions that a binding has now, with its committed offsets.
    ///
    /// # Errors
    /// There is no such binding.
    pub fn positions(
        &self,
        name: &str,
    ) -> Result<BTreeMap<TopicPartition, Option<i64>>, ConnectorError> {
        Ok(self.find(name)?.positions())
    }

    /// The books of all bindings.
    #[must_use]
    pub fn books(&self) -> BindingBooks {
        let options = self
            .all()
            .iter()
            .map(|binding| binding.options().clone())
            .collect();
        let ports = &self.inner.ports;
        BindingBooks::new(Arc::clone(&ports.log), options).with_store(ports.store.clone())
    }

    /// All bindings, by name.
    #[must_use]
    pub fn list(&self) -> Vec<BindingView> {
        let all = self.all();
        let view = |binding: &Arc<RegisteredBinding>| {
            let options = binding.options();
            BindingView {
                name: options.name.clone(),
                topic: options.topic.clone(),
                group: options.group.to_string(),
                state: binding.state(),
                reasons: binding.reasons(),
                circuit: binding.circuit().to_string(),
            }
        };
        all.iter().map(view).collect()
    }

    /// The bindings of a topic.
    #[must_use]
    pub fn of_topic(&self, topic: &Topic) -> Vec<BindingView> {
        self.list()
            .into_iter()
            .filter(|view| view.topic == *topic)
            .collect()
    }

    /// How one binding is.
    ///
    /// # Errors
    /// There is no such binding.
    pub fn binding_health(&self, name: &str) -> Result<HealthFinding, ConnectorError> {
        Ok(self.find(name)?.health())
    }

    /// How the bindings are: as the worst of them.
    #[must_use]
    pub fn health(&self) -> HealthFinding {
        let mut status = HealthStatus::Up;
        let mut messages = Vec::new();
        for binding in self.all() {
            let found = binding.health();
            status = status.max(found.status);
            let name = &binding.options().name;
            messages.extend(found.message.map(|message| format!("{name}: {message}")));
        }
        HealthFinding {
            status,
            message: (!messages.is_empty()).then(|| messages.join("; ")),
        }
    }

    /// Ends all bindings: no registration is taken, nothing new begins, what is in hand is finished within
    /// its time, the last offsets are committed, the groups are left.
    pub async fn shutdown(&self) {
        self.inner.is_stopping.store(true, Ordering::Release);
        let all = self.all();
        for binding in &all {
            binding.begin_shutdown();
        }
        for binding in &all {
            binding.end().await;
        }
    }

    fn refuse_when_stopping(&self) -> Result<(), ConnectorError> {
        match self.inner.is_stopping.load(Ordering::Acquire) {
            true => Err(ConnectorError::ShuttingDown),
            false => Ok(()),
        }
    }

    fn all(&self) -> Vec<Arc<RegisteredBinding>> {
        self.inner.bindings.lock().values().cloned().collect()
    }

    fn find(&self, name: &str) -> Result<Arc<RegisteredBinding>, ConnectorError> {
        let found = self.inner.bindings.lock().get(name).cloned();
        let binding = name.to_owned();
        found.ok_or(ConnectorError::BindingNotFound { binding })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}
