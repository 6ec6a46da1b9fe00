//! Finds the log: in its directory, at the process that holds it, or on Kafka.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_client::{ProcessClient, RemoteLog, reachable};
use tidegate_config::Config;
use tidegate_connector::{BindingOptions, ConnectorError};
use tidegate_core::env::Env;
use tidegate_core::env::system::SystemDisk;
use tidegate_core::{Failure, Topic};
use tidegate_log::embedded::{LockHolder, Presence, lock_holder, presence};
use tidegate_log::{Log, LogAdmin, LogBackend, LogError, LogOptions, OpenLog, OwnedGroup};

use crate::args::{ConfigFile, LogAt};
use crate::report::{ErrorReport, say};
use crate::settings;

/// How long a directory that another command holds is waited for, and the pause between two looks.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// The wait before a second look for a log that seems to be gone.
const A_MOMENT: Duration = Duration::from_millis(200);

/// How long somebody at a terminal waits for a broker.
const BROKER_PATIENCE: Duration = Duration::from_secs(10);

/// A log that can be used.
pub(crate) enum LogAccess {
    /// It is open here.
    Local(OpenLog),
    /// A running process answers for it.
    Remote(RemoteLog),
}

impl LogAccess {
    /// The log.
    pub(crate) fn log(&self) -> Arc<dyn Log> {
        match self {
            Self::Local(opened) => opened.log(),
            Self::Remote(remote) => Arc::new(remote.clone()),
        }
    }

    /// The same, for what operators do.
    pub(crate) fn admin(&self) -> Arc<dyn LogAdmin> {
        match self {
            Self::Local(opened) => Arc::new(opened.clone()),
            Self::Remote(remote) => Arc::new(remote.clone()),
        }
    }

    /// Closes it, if it is open here. Returns when nothing is left to do on disk.
    pub(crate) async fn close(self) {
        if let Self::Local(opened) = self {
            opened.close().await;
        }
    }
}

/// The groups of bindings and stages, for whose books connector and stages answer.
pub(crate) fn owned_groups(config: &Config) -> Result<Vec<OwnedGroup>, ErrorReport> {
    let bindings = BindingOptions::from_config(config)?;
    let owned = bindings.iter().map(BindingOptions::owned_group);
    let owned = owned.collect::<Result<Vec<OwnedGroup>, _>>();
    let mut owned = owned.map_err(|error| Failure::from(ConnectorError::Name(error)))?;
    owned.extend(crate::parts::owned_by_stages(config)?);
    Ok(owned)
}

/// The configuration of a command that uses the log.
pub(crate) fn configured(
    file: &ConfigFile,
    dir: Option<&Path>,
) -> Result<(LogOptions, Config), ErrorReport> {
    let config = settings::quietly(file)?;
    let mut found = LogOptions::from_config(&config)?;
    found.owned = owned_groups(&config)?;
    if let LogBackend::Kafka(kafka) = &mut found.backend {
        kafka.request_timeout = kafka.request_timeout.min(BROKER_PATIENCE);
    }
    if let Some(dir) = dir {
        found = found.in_dir(dir);
    }
    Ok((found, config))
}

/// Reaches the log for reading alone: asks the process that answers for it, else reads its files. Nothing is
/// made and nothing is written; a process that is there and does not answer is not asked if that is `direct`.
pub(crate) async fn reach_to_read(
    file: &ConfigFile,
    at: &LogAt,
    is_direct: bool,
    env: &Env,
) -> Result<LogAccess, ErrorReport> {
    if let Some(url) = &at.url {
        let client = ProcessClient::new(url, at.token.clone());
        return Ok(LogAccess::Remote(RemoteLog::connect(client).await?));
    }
    let (settings, config) = configured(file, at.dir.as_deref())?;
    let LogBackend::Embedded(embedded) = &settings.backend else {
        return Ok(LogAccess::Local(OpenLog::open(&settings, env, None).await?));
    };
    must_hold_a_log(&embedded.dir)?;
    if !is_direct && let Some(client) = answering(&embedded.dir, at, &config)? {
        return match RemoteLog::connect(client).await {
            Ok(remote) => Ok(LogAccess::Remote(remote)),
            Err(error) => Err(ErrorReport::from(error).with_hint(
                "the process that has the log does not answer; `--direct` reads its files beside it",
            )),
        };
    }
    let (config, owned) = ((**embedded).clone(), settings.owned.clone());
    match OpenLog::look(config, owned, env)? {
        Some(open) => Ok(LogAccess::Local(open)),
        None => Err(missing(&embedded.dir)),
    }
}

/// Opens the log, or finds the process that answers for it. Where there is no log yet, one is made
/// for a `topic` that is configured, and for no other.
pub(crate) async fn reach(
    file: &ConfigFile,
    at: &LogAt,
    topic: Option<&Topic>,
    env: &Env,
) -> Result<LogAccess, ErrorReport> {
    if let Some(url) = &at.url {
        let client = ProcessClient::new(url, at.token.clone());
        return Ok(LogAccess::Remote(RemoteLog::connect(client).await?));
    }
    let (settings, config) = configured(file, at.dir.as_deref())?;
    if let (LogBackend::Embedded(embedded), Some(topic)) = (&settings.backend, topic) {
        let is_there = presence(&SystemDisk, &embedded.dir)? == Presence::There;
        if !is_there && !settings.topics.contains_key(topic) {
            let topic = topic.clone();
            return Err(LogError::UnknownTopic { topic }.into());
        }
    }
    warn_if_emptied(&settings)?;
    let mut left = PATIENCE;
    loop {
        let error = match OpenLog::open_with_topics(&settings, env, None).await {
            Ok(opened) => return Ok(LogAccess::Local(opened)),
            Err(error) => error,
        };
        let LogError::Locked { holder, .. } = &error else {
            return Err(error.into());
        };
        if let Some(client) = client_of(holder.clone(), at, &config) {
            return Ok(LogAccess::Remote(RemoteLog::connect(client).await?));
        }
        // Another command, which will be done in a moment.
        if left.is_zero() {
            return Err(error.into());
        }
        if left == PATIENCE {
            say("the log directory is held by another process; waiting for it");
        }
        left = left.saturating_sub(PAUSE);
        env.clock.sleep(PAUSE).await;
    }
}

