//! `tidegate doctor`: what `run` needs on this machine, each with what to do about it. Nothing is changed.

mod bundle;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tidegate_client::{ProcessClient, reachable};
use tidegate_config::Config;
use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{Disk, Env};
use tidegate_core::{error_chain, iso_time};
use tidegate_log::embedded::{EmbeddedConfig, Presence, lock_holder, presence};
use tidegate_log::{LogBackend, OpenLog};
use tidegate_logger::spill::{SpillDirectory, inspect};

use crate::args::{ConfigFile, Output};
use crate::report::{ErrorReport, Exit};
use crate::store::{self, StoreSettings};
use crate::witness::WitnessFile;
use crate::{log, settings, table};

/// The files of a journal that are in use or kept ready at once.
const JOURNAL_FILES: u64 = 7;

/// How long a process may take to answer. Another program may listen there.
const ANSWER: Duration = Duration::from_secs(2);

/// A clock outside of these years is wrong: ids and retention follow it.
const YEARS_MS: std::ops::Range<u64> = 1_704_067_200_000..4_102_444_800_000;

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Examined {
    name: &'static str,
    ok: bool,
    text: String,
    /// The advice.
    todo: Option<String>,
}

impl Examined {
    fn fine(name: &'static str, text: impl Into<String>) -> Self {
        Self {
            name,
            ok: true,
            text: text.into(),
            todo: None,
        }
    }

    fn wrong(name: &'static str, text: impl Into<String>, todo: &str) -> Self {
        Self {
            name,
            ok: false,
            text: text.into(),
            todo: Some(todo.to_owned()),
        }
    }

    fn failed(name: &'static str, report: &ErrorReport) -> Self {
        let todo = format!("see `tidegate explain {}`", report.code());
        Self::wrong(name, report.summary(), &todo)
    }

    fn line(&self) -> String {
        let mark = if self.ok { '✓' } else { '✗' };
        let todo = self
            .todo
            .as_ref()
            .map_or_else(String::new, |todo| format!("\n    → {todo}"));
        table::plain(&format!("{mark} {:<8} {}{todo}", self.name, self.text))
    }
}

pub(crate) async fn run(
    file: &ConfigFile,
    bundle: Option<&Path>,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let loaded = settings::read(file)?.loaded;
    let mut all = vec![match loaded.problems.len() {
        0 => Examined::fine("config", "no problems"),
        count => {
            let problems = table::counted(count as u64, "problem");
            Examined::wrong("config", problems, "see `tidegate check`")
        }
    }];
    let config = &loaded.config;
    let env = Env::system();
    all.push(clock(&env));
    all.push(
        log_of(file, &env)
            .await
            .unwrap_or_else(|report| Examined::failed("log", &report)),
    );
    all.push(store_of(config, &env).await);
    all.push(server(config, &env).await);
    all.extend(
        config
            .text("eventlog.async.spillover-path")
            .map(|dir| spill(Path::new(dir))),
    );
    all.extend(
        config
            .text("audit.witness")
            .map(|path| witness(Path::new(path), config, &env)),
    );
    let is_well = all.iter().all(|one| one.ok);
    if let Some(path) = bundle {
        bundle::write(path, &all, config, file).await?;
    }
    output.print(&json!({ "checks": all, "bundle": bundle }), || {
        let mut lines: Vec<String> = all.iter().map(Examined::line).collect();
        lines.extend(bundle.map(|path| {
            let path = path.display();
            format!(
                "{path} is written: names, numbers and settings; no secret, and nothing of an event"
            )
        }));
        lines.join("\n")
    })?;
    Ok(Exit::Findings.unless(is_well))
}

fn clock(env: &Env) -> Examined {
    let now_ms = env.clock.now_ms();
    let now = iso_time(now_ms).unwrap_or_else(|| "a time that no calendar has".to_owned());
    match YEARS_MS.contains(&now_ms) {
        true => Examined::fine("clock", now),
        false => Examined::wrong(
            "clock",
            now,
            "set the clock: ids, retention and leases follow it",
        ),
    }
}

async fn log_of(file: &ConfigFile, env: &Env) -> Result<Examined, ErrorReport> {
    let (options, _) = log::configured(file, None)?;
    match &options.backend {
        LogBackend::Embedded(embedded) => embedded_log(embedded),
        LogBackend::Kafka(kafka) => {
            let open = OpenLog::open(&options, env, None).await?;
            let topics = open.log().topics().await?.len() as u64;
            let topics = table::counted(topics, "topic");
            Ok(Examined::fine(
                "log",
                format!("kafka {}: {topics}", kafka.bootstrap_servers),
            ))
        }
    }
}

