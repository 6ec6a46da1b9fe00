//! Random single damages, made by a program that knows the truth, and what `tidegate audit` says of each.
//! It exits with 4 where something acknowledged is gone or cannot be read. It exits with 3 where there is
//! damage and nothing acknowledged is gone, and with 0 where nothing was damaged.
//!
//! `TIDEGATE_DAMAGES=1000` makes so many; the plain run makes 100, a long one 10,000.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tidegate_core::env::{Entropy, Env, Stream};
use tidegate_core::{Offset, Topic};
use tidegate_log::{
    Append, EmbeddedConfig, EmbeddedLog, Log, Read, Record, TopicConfig, TopicPartition, embedded,
};
use tokio::runtime::Runtime;

use crate::command::{Ran, run_in};
use crate::queue_books::{Tables, settled};
use crate::spill::{spill_more, spilled};

/// The effect of a damage, as its program knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Truth {
    Whole,
    /// Damage, and nothing acknowledged is gone.
    Harmless,
    /// Something acknowledged is gone or cannot be read.
    Gone,
    /// Bytes that nothing reads, or that no reader can tell from a crash; `docs/reliability.md` names them.
    Unnoticeable,
    /// A row makes no sense to the database itself.
    Unreadable,
    /// A part that may have held something: nobody can tell that it did not.
    Unknowable,
}

impl Truth {
    fn allows(self, code: i32) -> bool {
        match self {
            Self::Whole => code == 0,
            Self::Harmless => code == 3,
            Self::Gone => code == 4,
            Self::Unnoticeable => code == 0 || code == 3,
            Self::Unreadable => code == 1,
            Self::Unknowable => code == 0 || code == 3 || code == 4,
        }
    }
}

/// How often a kind of damage was made, by its truth and the code of the audit.
#[derive(Default)]
struct Report(BTreeMap<(String, Truth, i32), u64>);

impl Report {
    fn add(&mut self, kind: String, truth: Truth, ran: &Ran, seed: u64) {
        let code = ran.code.unwrap();
        assert!(
            truth.allows(code),
            "seed {seed}: {kind} is {truth:?} and the audit exits {code}\n{}\n{}",
            ran.stdout,
            ran.stderr
        );
        *self.0.entry((kind, truth, code)).or_default() += 1;
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for ((kind, truth, code), count) in &self.0 {
            writeln!(f, "| {kind} | {truth:?} | {code} | {count} |")?;
        }
        Ok(())
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_dir(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), &to).unwrap()),
        }
    }
}

/// All files below a directory, in one order.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

fn pick(random: &mut dyn Entropy, count: usize) -> usize {
    usize::try_from(random.below(count as u64)).unwrap()
}

/// Changes a file in one way, and says which.
fn damage_file(random: &mut dyn Entropy, path: &Path) -> &'static str {
    let mut bytes = std::fs::read(path).unwrap();
    match random.below(4) {
        0 => {
            std::fs::remove_file(path).unwrap();
            "deleted"
        }
        1 if !bytes.is_empty() => {
            bytes.truncate(pick(random, bytes.len()));
            std::fs::write(path, bytes).unwrap();
            "truncated"
        }
        _ if !bytes.is_empty() => {
            let at = pick(random, bytes.len());
            bytes[at] ^= 1 << random.below(8);
            std::fs::write(path, bytes).unwrap();
            "flipped"
        }
        _ => {
            std::fs::remove_file(path).unwrap();
            "deleted"
        }
    }
}

/// The content of each file, by its name.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap();
        (path.strip_prefix(dir).unwrap().to_owned(), bytes)
    };
    files(dir).into_iter().map(read).collect()
}

// ---- spill -------------------------------------------------------------------------------------------

const ACTIVE: &str = "eventlog-spillover.jsonl";
const BOOKS: &str = "eventlog-spillover.books";

