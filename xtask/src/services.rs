//! `cargo xtask services`: PostgreSQL, Redis and Kafka for tests, private to this checkout.
//!
//! Everything is below `target/services`: one directory per server with its data, `log`, `pid` and
//! `ports`, and the file `env` with the variables tests read. A server that the user brings along
//! (its variable is set in our environment) is neither started nor stopped.

mod install;
mod kafka;
mod ports;
mod postgres;
mod process;
mod redis;
mod server;
mod variables;

use std::fs::File;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::command::{find_program, tail};
use crate::services::install::install;
use crate::services::process::Home;
use crate::services::server::{Server, Variables};
use crate::table;
use crate::workspace::Workspace;

/// How long a server may take from its start to its first answer.
const START_LIMIT: Duration = Duration::from_secs(90);
/// How long a server that is already running may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// How long a server may take to end before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(30);
const START_ATTEMPTS: u32 = 3;
const LOG_LINES: usize = 20;

const SERVERS: [&dyn Server; 3] = [&postgres::Postgres, &redis::Redis, &kafka::Kafka];

/// How `up` fared with one server.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The user's own; we leave it alone.
    Yours,
    /// An earlier `up` had started it.
    Found,
    Started,
    /// This machine cannot have it.
    Unavailable(anyhow::Error),
    /// It should run here, and does not.
    Broken(anyhow::Error),
}

/// The servers after `up`.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) outcomes: Vec<(&'static str, Outcome)>,
    /// The environment of the tests.
    pub(crate) variables: Variables,
}

/// Starts what is not running yet, in parallel, and writes `env`.
///
/// Returns once every server has answered or failed. Two calls at the same time take turns.
pub(crate) fn up(workspace: &Workspace) -> Result<Servers> {
    let _turn = take_turn(workspace)?;
    let mut packages: Vec<&str> = SERVERS
        .into_iter()
        .filter(|server| yours(workspace, *server).is_none())
        .flat_map(Server::missing_packages)
        .collect();
    if find_program("kcat").is_none() {
        packages.push("kcat");
    }
    packages.dedup();
    if let Err(error) = install(&packages) {
        // Each server says below what it lacks; the others do not suffer for it.
        println!("note: {error:#}");
    }
    let results: Vec<(&'static str, Outcome, Variables)> = thread::scope(|scope| {
        let starts = SERVERS.map(|server| (server, scope.spawn(move || up_one(workspace, server))));
        let join = |(server, start): (&dyn Server, thread::ScopedJoinHandle<'_, _>)| {
            let (outcome, variables) = start
                .join()
                .unwrap_or_else(|_| (Outcome::Broken(anyhow!("its start panicked")), vec![]));
            (server.name(), outcome, variables)
        };
        starts.into_iter().map(join).collect()
    });
    let mut servers = Servers {
        outcomes: vec![],
        variables: vec![],
    };
    for (name, outcome, variables) in results {
        servers.outcomes.push((name, outcome));
        servers.variables.extend(variables);
    }
    variables::write(&workspace.services().join("env"), &servers.variables)?;
    Ok(servers)
}

/// Ends those of the `names` that an `up` started and returns which were running.
pub(crate) fn down(workspace: &Workspace, names: &[&str]) -> Result<Vec<&'static str>> {
    let _turn = take_turn(workspace)?;
    let servers = SERVERS
        .into_iter()
        .filter(|server| names.contains(&server.name()));
    let results: Vec<(&'static str, Result<bool>)> = thread::scope(|scope| {
        // All are asked to end before the first is waited for.
        let stops: Vec<_> = servers
            .map(|server| {
                (
                    server.name(),
                    scope.spawn(move || down_one(workspace, server)),
                )
            })
            .collect();
        let joined = stops.into_iter().map(|(name, stop)| {
            (
                name,
                stop.join()
                    .unwrap_or_else(|_| Err(anyhow!("its stop panicked"))),
            )
        });
        joined.collect()
    });
    let mut ended = Vec::new();
    for (name, result) in results {
        if result.with_context(|| format!("could not stop {name}"))? {
            ended.push(name);
        }
    }
    Ok(ended)
}

