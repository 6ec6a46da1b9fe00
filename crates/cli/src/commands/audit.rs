//! `tidegate audit`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use tidegate_core::books::{
    Account, Audit, AuditVerdict, Audited, AuditedPath, Bucket, ComponentKind, Discrepancy,
    NotCompared, WitnessChange, WitnessLoss,
};
use tidegate_core::env::Env;
use tidegate_core::{audit_components, iso_time};
use tidegate_logger::spill::SpillDirectory;

use crate::args::{AuditArgs, AuditCommand, Output};
use crate::confirm::confirm;
use crate::parts::InspectionTargets;
use crate::progress::{CountingDisk, ProgressLine, ProgressUnit};
use crate::report::{ErrorReport, Exit};
use crate::witness::{Witness, WitnessComparison, WitnessFile, WitnessScope, accepted_by, compare};
use crate::{settings, table};

/// Losses of one component by the witness that are shown to people, one line each.
const SHOWN_LOSSES: usize = 10;

/// The result, for programs.
#[derive(Serialize)]
struct AuditReport<'a> {
    components: &'a [Audited],
    /// Events that are not accounted for, by the books or by the witness.
    unaccounted: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    witness: Option<WitnessReport<'a>>,
}

/// The result of the comparison with the witness, for programs.
#[derive(Serialize)]
struct WitnessReport<'a> {
    file: String,
    /// The time at which it was written; none for a new one.
    at: Option<&'a str>,
    compared: u64,
    missing: &'a [WitnessLoss],
    not_looked_at: &'a [String],
    /// Whether it has the numbers of today now.
    written: bool,
}

pub(crate) async fn run(arguments: &AuditCommand, output: Output) -> Result<Exit, ErrorReport> {
    let asked = AskedWitness::of(arguments)?;
    let progress = ProgressLine::begin("audit", ProgressUnit::Bytes);
    let env = Env {
        disk: Arc::new(CountingDisk::new(progress.counted())),
        ..Env::system()
    };
    let inspection = InspectionTargets::of(&arguments.books, env).await;
    let inspection = inspection.map_err(|report| unreadable(report, asked.as_ref()))?;
    let is_witnessed = asked.as_ref().is_some_and(|asked| asked.count() > 0);
    // Silence must not pass for proof: a script that audits nothing is wrong.
    if inspection.components.is_empty() && !is_witnessed {
        return Err(nothing());
    }
    let components: Vec<_> = inspection.components.iter().collect();
    let audit = audit_components(&components, &inspection.components).await;
    let audit = audit.map_err(|failure| unreadable(failure.into(), asked.as_ref()))?;
    let compared = match &asked {
        None => None,
        Some(asked) => {
            let now = accepted_by(&inspection.components).await?;
            Some(asked.compare(arguments, now)?)
        }
    };
    drop(progress);
    let by_witness = compared
        .as_ref()
        .map_or(0, |compared| match compared.is_accepted {
            true => 0,
            false => compared.found.lost(),
        });
    let report = AuditReport {
        components: &audit.components,
        unaccounted: audit.unaccounted + by_witness,
        witness: asked
            .as_ref()
            .zip(compared.as_ref())
            .map(|(asked, compared)| WitnessReport {
                file: asked.file.path().display().to_string(),
                at: asked.earlier.as_ref().map(|earlier| earlier.at.as_str()),
                compared: compared.found.compared,
                missing: &compared.found.losses,
                not_looked_at: &compared.found.skipped,
                written: compared.is_written,
            }),
    };
    output.print(&report, || {
        let mut lines = vec![text(&audit)];
        if let Some((asked, compared)) = asked.as_ref().zip(compared.as_ref()) {
            lines.extend(asked.lines(compared));
        }
        lines.push(verdict(&audit, by_witness));
        lines.join("\n")
    })?;
    Ok(match audit.verdict() {
        _ if by_witness > 0 => Exit::Loss,
        AuditVerdict::Clean => Exit::Ok,
        AuditVerdict::Findings => Exit::Findings,
        AuditVerdict::Loss => Exit::Loss,
    })
}

