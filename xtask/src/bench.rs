//! `cargo xtask bench`: measurements beside a reference, as a table or as JSON lines.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::arguments::BenchOptions;
use crate::java;
use crate::services;
use crate::table;
use crate::workspace::Workspace;

const PACKAGE: &str = "tidegate-bench";
/// Benches that measure on a server.
const ON_SERVERS: [&str; 4] = ["api", "connector", "outbox", "queue"];
/// The variable by which a bench is told of a folder with peers.
const PEERS: &str = "TIDEGATE_BENCH_PEERS";
const HEAD: [&str; 8] = [
    "bench",
    "ours",
    "reference",
    "unit",
    "ratio",
    "cpu s",
    "rss MB",
    "reference is",
];

/// Builds the benches and runs those with the given names; without names, lists them.
pub(crate) fn run(workspace: &Workspace, options: &BenchOptions) -> Result<bool> {
    let mut command = workspace.cargo();
    command.args(["run", "--quiet", "--release", "-p", PACKAGE, "--"]);
    if options.names.is_empty() {
        let status = command
            .arg("--list")
            .status()
            .context("could not start cargo")?;
        return Ok(status.success());
    }
    command.args(&options.names);
    add_peers(workspace, &mut command);
    if let Some(folder) = &options.peers {
        command.env(PEERS, folder);
    }
    if options
        .names
        .iter()
        .any(|name| ON_SERVERS.contains(&name.as_str()))
    {
        // A server that is missing is the bench's to tell.
        command.envs(services::up(workspace)?.variables);
    }
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("could not start cargo")?;
    let output = child.stdout.take().context("the benches have no output")?;
    let mut rows = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line.context("could not read what the benches print")?;
        match serde_json::from_str::<Value>(&line) {
            Ok(_) if options.json => println!("{line}"),
            Ok(measurement) => rows.push(row(&measurement)),
            // Only measurements belong on standard output.
            Err(_) => eprintln!("{line}"),
        }
    }
    let status = child.wait().context("could not wait for the benches")?;
    if !options.json {
        print!("{}", table::render(&HEAD, &rows));
    }
    Ok(status.success())
}

/// Hands over the class paths of Java peers. A bench whose peer is missing says so itself.
fn add_peers(workspace: &Workspace, command: &mut Command) {
    let prepared = java::require()
        .and_then(|()| java::peers(workspace))
        .and_then(|peers| {
            let ready = |peer: &PathBuf| {
                java::fetch(workspace, peer)?;
                java::prepare(workspace, peer)
            };
            peers.iter().map(ready).collect::<Result<Vec<_>>>()
        });
    match prepared {
        Ok(variables) => {
            command.envs(variables);
        }
        Err(error) => eprintln!("note: no Java peers: {error:#}"),
    }
}

fn row(measurement: &Value) -> Vec<String> {
    if let Some(why) = measurement.get("skipped").and_then(Value::as_str) {
        let name = measurement.get("bench").map(text).unwrap_or_default();
        return vec![name, format!("skipped: {why}")];
    }
    [
        "bench",
        "ours",
        "reference",
        "unit",
        "ratio",
        "cpu_s",
        "rss_mb",
        "reference_is",
    ]
    .iter()
    .map(|key| measurement.get(*key).map(text).unwrap_or_default())
    .collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            // Digits behind the point say nothing about a large rate.
            Some(number) if number.abs() >= 1000.0 => format!("{number:.0}"),
            Some(number) if number.fract() != 0.0 => format!("{number:.3}"),
            _ => number.to_string(),
        },
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_becomes_a_row() {
        let line = r#"{"bench":"log/append","ours":81234.56,"reference":40000,"reference_is":"loop",
            "unit":"records/s","ratio":2.0308,"cpu_s":1.5,"rss_mb":12}"#;
        let row = row(&serde_json::from_str(line).unwrap());
        assert_eq!(
            row,
            [
                "log/append",
                "81235",
                "40000",
                "records/s",
                "2.031",
                "1.500",
                "12",
                "loop"
            ]
        );
    }

    #[test]
    fn a_missing_peer_says_why() {
        let row = row(&serde_json::json!({"bench": "x", "skipped": "no Java"}));
        assert_eq!(row, ["x", "skipped: no Java"]);
    }
}
