//! `tidegate run`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_config::Config;
use tidegate_core::EventIds;
use tidegate_core::HealthFinding;
use tidegate_core::books::Ledger;
use tidegate_core::env::{Env, Spawn};
use tidegate_server::log::{LogDesk, log_routes};
use tidegate_server::{BindError, Exporter, Health, Limits, Server, ServerConfig, Token};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{ConfigFile, Output};
use crate::ask::reachable;
use crate::log::{self, Backend, LogSettings, LogWitness, Opened, watch_lag};
use crate::report::{Exit, Report, Voice, print, print_json, say};
use crate::store::{self, QueueWitness, StoreSettings, Tending};
use crate::{settings, table};

/// Share of `shutdown-timeout` that requests in flight get; the rest is for closing the books.
const DRAIN_SHARE: f64 = 0.9;
/// `shutdown-timeout` where the configuration does not say.
const SHUTDOWN: Duration = Duration::from_secs(30);
/// What closing gets at least, however short `shutdown-timeout` is.
const LEAST_CLOSE: Duration = Duration::from_secs(1);

/// Starts what is configured, and returns once a signal came and everything was drained.
pub(crate) async fn run(
    arguments: &ConfigFile,
    output: Output,
    voice: Voice,
) -> Result<Exit, Report> {
    let mut settings = settings::read(arguments)?;
    settings.loaded.require_built(&settings::BUILT);
    let config = settings::checked(settings.loaded, voice)?;
    // From here on a signal means a drain: whoever can reach us, or read that we run, may send one.
    let signals = Signals::register()?;
    let env = Env::system();
    let health = Health::new(env.clock.clone());
    let exporter = Exporter::install()
        .map_err(|error| Report::of("internal", "cannot start the metrics", &error))?;
    let log_settings = LogSettings::of(&config)?;
    let store = Stored::open(&config, &env).await?;
    let (builder, address) = Server::builder(server_config(&config)?)
        .listen()
        .await
        .map_err(refused)?;
    // Who finds the directory held asks where the lock file says.
    let answers_at = format!("http://{}", reachable(&address.to_string()));
    let opened = Opened::open_with_topics(&log_settings, &env, Some(answers_at)).await;
    let opened = opened.map_err(|error| log::report(&error))?;
    let witness = Arc::new(LogWitness(opened.clone()));
    let checked = opened.clone();
    health.register("log", move || {
        let opened = checked.clone();
        async move { finding(opened.trouble().await, opened.no_room()) }
    });
    let body = log_settings.longest_body().max(limits(&config).max_body);
    let desk = LogDesk {
        log: opened.log(),
        ids: EventIds::new(Arc::clone(&env.clock), env.entropy.fork("ids")),
        witness: Arc::clone(&witness) as _,
    };
    let mut builder = builder
        .health(health.clone())
        .metrics(exporter)
        .accounts(Arc::clone(&witness) as _)
        .routes_with_bodies(log_routes(desk), body);
    if let Some(stored) = &store {
        stored.watch(&health);
        builder = builder.accounts(QueueWitness::of(&stored.opened));
    }
    let server = builder.bind(&env).await.map_err(refused)?;
    let tending = store.as_ref();
    let tending = tending.map(|stored| Tending::start(&stored.opened, &config, &env));
    let lag = watch_lag(opened.clone(), Arc::clone(&env.clock));
    let lag = env.spawn.spawn("log-lag", Box::pin(lag));
    let parts = Parts {
        log: &log_settings,
        store: store.as_ref(),
    };
    announce(&server, &parts, settings.file.as_deref(), voice);
    let report = server
        .run(signals.stop(health, Arc::clone(&env.spawn), voice))
        .await;
    lag.abort();
    tracing::info!(
        connections = report.connections,
        requests = report.requests,
        cut = report.cut,
        "stopped"
    );
    let shutdown = config.duration("shutdown-timeout").unwrap_or(SHUTDOWN);
    let left = shutdown.mul_f64(1.0 - DRAIN_SHARE).max(LEAST_CLOSE);
    let closing = close(&opened, store.as_ref().zip(tending));
    let ledger = tokio::select! {
        biased;
        closed = closing => closed?,
        () = env.clock.sleep(left) => return Err(not_closed()),
    };
    match output {
        Output::Json => print_json(&ledger)?,
        Output::Table => print(&table::ledger(&ledger))?,
    }
    Ok(if ledger.balanced {
        Exit::Ok
    } else {
        Exit::Loss
    })
}