fn embedded_log(embedded: &EmbeddedConfig) -> Result<Examined, ErrorReport> {
    let dir = &embedded.dir;
    let shown = dir.display();
    if let Some(holder) = lock_holder(&SystemDisk, dir)? {
        let url = holder.url.unwrap_or_else(|| "no address".to_owned());
        return Ok(Examined::fine(
            "log",
            format!("{shown} is held by a process at {url}"),
        ));
    }
    let state = match presence(&SystemDisk, dir)? {
        Presence::There => "holds a log",
        Presence::Absent => "is made by the first start",
        Presence::Emptied => {
            let text = format!("{shown} has lost its files");
            return Ok(Examined::wrong(
                "log",
                text,
                "see `tidegate explain log.missing`",
            ));
        }
    };
    let place = existing(dir);
    if is_read_only(&place) {
        let text = format!("`{}` cannot be written to", place.display());
        return Ok(Examined::wrong(
            "log",
            text,
            "give this user the right to write there",
        ));
    }
    let needed = embedded.journal_size.saturating_mul(JOURNAL_FILES);
    Ok(match SystemDisk.space_left(&place) {
        Ok(left) if left < needed => {
            let text = format!("{shown} has {left} bytes left, and its journal needs {needed}");
            let todo = "make room on the disk, or set a smaller `log.embedded.journal-size`";
            Examined::wrong("log", text, todo)
        }
        Ok(left) => {
            let left = left / (1024 * 1024);
            Examined::fine("log", format!("{shown} {state}; {left} MiB are left"))
        }
        Err(error) => Examined::wrong("log", error.to_string(), "is its disk mounted?"),
    })
}

/// The directory, or the nearest one above it that is there.
fn existing(dir: &Path) -> PathBuf {
    let mut at = dir;
    loop {
        match (std::fs::metadata(at), at.parent()) {
            (Err(_), Some(above)) if above != Path::new("") => at = above,
            (Err(_), _) => return PathBuf::from("."),
            (Ok(_), _) => return at.to_owned(),
        }
    }
}

fn is_read_only(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.permissions().readonly())
}

async fn store_of(config: &Config, env: &Env) -> Examined {
    let opened = async {
        let settings = StoreSettings::of(config)?;
        store::open_database(&settings, env).await
    };
    match opened.await {
        Ok(None) => Examined::fine("store", "the database is made by the first start"),
        Ok(Some((store, shown))) => match store.ping().await {
            Ok(()) => Examined::fine("store", shown),
            Err(error) => {
                let text = format!("{shown}: {}", error_chain(&error));
                Examined::wrong("store", text, "see `tidegate explain store.away`")
            }
        },
        Err(report) => Examined::failed("store", &report),
    }
}

/// The process that the configuration would start, should it run.
fn client(config: &Config) -> ProcessClient {
    let listen = config.text("server.listen").unwrap_or_default();
    let token = config
        .secret("server.token")
        .map(|token| token.expose().to_owned());
    ProcessClient::new(&format!("http://{}", reachable(listen)), token)
}

async fn server(config: &Config, env: &Env) -> Examined {
    let listen = config.text("server.listen").unwrap_or_default();
    let asked = client(config);
    let answer = env.clock.within(ANSWER, asked.ledger()).await;
    if answer.is_some_and(|answer| answer.is_ok()) {
        return Examined::fine("server", format!("a process answers at {listen}"));
    }
    let Ok(address) = listen.parse::<SocketAddr>() else {
        return Examined::fine("server", listen);
    };
    match TcpListener::bind(address) {
        Ok(_) => Examined::fine("server", format!("{listen} is free")),
        Err(error) => {
            let text = format!("{listen}: {error}");
            Examined::wrong(
                "server",
                text,
                "stop whoever listens there, or set another `server.listen`",
            )
        }
    }
}

fn spill(dir: &Path) -> Examined {
    let name = SpillDirectory::name_of(dir);
    match inspect(&SystemDisk, dir) {
        Ok(found) => {
            let waiting = table::counted(found.waiting(), "event");
            Examined::fine("spill", format!("{name}: {waiting} wait for replay"))
        }
        Err(error) => Examined::wrong(
            "spill",
            format!("{name}: {}", error_chain(&error)),
            "see `tidegate spill check`",
        ),
    }
}

fn witness(path: &Path, config: &Config, env: &Env) -> Examined {
    if let Err(report) = WitnessFile::at(path, env).read() {
        return Examined::failed("witness", &report);
    }
    let device = |path: &Path| -> io::Result<u64> { Ok(std::fs::metadata(existing(path))?.dev()) };
    let data = config.text("log.embedded.path").unwrap_or_default();
    match (device(path), device(Path::new(data))) {
        (Ok(one), Ok(two)) if one == two => {
            let text = format!("{} is on the disk of the log", path.display());
            Examined::wrong(
                "witness",
                text,
                "name a file on another disk: this one is lost together with the log",
            )
        }
        _ => Examined::fine("witness", path.display().to_string()),
    }
}