fn spill_lines(dir: &Path) -> BTreeSet<Vec<u8>> {
    let bytes = std::fs::read(dir.join(ACTIVE)).unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n');
    lines
        .filter(|line| !line.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// Whether a byte of the books is one that anybody reads: within a text or its header.
fn is_read_of_books(bytes: &[u8], at: usize) -> bool {
    let half = bytes.len() / 2;
    let start = at / half * half;
    let length = u32::from_le_bytes(bytes[start..start + 4].try_into().unwrap());
    at < start + 8 + length as usize
}

/// Puts an older copy in the place of a directory. Its files agree with each other, so that only a witness tells.
fn replace_by_old_copy(base: &Path, work: &Path, dir: &Path) {
    copy_dir(&base.with_extension("old"), dir);
    std::fs::copy(base.with_extension("witness"), work.join("witness")).unwrap();
}

fn damage_spill(random: &mut dyn Entropy, base: &Path, work: &Path) -> (String, Truth) {
    let dir = work.join("spill");
    if random.below(10) == 0 {
        replace_by_old_copy(base, work, &dir);
        return (format!("spill: {OLD_COPY}"), Truth::Gone);
    }
    copy_dir(base, &dir);
    let before = contents(&dir);
    if random.below(10) == 0 {
        return ("spill: none".to_owned(), Truth::Whole);
    }
    let active = dir.join(ACTIVE);
    let text = std::fs::read(&active).unwrap();
    let mut lines: Vec<Vec<u8>> = text
        .split_inclusive(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    let (one, two) = (pick(random, lines.len()), pick(random, lines.len()));
    let how = match random.below(8) {
        0 => {
            lines.swap(one, two);
            "lines swapped"
        }
        1 => {
            let line = lines[one].clone();
            lines.insert(two, line);
            "line doubled"
        }
        2 => {
            lines.remove(one);
            "line deleted"
        }
        3..=5 => damage_file(random, &active),
        _ => damage_file(random, &dir.join(BOOKS)),
    };
    if how.starts_with("line") {
        std::fs::write(&active, lines.concat()).unwrap();
    }
    let after = contents(&dir);
    let whole: BTreeSet<Vec<u8>> = spill_lines(base);
    let truth = match () {
        () if after == before => Truth::Whole,
        () if !whole.is_subset(&spill_lines(&dir)) => Truth::Gone,
        () => {
            let (old, new) = (&before[Path::new(BOOKS)], after.get(Path::new(BOOKS)));
            let flipped = new.filter(|new| new.len() == old.len()).and_then(|new| {
                let mut bytes = old.iter().zip(new.iter());
                bytes.position(|(old, new)| old != new)
            });
            match flipped {
                Some(at) if !is_read_of_books(old, at) => Truth::Unnoticeable,
                _ => Truth::Harmless,
            }
        }
    };
    let file = match after.get(Path::new(BOOKS)) == before.get(Path::new(BOOKS)) {
        true => "lines",
        false => "books",
    };
    (format!("spill {file}: {how}"), truth)
}

// ---- log ---------------------------------------------------------------------------------------------

fn log_config(dir: &Path) -> EmbeddedConfig {
    EmbeddedConfig {
        journal_size: 64 * 1024,
        segment_size: 2 * 1024,
        ..EmbeddedConfig::new(dir)
    }
}

const TOPICS: [&str; 2] = ["orders", "payments"];
const RECORDS: usize = 48;

/// The damage that an audit notices with a witness alone.
const OLD_COPY: &str = "replaced by an old copy, with a witness";

/// A log whose records are in segments, as a stop leaves it; and the same as a kill leaves it a second after
/// the last commit.
fn make_logs(runtime: &Runtime, stopped: &Path, killed: &Path) {
    let open = stopped.with_extension("open");
    runtime.block_on(async {
        let log = EmbeddedLog::open(&Env::system(), log_config(&open)).unwrap();
        for topic in TOPICS {
            let topic = Topic::new(topic).unwrap();
            log.create_topic(&topic, TopicConfig::new(2)).await.unwrap();
        }
        for number in 0..RECORDS {
            if number == RECORDS / 2 {
                log.storage().tidy().await.unwrap();
                copy_dir(&open, &stopped.with_extension("old"));
            }
            let topic = Topic::new(TOPICS[number % 2]).unwrap();
            let record = Record::new(format!("value {number:03} {}", "x".repeat(90)));
            let partition = i32::try_from(number / 2 % 2).unwrap();
            let append = Append::new(topic, record).partition(partition);
            log.append(vec![append]).await.unwrap();
        }
        let replayed = || {
            let listed = embedded::ls(&tidegate_core::env::system::SystemDisk, &open);
            listed.unwrap().unwrap().replayed
        };
        // The group that proves the last commit.
        let before = replayed();
        for _ in 0..6_000 {
            if replayed() > before {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        copy_dir(&open, killed);
        log.close().await;
    });
    copy_dir(&open, stopped);
}

/// Every value that a reader gets.
fn readable(runtime: &Runtime, dir: &Path) -> BTreeSet<Vec<u8>> {
    runtime.block_on(async {
        let mut found = BTreeSet::new();
        let Ok(Some(log)) = EmbeddedLog::look(&Env::system(), log_config(dir)) else {
            return found;
        };
        for topic in TOPICS {
            let topic = Topic::new(topic).unwrap();
            let Ok(described) = log.describe(&topic).await else {
                continue;
            };
            for partition in described.partitions {
                let at = TopicPartition::new(topic.clone(), partition.partition.0);
                let mut from = partition.start;
                while from < partition.end {
                    match log.read(Read::new(at.clone(), from)).await {
                        Ok(batch) if batch.next > from => {
                            let values = batch.records.iter();
                            found.extend(
                                values.filter_map(|one| Some(one.record.value.as_ref()?.to_vec())),
                            );
                            from = batch.next;
                        }
                        Err(tidegate_log::LogError::Damaged { to, .. }) if to > from => from = to,
                        Ok(_) | Err(_) => from = Offset(from.0 + 1),
                    }
                }
            }
        }
        log.close().await;
        found
    })
}

fn damage_log(
    random: &mut dyn Entropy,
    runtime: &Runtime,
    (base, is_killed): (&Path, bool),
    work: &Path,
) -> (String, Truth) {
    let dir = work.join("log");
    let which = if is_killed {
        "killed log"
    } else {
        "stopped log"
    };
    if !is_killed && random.below(10) == 0 {
        replace_by_old_copy(base, work, &dir);
        return (format!("{which}: {OLD_COPY}"), Truth::Gone);
    }
    copy_dir(base, &dir);
    if random.below(10) == 0 {
        return (format!("{which}: none"), Truth::Whole);
    }
    let before = contents(&dir);
    let all = files(&dir);
    let segments: Vec<&PathBuf> = all
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "seg"))
        .collect();
    let (name, how) = match random.below(8) {
        0 if segments.len() > 1 => {
            let (one, two) = (pick(random, segments.len()), pick(random, segments.len()));
            let (first, second) = (
                std::fs::read(segments[one]).unwrap(),
                std::fs::read(segments[two]).unwrap(),
            );
            std::fs::write(segments[one], second).unwrap();
            std::fs::write(segments[two], first).unwrap();
            (segments[one].clone(), "two swapped")
        }
        1 if segments.len() > 1 => {
            let (one, two) = (pick(random, segments.len()), pick(random, segments.len()));
            std::fs::copy(segments[one], segments[two]).unwrap();
            (segments[two].clone(), "replaced by another")
        }
        2..=4 if !segments.is_empty() => {
            let path = segments[pick(random, segments.len())].clone();
            let how = damage_file(random, &path);
            (path, how)
        }
        _ => {
            let path = all[pick(random, all.len())].clone();
            let how = damage_file(random, &path);
            (path, how)
        }
    };
    let file = name.file_name().unwrap().to_string_lossy().into_owned();
    let kind = match () {
        () if file.ends_with(".seg") => "segment",
        () if file.ends_with(".idx") => "index",
        () if file.starts_with("journal-") => "journal",
        () if file.starts_with("manifest") => "manifest",
        () => "lock or spare",
    };
    let written: BTreeSet<Vec<u8>> = (0..RECORDS)
        .map(|number| format!("value {number:03} {}", "x".repeat(90)).into_bytes())
        .collect();
    let truth = match kind {
        _ if contents(&dir) == before => Truth::Whole,
        _ if !written.is_subset(&readable(runtime, &dir)) => Truth::Gone,
        // Made again; zeros; a text.
        "index" | "lock or spare" => Truth::Unnoticeable,
        // Groups before a checkpoint are not read again; of a part that is gone nobody knows what it held.
        "journal" if how == "flipped" && !is_killed => Truth::Unnoticeable,
        "journal" => Truth::Unknowable,
        // Records behind the last checkpoint are in the journal.
        "segment" => Truth::Unnoticeable,
        _ => Truth::Harmless,
    };
    (format!("{which}, {kind}: {how}"), truth)
}

// ---- databases ---------------------------------------------------------------------------------------

/// Damages rows of a queue's tables. The events were made by [`settled`].
fn damage_rows(random: &mut dyn Entropy, tables: &Tables) -> (&'static str, Truth) {
    let other = "'019a8f3e-5c00-7abc-8def-0123456789ab'";
    let at = |table: &str, which: &str| format!("{which} = (SELECT max({which}) FROM {table})");
    let (how, sql, truth) = match random.below(8) {
        0 => ("none", None, Truth::Whole),
        1 => ("event deleted", Some(format!("DELETE FROM tidegate_event WHERE {}", at("tidegate_event", "id"))), Truth::Gone),
        2 => ("row of a retry deleted", Some(format!("DELETE FROM tidegate_event_row WHERE {}", at("tidegate_event_row", "id"))), Truth::Gone),
        3 => ("row of the log deleted", Some(format!("DELETE FROM tidegate_log WHERE {}", at("tidegate_log", "id"))), Truth::Gone),
        4 => (
            "event doubled into the log",
            Some(
                "INSERT INTO tidegate_log SELECT (SELECT max(id) FROM tidegate_event), batch, ordinal, \
                 attempts, handlers, is_failed, errors FROM tidegate_log WHERE id = (SELECT min(id) FROM \
                 tidegate_log)"
                    .to_owned(),
            ),
            Truth::Harmless,
        ),
        5 => (
            "event given another id",
            Some(format!("UPDATE tidegate_event SET event_id = {other} WHERE {}", at("tidegate_event", "id"))),
            Truth::Gone,
        ),
        6 => (
            "event moved to another place",
            Some(format!("UPDATE tidegate_event_row SET place = 'parked' WHERE {}", at("tidegate_event_row", "id"))),
            Truth::Harmless,
        ),
        _ => (
            "row of the log given to another batch",
            Some("UPDATE tidegate_log SET batch = batch + 1000 WHERE id = (SELECT min(id) FROM tidegate_log)".to_owned()),
            Truth::Gone,
        ),
    };
    if let Some(sql) = sql {
        tables.execute(sql);
    }
    (how, truth)
}

fn damage_sqlite(random: &mut dyn Entropy, base: &Path, work: &Path) -> (String, Truth) {
    let file = work.join("queue.db");
    std::fs::copy(base, &file).unwrap();
    if random.below(2) == 0 {
        let tables = Tables::on_sqlite(work);
        let (how, truth) = damage_rows(random, &tables);
        return (format!("SQLite: {how}"), truth);
    }
    let mut bytes = std::fs::read(&file).unwrap();
    let (how, truth) = match random.below(4) {
        0 => {
            bytes.truncate(pick(random, bytes.len()));
            ("file cut", Truth::Unknowable)
        }
        1 => {
            bytes[..64].fill(0xff);
            ("header overwritten", Truth::Gone)
        }
        2 => {
            let at = pick(random, bytes.len() - 64);
            bytes[at..at + 64].fill(0xff);
            // Free bytes, bytes of payloads, or a page of a table.
            std::fs::write(&file, &bytes).unwrap();
            return (
                "SQLite: 64 bytes overwritten".to_owned(),
                Truth::Unnoticeable,
            );
        }
        _ => {
            bytes = b"this is no database".repeat(100);
            ("replaced by something else", Truth::Gone)
        }
    };
    std::fs::write(&file, bytes).unwrap();
    (format!("SQLite: {how}"), truth)
}

fn count() -> u64 {
    let asked = std::env::var("TIDEGATE_DAMAGES").ok();
    let is_long = std::env::var_os("TIDEGATE_LONG").is_some_and(|long| long != "0");
    asked
        .and_then(|count| count.parse().ok())
        .unwrap_or(if is_long { 10_000 } else { 100 })
}

#[test]
fn a11_random_single_damages_are_called_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let spill = dir.path().join("spill");
    spilled(&spill, 40);
    copy_dir(&spill, &dir.path().join("spill.old"));
    spill_more(&spill, 20);
    let (stopped, killed) = (dir.path().join("stopped"), dir.path().join("killed"));
    make_logs(&runtime, &stopped, &killed);
    for arguments in [
        ["audit", "--spill", "spill", "--witness", "spill.witness"],
        [
            "audit",
            "--log-dir",
            "stopped",
            "--witness",
            "stopped.witness",
        ],
    ] {
        assert_eq!(run_in(dir.path(), &arguments).code, Some(0));
    }
    let tables = Tables::on_sqlite(dir.path());
    settled(&tables);
    tables.close();
    let database = dir.path().join("queue.db");
    let mut report = Report::default();
    for seed in 0..count() {
        let mut stream = Stream::new(seed);
        let random: &mut dyn Entropy = &mut stream;
        let work = tempfile::tempdir().unwrap();
        let work = work.path();
        let (kind, truth) = match seed % 4 {
            0 => damage_spill(random, &spill, work),
            1 => damage_log(random, &runtime, (&stopped, false), work),
            2 => damage_log(random, &runtime, (&killed, true), work),
            _ => damage_sqlite(random, &database, work),
        };
        let arguments: &[&str] = match seed % 4 {
            0 => &["audit", "-o", "json", "--spill", "spill"],
            1 | 2 => &["audit", "-o", "json", "--log-dir", "log"],
            _ => &["audit", "-o", "json", "--store", "sqlite://./queue.db"],
        };
        let witness: &[&str] = match kind.ends_with(OLD_COPY) {
            true => &["--witness", "witness"],
            false => &[],
        };
        let ran = run_in(work, &[arguments, witness].concat());
        // Where bytes in the middle of a page were overwritten, only the database knows what they were.
        let is_open = kind.ends_with("64 bytes overwritten");
        let truth = match ran.code {
            Some(4) if is_open => Truth::Gone,
            // A text of a row is none any more: the audit cannot be done, and says so.
            Some(1) if is_open => Truth::Unreadable,
            _ => truth,
        };
        report.add(kind, truth, &ran, seed);
    }
    println!("| damage | truth | exit | times |\n|---|---|---|---|\n{report}");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn needs_postgres_a11_random_damages_of_rows_are_called_what_they_are() {
    let mut report = Report::default();
    for seed in 0..count() / 10 {
        crate::queue_books::with_postgres(|tables| {
            settled(tables);
            let mut stream = Stream::new(seed);
            let (how, truth) = damage_rows(&mut stream, tables);
            report.add(format!("PostgreSQL: {how}"), truth, &tables.audit(), seed);
        });
    }
    println!("| damage | truth | exit | times |\n|---|---|---|---|\n{report}");
}
