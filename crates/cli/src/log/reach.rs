//! Finds the log: in its directory, at the process that holds it, or on Kafka.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_config::Config;
use tidegate_core::Topic;
use tidegate_core::env::Env;
use tidegate_log::embedded::Presence;
use tidegate_log::{Log, LogError};

use super::{Backend, LogSettings, Opened, remote::RemoteLog, report};
use crate::args::{ConfigFile, LogAt};
use crate::ask::{Target, reachable};
use crate::report::{Report, Voice, say};
use crate::settings;

/// How long a directory that another command holds is waited for, and the pause between two looks.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// The wait before a second look for a log that seems to be gone.
const A_MOMENT: Duration = Duration::from_millis(200);

/// How long somebody at a terminal waits for a broker.
const BROKER_PATIENCE: Duration = Duration::from_secs(10);

/// A log that can be used.
pub(crate) enum Reached {
    /// It is open here.
    Here(Opened),
    /// A running process answers for it.
    There(RemoteLog),
}

impl Reached {
    /// The log.
    pub(crate) fn log(&self) -> Arc<dyn Log> {
        match self {
            Self::Here(opened) => opened.log(),
            Self::There(remote) => Arc::new(remote.clone()),
        }
    }

    /// Closes it, if it is open here. Returns when nothing is left to do on disk.
    pub(crate) async fn close(self) {
        if let Self::Here(opened) = self {
            opened.close().await;
        }
    }
}

/// The configuration of a command that uses the log.
pub(crate) fn configured(
    file: &ConfigFile,
    dir: Option<&Path>,
) -> Result<(LogSettings, Config), Report> {
    let loaded = settings::read(file)?.loaded;
    // Warnings are about what `run` would make of the file, and nothing is run here.
    let config = if loaded.problems.is_empty() {
        loaded.config
    } else {
        settings::checked(loaded, Voice::Text)?
    };
    let mut found = LogSettings::of(&config)?;
    if let Backend::Kafka(kafka) = &mut found.backend {
        kafka.request_timeout = BROKER_PATIENCE;
    }
    if let Some(dir) = dir {
        found = found.in_dir(dir);
    }
    Ok((found, config))
}

/// Opens the log, or finds the process that answers for it. Where there is no log yet, one is made
/// for a `topic` that is configured, and for no other.
pub(crate) async fn reach(
    file: &ConfigFile,
    at: &LogAt,
    topic: Option<&Topic>,
    env: &Env,
) -> Result<Reached, Report> {
    let given = at.token.clone().filter(|token| !token.is_empty());
    if let Some(url) = &at.url {
        let target = Target {
            url: url.trim_end_matches('/').to_owned(),
            token: given,
        };
        return there(target).await;
    }
    let (settings, config) = configured(file, at.dir.as_deref())?;
    if let (Backend::Embedded(embedded), Some(topic)) = (&settings.backend, topic) {
        let found = Opened::presence(&embedded.dir).map_err(|error| report(&error))?;
        let is_there = found == Presence::There;
        let is_configured = settings.topics.iter().any(|(known, _)| known == topic);
        if !is_there && !is_configured {
            let topic = topic.clone();
            return Err(report(&LogError::UnknownTopic { topic }));
        }
    }
    let mut left = PATIENCE;
    loop {
        let error = match Opened::open_with_topics(&settings, env, None).await {
            Ok(opened) => return Ok(Reached::Here(opened)),
            Err(error) => error,
        };
        let Some(holder) = Holder::of(&error) else {
            return Err(report(&error));
        };
        match holder.url {
            Some(url) => {
                return there(Target {
                    token: given.or_else(|| token_for(&url, &config)),
                    url,
                })
                .await;
            }
            // Another command, which will be done in a moment.
            None if !left.is_zero() => {
                if left == PATIENCE {
                    say("the log directory is held by another process; waiting for it");
                }
                left = left.saturating_sub(PAUSE);
                env.clock.sleep(PAUSE).await;
            }
            None => return Err(report(&error)),
        }
    }
}

async fn there(target: Target) -> Result<Reached, Report> {
    let remote = RemoteLog::connect(target).await;
    remote.map(Reached::There).map_err(|error| report(&error))
}

/// Whether there is a log in a directory. A named one must be there; a configured one need not:
/// nothing was ever sent then. Where all of it but a trace is gone nobody can say that.
pub(crate) fn must_be_there(dir: &Path, at: &LogAt) -> Result<bool, Report> {
    match settled_presence(dir)? {
        Presence::There => Ok(true),
        Presence::Emptied => Err(emptied(dir)),
        Presence::Absent if at.dir.is_some() => Err(missing(dir)),
        Presence::Absent => Ok(false),
    }
}

/// The directory must hold a log.
pub(crate) fn must_hold_a_log(dir: &Path) -> Result<(), Report> {
    match settled_presence(dir)? {
        Presence::There => Ok(()),
        Presence::Emptied => Err(emptied(dir)),
        Presence::Absent => Err(missing(dir)),
    }
}

/// Looks for a log, and twice where one seems to be gone: a process that is just making it needs a
/// moment.
fn settled_presence(dir: &Path) -> Result<Presence, Report> {
    let look = || Opened::presence(dir).map_err(|error| report(&error));
    match look()? {
        Presence::Emptied => {
            std::thread::sleep(A_MOMENT);
            look()
        }
        found @ (Presence::There | Presence::Absent) => Ok(found),
    }
}

/// The report of a directory without a log.
fn missing(dir: &Path) -> Report {
    // error-page: log.missing
    Report::new(
        "log.missing",
        format!("there is no log in `{}`", dir.display()),
    )
    .with_hint("it is made by `tidegate run`, or by the first `tidegate send`")
}

/// The report of a directory of whose log nothing is left.
fn emptied(dir: &Path) -> Report {
    let dir = dir.display();
    Report::new(
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

/// Who holds a directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Where it answers for the directory, if it does.
    pub(crate) url: Option<String>,
}

impl Holder {
    /// What a refused opening says about it; none if that was not why.
    pub(crate) fn of(error: &LogError) -> Option<Self> {
        let LogError::Locked { holder, .. } = error else {
            return None;
        };
        let from = holder.find("http://");
        let url = from.map(|from| {
            let rest = &holder[from..];
            let end = rest.find([')', ',', ' ']).unwrap_or(rest.len());
            rest[..end].to_owned()
        });
        Some(Self { url })
    }
}

/// The log of the process that holds a directory; none where nobody does, or does not say where it
/// answers.
pub(crate) async fn holding(
    dir: &Path,
    at: &LogAt,
    config: &Config,
) -> Result<Option<RemoteLog>, Report> {
    let holder = Opened::holder(dir).map_err(|error| report(&error))?;
    let Some(url) = holder.and_then(|holder| holder.url) else {
        return Ok(None);
    };
    let given = at.token.clone().filter(|token| !token.is_empty());
    let target = Target {
        token: given.or_else(|| token_for(&url, config)),
        url,
    };
    let remote = RemoteLog::connect(target).await;
    remote.map(Some).map_err(|error| report(&error))
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
    fn a_lock_file_tells_who_answers() {
        let holder = |text: &str| {
            Holder::of(&LogError::Locked {
                dir: "d".into(),
                holder: text.to_owned(),
            })
        };
        let url = |text: &str| holder(text).unwrap().url;
        assert_eq!(
            url(" (process 7, http://127.0.0.1:8080)").as_deref(),
            Some("http://127.0.0.1:8080")
        );
        assert_eq!(url(" (process 7)"), None);
        assert_eq!(url(""), None);
        assert_eq!(Holder::of(&LogError::Closed), None);
    }

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
