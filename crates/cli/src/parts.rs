//! The parts of this program: one file each, and one line in [`PARTS`].

mod connector;
mod eventlog;
mod log;
mod outbox;
mod queue;
mod spill;
mod stage;
mod witness;

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_client::{ProcessClient, RemoteComponent, reachable};
use tidegate_config::{Config, Part as Section};
use tidegate_core::books::Ledger;
use tidegate_core::env::{BoxFuture, Env, Task};
use tidegate_core::{Component, Shutdown};
use tidegate_log::{Log, LogOptions};
use tidegate_server::{IdempotencyKeys, Routes, ServerBuilder};
use tidegate_store::migrate::{self, STORE_MIGRATIONS, STORE_PART};
use tidegate_store::{Store, StoreComponent};

pub(crate) use connector::refuse_unhandled;
pub(crate) use stage::{OpenedStage, owned_groups as owned_by_stages};

use crate::args::{AuditArgs, StoreAt};
use crate::report::ErrorReport;
use crate::store::{self, DatabaseView, StoreSettings};

/// Every part, in the order in which events pass through them. They are opened in this order and closed in
/// the reverse.
const PARTS: [&dyn Part; 8] = [
    &spill::SpillPart,
    &eventlog::EventLogPart,
    &log::LogPart,
    &outbox::OutboxPart,
    &queue::QueuePart,
    &connector::ConnectorPart,
    &stage::StagePart,
    &witness::WitnessPart,
];

/// A call of a part on its way.
type PartFuture<'a> = BoxFuture<'a, Result<(), ErrorReport>>;

/// A part of this program.
trait Part: Sync {
    /// The sections of the configuration that it runs.
    fn sections(&self) -> &'static [Section];

    /// Starts the part as configured: adds its components, its routes and its line of the banner.
    fn open<'a>(&'a self, process: &'a mut Process) -> PartFuture<'a>;

    /// Whether a command line names something of it. A user who names one kind of thing wants that alone.
    fn is_named(&self, arguments: &AuditArgs) -> bool;

    /// Adds what `audit` and `where` can read of it without running it.
    fn inspect<'a>(&'a self, inspection: &'a mut InspectionTargets) -> PartFuture<'a>;
}

/// The sections that this program runs.
pub(crate) fn built() -> Vec<Section> {
    let sections = PARTS.iter().flat_map(|part| part.sections());
    sections.copied().chain([Section::Server]).collect()
}

/// A process and the components it has so far.
pub(crate) struct Process {
    pub(crate) config: Config,
    pub(crate) env: Env,
    /// Where it answers, such as `http://127.0.0.1:8080`.
    url: String,
    components: Vec<Arc<dyn Component>>,
    routes: Vec<Routes>,
    /// The name of each part that was opened, and where it is.
    pub(crate) banner: Vec<(&'static str, String)>,
    /// The database and what messages call it, once a part wants it.
    store: Option<(Store, String)>,
    /// The log, for parts that publish to it.
    log: Option<Arc<dyn Log>>,
}

impl Process {
    /// Opens every part that is configured. If one cannot be opened, the others are closed again.
    pub(crate) async fn open(
        config: Config,
        env: Env,
        address: SocketAddr,
    ) -> Result<Self, ErrorReport> {
        let mut process = Self {
            config,
            env,
            url: format!("http://{}", reachable(&address.to_string())),
            components: Vec::new(),
            routes: Vec::new(),
            banner: Vec::new(),
            store: None,
            log: None,
        };
        for part in PARTS {
            if let Err(report) = part.open(&mut process).await {
                process.close().await;
                return Err(report);
            }
        }
        Ok(process)
    }

    /// The database of the configuration, opened once for all parts that want it.
    async fn store(&mut self) -> Result<(Store, String), ErrorReport> {
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        let settings = StoreSettings::of(&self.config)?;
        let (store, shown) = store::make(&settings, &self.env).await?;
        let component = StoreComponent::new(store.clone(), &settings.options, &self.env);
        self.components.push(Arc::new(component));
        self.banner.push(("store", shown.clone()));
        Ok(self.store.insert((store, shown)).clone())
    }

    /// Where the answers to requests with an `Idempotency-Key` are kept: in the database, where this process has
    /// one.
    async fn idempotency_keys(&mut self) -> Result<Option<IdempotencyKeys>, ErrorReport> {
        if self.store.is_none() && !StoreSettings::of(&self.config)?.is_given {
            return Ok(None);
        }
        let (store, shown) = self.store().await?;
        let migrated = migrate::migrate(&store, STORE_PART, STORE_MIGRATIONS).await;
        migrated.map_err(|error| store::report(&shown, &error.into()))?;
        let ttl = self.config.duration("idempotency-ttl");
        Ok(Some(IdempotencyKeys {
            store,
            clock: Arc::clone(&self.env.clock),
            ttl: ttl.unwrap_or_default(),
        }))
    }