/// Opens a log that must be there, or finds the process that answers for it.
pub(crate) async fn reach_existing(
    file: &ConfigFile,
    at: &LogAt,
    env: &Env,
) -> Result<LogAccess, ErrorReport> {
    if at.url.is_none() {
        let (settings, _) = configured(file, at.dir.as_deref())?;
        if let LogBackend::Embedded(embedded) = &settings.backend {
            must_hold_a_log(&embedded.dir)?;
        }
    }
    reach(file, at, None, env).await
}

/// Says so where a new log is about to be made in place of one that is gone.
pub(crate) fn warn_if_emptied(options: &LogOptions) -> Result<(), ErrorReport> {
    let LogBackend::Embedded(embedded) = &options.backend else {
        return Ok(());
    };
    let dir = &embedded.dir;
    let is_emptied = presence(&SystemDisk, dir)? == Presence::Emptied;
    if is_emptied && lock_holder(&SystemDisk, dir)?.is_none() {
        say(&format!(
            "a log was opened in `{}` before, and nothing of it is left; a new one is made",
            dir.display()
        ));
    }
    Ok(())
}

/// Whether there is a log in a directory. A named one must be there; a configured one need not:
/// nothing was ever sent then. Where all of it but a trace is gone nobody can say that.
pub(crate) fn must_be_there(dir: &Path, at: &LogAt) -> Result<bool, ErrorReport> {
    if at.dir.is_some() {
        must_hold_a_log(dir)?;
    }
    is_there(dir)
}

/// The directory must hold a log.
pub(crate) fn must_hold_a_log(dir: &Path) -> Result<(), ErrorReport> {
    match is_there(dir)? {
        true => Ok(()),
        false => Err(missing(dir)),
    }
}

/// Looks for a log, and twice where one seems to be gone: a process that is just making it needs a
/// moment.
fn is_there(dir: &Path) -> Result<bool, ErrorReport> {
    let mut found = presence(&SystemDisk, dir)?;
    if found == Presence::Emptied {
        std::thread::sleep(A_MOMENT);
        found = presence(&SystemDisk, dir)?;
    }
    match found {
        Presence::There => Ok(true),
        Presence::Absent => Ok(false),
        Presence::Emptied => Err(emptied(dir)),
    }
}

/// The report of a directory without a log.
fn missing(dir: &Path) -> ErrorReport {
    // error-page: log.missing
    let message = format!("there is no log in `{}`", dir.display());
    ErrorReport::new("log.missing", message)
        .with_hint("it is made by `tidegate run`, or by the first `tidegate send`")
}

/// The report of a directory of whose log nothing is left.
fn emptied(dir: &Path) -> ErrorReport {
    let dir = dir.display();
    ErrorReport::new(
        "log.missing",
        format!(
            "a log was opened in `{dir}`, and nothing of it is left: what it held nobody can say"
        ),
    )
    .with_hint(
        "put back a backup of the directory; if nothing was ever sent to it, or what was may be \
         forgotten, remove the directory",
    )
}

/// The process that holds a directory; none where nobody does, or does not say where it answers.
pub(crate) fn answering(
    dir: &Path,
    at: &LogAt,
    config: &Config,
) -> Result<Option<ProcessClient>, ErrorReport> {
    let holder = lock_holder(&SystemDisk, dir)?;
    Ok(holder.and_then(|holder| client_of(holder, at, config)))
}

fn client_of(holder: LockHolder, at: &LogAt, config: &Config) -> Option<ProcessClient> {
    let url = holder.url?;
    let given = at.token.clone().filter(|token| !token.is_empty());
    let token = given.or_else(|| token_for(&url, config));
    Some(ProcessClient::new(&url, token))
}

/// The configured token, for an address that is this machine's or the configured one. A lock file
/// that somebody else wrote must not make us send it anywhere.
fn token_for(url: &str, config: &Config) -> Option<String> {
    let listen = config.text("server.listen").unwrap_or_default();
    let address = url.strip_prefix("http://")?;
    let is_loopback = address
        .parse::<std::net::SocketAddr>()
        .is_ok_and(|address| address.ip().is_loopback());
    let is_ours = is_loopback || address == reachable(listen);
    let token = config.secret("server.token")?;
    is_ours.then(|| token.expose().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configured_token_stays_on_this_machine() {
        use tidegate_config::{Inputs, load};
        let text = "server: {token: sesame, listen: \"10.0.0.7:80\"}\n";
        let config = load(&Inputs::of_text("tidegate.yaml", text)).config;
        for (url, is_sent) in [
            ("http://127.0.0.1:1", true),
            ("http://[::1]:1", true),
            ("http://10.0.0.7:80", true),
            ("http://10.0.0.8:80", false),
            ("http://evil:80", false),
        ] {
            assert_eq!(token_for(url, &config).is_some(), is_sent, "{url}");
        }
    }
}
