//! The bindings of the connector, each with one of the built-in handlers.

use std::sync::Arc;

use tidegate_client::RemoteComponent;
use tidegate_config::{Config, Part as Section};
use tidegate_connector::parked::{self, ParkedStore, parked_store};
use tidegate_connector::{
    Binding, BindingBooks, BindingOptions, BoundHandler, Connector, ConnectorComponent,
    ConsumedRecord, DltStrategy, ForwardHandler, HandOff, HandlerAnswer, HandlerFailure,
    HttpHandler, LogHandler, OrderingMode, RecordHandler,
};
use tidegate_core::books::{AcceptedEvents, Audited, ComponentAccount};
use tidegate_core::env::{BoxFuture, Env};
use tidegate_core::{
    Classify, Code, Component, EventId, EventLocation, Failure, HealthFinding, Topic,
};
use tidegate_log::{LogBackend, LogError, LogOptions, OpenLog};
use tidegate_queue::{NewEvent, Queue, sql};
use tidegate_store::Dialect;

use super::{InspectionTargets, Part, PartFuture, Process};
use crate::args::AuditArgs;
use crate::log;
use crate::report::ErrorReport;
use crate::store::{self, OpenedStore, StoreSettings};
use crate::table;

pub(super) struct ConnectorPart;

impl Part for ConnectorPart {
    fn sections(&self) -> &'static [Section] {
        &[Section::Eventbus]
    }

    fn open<'a>(&'a self, process: &'a mut Process) -> PartFuture<'a> {
        Box::pin(async {
            let bindings = BindingOptions::from_config(&process.config)?;
            let Some(log) = process.log.clone().filter(|_| !bindings.is_empty()) else {
                return Ok(());
            };
            let mut connector = Connector::on_host(log, &process.env, &host());
            if let Some(store) = shared_store(process, &bindings).await? {
                connector = connector.with_store(store);
            }
            let mut names = Vec::new();
            for options in bindings {
                names.push(format!("{} ({})", options.name, options.topic));
                let binding = bind(process, options).await?;
                connector.register(binding).map_err(Failure::from)?;
            }
            let component = ConnectorComponent::new(connector, &process.env);
            process.components.push(Arc::new(component));
            let count = table::counted(names.len() as u64, "binding");
            process
                .banner
                .push(("eventbus", format!("{count}: {}", names.join(", "))));
            Ok(())
        })
    }

    fn is_named(&self, arguments: &AuditArgs) -> bool {
        arguments.at.dir.is_some()
    }

    /// A running process answers for its bindings. Otherwise the log is opened for each question.
    fn inspect<'a>(&'a self, inspection: &'a mut InspectionTargets) -> PartFuture<'a> {
        Box::pin(async {
            let (at, env) = (&inspection.arguments.at, &inspection.env);
            let (options, config) = inspection.log_options()?;
            let bindings = BindingOptions::from_config(&config)?;
            if bindings.is_empty() {
                return Ok(());
            }
            if let LogBackend::Embedded(embedded) = &options.backend {
                if !log::must_be_there(&embedded.dir, at)? {
                    return Ok(());
                }
                if !inspection.arguments.direct
                    && let Some(client) = log::answering(&embedded.dir, at, &config)?
                {
                    let remote = RemoteComponent::new(client, Some("connector"));
                    inspection.components.push(Arc::new(remote));
                    return Ok(());
                }
            }
            let settings = inspection.store_settings()?;
            let store = match uses_store(&options, &settings) {
                true => store::open_database(&settings, env).await?,
                false => None,
            };
            let mut parked = None;
            if let Some((store, shown)) = store {
                let pending = parked::pending(&store).await;
                if pending.map_err(|error| store::report(&shown, &error.into()))? == 0 {
                    parked = Some(parked_store(store, env));
                    inspection.is_store_in_use = true;
                }
            }
            let env = env.fork("bindings");
            let offline = OfflineBindings {
                options,
                bindings,
                parked,
                env,
            };
            inspection.components.push(Arc::new(offline));
            Ok(())
        })
    }
}