fn nothing() -> ErrorReport {
    ErrorReport::new(
        "audit.nothing",
        "no component was found, so nothing was audited",
    )
    .with_hint(
        "name a spill directory with `--spill DIR`, a log with `--log-dir DIR` or a database \
         with `--store URL`, or set `eventlog.async.spillover-path`, `log` or `store` in the \
         configuration",
    )
    .with_exit(Exit::Usage)
}

/// The rows of a damaged database were acknowledged and cannot be read. Events that a witness
/// knows of and that are nowhere are gone.
fn unreadable(report: ErrorReport, asked: Option<&AskedWitness>) -> ErrorReport {
    let is_gone = ["store.missing", "store.schema", "log.missing"]
        .iter()
        .any(|code| report.is(code));
    let is_gone = |asked: &&AskedWitness| is_gone || asked.is_directory_gone;
    match asked.filter(|asked| asked.count() > 0).filter(is_gone) {
        Some(asked) => {
            let events = table::counted(asked.count(), "event");
            let path = asked.file.path().display();
            let hint = format!("the witness `{path}` knows of {events}");
            report.with_hint(hint).with_exit(Exit::Loss)
        }
        None if report.is("store.damaged") => report.with_exit(Exit::Loss),
        None => report,
    }
}

/// The witness that a command is held against.
struct AskedWitness {
    file: WitnessFile,
    earlier: Option<Witness>,
    scope: WitnessScope,
    /// Whether the command line names it. The one of the configuration is written by `run` alone.
    is_named: bool,
    /// Whether a spill directory that is named is not there.
    is_directory_gone: bool,
}

/// The witness beside the components of today, and what became of its file.
struct ComparedWitness {
    found: WitnessComparison,
    is_accepted: bool,
    is_written: bool,
}

impl AskedWitness {
    /// The witness that is named, else the configured one where its file is there.
    fn of(arguments: &AuditCommand) -> Result<Option<Self>, ErrorReport> {
        let scope = scope(&arguments.books);
        if let Some(path) = &arguments.witness {
            let file = WitnessFile::at(path, &Env::system());
            let earlier = file.read()?;
            let mut dirs = arguments.books.spills.spill.iter();
            return Ok(Some(Self {
                file,
                earlier,
                scope,
                is_named: true,
                is_directory_gone: dirs.any(|dir| matches!(dir.try_exists(), Ok(false))),
            }));
        }
        if scope != WitnessScope::Everything {
            return Ok(None);
        }
        let config = settings::quietly(&arguments.books.spills.file)?;
        let Some(path) = config.text("audit.witness") else {
            return Ok(None);
        };
        let file = WitnessFile::at(Path::new(path), &Env::system());
        let earlier = file.read()?;
        Ok(earlier.map(|earlier| Self {
            file,
            earlier: Some(earlier),
            scope,
            is_named: false,
            is_directory_gone: false,
        }))
    }

    /// How many events it knows of.
    fn count(&self) -> u64 {
        self.earlier.as_ref().map_or(0, Witness::count)
    }

    /// Compares it, and replaces it if nothing is lost or what is lost is accepted.
    fn compare(
        &self,
        arguments: &AuditCommand,
        now: Vec<tidegate_core::books::AcceptedEvents>,
    ) -> Result<ComparedWitness, ErrorReport> {
        let found = compare(self.earlier.as_ref(), now, &self.scope);
        let is_lost = !found.losses.is_empty();
        if is_lost && arguments.accept {
            let lost = table::counted(found.lost(), "event");
            let path = self.file.path().display();
            let what = format!("the witness `{path}` forgets {lost} that are gone");
            let unconfirmed = ErrorReport::new(
                "witness.unconfirmed",
                format!("{what}, and nobody confirmed it: nothing was written"),
            );
            let hint = "give `--yes` to go on without being asked";
            let unconfirmed = unconfirmed.with_hint(hint);
            confirm(&what, arguments.yes, unconfirmed)?;
        }
        let is_accepted = is_lost && arguments.accept;
        let is_written = self.is_named && (!is_lost || is_accepted);
        if is_written {
            self.file.write(found.next.clone())?;
        } else if self.is_named {
            self.file.write_newer(found.next.clone())?;
        }
        Ok(ComparedWitness {
            found,
            is_accepted,
            is_written,
        })
    }

