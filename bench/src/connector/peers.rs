//! Peers: a folder with a `run.sh` that names its cases by `list`, and prints a line of JSON per case.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Bench, print, told};
use crate::program::{Why, number};
use crate::report::skipped;

/// The folder, as `cargo xtask bench --peers DIR` hands it over.
pub(crate) const FOLDER: &str = "TIDEGATE_BENCH_PEERS";

/// Cases by their names, and the measurement of ours that does the same job.
const CASES: [(&str, &str); 8] = [
    ("plain-poll", "connector/partition"),
    ("spring-batch", "connector/partition"),
    ("plain-record", "connector/immediate"),
    ("spring-record", "connector/immediate"),
    ("spring-poison-tuned", "connector/poison"),
    ("parallel-uniform-500ms", "connector/keys-uniform"),
    ("parallel-zipf", "connector/keys-zipf"),
    ("parallel-zipf-500ms", "connector/keys-zipf"),
];

pub(super) fn run(bench: &Bench) {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let folder = Path::new(&folder);
    let known = match answer(&bench.servers, folder, "list") {
        Ok(known) => known,
        Err(why) => return skipped("connector/peers", &why),
    };
    for (case, ours) in CASES {
        if !known.split_whitespace().any(|word| word == case) {
            continue;
        }
        let name = format!("{ours} beside {case}");
        let Some(rate) = bench.rates.get(ours) else {
            skipped(&name, &"ours was not measured".to_owned());
            continue;
        };
        eprintln!("peer {case}");
        match answer(&bench.servers, folder, case).and_then(|line| described(&line)) {
            Ok((theirs, is)) => print(&name, *rate, theirs, &is, "records/s"),
            Err(why) => skipped(&name, &why),
        }
    }
}

pub(crate) fn answer(servers: &str, folder: &Path, case: &str) -> Result<String, Why> {
    let output = Command::new(folder.join("run.sh"))
        .arg(case)
        .env("KAFKA_BOOTSTRAP", servers)
        .stderr(Stdio::inherit())
        .output()
        .map_err(told)?;
    match output.status.success() {
        true => String::from_utf8(output.stdout).map_err(told),
        false => Err(format!("`run.sh {case}` ended with {}", output.status)),
    }
}

/// The rate of a peer, and its words.
pub(crate) fn described(line: &str) -> Result<(f64, String), Why> {
    let last = line.lines().last().unwrap_or_default();
    let answer: Value = serde_json::from_str(last).map_err(told)?;
    let rate = number(&answer, "per_second")?;
    let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
    let (seconds, cpu) = (number(&answer, "seconds")?, number(&answer, "cpu_s")?);
    let is = format!(
        "{} {}: {seconds:.1} s, {cpu:.1} s of processor",
        text("peer"),
        text("version")
    );
    Ok((rate, is))
}