/// The database that is configured, and the queue in it.
struct Stored {
    settings: StoreSettings,
    opened: store::Opened,
    /// Migrations that ran.
    ran: usize,
}

impl Stored {
    /// Opens what is configured, and brings its tables up to date; none where nothing is.
    async fn open(config: &Config, env: &Env) -> Result<Option<Self>, Report> {
        let settings = StoreSettings::of(config);
        if !settings.is_given {
            return Ok(None);
        }
        let (opened, ran) = store::open_and_migrate(&settings, env).await?;
        Ok(Some(Self {
            settings,
            opened,
            ran,
        }))
    }

    /// From now on we are ready only while the database answers.
    fn watch(&self, health: &Health) {
        let (opened, settings) = (self.opened.clone(), self.settings.clone());
        health.register("store", move || {
            let (opened, settings) = (opened.clone(), settings.clone());
            async move { store::finding(&opened, &settings).await }
        });
    }
}

/// Ends what tends the queue, reads the books for the last time and closes the log.
async fn close(opened: &Opened, stored: Option<(&Stored, Tending)>) -> Result<Ledger, Report> {
    let components = opened.components().await;
    opened.close().await;
    let mut components = components.map_err(|error| log::report(&error))?;
    if let Some((stored, tending)) = stored {
        tending.stop().await;
        let component = store::component(&stored.opened).await;
        components.push(component.map_err(|error| stored.opened.report(&error))?);
    }
    Ok(Ledger::new(components))
}

fn not_closed() -> Report {
    Report::new(
        "log.not-closed",
        "not everything was closed in time: the disk, the broker or the database does not answer",
    )
    .with_hint("nothing that was acknowledged is lost; the next start reads the journal")
}

/// A log that has no room is ready for everything but appends, which are refused by name.
fn finding(trouble: Option<String>, no_room: Option<String>) -> HealthFinding {
    match (trouble, no_room) {
        (Some(why), _) => HealthFinding::down(why),
        (None, Some(why)) => HealthFinding::degraded(format!("appends are refused: {why}")),
        (None, None) => HealthFinding::up(),
    }
}

fn server_config(config: &Config) -> Result<ServerConfig, Report> {
    let listen = config.text("server.listen").unwrap_or_default();
    let token = config
        .secret("server.token")
        .map(|secret| Token::new(secret.expose()))
        .transpose()
        // The configuration has the same rule; its message names the key, and so does this one.
        .map_err(|error| settings::invalid(error.to_string()))?;
    Ok(ServerConfig {
        listen: resolve(listen)?,
        token,
        read_only: config.flag("server.read-only").unwrap_or(false),
        limits: limits(config),
    })
}

fn limits(config: &Config) -> Limits {
    let defaults = Limits::default();
    let bytes = |path: &str, default: usize| {
        let given = config.size(path).and_then(|n| usize::try_from(n).ok());
        given.unwrap_or(default)
    };
    let connections = config.integer("server.max-connections");
    let connections = connections.and_then(|n| NonZeroUsize::new(usize::try_from(n).ok()?));
    let span = |path: &str, default: Duration| config.duration(path).unwrap_or(default);
    let shutdown = span("shutdown-timeout", SHUTDOWN);
    Limits {
        max_body: bytes("server.max-body", defaults.max_body),
        max_header: bytes("server.max-header", defaults.max_header),
        max_connections: connections.unwrap_or(defaults.max_connections),
        header_timeout: span("server.header-timeout", defaults.header_timeout),
        request_timeout: span("server.request-timeout", defaults.request_timeout),
        drain_timeout: shutdown.mul_f64(DRAIN_SHARE),
    }
}

