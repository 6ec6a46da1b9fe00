//! A PostgreSQL server of one's own, for tests that kill it.

use std::fs::DirBuilder;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How a server is stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stop {
    /// Sessions are ended, and everything is written.
    Fast,
    /// At once, as by a crash: the next start recovers from the WAL.
    Immediate,
}

/// A server that belongs to one test. Dropping it stops it; its directory stays when the test fails.
pub(crate) struct Server {
    directory: PathBuf,
    port: u16,
    process: Option<Child>,
}

impl Server {
    /// Makes a cluster and starts a server on it.
    pub(crate) fn start() -> Self {
        Self::start_below(&std::env::temp_dir())
    }

    /// The same in this directory, which the user of the server may enter.
    pub(crate) fn start_below(parent: &Path) -> Self {
        let port = free_port();
        let name = format!("tidegate-campaign-{}-{port}", std::process::id());
        let directory = parent.join(name);
        // The server's user enters it; what is inside belongs to that user alone.
        DirBuilder::new().mode(0o711).create(&directory).unwrap();
        let data = directory.join("data");
        DirBuilder::new().mode(0o700).create(&data).unwrap();
        if let Some((user, group)) = user() {
            chown(&data, Some(user), Some(group)).unwrap();
        }
        let made = program("initdb")
            .args(["-A", "trust", "-U", "tidegate", "-E", "UTF8", "--no-sync"])
            .arg("-D")
            .arg(&data)
            .stdout(Stdio::null())
            .status();
        assert!(made.unwrap().success(), "the cluster is made");
        let mut server = Self {
            directory,
            port,
            process: None,
        };
        server.run();
        server
    }

    /// Its address, for sessions that are known to it as those of `process`.
    pub(crate) fn url(&self, process: &str) -> String {
        let port = self.port;
        format!("postgres://tidegate@127.0.0.1:{port}/postgres?options[tidegate.process]={process}")
    }

    /// Stops it and starts it again on what it has.
    pub(crate) fn restart(&mut self, how: Stop) {
        self.stop(how);
        self.run();
    }

    fn run(&mut self) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.join("log"));
        let mut command = program("postgres");
        command.arg("-D").arg(self.directory.join("data"));
        command.args(["-p", &self.port.to_string()]);
        for setting in [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=200",
            "fsync=on",
            "synchronous_commit=on",
        ] {
            command.args(["-c", setting]);
        }
        let child = command.stdout(Stdio::null()).stderr(log.unwrap()).spawn();
        self.process = Some(child.unwrap());
        let begin = Instant::now();
        while !self.is_ready() {
            let starvation = Duration::from_secs(60);
            assert!(begin.elapsed() < starvation, "the server takes sessions");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn is_ready(&self) -> bool {
        let status = program("pg_isready")
            .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
            .status();
        status.unwrap().success()
    }

    fn stop(&mut self, how: Stop) {
        if let Some(mut process) = self.process.take() {
            let signal = match how {
                Stop::Fast => Signal::INT,
                Stop::Immediate => Signal::QUIT,
            };
            kill_process(Pid::from_child(&process), signal).unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Stop::Immediate);
        if std::thread::panicking() {
            println!("the server's files are in {}", self.directory.display());
        } else {
            std::fs::remove_dir_all(&self.directory).ok();
        }
    }
}

/// Whom the server runs as: it refuses to run as root.
fn user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let id = |flag: &str| {
        let output = Command::new("id").args([flag, "postgres"]).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        text.trim().parse().expect("there is a user `postgres`")
    };
    Some((id("-u"), id("-g")))
}

/// One of the server's programs, as the user the server runs as.
fn program(name: &str) -> Command {
    let mut command = Command::new(programs().join(name));
    command.current_dir("/").env("LC_ALL", "C.UTF-8");
    if let Some((user, group)) = user() {
        command.uid(user).gid(group);
    }
    command
}

/// Where the newest server's programs are: Debian keeps them off the search path.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let bin = versions.filter_map(|entry| {
        let path = entry.ok()?.path();
        let major: u32 = path.file_name()?.to_str()?.parse().ok()?;
        Some((major, path.join("bin")))
    });
    let newest = bin.filter(|(_, bin)| bin.join("initdb").is_file()).max();
    match newest {
        Some((_, bin)) => bin,
        None => Path::new("/usr/bin").to_owned(),
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
