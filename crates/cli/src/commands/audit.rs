//! `tidegate audit`.

use std::path::Path;
use std::time::Duration;

use tidegate_core::books::{Account, Audit, Audited, Bucket, ComponentKind, Discrepancy};
use tidegate_core::env::Env;
use tidegate_core::env::system::SystemDisk;
use tidegate_log::LogError;
use tidegate_log::embedded::{self, UnknownLoss};
use tidegate_logger::spill::{Recount, SpillError, recount};

use crate::args::{Books, Output, StoreAt};
use crate::commands::spill;
use crate::log::{self, Backend, Opened, Reached};
use crate::report::{Exit, Report, print, print_json, say};
use crate::store;
use crate::table;

/// How often a directory that seems to lack events is looked at, and the wait between two looks:
/// beside a running logger, events pass from file to file while they are counted.
const LOOKS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

fn of_spill(dir: &Path, recount: Recount) -> Audited {
    let (name, kind) = (spill::component(dir), ComponentKind::Logger);
    let audited = Audited::new(name, kind, &recount.books, &recount.found, recount.missing);
    audited.unverifiable(recount.unverifiable)
}

pub(crate) async fn run(arguments: &Books, output: Output) -> Result<Exit, Report> {
    let asked = Asked::by(arguments);
    let mut components = Vec::new();
    let mut is_configured = false;
    if asked.spills {
        let (directories, is_absent) = spill::directories_or_absent(&arguments.spills)?;
        is_configured |= is_absent;
        for dir in &directories {
            let recount =
                look(dir).map_err(|error| spill::unreadable("cannot audit", dir, &error))?;
            components.push(of_spill(dir, recount));
        }
    }
    is_configured |= asked.log && audit_log(arguments, &mut components).await?;
    is_configured |= asked.store && audit_queue(arguments, &mut components).await?;
    // Silence must not pass for proof: a script that audits nothing is wrong.
    if !is_configured && components.is_empty() {
        return Err(Report::new(
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
    let audit = Audit::new(components);
    match output {
        Output::Json => print_json(&audit)?,
        Output::Table => print(&text(&audit))?,
    }
    Ok(if audit.unaccounted == 0 {
        Exit::Ok
    } else {
        Exit::Loss
    })
}

/// What is asked for. Whoever names one kind of thing wants that kind alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) spills: bool,
    pub(super) log: bool,
    pub(super) store: bool,
}

impl Asked {
    pub(super) fn by(arguments: &Books) -> Self {
        let named = Self {
            spills: !arguments.spills.spill.is_empty(),
            log: arguments.at.dir.is_some() || arguments.at.url.is_some(),
            store: arguments.store.is_some(),
        };
        if named.spills || named.log || named.store {
            return named;
        }
        Self {
            spills: true,
            log: true,
            store: true,
        }
    }
}

/// The queue that is meant, if there is one. One that is named or configured must be there: a file
/// that is gone, or whose tables are, looks like one in which nothing was published, and tells nothing
/// of any event.
pub(super) async fn open_queue(arguments: &Books) -> Result<Option<store::Opened>, Report> {
    let settings = store::named(&StoreAt {
        file: arguments.spills.file.clone(),
        store: arguments.store.clone(),
    })?;
    let env = Env::system();
    if settings.is_given {
        store::open(&settings, &env).await.map(Some)
    } else {
        store::open_if_there(&settings, &env).await
    }
}

/// Audits the queue in the tables themselves, whoever works on them meanwhile: what is counted is of
/// one moment. Says whether there is one.
async fn audit_queue(arguments: &Books, into: &mut Vec<Audited>) -> Result<bool, Report> {
    let Some(opened) = open_queue(arguments).await? else {
        return Ok(false);
    };
    let recount = opened.queue.store().recount().await;
    let recount = recount.map_err(|error| opened.report(&error))?;
    into.push(recount.audited());
    Ok(true)
}

/// Audits the log: from its files, or by the process that holds them, or on Kafka. Says whether
/// there is one, or one is configured to which nothing was sent yet.
async fn audit_log(arguments: &Books, into: &mut Vec<Audited>) -> Result<bool, Report> {
    let (file, at) = (&arguments.spills.file, &arguments.at);
    let failed = |error: LogError| log::report(&error);
    let env = Env::system();
    if at.url.is_some() {
        let Reached::There(remote) = log::reach(file, at, None, &env).await? else {
            return Ok(false);
        };
        into.extend(remote.audit().await.map_err(failed)?.components);
        return Ok(true);
    }
    let (settings, config) = log::configured(file, at.dir.as_deref())?;
    let Backend::Embedded(embedded) = &settings.backend else {
        let opened = Opened::open(&settings, &env, None).await.map_err(failed)?;
        into.extend(opened.audit().await.map_err(failed)?.components);
        return Ok(true);
    };
    let dir = &embedded.dir;
    if !log::must_be_there(dir, at)? {
        let is_configured = config.is_set("log");
        if is_configured {
            let dir = dir.display();
            say(&format!("there is no log in `{dir}` yet: nothing was sent"));
        }
        return Ok(is_configured);
    }
    if let Some(remote) = log::holding(dir, at, &config).await? {
        into.extend(remote.audit().await.map_err(failed)?.components);
        return Ok(true);
    }
    let (counted, loss) = look_at_log(dir).map_err(failed)?;
    into.extend(counted.into_iter().map(log::audited));
    if let Some(loss) = loss {
        into.push(log::unknown_loss(&loss));
        say(&format!("journal: {loss}"));
    }
    Ok(true)
}

/// Counts a log, again while it seems to lack events: somebody may be writing who cannot be asked.
fn look_at_log(dir: &Path) -> Result<(Vec<embedded::Audited>, Option<UnknownLoss>), LogError> {
    let is_held = Opened::holder(dir)?.is_some();
    let look = || {
        let counted = embedded::recount(&SystemDisk, dir)?;
        Ok((counted, embedded::unknown_loss(&SystemDisk, dir)?))
    };
    let mut last: (Vec<embedded::Audited>, Option<UnknownLoss>) = look()?;
    for _ in 1..LOOKS {
        let is_clean = last.0.iter().all(|audited| audited.missing.is_empty());
        if (is_clean && last.1.is_none()) || !is_held {
            break;
        }
        std::thread::sleep(PAUSE);
        last = look()?;
    }
    Ok(last)
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
        "kind",
        "accepted",
        "kept: books",
        "found",
        "dead lettered: books",
        "found",
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
    }
    lines.push(match audit.unaccounted {
        0 => "✓ every event is accounted for".to_owned(),
        1 => "✗ 1 event is NOT accounted for".to_owned(),
        count => format!("✗ {count} events are NOT accounted for"),
    });
    lines.join("\n")
}

/// What is kept where it can be counted again: in a spill, in a topic, or in the tables of a queue,
/// which keep what was delivered as well.
fn kept(kind: ComponentKind, account: &Account) -> i64 {
    let waiting = account.spilled + account.queued;
    if kind != ComponentKind::Queue {
        return waiting;
    }
    let open = account.in_flight + account.retrying + account.parked;
    waiting + open + account.delivered
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
        Bucket::Minute(minute) => table::time(minute * 60_000),
        Bucket::Hour(hour) => table::time(hour * 3_600_000),
        Bucket::Day(day) => table::time(day * 86_400_000),
    };
    let born = born
        .map(|born| format!(", from {born}"))
        .unwrap_or_default();
    format!("{what} (place {place}, bucket {bucket}{born}, count {count})")
}
