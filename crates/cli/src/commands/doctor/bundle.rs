//! `tidegate doctor --bundle`: one JSON document with what somebody needs who helps. It has names, numbers, sizes and
//! settings, and neither secrets nor keys, payloads or headers of events.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value, json};
use tidegate_client::wire::GroupInfo;
use tidegate_client::{ClientError, ProcessClient};
use tidegate_config::{Config, format_duration};
use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{Disk, Env};
use tidegate_core::{error_chain, iso_time};
use tidegate_log::LogBackend;

use super::{Examined, client};
use crate::args::ConfigFile;
use crate::log::{self, LogAccess};
use crate::report::ErrorReport;
use crate::store::{self, StoreSettings};

/// Files of one directory that are listed.
const MAX_FILES: usize = 10_000;

/// Writes it to a new file.
pub(super) async fn write(
    to: &Path,
    checks: &[Examined],
    config: &Config,
    file: &ConfigFile,
) -> Result<(), ErrorReport> {
    let env = Env::system();
    let mut bundle = Map::new();
    let mut put = |name: &str, value: Value| drop(bundle.insert(name.to_owned(), value));
    put("tidegate", json!(env!("CARGO_PKG_VERSION")));
    put("at", json!(iso_time(env.clock.now_ms())));
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    put("system", json!({ "os": os, "arch": arch }));
    put("checks", json!(checks));
    put("config", config.to_json_with_origins());
    put("files", files(config, file));
    put("log", or_error(log_facts(file, &env).await));
    put("queue", or_error(queue_facts(config, &env).await));
    put("process", process_facts(&client(config)).await);
    let written = || -> io::Result<()> {
        let mut out = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(to)?;
        serde_json::to_writer_pretty(&mut out, &bundle)?;
        out.write_all(b"\n")?;
        out.sync_all()
    };
    written().map_err(|error| {
        let doing = format!("cannot write the bundle `{}`", to.display());
        ErrorReport::of("bundle.unwritable", &doing, &error).with_hint(
            "name a file that is not there yet, in a directory that this user can write to",
        )
    })
}

fn or_error(found: Result<Value, ErrorReport>) -> Value {
    found.unwrap_or_else(|report| json!({ "error": report.summary() }))
}

/// The names and sizes of all files, by directory.
fn files(config: &Config, file: &ConfigFile) -> Value {
    let mut found = Map::new();
    let embedded = match log::configured(file, None) {
        Ok((options, _)) => match options.backend {
            LogBackend::Embedded(embedded) => Some(embedded.dir),
            LogBackend::Kafka(_) => None,
        },
        Err(_) => None,
    };
    let spill = config.text("eventlog.async.spillover-path");
    for dir in embedded.into_iter().chain(spill.map(Into::into)) {
        let mut listed = Vec::new();
        list(&dir, &dir, &mut listed);
        found.insert(dir.display().to_string(), Value::Array(listed));
    }
    Value::Object(found)
}

fn list(root: &Path, dir: &Path, listed: &mut Vec<Value>) {
    for entry in SystemDisk.list(dir).unwrap_or_default() {
        let path = dir.join(&entry.name);
        if listed.len() >= MAX_FILES {
            return;
        }
        if entry.is_dir {
            list(root, &path, listed);
            continue;
        }
        let name = path.strip_prefix(root).unwrap_or(&path);
        listed.push(json!({ "name": name, "bytes": entry.len }));
    }
}

/// The topics of the log, and how far its groups are.
async fn log_facts(file: &ConfigFile, env: &Env) -> Result<Value, ErrorReport> {
    let at = crate::args::LogAt::default();
    let reached = log::reach_to_read(file, &at, false, env).await?;
    let facts = facts_of(&reached).await;
    reached.close().await;
    facts
}

async fn facts_of(reached: &LogAccess) -> Result<Value, ErrorReport> {
    let (log, admin) = (reached.log(), reached.admin());
    let (mut topics, mut groups) = (Vec::new(), Vec::new());
    for topic in log.topics().await? {
        let described = log.describe(&topic).await?;
        let partitions = described.partitions.iter();
        let ranges = partitions.map(|found| json!([found.start.0, found.end.0]));
        topics.push(json!({
            "topic": topic, "partitions": ranges.collect::<Vec<_>>(),
            "retention": described.config.retention.map(format_duration),
            "retention_bytes": described.config.retention_bytes, "compact": described.config.compact,
        }));
    }
    for group in log.groups().await? {
        groups.push(GroupInfo::from(admin.describe_group(&group).await?));
    }
    Ok(json!({ "topics": topics, "groups": groups }))
}

/// The numbers of the queue.
async fn queue_facts(config: &Config, env: &Env) -> Result<Value, ErrorReport> {
    let settings = StoreSettings::of(config)?;
    let Some(opened) = store::open_if_there(&settings, env).await? else {
        return Ok(Value::Null);
    };
    let stats = opened.checked(opened.queue.store().stats().await);
    let registry = opened.checked(opened.queue.store().registry().await);
    opened.close().await;
    Ok(json!({ "stats": stats?, "handlers": registry?.handlers }))
}

/// The answers of a process that runs.
async fn process_facts(client: &ProcessClient) -> Value {
    let shown = |answer: Result<Value, ClientError>| {
        answer.unwrap_or_else(|error| json!({ "error": error_chain(&error) }))
    };
    let metrics = client.text("/metrics").await.map(Value::String);
    json!({
        "health": shown(client.get("/health").await),
        "ledger": shown(client.get("/tidegate/ledger").await),
        "metrics": shown(metrics),
    })
}