/// Those of the `names` that should answer and do not, each with the end of its log.
pub(crate) fn silent(
    workspace: &Workspace,
    names: &[&str],
) -> Result<Vec<(&'static str, anyhow::Error)>> {
    let mut silent = Vec::new();
    for server in SERVERS
        .into_iter()
        .filter(|server| names.contains(&server.name()))
    {
        let home = home_of(workspace, server)?;
        if let Err(error) = ask(server, &home) {
            silent.push((server.name(), error));
        }
    }
    Ok(silent)
}

fn ask(server: &dyn Server, home: &Home) -> Result<()> {
    let log = home.log();
    let ports = ports::noted(&home.path("ports"), server.port_count());
    match (home.running(), ports) {
        (Some(_), Some(ports)) => wait_for_answer(server, home, &ports, None, ANSWER_LIMIT),
        (None, _) | (_, None) => Err(anyhow!(
            "it has ended; {} ends with\n{}",
            log.display(),
            tail(&log, LOG_LINES)
        )),
    }
}

/// `cargo xtask services up`.
pub(crate) fn up_command(workspace: &Workspace) -> Result<bool> {
    let begin = Instant::now();
    let servers = up(workspace)?;
    let mut well = true;
    for (name, outcome) in &servers.outcomes {
        match outcome {
            Outcome::Yours => println!("{name}: yours, left alone"),
            Outcome::Found => println!("{name}: already running"),
            Outcome::Started => println!("{name}: started"),
            Outcome::Unavailable(error) => {
                well = false;
                println!("{name}: cannot be had here: {error:#}");
            }
            Outcome::Broken(error) => {
                well = false;
                println!("{name}: {error:#}");
            }
        }
    }
    println!(
        "took {:.1} s; variables are in target/services/env",
        begin.elapsed().as_secs_f64()
    );
    Ok(well)
}

/// `cargo xtask services down`.
pub(crate) fn down_command(workspace: &Workspace) -> Result<bool> {
    let ended = down(workspace, &SERVERS.map(Server::name))?;
    if ended.is_empty() {
        println!("nothing of ours was running");
    } else {
        println!("stopped {}", ended.join(", "));
    }
    Ok(true)
}

/// `cargo xtask services status`. All is well when everything answers.
pub(crate) fn status_command(workspace: &Workspace) -> Result<bool> {
    let mut rows = Vec::new();
    let mut well = true;
    for server in SERVERS {
        let home = home_of(workspace, server)?;
        let log = home.log().display().to_string();
        if let Some(address) = yours(workspace, server) {
            rows.push(
                [server.name(), "yours", &address, "-", "-"]
                    .map(str::to_owned)
                    .to_vec(),
            );
            continue;
        }
        let running = home.running();
        let ports = ports::noted(&home.path("ports"), server.port_count());
        let (state, address) = match (&running, &ports) {
            (Some(_), Some(ports)) => {
                let address = server.variables(&home, ports).swap_remove(0).1;
                match server.probe(ports) {
                    Ok(()) => ("up".to_owned(), address),
                    Err(error) => (format!("no answer ({error:#})"), address),
                }
            }
            _ => ("down".to_owned(), "-".to_owned()),
        };
        well &= state == "up";
        let pid = running.map_or_else(|| "-".to_owned(), |running| running.pid.to_string());
        rows.push(vec![server.name().to_owned(), state, address, pid, log]);
    }
    print!(
        "{}",
        table::render(&["service", "state", "address", "pid", "log"], &rows)
    );
    Ok(well)
}

fn up_one(workspace: &Workspace, server: &dyn Server) -> (Outcome, Variables) {
    if let Some(address) = yours(workspace, server) {
        return (Outcome::Yours, vec![(server.owner_variable(), address)]);
    }
    let home = match home_of(workspace, server) {
        Ok(home) => home,
        Err(error) => return (Outcome::Broken(error), vec![]),
    };
    // One that has another number of ports was started by an earlier version of this program and lacks a
    // door that tests want.
    let is_current = ports::noted(&home.path("ports"), server.port_count()).is_some();
    if home.running().is_some() && is_current {
        return match find_running(server, &home) {
            Ok(ports) => (Outcome::Found, server.variables(&home, &ports)),
            Err(error) => (Outcome::Broken(error), vec![]),
        };
    }
    if let Err(error) = home.stop(server.stop_signal(), STOP_LIMIT) {
        return (Outcome::Broken(error), vec![]);
    }
    if let Err(error) = server.fetch(&home) {
        return (Outcome::Unavailable(error), vec![]);
    }
    match start(server, &home) {
        Ok(ports) => (Outcome::Started, server.variables(&home, &ports)),
        Err(error) => (Outcome::Broken(error), vec![]),
    }
}