/// The bindings of a log that no process answers for.
#[derive(Debug)]
struct OfflineBindings {
    options: LogOptions,
    bindings: Vec<BindingOptions>,
    parked: Option<Arc<dyn ParkedStore>>,
    env: Env,
}

impl OfflineBindings {
    async fn open(&self) -> Result<(OpenLog, BindingBooks), Failure> {
        let open = match &self.options.backend {
            LogBackend::Embedded(config) => {
                let (config, owned) = ((**config).clone(), self.options.owned.clone());
                OpenLog::look(config, owned, &self.env)?.ok_or(LogError::Closed)?
            }
            LogBackend::Kafka(_) => OpenLog::open(&self.options, &self.env, None).await?,
        };
        let books = BindingBooks::new(open.log(), self.bindings.clone());
        let books = books.with_store(self.parked.clone());
        Ok((open, books))
    }
}

impl Component for OfflineBindings {
    fn name(&self) -> &str {
        "connector"
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async {
            let (open, books) = self.open().await?;
            let accounts = books.accounts().await;
            open.close().await;
            accounts
        })
    }

    /// Its events are those of topics.
    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async {
            let (open, books) = self.open().await?;
            let audited = books.audit().await;
            open.close().await;
            audited
        })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move {
            let (open, books) = self.open().await?;
            let found = books.locate(id).await;
            open.close().await;
            found
        })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async { HealthFinding::up() })
    }
}

/// Whether the rows of bindings can be in this store: on a broker a partition moves between machines.
fn uses_store(log: &LogOptions, store: &StoreSettings) -> bool {
    match &log.backend {
        LogBackend::Embedded(_) => true,
        LogBackend::Kafka(_) => store.options.dialect() != Some(Dialect::Sqlite),
    }
}

/// The store of the bindings: where it is configured, and where the keys of one are ordered.
async fn shared_store(
    process: &mut Process,
    bindings: &[BindingOptions],
) -> Result<Option<Arc<dyn ParkedStore>>, ErrorReport> {
    let settings = StoreSettings::of(&process.config)?;
    let mut bindings = bindings.iter();
    let is_wanted =
        settings.is_given || bindings.any(|binding| binding.ordering == OrderingMode::KeyOrdered);
    if !is_wanted || !uses_store(&LogOptions::from_config(&process.config)?, &settings) {
        return Ok(None);
    }
    let (store, shown) = process.store().await?;
    let migrated = parked::migrate(&store).await;
    migrated.map_err(|error| store::report(&shown, &error.into()))?;
    Ok(Some(parked_store(store, &process.env)))
}

/// Refuses bindings without a handler, before anything is opened: this program has no others.
pub(crate) fn refuse_unhandled(config: &Config) -> Result<(), ErrorReport> {
    for name in config.names("eventbus.bindings") {
        let path = format!("eventbus.bindings.{name}");
        if config.names(&format!("{path}.handler")).is_empty() {
            return Err(unhandled(config, &path));
        }
    }
    Ok(())
}

fn unhandled(config: &Config, path: &str) -> ErrorReport {
    let message = "it has no `handler`, and this program has no other: name `http`, `forward`, `queue` or `log`";
    config.problem(path, &message).into()
}

/// The name of this machine, for the identity of static members.
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel tells it in a file, and no simulation runs this"
)]
pub(super) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = name.unwrap_or_default().trim().to_owned();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name
    }
}

