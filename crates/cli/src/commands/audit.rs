//! `tidegate audit`.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::books::{Account, Bucket, ComponentKind, Discrepancy};
use tidegate_core::env::system::SystemDisk;
use tidegate_logger::spill::{Recount, SpillError, recount};

use crate::args::{Output, Spills};
use crate::commands::spill;
use crate::report::{Exit, Report, print, print_json, say};
use crate::table;

/// How often a directory that seems to lack events is looked at, and the wait between two looks:
/// beside a running logger, events pass from file to file while they are counted.
const LOOKS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// What the audit of all components found.
#[derive(Debug, Serialize)]
struct Audit {
    components: Vec<Audited>,
    unaccounted: u64,
}

/// What the audit of one component found.
#[derive(Debug, Serialize)]
struct Audited {
    name: String,
    kind: ComponentKind,
    books: Account,
    recount: Account,
    removed: Account,
    unverifiable: u64,
    unaccounted: u64,
    missing: Vec<Discrepancy>,
}

impl Audited {
    fn of(dir: &Path, recount: Recount) -> Self {
        Self {
            name: spill::component(dir),
            kind: ComponentKind::Logger,
            books: recount.books.account(),
            recount: recount.found.account(),
            removed: recount.books.removed(),
            unverifiable: recount.unverifiable,
            unaccounted: recount.unaccounted(),
            missing: recount.missing,
        }
    }
}

pub(crate) fn run(arguments: &Spills, output: Output) -> Result<Exit, Report> {
    let directories = spill::directories(arguments)?;
    let mut components = Vec::new();
    for dir in &directories {
        let recount = look(dir).map_err(|error| spill::unreadable("cannot audit", dir, &error))?;
        components.push(Audited::of(dir, recount));
    }
    let audit = Audit {
        unaccounted: components.iter().map(|audited| audited.unaccounted).sum(),
        components,
    };
    match output {
        Output::Json => print_json(&audit)?,
        Output::Table => print(&text(&audit))?,
    }
    if directories.is_empty() {
        say(
            "there is nothing to audit: name a spill directory with `--spill DIR`, or set \
             `eventlog.async.spillover-path` in the configuration",
        );
    }
    Ok(if audit.unaccounted == 0 {
        Exit::Ok
    } else {
        Exit::Loss
    })
}

/// Counts a directory, again while it seems to lack events and changes: one look that agrees is
/// proof, and what was taken away lacks in every look.
fn look(dir: &Path) -> Result<Recount, SpillError> {
    let mut last = recount(&SystemDisk, dir)?;
    for _ in 1..LOOKS {
        if last.missing.is_empty() {
            break;
        }
        std::thread::sleep(PAUSE);
        let next = recount(&SystemDisk, dir)?;
        let is_still = next.books == last.books && next.found == last.found;
        last = next;
        if is_still {
            break;
        }
    }
    Ok(last)
}

fn text(audit: &Audit) -> String {
    if audit.components.is_empty() {
        return "nothing was audited".to_owned();
    }
    let header = [
        "component",
        "accepted",
        "spilled: books",
        "found",
        "dead lettered: books",
        "found",
        "missing",
        "unverifiable",
    ];
    let rows = audit.components.iter().map(|audited| {
        vec![
            audited.name.clone(),
            audited.books.accepted.to_string(),
            audited.books.spilled.to_string(),
            audited.recount.spilled.to_string(),
            audited.books.dead_lettered.to_string(),
            audited.recount.dead_lettered.to_string(),
            audited.unaccounted.to_string(),
            audited.unverifiable.to_string(),
        ]
    });
    let mut lines = vec![table::grid(&header, rows.collect())];
    for audited in &audit.components {
        for missing in &audited.missing {
            lines.push(format!("{}: {}", audited.name, line(missing)));
        }
    }
    lines.push(match audit.unaccounted {
        0 => "✓ every event is accounted for".to_owned(),
        1 => "✗ 1 event is NOT accounted for".to_owned(),
        count => format!("✗ {count} events are NOT accounted for"),
    });
    lines.join("\n")
}

fn line(missing: &Discrepancy) -> String {
    let Discrepancy {
        bucket,
        place,
        count,
        id,
    } = missing;
    let what = match (count, id) {
        (_, Some(id)) => format!("event {id} is missing"),
        (0, None) => "events are there that should not be, in place of others".to_owned(),
        (count, None) => format!("{count} events are missing"),
    };
    let born = match bucket {
        Bucket::Minute(0) | Bucket::Offsets { .. } => None,
        Bucket::Minute(minute) => table::time(minute * 60_000),
        Bucket::Hour(hour) => table::time(hour * 3_600_000),
        Bucket::Day(day) => table::time(day * 86_400_000),
    };
    let born = born
        .map(|born| format!(", from {born}"))
        .unwrap_or_default();
    format!("{what} (place {place}, bucket {bucket}{born}, count {count})")
}
