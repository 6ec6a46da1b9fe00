//! The Event Log API of the demo: this program once more, as a process that is stopped and started.

use std::fs::OpenOptions;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Clock, Disk, Entropy};

use super::failed;
use crate::report::ErrorReport;

/// The ports of the documented demo.
const USUAL: (u16, u16) = (3000, 8081);
/// Others are drawn from here. The system gives none of these to outgoing connections. So no connection
/// takes the port of the API while that is stopped.
const OTHERS: (u16, u16) = (20_000, 29_998);
const DRAWS: usize = 50;
/// How long a process may take to stop before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);
/// The end of its log that a report shows, in bytes.
const LOG_TAIL: usize = 600;
const LOG_LIMIT: u64 = 16 * 1024 * 1024;

/// The ports of a demo.
pub(super) struct DemoPorts {
    /// The service listens here from the start to the end of the demo.
    pub(super) resort: TcpListener,
    /// The API listens here while it runs.
    pub(super) api: u16,
}

impl DemoPorts {
    /// The documented ports where they are free, else others.
    ///
    /// The port of the API is free while that is stopped, and another demo must not take it then. Ports are
    /// taken in pairs for that: no demo has the one without the other, which is held all the time.
    pub(super) fn take(entropy: &mut dyn Entropy) -> Result<Self, ErrorReport> {
        let draw = |_| {
            let (least, most) = OTHERS;
            let drawn = entropy.below(u64::from(most - least));
            let api = least + u16::try_from(drawn).unwrap_or(0);
            (api, api + 1)
        };
        let pairs = std::iter::once(USUAL).chain((0..DRAWS).map(draw));
        let mut taken = pairs.filter_map(|(api, resort)| {
            let resort = TcpListener::bind(("127.0.0.1", resort)).ok()?;
            TcpListener::bind(("127.0.0.1", api)).ok()?;
            Some(Self { resort, api })
        });
        taken
            .next()
            .ok_or_else(|| ErrorReport::new("demo.failed", "no two free ports were found"))
    }
}

/// The process. It is killed when this is dropped, and it stops by itself when the demo is killed: its
/// standard input ends then.
pub(super) struct ApiProcess {
    config: PathBuf,
    log: PathBuf,
    url: String,
    client: reqwest::Client,
    clock: Arc<dyn Clock>,
    child: Option<Child>,
}

impl ApiProcess {
    /// A process that is configured by the file `config` to answer at `url`. It does not run yet.
    pub(super) fn new(
        config: PathBuf,
        log: PathBuf,
        url: String,
        client: reqwest::Client,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            config,
            log,
            url,
            client,
            clock,
            child: None,
        }
    }

    /// Starts it, and returns before it answers.
    pub(super) fn spawn(&mut self) -> Result<(), ErrorReport> {
        self.kill();
        let started = || -> io::Result<Child> {
            let log = OpenOptions::new()
                .create(true)
                .append(true)
                .open(&self.log)?;
            Command::new(std::env::current_exe()?)
                .args(["run", "--until-stdin-ends", "--config"])
                .arg(&self.config)
                // Variables of the user would stand over the file.
                .env_clear()
                // Ctrl-C is for the demo, which then stops the process itself.
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()
        };
        let child = started();
        self.child = Some(child.map_err(|error| failed("cannot start the Event Log API", &error))?);
        Ok(())
    }

    /// Whether it answers and can use its store.
    pub(super) async fn is_ready(&self) -> bool {
        let asked = self
            .client
            .get(format!("{}/v1/healthcheck/ready", self.url));
        let answer = asked.timeout(Duration::from_secs(1)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Whether it runs no more.
    pub(super) fn has_ended(&mut self) -> bool {
        match &mut self.child {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => true,
        }
    }

    /// Stops it as an operator would: it finishes its work and closes its files.
    pub(super) async fn stop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.stdin.take());
        }
        let end = self.clock.elapsed() + STOP_LIMIT;
        while !self.has_ended() && self.clock.elapsed() < end {
            self.clock.sleep(POLL).await;
        }
        self.kill();
    }

    /// Ends it at once with SIGKILL.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // One that has ended already needs no kill.
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// The report that it does not run, with the last lines that it wrote.
    pub(super) fn not_running(&self, disk: &dyn Disk) -> ErrorReport {
        let written = disk.read(&self.log, LOG_LIMIT).unwrap_or_default();
        let written = String::from_utf8_lossy(&written).trim_end().to_owned();
        let mut from = written.len().saturating_sub(LOG_TAIL);
        while !written.is_char_boundary(from) {
            from += 1;
        }
        let message = format!("the Event Log API did not start: {}", &written[from..]);
        ErrorReport::new("demo.failed", message)
    }
}

impl Drop for ApiProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::env::Stream;

    use super::*;

    #[test]
    fn two_demos_never_share_a_port() {
        let mut taken: Vec<DemoPorts> = Vec::new();
        for seed in [7, 7, 8] {
            let ports = DemoPorts::take(&mut Stream::new(seed)).unwrap();
            assert!(taken.iter().all(|other| other.api != ports.api));
            TcpListener::bind(("127.0.0.1", ports.api)).unwrap();
            taken.push(ports);
        }
    }
}
