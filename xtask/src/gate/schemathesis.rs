//! Schemathesis against a running process: no answer of 5xx, and none that `/openapi.json` does not have.
//!
//! It runs twice, with the token of the process and without one. The tool comes by `pip` into a directory of
//! its own below `target/tools`; a machine without Python skips it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command::{find_program, output_of, tail};
use crate::gate::checks::{begin, finish};
use crate::gate::tally::Tally;
use crate::workspace::Workspace;

const VERSION: &str = "4.32.5";
const TOKEN: &str = "schemathesis";
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance";
/// Requests of each kind for each operation.
const EXAMPLES: &str = "100";
/// How long the process may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs it against `tidegate`, and prints a line.
pub(crate) fn run(workspace: &Workspace, tidegate: &Path) -> Result<Tally> {
    let started = begin("schemathesis")?;
    let tool = match install(workspace) {
        Ok(tool) => tool,
        Err(why) => {
            finish(started, "skipped");
            println!("schemathesis is skipped: {why:#}");
            return Ok(Tally {
                skipped: 2,
                ..Tally::default()
            });
        }
    };
    let log = workspace.gate_logs().join("schemathesis.log");
    File::create(&log).with_context(|| format!("could not create `{}`", log.display()))?;
    let mut total = Tally::default();
    for has_token in [true, false] {
        let is_well = round(workspace, tidegate, &tool, has_token, &log)?;
        total += Tally::of_check(is_well);
    }
    finish(started, &total.to_string());
    if total.failed > 0 {
        println!("{}\n({} has it all)", tail(&log, 120), log.display());
    }
    Ok(total)
}

/// The program, which is installed unless it is there.
fn install(workspace: &Workspace) -> Result<PathBuf> {
    let python = find_program("python3").context("`python3` is not installed")?;
    let home = workspace
        .root()
        .join(format!("target/tools/schemathesis-{VERSION}"));
    let (program, note) = (home.join("bin/schemathesis"), home.join("installed"));
    if note.is_file() {
        return Ok(program);
    }
    if home.is_dir() {
        fs::remove_dir_all(&home).context("could not clear half an installation away")?;
    }
    let mut venv = Command::new(python);
    venv.args(["-m", "venv"]).arg(&home);
    output_of(&mut venv).context("`python3` has no `venv`")?;
    let mut pip = Command::new(home.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"])
        .arg(format!("schemathesis=={VERSION}"));
    output_of(&mut pip).context("`pip` could not get it")?;
    fs::write(&note, VERSION).context("could not note the installation")?;
    Ok(program)
}

/// One run against a process and a database of its own.
fn round(
    workspace: &Workspace,
    tidegate: &Path,
    tool: &Path,
    has_token: bool,
    log: &Path,
) -> Result<bool> {
    let home = workspace.root().join("target/tools/schemathesis-run");
    if home.is_dir() {
        fs::remove_dir_all(&home).context("could not clear an earlier run away")?;
    }
    fs::create_dir_all(&home).context("could not create a directory")?;
    let process = Process::start(tidegate, &home)?;
    let document = home.join("openapi.json");
    fs::write(&document, process.document()?).context("could not write the document")?;
    let append = |log: &Path| OpenOptions::new().append(true).open(log);
    let output = append(log).context("could not open the log")?;
    let errors = append(log).context("could not open the log")?;
    let mut command = Command::new(tool);
    command
        .arg("run")
        .arg(&document)
        .args(["--url", &format!("http://{}", process.address)])
        .args(["--checks", CHECKS, "--max-examples", EXAMPLES])
        .args(["--seed", "1", "--request-timeout", "30", "--no-color"]);
    if has_token {
        command.args(["--header", &format!("Authorization: Bearer {TOKEN}")]);
    }
    let status = command
        .current_dir(&home)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .status()
        .context("could not start schemathesis")?;
    process.assert_alive()?;
    Ok(status.success())
}

/// A `tidegate run` that is killed at the end.
struct Process {
    child: Child,
    address: String,
}

impl Process {
    fn start(tidegate: &Path, home: &Path) -> Result<Self> {
        let free = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
        let address = free.local_addr()?.to_string();
        drop(free);
        let output = File::create(home.join("tidegate.log")).context("could not create a log")?;
        let child = Command::new(tidegate)
            .args(["run", "--set", &format!("server.listen={address}")])
            .args(["--set", &format!("server.token={TOKEN}")])
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .context("could not start tidegate")?;
        let mut process = Self { child, address };
        let began = Instant::now();
        while TcpStream::connect(&process.address).is_err() {
            if process.child.try_wait()?.is_some() || began.elapsed() > PATIENCE {
                bail!(
                    "tidegate does not answer: {}",
                    tail(&home.join("tidegate.log"), 20)
                );
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(process)
    }

    /// The OpenAPI document.
    fn document(&self) -> Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        write!(
            stream,
            "GET /openapi.json HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\n\
             connection: close\r\n\r\n",
            self.address
        )?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        match response.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
            Some((head, _)) => bail!("the document was not given: {head}"),
            None => bail!("the document was not given"),
        }
    }

    fn assert_alive(mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("tidegate ended with {status} under schemathesis"),
            None => Ok(()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