async fn bind(process: &mut Process, mut options: BindingOptions) -> Result<Binding, ErrorReport> {
    let path = format!("eventbus.bindings.{}", options.name);
    let config = process.config.clone();
    let handler = format!("{path}.handler");
    let handler = if let Some(url) = config.text(&format!("{handler}.http.url")) {
        BoundHandler::new(HttpHandler::new(url)?)
    } else if let Some(topic) = config.text(&format!("{handler}.forward.topic")) {
        let topic = named(&config, &format!("{handler}.forward.topic"), topic)?;
        // Copy and offset are one commit, unless the file says otherwise. Ordered keys refuse that by name.
        options.transactional = options.hand_off == HandOff::Transactional
            && options.ordering != OrderingMode::KeyOrdered;
        BoundHandler::new(ForwardHandler::new(topic))
    } else if config.is_set(&format!("{handler}.queue")) {
        let (store, shown) = process.store().await?;
        let opened = OpenedStore::on(store, shown, &process.env).await?;
        opened.checked(sql::migrate(&opened.store).await)?;
        BoundHandler::new(QueueHandler {
            queue: opened.queue,
        })
    } else if config.is_set(&format!("{handler}.log")) {
        BoundHandler::new(LogHandler)
    } else {
        return Err(unhandled(&config, &path));
    };
    let letters = options.dlt.strategy;
    let binding = Binding::new(options, handler);
    match letters {
        DltStrategy::StoreOnly | DltStrategy::ScheduledReplay => Ok(binding),
        DltStrategy::AlertAndStore | DltStrategy::Custom => tell(&config, &path, binding),
    }
}

/// Gives dead letters to their handler: an address, or else a line of the log.
fn tell(config: &Config, path: &str, binding: Binding) -> Result<Binding, ErrorReport> {
    let handler = format!("{path}.dlt.handler");
    if let Some(url) = config.text(&format!("{handler}.http.url")) {
        let http = HttpHandler::new(url)?;
        return Ok(binding.on_dead_letter(move |letter| {
            let http = http.clone();
            async move { http.post_letter(&letter.letter).await }
        }));
    }
    for unfit in ["forward", "queue"] {
        if config.is_set(&format!("{handler}.{unfit}")) {
            let message = format!("`{unfit}` takes no dead letters: name `http` or `log`");
            return Err(config
                .problem(&format!("{handler}.{unfit}"), &message)
                .into());
        }
    }
    Ok(binding.on_dead_letter(|letter| async move {
        let letter = letter.letter;
        tracing::error!(
            event = %letter.event_id, topic = %letter.origin.topic, partition = %letter.origin.partition,
            offset = %letter.origin.offset, reason = letter.reason.as_str(), attempts = letter.attempts,
            code = %letter.failure.code, failure = letter.failure.message, "dead letter"
        );
        Ok(())
    }))
}

fn named(config: &Config, path: &str, topic: &str) -> Result<Topic, ErrorReport> {
    Topic::new(topic).map_err(|error| config.problem(path, &error).into())
}

/// Publishes each record into the durable queue, under the id of its event and once for each id.
struct QueueHandler {
    queue: Queue,
}

impl RecordHandler for QueueHandler {
    async fn handle(&self, record: &ConsumedRecord) -> HandlerAnswer {
        let value = record.value().map_or(&b"null"[..], |value| &value[..]);
        let Ok(payload) = std::str::from_utf8(value) else {
            return Err(HandlerFailure::undecodable(
                "the value is not text, and the queue holds JSON",
            ));
        };
        let header = |name: &str| {
            let value = record.headers().get(name)?;
            std::str::from_utf8(value).ok().map(str::to_owned)
        };
        let type_name = header("event-type").unwrap_or_else(|| record.topic().to_string());
        let event = NewEvent::raw(record.event_id(), type_name, payload);
        let mut event = event.map_err(|error| HandlerFailure::undecodable(error.to_string()))?;
        if let Some(key) = record.key() {
            event = event.with_key(String::from_utf8_lossy(key));
        }
        for name in ["traceparent", "tracestate"] {
            if let Some(value) = header(name) {
                event = event.with_header(name, value);
            }
        }
        let published = self.queue.publish_once(&event).await;
        published.map(drop).map_err(|error| {
            let code = Code::from_static("queue.store");
            let failure = Failure::new(error.class(), code, error.to_string());
            failure.with_source(error).into()
        })
    }
}
