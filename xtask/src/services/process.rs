//! Server processes that outlive us, and how to find them again.
//!
//! A pid alone proves nothing: after a crash or a reboot the number may belong to another program.
//! The pid file therefore also holds when the process started. **Invariant:** a process is signaled
//! only when both agree, so `down` never ends what `up` did not start.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::command::{find_program, output_of};

/// The directory of one service: its log, its pid file, its ports, its data.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    directory: PathBuf,
}

/// A process that is known to be ours and alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) pid: i32,
    started: String,
}

/// Whom a server runs as, when that is not us.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A server's command line.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) user: Option<User>,
}

impl Home {
    /// Makes the directory if it is not there yet.
    pub(crate) fn make(directory: PathBuf) -> Result<Self> {
        fs::create_dir_all(&directory)
            .with_context(|| format!("could not create `{}`", directory.display()))?;
        Ok(Self { directory })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path("log")
    }

    /// The process of an earlier `up`, unless it is gone or its pid belongs to somebody else.
    pub(crate) fn running(&self) -> Option<Running> {
        let text = fs::read_to_string(self.path("pid")).ok()?;
        let (pid, started) = text.trim().split_once(' ')?;
        let running = Running {
            pid: pid.parse().ok()?,
            started: started.to_owned(),
        };
        running.is_alive().then_some(running)
    }

    /// Starts `launch` in a session of its own, with both outputs appended to the log.
    pub(crate) fn start(&self, launch: &Launch) -> Result<Child> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log());
        let log = log.with_context(|| format!("could not open `{}`", self.log().display()))?;
        let child = detached(launch, log)?.spawn();
        let child =
            child.with_context(|| format!("could not start `{}`", launch.program.display()))?;
        let pid = i32::try_from(child.id()).context("a pid that is no pid")?;
        // A server that ended at once leaves no start time; its exit is noticed by whoever waits.
        let started = started_at(pid).unwrap_or_else(|| "gone".to_owned());
        fs::write(self.path("pid"), format!("{pid} {started}\n"))
            .context("could not note the pid")?;
        Ok(child)
    }

    /// Ends the running process, politely first, and forgets it.
    ///
    /// Returns whether there was one.
    pub(crate) fn stop(&self, signal: Signal, patience: Duration) -> Result<bool> {
        let Some(running) = self.running() else {
            self.forget()?;
            return Ok(false);
        };
        running.send(signal)?;
        // A process that somebody stopped hears nothing else until it is let go on.
        running.send(Signal::CONT)?;
        if !running.wait_gone(patience) {
            running.send(Signal::KILL)?;
            if !running.wait_gone(Duration::from_secs(5)) {
                bail!("process {} does not end, not even when killed", running.pid);
            }
        }
        self.forget()?;
        Ok(true)
    }

    fn forget(&self) -> Result<()> {
        match fs::remove_file(self.path("pid")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("could not remove a pid file")
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl Running {
    fn is_alive(&self) -> bool {
        started_at(self.pid).as_deref() == Some(self.started.as_str())
    }

    fn send(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid).context("the pid file holds no pid")?;
        match kill_process(pid, signal) {
            // It ended by itself in between, which is all we wanted.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => {
                Err(error).with_context(|| format!("could not signal process {}", self.pid))
            }
        }
    }

    fn wait_gone(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.is_alive() {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

fn detached(launch: &Launch, log: File) -> Result<Command> {
    // `setsid` replaces itself by the server, so the pid stays the one we spawned. Without a session
    // of its own a server would be ended with the terminal it was started from.
    let mut command = match find_program("setsid") {
        Some(setsid) => {
            let mut command = Command::new(setsid);
            command.arg(&launch.program);
            command
        }
        None => {
            let mut command = Command::new(&launch.program);
            command.process_group(0);
            command
        }
    };
    let copy = log.try_clone().context("could not share a log file")?;
    // The root directory is the one place every user may be in.
    command
        .args(&launch.arguments)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(copy);
    if let Some(user) = launch.user {
        command.uid(user.uid).gid(user.gid);
    }
    Ok(command)
}

/// When the process started, as an opaque text; `None` when there is no such process or it is only
/// waiting to be buried.
fn started_at(pid: i32) -> Option<String> {
    if Path::new("/proc/self/stat").is_file() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        return started_from_stat(&stat);
    }
    let text =
        output_of(Command::new("ps").args(["-o", "lstart=", "-p", &pid.to_string()])).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn started_from_stat(stat: &str) -> Option<String> {
    // The second field is the program's name in parentheses and may itself hold blanks and
    // parentheses; the last closing one ends it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // The start time is field 22 of the file, and the state was field 3.
    fields.nth(18).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "77 (a) b) S 1 77 77 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 1 0 123456 42 7 1";

    #[test]
    fn reads_the_start_time_behind_a_name_with_parentheses() {
        assert_eq!(started_from_stat(STAT).as_deref(), Some("123456"));
    }

    #[test]
    fn a_zombie_is_gone() {
        assert_eq!(started_from_stat(&STAT.replace(" S 1", " Z 1")), None);
    }

    fn home(name: &str) -> Home {
        let directory = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        Home::make(directory).unwrap()
    }

    #[test]
    fn a_pid_of_another_program_is_not_ours() {
        let home = home("reused-pid");
        // This very test process is alive, but it did not start at that time.
        fs::write(home.path("pid"), format!("{} 1\n", std::process::id())).unwrap();
        assert_eq!(home.running(), None);
        assert!(!home.stop(Signal::TERM, Duration::ZERO).unwrap());
        assert!(
            !home.path("pid").is_file(),
            "a stale pid file is cleared away"
        );
        fs::remove_dir_all(&home.directory).unwrap();
    }

    #[test]
    fn a_started_server_is_found_and_ended() {
        let home = home("start-stop");
        let launch = Launch {
            program: find_program("sleep").unwrap(),
            arguments: vec!["600".into()],
            user: None,
        };
        let mut child = home.start(&launch).unwrap();
        let running = home.running().unwrap();
        assert_eq!(u32::try_from(running.pid), Ok(child.id()));
        assert!(home.stop(Signal::TERM, Duration::from_secs(5)).unwrap());
        assert_eq!(home.running(), None);
        assert!(!child.wait().unwrap().success(), "it was ended by a signal");
        fs::remove_dir_all(&home.directory).unwrap();
    }
}