    /// Hands components and routes over to the server.
    pub(crate) fn serve(&mut self, mut builder: ServerBuilder) -> ServerBuilder {
        for component in &self.components {
            builder = builder.component(Arc::clone(component));
        }
        for routes in self.routes.drain(..) {
            builder = builder.routes(routes);
        }
        builder
    }

    /// Starts the background work of all components.
    pub(crate) fn run(&self, stop: &Shutdown) -> Vec<Task> {
        let components = self.components.iter();
        let tasks = components.map(|component| {
            let running = Arc::clone(component).run(stop.clone());
            self.env.spawn.spawn(component.name(), running)
        });
        tasks.collect()
    }

    /// Waits for the end of that work, reads the books for the last time and closes everything.
    pub(crate) async fn end(&self, tasks: Vec<Task>) -> Result<Ledger, ErrorReport> {
        for task in tasks {
            task.join().await;
        }
        let read = async {
            let mut accounts = Vec::new();
            for component in &self.components {
                accounts.extend(component.accounts().await?);
            }
            Ok(Ledger::new(accounts))
        };
        let ledger = read.await;
        self.close().await;
        ledger
    }

    async fn close(&self) {
        for component in self.components.iter().rev() {
            component.close().await;
        }
    }
}

/// The components that `audit` and `where` look at.
pub(crate) struct InspectionTargets {
    pub(crate) arguments: AuditArgs,
    env: Env,
    /// In the order in which events pass through them.
    pub(crate) components: Vec<Arc<dyn Component>>,
    /// Whether a part has its tables in the store. Those of the others may be absent then.
    is_store_in_use: bool,
    /// A copy of the database, where the file itself cannot be opened without writing to it.
    view: Option<DatabaseView>,
    is_file_checked: bool,
}

impl InspectionTargets {
    /// The database that is named or configured.
    fn store_settings(&self) -> Result<StoreSettings, ErrorReport> {
        let mut settings = store::named(&StoreAt {
            file: self.arguments.spills.file.clone(),
            store: self.arguments.store.clone(),
        })?;
        if let Some(view) = &self.view {
            settings.options.url = view.url();
        }
        Ok(settings)
    }

    /// Copies the database where it must not be written to: SQLite writes beside its file as soon as it opens
    /// it.
    fn view_database(&mut self) -> Result<(), ErrorReport> {
        // A configuration with problems is told by whoever needs it.
        let settings = self.store_settings().ok();
        let file = settings.as_ref().and_then(|found| found.options.file());
        let Some(file) = file else {
            return Ok(());
        };
        let is_file = std::fs::metadata(file).is_ok_and(|found| found.is_file());
        let is_writable = || OpenOptions::new().write(true).open(file).is_ok();
        if is_file && (self.arguments.direct || !is_writable()) {
            self.view = Some(DatabaseView::of(file)?);
        }
        Ok(())
    }

    /// Has the file of a database be looked at too, once.
    fn check_file(&mut self, store: &Store, settings: &StoreSettings) {
        if !std::mem::replace(&mut self.is_file_checked, true) {
            let component = StoreComponent::new(store.clone(), &settings.options, &self.env);
            self.components.push(Arc::new(component));
        }
    }

    /// The log that is named or configured, and the configuration.
    fn log_options(&self) -> Result<(LogOptions, Config), ErrorReport> {
        let at = &self.arguments.at;
        crate::log::configured(&self.arguments.spills.file, at.dir.as_deref())
    }

    /// Finds what a command line names, or everything that is configured.
    pub(crate) async fn of(arguments: &AuditArgs, env: Env) -> Result<Self, ErrorReport> {
        let mut inspection = Self {
            arguments: arguments.clone(),
            env,
            components: Vec::new(),
            is_store_in_use: false,
            view: None,
            is_file_checked: false,
        };
        let url = arguments.at.url.as_deref();
        let is_named = url.is_some() || PARTS.iter().any(|part| part.is_named(arguments));
        if !is_named || arguments.store.is_some() {
            inspection.view_database()?;
        }
        for part in PARTS {
            if !is_named || part.is_named(arguments) {
                part.inspect(&mut inspection).await?;
            }
        }
        if let Some(url) = url {
            let client = ProcessClient::new(url, arguments.at.token.clone());
            let remote = RemoteComponent::new(client, None);
            inspection.components.push(Arc::new(remote));
        }
        Ok(inspection)
    }
}