    /// The lines for people.
    fn lines(&self, compared: &ComparedWitness) -> Vec<String> {
        let path = self.file.path().display();
        let found = &compared.found;
        let mut lines = match &self.earlier {
            None => vec![format!("witness {path}: written for the first time")],
            Some(earlier) => {
                let events = table::counted(found.compared, "event");
                vec![format!(
                    "witness {path} of {}: {events} compared",
                    earlier.at
                )]
            }
        };
        let mut component = None;
        let mut of_it = 0;
        for loss in &found.losses {
            let of = Some((loss.kind, &loss.component));
            if component != of {
                (component, of_it) = (of, 0);
            }
            of_it += 1;
            match of_it {
                ..=SHOWN_LOSSES => lines.push(loss_line(loss)),
                next if next == SHOWN_LOSSES + 1 => lines.push(format!(
                    "{}: … and more (`-o json` has all)",
                    loss.component
                )),
                _ => {}
            }
        }
        lines.extend(
            found
                .skipped
                .iter()
                .map(|name| format!("{name}: not looked at, so not compared")),
        );
        if compared.is_accepted {
            let lost = table::counted(found.lost(), "event");
            lines.push(format!(
                "{lost} of the witness are accepted as gone; it was written anew"
            ));
        } else if self.is_named && !compared.is_written {
            let newer = self.file.newer();
            lines.push(format!(
                "the witness stays as it is; the numbers of today are in `{}` until you run this with \
                 `--accept`",
                newer.display()
            ));
        }
        lines
    }
}

/// The part that a command line looks at. A user who names one kind of thing wants that alone.
fn scope(arguments: &AuditArgs) -> WitnessScope {
    let mut parts = Vec::new();
    let loggers = arguments.spills.spill.iter();
    let loggers = loggers.map(|dir| (ComponentKind::Logger, Some(SpillDirectory::name_of(dir))));
    parts.extend(loggers);
    let of = |kinds: &[ComponentKind]| kinds.iter().map(|kind| (*kind, None)).collect::<Vec<_>>();
    let in_store = [
        ComponentKind::Queue,
        ComponentKind::Relay,
        ComponentKind::EventLog,
    ];
    if arguments.store.is_some() {
        parts.extend(of(&in_store));
    }
    if arguments.at.dir.is_some() || arguments.at.url.is_some() {
        parts.extend(of(&[ComponentKind::Topic]));
    }
    if arguments.at.url.is_some() {
        parts.extend(of(&in_store));
    }
    match parts.is_empty() {
        true => WitnessScope::Everything,
        false => WitnessScope::Only(parts),
    }
}

fn loss_line(loss: &WitnessLoss) -> String {
    let WitnessLoss {
        component,
        change,
        bucket,
        count,
        id,
        ..
    } = loss;
    let what = match (change, id) {
        (_, Some(id)) => format!("event {id} is gone"),
        (WitnessChange::Replaced, None) => {
            "events are gone and others are in their place".to_owned()
        }
        (WitnessChange::Gone | WitnessChange::Shrank, None) => {
            let are = if *count == 1 { "is" } else { "are" };
            format!("{} {are} gone", table::counted(*count, "event"))
        }
    };
    let all = match change {
        WitnessChange::Gone => ", as all of it",
        WitnessChange::Shrank | WitnessChange::Replaced => "",
    };
    let born = born(*bucket).map_or_else(String::new, |born| format!(" ({born})"));
    format!("{component}: {what}{all}{born}")
}

/// A column of the report.
struct Column {
    name: &'static str,
    cell: fn(&Audited) -> String,
    /// Whether it is left out where all of it is 0.
    is_rare: bool,
}

