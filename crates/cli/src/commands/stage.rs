//! `tidegate stage`: the stages of a running process.

use serde_json::Value;
use tidegate_client::ProcessClient;

use super::ledger;
use crate::args::{LedgerArgs, Output, StageArgs};
use crate::report::{ErrorReport, Exit};
use crate::table::{counted, grid};

pub(crate) async fn run(command: &StageArgs, output: Output) -> Result<Exit, ErrorReport> {
    match command {
        StageArgs::Ls(at) => list(at, output).await,
        StageArgs::Show { process, at } => show(process, at, output).await,
        StageArgs::Pending { process, at } => pending(process, at, output).await,
    }
}

async fn ask(at: &LedgerArgs, path: &str) -> Result<Value, ErrorReport> {
    let target: ProcessClient = ledger::target(at)?;
    target.get(path).await.map_err(|error| {
        let doing = format!("no answer about stages from {}", target.shown());
        // error-page: stage.unreachable
        ErrorReport::of("stage.unreachable", &doing, &error).with_hint(
            "is `tidegate run` running there, with `flows`? see docs/errors/stage.unreachable.md",
        )
    })
}

/// A field as a table shows it.
fn cell(row: &Value, name: &str) -> String {
    match &row[name] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            other.to_string()
        }
    }
}

fn rows(list: &Value, names: &[&str]) -> Vec<Vec<String>> {
    let rows = list.as_array().into_iter().flatten();
    rows.map(|row| names.iter().map(|name| cell(row, name)).collect())
        .collect()
}

async fn list(at: &LedgerArgs, output: Output) -> Result<Exit, ErrorReport> {
    let found = ask(at, "/tidegate/stages").await?;
    output.print(&found, || {
        let names = [
            "process",
            "state",
            "records-in",
            "records-out",
            "dead-letters",
            "epochs",
        ];
        grid(&names, rows(&found["stages"], &names))
    })?;
    Ok(Exit::Ok)
}

async fn show(process: &str, at: &LedgerArgs, output: Output) -> Result<Exit, ErrorReport> {
    let found = ask(at, &format!("/tidegate/stages/{process}")).await?;
    output.print(&found, || {
        let names = ["partition", "epoch", "entries", "bytes", "queued"];
        let tasks = grid(&names, rows(&found["tasks"], &names));
        let mut lines = vec![format!(
            "{process}: {} · group {} · {} in, {} out, {} dead letters",
            cell(&found, "state"),
            cell(&found, "group"),
            cell(&found, "records-in"),
            cell(&found, "records-out"),
            cell(&found, "dead-letters"),
        )];
        if !found["failure"].is_null() {
            lines.push(format!(
                "failed: {} {}",
                cell(&found["failure"], "message"),
                cell(&found["failure"], "hint")
            ));
        }
        lines.push(tasks);
        lines.join("\n")
    })?;
    Ok(Exit::Ok)
}

async fn pending(process: &str, at: &LedgerArgs, output: Output) -> Result<Exit, ErrorReport> {
    let found = ask(at, &format!("/tidegate/stages/{process}/pending")).await?;
    output.print(&found, || {
        let names = ["id", "step", "key", "since", "due"];
        let count = found["count"].as_u64().unwrap_or(0);
        let table = grid(&names, rows(&found["pending"], &names));
        format!("{table}\n{} in all", counted(count, "record"))
    })?;
    Ok(Exit::Ok)
}
