//! `tidegate log`: the directory of an embedded log.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate_config::format_duration;
use tidegate_core::Offset;
use tidegate_core::env::system::{SystemClock, SystemDisk, system_entropy};
use tidegate_core::env::{Clock, Disk, Entropy};
use tidegate_log::embedded::{self, Listing, LogProblem, RepairPlan, Repaired, UnknownLoss};
use tidegate_log::{EmbeddedConfig, LogBackend, LogError, offsets_in_words};

use crate::args::{LogDir, Output};
use crate::confirm::confirm;
use crate::log::{configured, must_hold_a_log};
use crate::progress::{CountingDisk, ProgressLine, ProgressUnit};
use crate::report::{ErrorReport, Exit, say};
use crate::table;

/// The wait before a second look at what seems wrong: a running process moves records from file to
/// file while they are read.
const PAUSE: Duration = Duration::from_millis(200);

/// The directory that is meant, which must hold a log, and how that is set up.
fn directory(arguments: &LogDir) -> Result<EmbeddedConfig, ErrorReport> {
    let (settings, _) = configured(&arguments.file, arguments.dir.as_deref())?;
    let LogBackend::Embedded(embedded) = settings.backend else {
        return Err(ErrorReport::new(
            "log.not-embedded",
            "the configured log is on Kafka, and no directory is named",
        )
        .with_hint("name a directory: `tidegate log ls DIR`"));
    };
    must_hold_a_log(&embedded.dir)?;
    Ok(*embedded)
}

/// `tidegate log ls`.
pub(crate) fn list(arguments: &LogDir, output: Output) -> Result<Exit, ErrorReport> {
    let dir = directory(arguments)?.dir;
    let listing = embedded::ls(&SystemDisk, &dir)?;
    let listing = listing.ok_or_else(|| LogError::Format {
        path: dir.clone(),
        why: "its manifest is missing".to_owned(),
    })?;
    output.print(&listing_json(&listing), || listing_text(&listing))?;
    Ok(Exit::Ok)
}

fn listing_json(listing: &Listing) -> serde_json::Value {
    let partitions: Vec<_> = listing
        .partitions
        .iter()
        .map(|partition| {
            let segments: Vec<_> = partition
                .segments
                .iter()
                .map(|(name, first, end, bytes)| {
                    json!({ "file": name, "first": first, "end": end, "bytes": bytes })
                })
                .collect();
            let config = &partition.config;
            json!({
                "topic": partition.at.topic,
                "partition": partition.at.partition,
                "start": partition.start,
                "end": partition.end,
                "segments": segments,
                "journaled_bytes": partition.journaled,
                "retention": config.retention.map(format_duration),
                "retention_bytes": config.retention_bytes,
                "compact": config.compact,
                "max_record_size": config.max_record_size,
            })
        })
        .collect();
    let groups: Vec<_> = listing
        .groups
        .iter()
        .map(|group| {
            json!({
                "group": group.group,
                "topic": group.at.topic,
                "partition": group.at.partition,
                "committed": group.committed.as_ref().map(|committed| committed.next),
            })
        })
        .collect();
    json!({
        "cluster": listing.cluster, "bytes": listing.bytes, "partitions": partitions,
        "groups": groups, "aside": listing.aside,
    })
}

fn listing_text(listing: &Listing) -> String {
    let mut lines = Vec::new();
    if listing.partitions.is_empty() {
        lines.push("no topics".to_owned());
    } else {
        let header = [
            "topic",
            "partition",
            "start",
            "end",
            "size",
            "retention",
            "groups",
        ];
        let rows = listing.partitions.iter().map(|partition| {
            let segments: u64 = partition.segments.iter().map(|segment| segment.3).sum();
            let retention = partition.config.retention.map(format_duration);
            let readers = listing
                .groups
                .iter()
                .filter(|group| group.at == partition.at);
            let readers = readers.map(|group| {
                let committed = group.committed.as_ref();
                let at = committed.map_or("-".to_owned(), |committed| committed.next.to_string());
                format!("{} at {at}", group.group)
            });
            vec![
                partition.at.topic.to_string(),
                partition.at.partition.to_string(),
                partition.start.to_string(),
                partition.end.to_string(),
                table::size(segments + partition.journaled),
                retention.unwrap_or_else(|| "none".to_owned()),
                readers.collect::<Vec<_>>().join(", "),
            ]
        });
        lines.push(table::grid(&header, rows.collect()));
    }
    for aside in &listing.aside {
        lines.push(format!("kept aside: {aside}"));
    }
    lines.push(format!(
        "{}: {}",
        listing.cluster,
        table::size(listing.bytes)
    ));
    lines.join("\n")
}

/// `tidegate log check`.
pub(crate) fn check(arguments: &LogDir, output: Output) -> Result<Exit, ErrorReport> {
    let dir = directory(arguments)?.dir;
    let progress = ProgressLine::begin("log check", ProgressUnit::Bytes);
    let disk = CountingDisk::new(progress.counted());
    progress.counted().expect(size(&disk, &dir));
    let look = || embedded::check(&disk, &dir);
    let mut checked = look()?;
    if !checked.problems.is_empty() {
        // A record that is only on its way is in its place a moment later.
        std::thread::sleep(PAUSE);
        let before = std::mem::replace(&mut checked, look()?).problems;
        checked.problems.retain(|problem| before.contains(problem));
    }
    drop(progress);
    let problems = checked.problems.iter();
    let losses = problems.clone().filter(|found| found.is_loss()).count();
    let findings: Vec<_> = problems.clone().map(finding_json).collect();
    let document = json!({
        "directory": dir, "segments": checked.segments, "groups": checked.groups,
        "findings": findings,
    });
    output.print(&document, || {
        let lines = problems.map(|problem| format!("{}: {problem}\n", level(problem)));
        format!(
            "{}{}: {}, {}, {}, {}",
            lines.collect::<String>(),
            dir.display(),
            table::counted(checked.segments, "segment"),
            table::counted(checked.groups, "commit group"),
            table::counted(losses as u64, "problem"),
            table::counted((checked.problems.len() - losses) as u64, "note"),
        )
    })?;
    Ok(Exit::Findings.unless(losses == 0))
}