const COLUMNS: [Column; 10] = {
    const fn column(name: &'static str, cell: fn(&Audited) -> String) -> Column {
        Column {
            name,
            cell,
            is_rare: false,
        }
    }
    const fn rare(name: &'static str, cell: fn(&Audited) -> String) -> Column {
        Column {
            name,
            cell,
            is_rare: true,
        }
    }
    [
        column("component", |one| one.name.clone()),
        column("kind", |one| one.kind.to_string()),
        column("accepted", |one| one.books.accepted.to_string()),
        column("kept", |one| {
            (kept(one.kind, &one.books) - kept(one.kind, &one.removed)).to_string()
        }),
        column("found", |one| kept(one.kind, &one.recount).to_string()),
        rare("dead letters", |one| {
            let dead = one.books.dead_lettered - one.removed.dead_lettered;
            match one.recount.dead_lettered {
                found if found == dead => dead.to_string(),
                found => format!("{dead}, {found} found"),
            }
        }),
        column("removed", |one| one.removed.accepted.to_string()),
        column("lost", |one| one.books.lost.total().to_string()),
        column("missing", |one| one.unaccounted.to_string()),
        rare("unverifiable", |one| one.unverifiable.to_string()),
    ]
};

fn text(audit: &Audit) -> String {
    let all = &audit.components;
    let is_shown = |column: &&Column| {
        !column.is_rare || all.iter().any(|audited| (column.cell)(audited) != "0")
    };
    let columns: Vec<&Column> = COLUMNS.iter().filter(is_shown).collect();
    let header: Vec<&str> = columns.iter().map(|column| column.name).collect();
    let row = |audited| {
        columns
            .iter()
            .map(|column| (column.cell)(audited))
            .collect()
    };
    let rows = all.iter().map(row);
    let mut lines = vec![table::grid(&header, rows.collect())];
    for audited in &audit.components {
        for missing in &audited.missing {
            lines.push(format!("{}: {}", audited.name, line(missing)));
        }
        let findings = audited.findings.iter();
        lines.extend(
            findings.map(|one| format!("{}: {} ({})", audited.name, one.message, one.code)),
        );
        let notes = audited.notes.iter();
        lines.extend(notes.map(|note| format!("{}: note: {note}", audited.name)));
        for path in &audited.paths {
            lines.extend(path_lines(&audited.name, path));
        }
    }
    lines.join("\n")
}

/// The last line.
fn verdict(audit: &Audit, by_witness: u64) -> String {
    let findings: usize = audit.components.iter().map(|one| one.findings.len()).sum();
    match audit.unaccounted + by_witness {
        0 if findings > 0 => {
            let findings = table::counted(findings as u64, "finding");
            format!("! {findings}: no event is certainly gone, and this is no proof that none is")
        }
        0 => match lost(&audit.components) {
            0 => "✓ every event is accounted for".to_owned(),
            lost => format!("✓ every event is accounted for, {lost} of them lost"),
        },
        1 => "✗ 1 event is NOT accounted for".to_owned(),
        count => format!("✗ {count} events are NOT accounted for"),
    }
}

/// The events that are in the books as lost, each once: a group has books of its own of the events of its topic.
fn lost(components: &[Audited]) -> i64 {
    let mut by_topic: BTreeMap<&str, i64> = BTreeMap::new();
    for one in components {
        let is_group = matches!(one.kind, ComponentKind::Group);
        let topic = if is_group {
            one.name.rsplit_once('@').map_or("", |(_, topic)| topic)
        } else {
            &one.name
        };
        let most = by_topic.entry(topic).or_default();
        *most = one.books.lost.total().max(*most);
    }
    by_topic.values().sum()
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
        (..0, Some(id)) => format!("event {id} is one too many"),
        (_, Some(id)) => format!("event {id} is missing"),
        (0, None) => "as many events as the books say, and others in their place".to_owned(),
        (-1, None) => "one event too many".to_owned(),
        (..0, None) => format!("{} events too many", count.unsigned_abs()),
        (1, None) => "one event is missing".to_owned(),
        (count, None) => format!("{count} events are missing"),
    };
    let place = place.to_string().replace('_', " ");
    match born(*bucket) {
        Some(born) => format!("{what} ({place}, {born})"),
        None => format!("{what} ({place})"),
    }
}