/// The ports of a server that runs already, once it has answered.
fn find_running(server: &dyn Server, home: &Home) -> Result<Vec<u16>> {
    let ports = ports::noted(&home.path("ports"), server.port_count());
    let ports = ports.context("runs, but its ports were not noted")?;
    wait_for_answer(server, home, &ports, None, ANSWER_LIMIT)
        .context("runs, but does not answer; `services down` ends it")?;
    // The earlier `up` may have been interrupted before it came to this.
    server.settle(&ports)?;
    Ok(ports)
}

fn start(server: &dyn Server, home: &Home) -> Result<Vec<u16>> {
    server.prepare(home)?;
    let mut attempt = 1;
    loop {
        let ports = ports::reserve(&home.path("ports"), server.port_count())?;
        let launch = server.launch(home, &ports)?;
        let mut child = home.start(&launch)?;
        let answer = wait_for_answer(server, home, &ports, Some(&mut child), START_LIMIT);
        let Err(error) = answer else {
            server.settle(&ports)?;
            return Ok(ports);
        };
        let ended_itself = !home.stop(server.stop_signal(), STOP_LIMIT)?;
        // A server gives up at once when a port was snatched away, or when children of a killed
        // predecessor have not ended yet. Both pass.
        if !ended_itself || attempt == START_ATTEMPTS {
            return Err(error.context("did not start"));
        }
        attempt += 1;
        thread::sleep(Duration::from_secs(1));
    }
}

fn wait_for_answer(
    server: &dyn Server,
    home: &Home,
    ports: &[u16],
    mut child: Option<&mut Child>,
    limit: Duration,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        let Err(error) = server.probe(ports) else {
            return Ok(());
        };
        let ended = match child.as_mut() {
            Some(child) => child.try_wait().context("could not look after a server")?,
            None => None,
        };
        let why = match ended {
            Some(status) => format!("it ended with {status}"),
            None if Instant::now() > deadline => format!("no answer in {limit:?} ({error:#})"),
            None => {
                thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let log = home.log();
        return Err(anyhow!(
            "{why}; {} ends with\n{}",
            log.display(),
            tail(&log, LOG_LINES)
        ));
    }
}

fn down_one(workspace: &Workspace, server: &dyn Server) -> Result<bool> {
    // A server of the user's has no pid file; one that was ours before the variable was set has.
    let home = home_of(workspace, server)?;
    let ended = home.stop(server.stop_signal(), STOP_LIMIT)?;
    server.discard(&home)?;
    Ok(ended)
}

fn home_of(workspace: &Workspace, server: &dyn Server) -> Result<Home> {
    Home::make(workspace.services().join(server.name()))
}

/// The address of the user's own server.
///
/// Our own address comes back to us when somebody loads `env` into the shell; then the server is
/// still ours.
fn yours(workspace: &Workspace, server: &dyn Server) -> Option<String> {
    let address = std::env::var(server.owner_variable())
        .ok()
        .filter(|text| !text.is_empty())?;
    let home = home_of(workspace, server).ok()?;
    let ports = ports::noted(&home.path("ports"), server.port_count());
    let ours = ports.map(|ports| server.variables(&home, &ports).swap_remove(0).1);
    (ours.as_ref() != Some(&address)).then_some(address)
}

/// One `up` or `down` at a time; the turn ends when the file is dropped.
fn take_turn(workspace: &Workspace) -> Result<File> {
    let directory = workspace.services();
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("could not create `{}`", directory.display()))?;
    let file = File::create(directory.join("lock")).context("could not open the lock file")?;
    file.lock().context("could not take the lock")?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_has_ended_is_told_with_the_end_of_its_log() {
        let directory = std::env::temp_dir().join(format!("xtask-services-{}", std::process::id()));
        let home = Home::make(directory.clone()).unwrap();
        std::fs::write(home.log(), "ready\nout of memory\n").unwrap();
        std::fs::write(home.path("ports"), "1\n").unwrap();
        let error = ask(&redis::Redis, &home).unwrap_err().to_string();
        std::fs::remove_dir_all(directory).unwrap();
        assert!(
            error.contains("has ended") && error.ends_with("out of memory"),
            "{error}"
        );
    }
}
