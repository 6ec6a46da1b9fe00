//! `tidegate stage`: the stages of a running process.

use serde_json::Value;
use tidegate_client::{ClientError, ProcessClient};

use super::ledger;
use crate::args::{ConfigFile, LedgerArgs, Output, StageArgs, StageStateArgs};
use crate::confirm::confirm;
use crate::parts::OpenedStage;
use crate::report::{ErrorReport, Exit};
use crate::table::{counted, grid};

pub(crate) async fn run(command: &StageArgs, output: Output) -> Result<Exit, ErrorReport> {
    match command {
        StageArgs::Ls(at) => list(at, output).await,
        StageArgs::Show { process, at } => show(process, at, output).await,
        StageArgs::Pending { process, at } => pending(process, at, output).await,
        StageArgs::Checkpoint { process, at } => checkpoint(process, at, output).await,
        StageArgs::Drain { process, at } => drain(process, at, output).await,
        StageArgs::Restore {
            process,
            checkpoint,
            yes,
            file,
        } => restore(process, checkpoint.as_deref(), *yes, file, output).await,
        StageArgs::State(StageStateArgs::Get {
            process,
            name,
            key,
            at,
        }) => state(process, name, key.as_deref(), at, output).await,
    }
}

fn unreachable(target: &ProcessClient, error: &ClientError) -> ErrorReport {
    let doing = format!("no answer about stages from {}", target.shown());
    // error-page: stage.unreachable
    ErrorReport::of("stage.unreachable", &doing, error).with_hint(
        "is `tidegate run` running there, with `flows`? see docs/errors/stage.unreachable.md",
    )
}

async fn tell(at: &LedgerArgs, path: &str) -> Result<Value, ErrorReport> {
    let target: ProcessClient = ledger::target(at)?;
    let told = target.post(path, &serde_json::json!({})).await;
    told.map_err(|error| unreachable(&target, &error))
}

async fn checkpoint(process: &str, at: &LedgerArgs, output: Output) -> Result<Exit, ErrorReport> {
    let taken = tell(at, &format!("/tidegate/stages/{process}/checkpoint")).await?;
    output.print(&taken, || {
        let tasks = taken["tasks"].as_array().into_iter().flatten();
        let bytes: u64 = tasks.filter_map(|task| task["bytes"].as_u64()).sum();
        let number = cell(&taken, "number");
        format!("checkpoint {number} of {process}: {bytes} bytes")
    })?;
    Ok(Exit::Ok)
}

async fn drain(process: &str, at: &LedgerArgs, output: Output) -> Result<Exit, ErrorReport> {
    let found = tell(at, &format!("/tidegate/stages/{process}/drain")).await?;
    output.print(&found, || format!("{process}: {}", cell(&found, "state")))?;
    Ok(Exit::Ok)
}

async fn restore(
    process: &str,
    checkpoint: Option<&str>,
    yes: bool,
    file: &ConfigFile,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let number = match checkpoint {
        None | Some("last") => None,
        Some(number) => Some(number.parse::<u64>().map_err(|_| {
            ErrorReport::new(
                "stage.restore.number",
                format!("`{number}` is neither a number of a checkpoint nor `last`"),
            )
            .with_exit(Exit::Usage)
        })?),
    };
    let what = match checkpoint {
        Some(checkpoint) => format!(
            "stage `{process}` goes back to checkpoint {checkpoint}; records since then are read again, and their \
             outputs come again with the same ids"
        ),
        None => format!("stage `{process}` goes on from the offsets in its changelog"),
    };
    let unconfirmed = ErrorReport::new(
        "stage.restore.unconfirmed",
        format!("{what}; this was not confirmed"),
    )
    .with_hint("give `--yes`");
    confirm(&what, yes, unconfirmed)?;
    let opened = OpenedStage::of(process, file).await?;
    let restored = match checkpoint {
        Some(_) => opened.checkpoints.restore(number).await,
        None => opened.checkpoints.restore_offsets().await,
    };
    opened.close().await;
    let restored = restored?;
    output.print(&restored, || {
        let tasks = counted(restored.tasks.len() as u64, "task");
        let again = counted(restored.again, "record");
        match restored.checkpoint {
            Some(number) => {
                format!("{process}: {tasks} at checkpoint {number}, {again} to do again")
            }
            None => {
                format!("{process}: {tasks} at the offsets of the changelog, {again} to do again")
            }
        }
    })?;
    Ok(Exit::Ok)
}

async fn state(
    process: &str,
    name: &str,
    key: Option<&str>,
    at: &LedgerArgs,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let mut path = format!("/tidegate/stages/{process}/state/{name}");
    if let Some(key) = key {
        path.push_str(&format!("?key={}", percent(key)));
    }
    let found = ask(at, &path).await?;
    output.print(&found, || {
        let values = found["values"].as_object().into_iter().flatten();
        let rows = values.map(|(key, value)| vec![key.clone(), value.to_string()]);
        grid(&["key", "value"], rows.collect())
    })?;
    Ok(Exit::Ok)
}

/// A text as a part of a query.
fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let shown = text.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    shown.collect()
}

async fn ask(at: &LedgerArgs, path: &str) -> Result<Value, ErrorReport> {
    let target: ProcessClient = ledger::target(at)?;
    let found = target.get(path).await;
    found.map_err(|error| unreachable(&target, &error))
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
