//! `tidegate audit`.

use tidegate_core::books::{
    Account, Audit, AuditVerdict, AuditedPath, Bucket, ComponentKind, Discrepancy, NotCompared,
};
use tidegate_core::{audit_components, iso_time};

use crate::args::{AuditArgs, Output};
use crate::parts::InspectionTargets;
use crate::report::{ErrorReport, Exit};
use crate::table;

pub(crate) async fn run(arguments: &AuditArgs, output: Output) -> Result<Exit, ErrorReport> {
    let inspection = InspectionTargets::of(arguments).await.map_err(unreadable)?;
    // Silence must not pass for proof: a script that audits nothing is wrong.
    if inspection.components.is_empty() {
        return Err(ErrorReport::new(
            "audit.nothing",
            "there is nothing to audit, and nothing was",
        )
        .with_hint(
            "name a spill directory with `--spill DIR`, a log with `--log-dir DIR` or a database \
             with `--store URL`, or set `eventlog.async.spillover-path`, `log` or `store` in the \
             configuration",
        )
        .with_exit(Exit::Usage));
    }
    let components: Vec<_> = inspection.components.iter().collect();
    let audit = audit_components(&components, &inspection.components).await;
    let audit = audit.map_err(|failure| unreadable(failure.into()))?;
    output.print(&audit, || text(&audit))?;
    Ok(match audit.verdict() {
        AuditVerdict::Clean => Exit::Ok,
        AuditVerdict::Findings => Exit::Findings,
        AuditVerdict::Loss => Exit::Loss,
    })
}

/// The rows of a damaged database were acknowledged and cannot be read.
fn unreadable(report: ErrorReport) -> ErrorReport {
    match report.is("store.damaged") {
        true => report.with_exit(Exit::Loss),
        false => report,
    }
}

fn text(audit: &Audit) -> String {
    let header = [
        "component",
        "kind",
        "accepted",
        "kept by the books",
        "kept on disk",
        "dead letters by the books",
        "dead letters on disk",
        "missing",
        "unverifiable",
    ];
    let rows = audit.components.iter().map(|audited| {
        let kept = |account: &Account| kept(audited.kind, account);
        let dead = |account: &Account| account.dead_lettered;
        vec![
            audited.name.clone(),
            audited.kind.to_string(),
            audited.books.accepted.to_string(),
            (kept(&audited.books) - kept(&audited.removed)).to_string(),
            kept(&audited.recount).to_string(),
            (dead(&audited.books) - dead(&audited.removed)).to_string(),
            dead(&audited.recount).to_string(),
            audited.unaccounted.to_string(),
            audited.unverifiable.to_string(),
        ]
    });
    let mut lines = vec![table::grid(&header, rows.collect())];
    for audited in &audit.components {
        for missing in &audited.missing {
            lines.push(format!("{}: {}", audited.name, line(missing)));
        }
        let findings = audited.findings.iter();
        lines.extend(
            findings.map(|one| format!("{}: {} ({})", audited.name, one.message, one.code)),
        );
        for path in &audited.paths {
            lines.extend(path_lines(&audited.name, path));
        }
    }
    let findings: usize = audit.components.iter().map(|one| one.findings.len()).sum();
    lines.push(match audit.unaccounted {
        0 if findings > 0 => {
            let findings = table::counted(findings as u64, "finding");
            format!("! {findings}: no event is certainly gone, and this is no proof that none is")
        }
        0 => "✓ every event is accounted for".to_owned(),
        1 => "✗ 1 event is NOT accounted for".to_owned(),
        count => format!("✗ {count} events are NOT accounted for"),
    });
    lines.join("\n")
}

/// Lines about the events that a component delivered. A path that cannot be closed here is said: silence
/// must not pass for proof.
fn path_lines(from: &str, path: &AuditedPath) -> Vec<String> {
    let events = |count: u64| table::counted(count, "delivered event");
    let mut lines = Vec::new();
    if let Some(to) = &path.to {
        let compared = events(path.compared);
        lines.push(format!("{from} → {to}: {compared} compared"));
        let missing = path.missing.iter();
        lines.extend(missing.map(|one| format!("{from} → {to}: {}", line(one))));
    }
    if let Some(reason) = path.reason {
        let left = events(path.not_compared);
        let kind = match reason {
            NotCompared::NoReceiver => format!(" (kind {})", path.kind),
            NotCompared::NoOrigin
            | NotCompared::OlderThanOrigin
            | NotCompared::TopicGone
            | NotCompared::MoreReceived => String::new(),
        };
        lines.push(format!("{from}: {left} NOT compared: {reason}{kind}"));
    }
    lines
}

/// The events that can be counted again where they are.
fn kept(kind: ComponentKind, account: &Account) -> i64 {
    let waiting = account.spilled + account.queued;
    let open = account.in_flight + account.retrying + account.parked;
    match kind.keeps_delivered() {
        true => waiting + open + account.delivered,
        false => waiting,
    }
}

fn line(missing: &Discrepancy) -> String {
    let Discrepancy {
        bucket,
        place,
        count,
        id,
    } = missing;
    let what = match (count, id) {
        (..0, Some(id)) => format!("event {id} is there and should not be"),
        (_, Some(id)) => format!("event {id} is missing"),
        (0, None) => "events are there that should not be, in place of others".to_owned(),
        (..0, None) => format!("{} events are there that should not be", -count),
        (count, None) => format!("{count} events are missing"),
    };
    let born = match bucket {
        Bucket::Minute(0) | Bucket::Offsets { .. } => None,
        Bucket::Minute(minute) => iso_time(minute * 60_000),
        Bucket::Hour(hour) => iso_time(hour * 3_600_000),
        Bucket::Day(day) => iso_time(day * 86_400_000),
    };
    let born = born.map_or_else(String::new, |born| format!(", from {born}"));
    format!("{what} (place {place}, bucket {bucket}{born}, count {count})")
}