/// The bytes of all files below a directory; what cannot be listed is told by whoever reads it.
fn size(disk: &dyn Disk, dir: &Path) -> u64 {
    let entries = disk.list(dir).unwrap_or_default();
    let sizes = entries.iter().map(|entry| match entry.is_dir {
        true => size(disk, &dir.join(&entry.name)),
        false => entry.len,
    });
    sizes.sum()
}

fn level(problem: &LogProblem) -> &'static str {
    match problem.is_loss() {
        true => "problem",
        false => "note",
    }
}

fn finding_json(problem: &LogProblem) -> serde_json::Value {
    let mut finding = json!({ "level": level(problem), "message": problem.to_string() });
    if let LogProblem::Records { at, from, to, .. } = problem {
        finding["topic"] = json!(at.topic);
        finding["partition"] = json!(at.partition);
        finding["from"] = json!(from);
        finding["to"] = json!(to);
    }
    if let LogProblem::UnknownLoss(loss) = problem {
        finding["unknown_loss"] = loss_json(loss);
    }
    finding
}

fn loss_json(loss: &UnknownLoss) -> serde_json::Value {
    let partitions = loss.partitions.iter().map(ToString::to_string);
    json!({
        "groups": loss.groups, "events_at_least": loss.events,
        "partitions": partitions.collect::<Vec<_>>(),
    })
}

/// `tidegate log repair`.
pub(crate) fn repair(arguments: &LogDir, yes: bool, output: Output) -> Result<Exit, ErrorReport> {
    let config = directory(arguments)?;
    let dir = config.dir.clone();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let plan = embedded::plan_repair(&SystemDisk, &*clock, &dir)?;
    let what = plan_text(&dir, &plan);
    if yes {
        say(&what);
    }
    let message = format!("{what}; this was not confirmed");
    let unconfirmed = ErrorReport::new("repair.unconfirmed", message)
        .with_hint("give `--yes`; `tidegate log check` says what would be given up");
    confirm(&what, yes, unconfirmed)?;
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    let write = system_entropy().next_u64();
    let repaired = embedded::repair(&disk, &clock, config, write)?;
    let all: Vec<_> = repaired.iter().map(repaired_json).collect();
    output.print(&json!({ "directory": dir, "repaired": all }), || {
        let lines = repaired.iter().map(|done| repaired_text(done) + "\n");
        let count = match repaired.len() {
            0 => "nothing was to be repaired".to_owned(),
            count => table::counted(count as u64, "repair"),
        };
        format!("{}{}: {count}", lines.collect::<String>(), dir.display())
    })?;
    Ok(Exit::Ok)
}

/// The plan of a repair, in numbers.
fn plan_text(dir: &Path, plan: &RepairPlan) -> String {
    let events = |count| table::counted(count, "event");
    let mut text = format!(
        "repairing `{}` keeps damaged bytes aside, and posts {} as lost:damaged and {} as \
         lost:commit_damaged",
        dir.display(),
        events(plan.damaged),
        events(plan.commit_damaged),
    );
    if plan.recovered > 0 {
        let records = table::counted(plan.recovered, "record");
        text.push_str(&format!("; {records} can be taken from the journal"));
    }
    text
}

fn repaired_text(done: &Repaired) -> String {
    match done {
        Repaired::Records { at, offsets, aside } => {
            let (from, to) = offsets;
            let lost = format!(
                "{at}: lost: {}",
                offsets_in_words(Offset(*from), Offset(*to))
            );
            match aside {
                Some(aside) => format!("{lost}; their bytes are kept in `{aside}`"),
                None => format!("{lost}; nothing of them was there"),
            }
        }
        Repaired::Recovered { at, offsets, aside } => {
            let (from, to) = offsets;
            let taken = format!(
                "{at}: taken from the journal: {}",
                offsets_in_words(Offset(*from), Offset(*to))
            );
            match aside {
                Some(aside) => format!("{taken}; the damaged bytes are kept in `{aside}`"),
                None => taken,
            }
        }
        Repaired::Index { file } => format!("index `{file}` was made again"),
        Repaired::Manifest { file } => format!("`{file}` was made again from the other one"),
        Repaired::Commits {
            group,
            topic,
            events,
        } => format!(
            "{group}@{topic}: {} lost with a commit; what became of them is unknown",
            table::counted(*events, "event")
        ),
        Repaired::UnknownLoss(loss) => format!("taken note of: {loss}"),
    }
}

fn repaired_json(done: &Repaired) -> serde_json::Value {
    let mut repaired = json!({ "message": repaired_text(done) });
    if let Repaired::Records { at, offsets, aside } | Repaired::Recovered { at, offsets, aside } =
        done
    {
        repaired["topic"] = json!(at.topic);
        repaired["partition"] = json!(at.partition);
        repaired["from"] = json!(offsets.0);
        repaired["to"] = json!(offsets.1);
        repaired["aside"] = json!(aside);
    }
    if let Repaired::UnknownLoss(loss) = done {
        repaired["unknown_loss"] = loss_json(loss);
    }
    repaired
}
