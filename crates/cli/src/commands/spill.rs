//! `tidegate spill`, and the spill directories of other commands.

mod replay;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tidegate_core::env::Disk;
use tidegate_core::env::system::SystemDisk;
use tidegate_core::iso_time;
use tidegate_logger::spill::{
    FindingLevel, InspectedFile, SpillDirectory, SpillFinding, SpillInspection, inspect,
};

use crate::args::{Output, SpillDirs};
use crate::report::{ErrorReport, Exit};
use crate::{settings, table};

pub(crate) use replay::replay;

/// The wait before a second look at what seems wrong: a line that is being written has no end yet.
const PAUSE: Duration = Duration::from_millis(200);

/// The spill directories that are meant: those that are named, else the configured one.
///
/// A named one must be there. Of a configured one that is not, an audit says so.
pub(crate) fn directories(arguments: &SpillDirs) -> Result<Vec<PathBuf>, ErrorReport> {
    if !arguments.spill.is_empty() {
        let mut directories: Vec<PathBuf> = Vec::new();
        for dir in &arguments.spill {
            must_be_there(dir)?;
            if !directories.contains(dir) {
                directories.push(dir.clone());
            }
        }
        return Ok(directories);
    }
    let config = settings::quietly(&arguments.file)?;
    let path = config.text("eventlog.async.spillover-path");
    Ok(path.map(PathBuf::from).into_iter().collect())
}

/// The report of a spill directory that cannot be read.
fn unreadable(doing: &str, dir: &Path, error: &dyn Error) -> ErrorReport {
    let doing = format!("{doing} `{}`", dir.display());
    ErrorReport::of("spill.unreadable", &doing, error)
}

fn must_be_there(dir: &Path) -> Result<(), ErrorReport> {
    match SystemDisk.list(dir) {
        Ok(_) => Ok(()),
        Err(error) => Err(unreadable("cannot read", dir, &error)),
    }
}

/// `tidegate spill ls`.
pub(crate) fn list(dir: &Path, output: Output) -> Result<Exit, ErrorReport> {
    let inspection = look(dir)?;
    let files: Vec<_> = inspection.files.iter().map(file_json).collect();
    let component = SpillDirectory::name_of(dir);
    let document =
        json!({ "component": component, "waiting": inspection.waiting(), "files": files });
    output.print(&document, || match files.is_empty() {
        true => format!("{}: no spill files", dir.display()),
        false => listing(&inspection),
    })?;
    Ok(Exit::Ok)
}

/// `tidegate spill check`.
pub(crate) fn check(dir: &Path, output: Output) -> Result<Exit, ErrorReport> {
    let mut inspection = look(dir)?;
    if !inspection.findings.is_empty() {
        // A line that is only on its way is somewhere else a moment later.
        std::thread::sleep(PAUSE);
        let before = std::mem::replace(&mut inspection, look(dir)?).findings;
        inspection
            .findings
            .retain(|finding| before.contains(finding));
    }
    let is_problem = |finding: &&SpillFinding| finding.level == FindingLevel::Problem;
    let problems = inspection.findings.iter().filter(is_problem).count();
    let files: Vec<_> = inspection.files.iter().map(file_json).collect();
    let (component, findings) = (SpillDirectory::name_of(dir), &inspection.findings);
    let document = json!({ "component": component, "files": files, "findings": findings });
    output.print(&document, || {
        let mut text = String::new();
        for finding in findings {
            let level = match finding.level {
                FindingLevel::Problem => "problem",
                FindingLevel::Note => "note",
            };
            text.push_str(&format!("{level}: {finding}\n"));
        }
        let lines: u64 = inspection.files.iter().map(|f| f.lines + f.replayed).sum();
        let notes = findings.len() - problems;
        format!(
            "{text}{}: {}, {}, {}, {}",
            dir.display(),
            table::counted(files.len() as u64, "file"),
            table::counted(lines, "line"),
            table::counted(problems as u64, "problem"),
            table::counted(notes as u64, "note"),
        )
    })?;
    Ok(Exit::Findings.unless(problems == 0))
}

fn look(dir: &Path) -> Result<SpillInspection, ErrorReport> {
    inspect(&SystemDisk, dir).map_err(|error| unreadable("cannot read", dir, &error))
}

fn file_json(file: &InspectedFile) -> serde_json::Value {
    json!({
        "name": file.name,
        "role": file.role,
        "bytes": file.bytes,
        "lines": file.lines,
        "replayed": file.replayed,
        "unreadable": file.unreadable,
        "oldest": file.oldest_ms.and_then(iso_time),
        "newest": file.newest_ms.and_then(iso_time),
    })
}

fn listing(inspection: &SpillInspection) -> String {
    let header = [
        "file",
        "role",
        "lines",
        "replayed",
        "unreadable",
        "size",
        "oldest event",
        "newest event",
    ];
    let time = |ms: Option<u64>| ms.and_then(iso_time).unwrap_or_else(|| "-".to_owned());
    let rows = inspection.files.iter().map(|file| {
        vec![
            file.name.clone(),
            file.role.to_string(),
            file.lines.to_string(),
            file.replayed.to_string(),
            file.unreadable.to_string(),
            table::size(file.bytes),
            time(file.oldest_ms),
            time(file.newest_ms),
        ]
    });
    let grid = table::grid(&header, rows.collect());
    let wait = match inspection.waiting() {
        1 => "1 event waits".to_owned(),
        count => format!("{count} events wait"),
    };
    format!("{grid}\n{wait} for replay")
}