/// The first address that a name such as `localhost:8080` stands for.
fn resolve(listen: &str) -> Result<SocketAddr, Report> {
    let unknown = |why: String| {
        settings::invalid(format!("`server.listen` is `{listen}`: {why}"))
            .with_hint("write an address and a port, such as 127.0.0.1:8080")
    };
    let mut found = listen
        .to_socket_addrs()
        .map_err(|error| unknown(error.to_string()))?;
    found
        .next()
        .ok_or_else(|| unknown("the name has no address".to_owned()))
}

fn refused(error: BindError) -> Report {
    match error {
        // error-page: server.exposed
        BindError::TokenMissing { .. } => Report::new("server.exposed", error.to_string())
            .with_hint("see docs/errors/server.exposed.md")
            .with_exit(Exit::Findings),
        // error-page: server.busy-address
        BindError::Listen { .. } => {
            Report::of("server.busy-address", "cannot start the server", &error)
                .with_hint("stop whoever listens there, or set another `server.listen`")
        }
        _ => Report::of("internal", "cannot start the server", &error),
    }
}

/// What runs beside the server.
struct Parts<'a> {
    log: &'a LogSettings,
    store: Option<&'a Stored>,
}

/// Says that we run, and where.
fn announce(server: &Server, parts: &Parts<'_>, file: Option<&Path>, voice: Voice) {
    let version = env!("CARGO_PKG_VERSION");
    let source = match file {
        Some(file) => file.display().to_string(),
        None => "no tidegate.yaml found, defaults".to_owned(),
    };
    let address = server.local_addr();
    let at = match &parts.log.backend {
        Backend::Embedded(embedded) => format!(
            "embedded {}   (Kafka: set log.clusters.default.bootstrap-servers)",
            embedded.dir.display()
        ),
        Backend::Kafka(kafka) => format!("kafka {}", kafka.bootstrap_servers),
    };
    let store = parts.store.map(|stored| stored.opened.shown.as_str());
    let migrations = parts.store.map_or(0, |stored| stored.ran);
    match voice {
        Voice::Events => {
            tracing::info!(version, config = source, %address, log = at, store, migrations, "listening");
        }
        Voice::Text => say(&format!(
            "tidegate {version} · {source}\n  ✓ log      {at}\n{}  ✓ server   http://{address}   \
             (health /readyz, metrics /metrics, books /tidegate/ledger, API /openapi.json)\n  \
             try:  tidegate demo log     tidegate ledger --url http://{address}",
            store
                .map(|at| store_line(at, migrations))
                .unwrap_or_default()
        )),
    }
}

fn store_line(at: &str, migrations: usize) -> String {
    let made = match migrations {
        0 => String::new(),
        ran => format!("; {} ran", table::counted(ran as u64, "migration")),
    };
    format!(
        "  ✓ store    {at}   (the queue is kept tidy here; handlers run in applications{made})\n"
    )
}

/// SIGTERM and Ctrl-C. From its registration on a signal is kept until it is waited for.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn register() -> Result<Self, Report> {
        let register = |kind| {
            signal(kind).map_err(|error| Report::of("internal", "cannot receive signals", &error))
        };
        Ok(Self {
            terminate: register(SignalKind::terminate())?,
            interrupt: register(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Completes at the first signal. The next one ends the process at once: whoever sends it does
    /// not want to wait for the drain.
    async fn stop(mut self, health: Health, spawn: Arc<dyn Spawn>, voice: Voice) {
        self.next().await;
        health.drain();
        tracing::info!("draining; a second signal ends the process at once");
        let impatient = async move {
            self.next().await;
            let report = Report::new("stopped", "ended by a second signal, without draining");
            report.tell(voice);
            std::process::exit(1);
        };
        drop(spawn.spawn("second-signal", Box::pin(impatient)));
    }
}