/// The time or the offsets of a bucket in words; none where it tells neither.
fn born(bucket: Bucket) -> Option<String> {
    let (from, minutes) = match bucket {
        // Ids that do not tell when they were born.
        Bucket::Minute(0) | Bucket::Hour(0) | Bucket::Day(0) => return None,
        Bucket::Offsets {
            partition,
            first,
            last,
        } => {
            let offsets = match last.0 {
                i64::MAX => String::new(),
                last => format!(", {}", offsets(first.0, last)),
            };
            return (partition.0 >= 0).then(|| format!("partition {partition}{offsets}"));
        }
        Bucket::Minute(minute) => (minute * 60_000, 1),
        Bucket::Hour(hour) => (hour * 3_600_000, 60),
        Bucket::Day(day) => (day * 86_400_000, 1_440),
    };
    let from_text = iso_time(from)?;
    let (day, from_time) = (from_text.get(..10)?, from_text.get(11..16)?);
    let to_text = iso_time(from + minutes * 60_000)?;
    Some(match minutes {
        1_440 => format!("born on {day} UTC"),
        _ => format!("born {day} {from_time}–{} UTC", to_text.get(11..16)?),
    })
}

fn offsets(first: i64, last: i64) -> String {
    match first == last {
        true => format!("offset {first}"),
        false => format!("offsets {first}–{last}"),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::books::{Books, Place};
    use tidegate_core::{EventId, Offset, Partition};

    use super::*;

    #[test]
    fn a_bucket_is_said_in_words() {
        let partition = |number| Bucket::Offsets {
            partition: Partition(number),
            first: Offset(3),
            last: Offset(if number < 0 { i64::MAX } else { 7 }),
        };
        for (bucket, expect) in [
            (
                Bucket::Minute(29_913_510),
                Some("born 2026-11-16 06:30–06:31 UTC"),
            ),
            (
                Bucket::Hour(498_558),
                Some("born 2026-11-16 06:00–07:00 UTC"),
            ),
            (Bucket::Day(20_773), Some("born on 2026-11-16 UTC")),
            (Bucket::Minute(0), None),
            (partition(2), Some("partition 2, offsets 3–7")),
            (partition(-1), None),
        ] {
            assert_eq!(born(bucket).as_deref(), expect, "{bucket}");
        }
    }

    #[test]
    fn a_discrepancy_is_one_sentence_without_internal_words() {
        let said = |count, id: Option<u128>| {
            line(&Discrepancy {
                bucket: Bucket::Minute(29_913_510),
                place: Place::DeadLettered,
                count,
                id: id.map(EventId::from_u128),
            })
        };
        let time = "(dead lettered, born 2026-11-16 06:30–06:31 UTC)";
        assert_eq!(said(-1, None), format!("one event too many {time}"));
        assert_eq!(said(2, None), format!("2 events are missing {time}"));
        assert!(said(-1, Some(7)).contains(" is one too many ("));
        assert!(!said(0, None).contains("count"));
    }

    fn audited(name: &str, kind: ComponentKind, lost: i64) -> Audited {
        let mut books = Books::default();
        let tally = tidegate_core::books::Tally {
            count: lost,
            id_sum: 0,
        };
        let place = Place::Lost(tidegate_core::books::LossReason::PURGED);
        books.move_tally(Bucket::Minute(1), None, Some(place), tally);
        Audited::new(name.to_owned(), kind, &books, &books, Vec::new())
    }

    #[test]
    fn lost_events_are_said_at_the_end_each_once() {
        let audit = Audit::new(vec![
            audited("orders", ComponentKind::Topic, 832),
            audited("a@orders", ComponentKind::Group, 832),
            audited("b@orders", ComponentKind::Group, 0),
            audited("queue", ComponentKind::Queue, 0),
        ]);
        assert_eq!(
            verdict(&audit, 0),
            "✓ every event is accounted for, 832 of them lost"
        );
        let shown = text(&audit);
        let header = shown.lines().next().unwrap();
        assert!(
            header.contains("removed") && header.contains("lost"),
            "{shown}"
        );
        assert!(!header.contains("unverifiable"), "{shown}");
        let width = shown.lines().map(|line| line.chars().count()).max();
        assert!(width < Some(80), "{shown}");
    }
}
