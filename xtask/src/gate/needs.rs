//! The needs of tests, and those that this machine cannot meet.

use std::time::Instant;

use anyhow::Result;

use crate::command::find_program;
use crate::gate::checks::{begin, finish};
use crate::gate::tally::Tally;
use crate::java;
use crate::services::{self, Outcome};
use crate::workspace::Workspace;

/// The needs that could be met.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    pub(crate) variables: Vec<(String, String)>,
    /// Modules to leave out, such as `needs_kafka`.
    pub(crate) left_out: Vec<String>,
    /// Servers that were not running before.
    pub(crate) started: Vec<&'static str>,
    /// Servers of ours that the tests use.
    pub(crate) used: Vec<&'static str>,
    /// A server that should run here and does not is a failure of its own.
    pub(crate) tally: Tally,
}

impl Needs {
    fn leave_out(&mut self, need: &str, why: &anyhow::Error) {
        println!("tests in needs_{need} are skipped: {why:#}");
        self.left_out.push(format!("needs_{need}"));
    }
}

/// Starts the servers, prepares the Java peers, and notes what is missing.
pub(crate) fn meet(workspace: &Workspace) -> Result<Needs> {
    let mut needs = Needs::default();
    // An installation has something to say itself, so the line is begun only afterwards.
    let started = Instant::now();
    let servers = services::up(workspace)?;
    begin("services")?;
    finish(started, &summary(&servers.outcomes));
    for (name, value) in servers.variables {
        needs.variables.push((name.to_owned(), value));
    }
    for (name, outcome) in servers.outcomes {
        match outcome {
            Outcome::Yours => {}
            Outcome::Found => needs.used.push(name),
            Outcome::Started => {
                needs.started.push(name);
                needs.used.push(name);
            }
            Outcome::Unavailable(why) => needs.leave_out(name, &why),
            Outcome::Broken(why) => {
                needs.tally += Tally::FAILED;
                needs.leave_out(name, &why);
            }
        }
    }
    if find_program("kcat").is_none() {
        needs.leave_out("kcat", &anyhow::anyhow!("kcat is not installed"));
    }
    java_peers(workspace, &mut needs)?;
    Ok(needs)
}

/// Asks the servers once more after the tests. One that died meanwhile is a failure, even if every
/// test passed: some of them may have passed for want of an answer.
pub(crate) fn still_met(workspace: &Workspace, used: &[&str]) -> Result<Tally> {
    let mut tally = Tally::default();
    if used.is_empty() {
        return Ok(tally);
    }
    let started = begin("services, again")?;
    let silent = services::silent(workspace, used)?;
    finish(started, if silent.is_empty() { "up" } else { "FAILED" });
    for (name, why) in silent {
        println!("{name} does not answer after the tests: {why:#}");
        tally += Tally::FAILED;
    }
    Ok(tally)
}

fn java_peers(workspace: &Workspace, needs: &mut Needs) -> Result<()> {
    let peers = java::peers(workspace)?;
    if let Err(why) = java::require() {
        needs.leave_out("java", &why);
        return Ok(());
    }
    for peer in peers {
        let started = begin("java")?;
        match java::fetch(workspace, &peer) {
            Ok(()) => {}
            Err(why) => {
                finish(started, "no jars");
                needs.leave_out("java", &why);
                return Ok(());
            }
        }
        match java::prepare(workspace, &peer) {
            Ok(variable) => {
                finish(started, &variable.0);
                needs.variables.push(variable);
            }
            Err(why) => {
                finish(started, "FAILED");
                needs.tally += Tally::FAILED;
                needs.leave_out("java", &why);
                return Ok(());
            }
        }
    }
    Ok(())
}

fn summary(outcomes: &[(&'static str, Outcome)]) -> String {
    let word = |outcome: &Outcome| match outcome {
        Outcome::Yours => "yours",
        Outcome::Found | Outcome::Started => "up",
        Outcome::Unavailable(_) => "missing",
        Outcome::Broken(_) => "FAILED",
    };
    let parts: Vec<String> = outcomes
        .iter()
        .map(|(name, outcome)| format!("{name} {}", word(outcome)))
        .collect();
    parts.join(", ")
}
