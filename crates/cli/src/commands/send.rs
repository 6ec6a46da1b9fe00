//! `tidegate send`.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_client::wire::NewRecord;
use tidegate_core::env::{Clock, Env};
use tidegate_core::{EventId, EventIds, Topic};
use tidegate_log::{Append, EVENT_ID, Log, LogError, Record, RecordPosition};
use tokio::sync::mpsc;

use super::input::InputLines;
use super::topic::topic;
use crate::args::{LineFormat, Output, SendArgs};
use crate::log;
use crate::progress::{ProgressLine, ProgressUnit};
use crate::report::{ErrorReport, Exit, is_terminal, print_bytes, say};
use crate::signals::Signals;

/// A record that was sent.
#[derive(Debug, Serialize)]
struct Sent<'a> {
    id: EventId,
    topic: &'a str,
    partition: i32,
    offset: i64,
}

pub(crate) async fn run(arguments: &SendArgs, output: Output) -> Result<Exit, ErrorReport> {
    let mut signals = Signals::register()?;
    let topic = topic(&arguments.topic)?;
    if arguments.headers.iter().any(|(name, _)| name == EVENT_ID) {
        let message = format!("`{EVENT_ID}` is given to each record by itself");
        return Err(ErrorReport::new("usage.header", message).with_exit(Exit::Usage));
    }
    let env = Env::system();
    let reached = log::reach(&arguments.file, &arguments.at, Some(&topic), &env).await?;
    let sender = Sender {
        log: &*reached.log(),
        ids: EventIds::new(env.clock.clone(), env.entropy.fork("ids")),
        topic,
        arguments,
        output,
        next_partition: Cell::new(env.entropy.fork("send").next_u64()),
        partitions: Cell::new(1),
        unknown_line: Cell::new(None),
        clock: Arc::clone(&env.clock),
        // The ids that are printed say how far it is.
        progress: (!is_terminal()).then(|| ProgressLine::begin("send", ProgressUnit::Events)),
    };
    // A topic that is not there is said before anything is read.
    let described = sender.log.describe(&sender.topic).await;
    let sent = match described {
        Err(error) => Err(error.into()),
        Ok(described) => {
            sender.partitions.set(described.config.partitions.max(1));
            tokio::select! {
                biased;
                sent = sender.send_all() => sent,
                () = signals.next() => Err(sender.interrupted()),
            }
        }
    };
    drop(sender);
    reached.close().await;
    sent.map(|()| Exit::Ok)
}

struct Sender<'a> {
    log: &'a dyn Log,
    ids: EventIds,
    topic: Topic,
    arguments: &'a SendArgs,
    output: Output,
    /// Records without a key go to one partition after the other, from one that chance picks: a command that sends
    /// one record is mostly one of many.
    next_partition: Cell<u64>,
    partitions: Cell<u32>,
    /// The first line of the input that is not known to be stored.
    unknown_line: Cell<Option<u64>>,
    clock: Arc<dyn Clock>,
    progress: Option<ProgressLine>,
}

/// A record as it is asked for: where it goes, apart from its topic.
struct AskedRecord {
    record: Record,
    partition: Option<i32>,
    id: Option<EventId>,
}

/// Lines of the input, or why they cannot be read.
type ReadLines = Result<Vec<Vec<u8>>, ErrorReport>;

/// Reads standard input on a thread of its own: a signal must not wait for the next line.
fn input() -> Result<mpsc::Receiver<ReadLines>, ErrorReport> {
    let (batches, read) = mpsc::channel(1);
    let reading = move || {
        let mut input = InputLines::new(std::io::stdin().lock());
        while let Some(batch) = input.next_batch().transpose() {
            let is_over = batch.is_err();
            if batches.blocking_send(batch).is_err() || is_over {
                return;
            }
        }
    };
    let started = std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(reading);
    match started {
        Ok(_) => Ok(read),
        Err(error) => Err(ErrorReport::of(
            "internal",
            "cannot read standard input",
            &error,
        )),
    }
}

/// Whether nothing was added because the log cannot be reached just now.
fn is_away(error: &LogError) -> bool {
    if let LogError::Remote { code, .. } = error {
        return matches!(code.as_str(), "log.unavailable" | "log.overloaded");
    }
    matches!(
        error,
        LogError::Unavailable { .. } | LogError::Overloaded { .. }
    )
}

/// The wait before a log that is away is tried again.
const AWAY: Duration = Duration::from_secs(1);

impl Sender<'_> {
    async fn send_all(&self) -> Result<(), ErrorReport> {
        match &self.arguments.value {
            _ if self.arguments.tombstone => self.send(vec![self.record(None)], None).await,
            Some(value) => {
                let record = self.record(Some(value.clone().into_bytes()));
                self.send(vec![record], None).await
            }
            None => self.send_lines().await,
        }
    }

    /// The report of a command that was told to stop.
    fn interrupted(&self) -> ErrorReport {
        let report = ErrorReport::new("send.interrupted", "ended by a signal");
        match self.unknown_line.get() {
            Some(line) => report.with_hint(resume(line)),
            None => report,
        }
    }

    /// Adds records, and waits for a log that is away.
    async fn append_all(&self, appends: Vec<Append>) -> Result<Vec<RecordPosition>, LogError> {
        let begun = self.clock.elapsed();
        let mut is_told = false;
        loop {
            match self.log.append(appends.clone()).await {
                Err(error) if is_away(&error) => {
                    let waited = self.clock.elapsed().saturating_sub(begun);
                    if waited + AWAY > self.arguments.wait {
                        return Err(error);
                    }
                    if !std::mem::replace(&mut is_told, true) {
                        say(&format!("{error}; waiting for it"));
                    }
                    self.clock.sleep(AWAY).await;
                }
                done => {
                    if is_told && done.is_ok() {
                        say("the log answers again");
                    }
                    return done;
                }
            }
        }
    }

    /// Sends every line from the one that is asked for.
    async fn send_lines(&self) -> Result<(), ErrorReport> {
        let mut input = input()?;
        let first = self.arguments.from_line.unwrap_or(1);
        self.unknown_line.set(Some(first));
        let mut next = 1;
        while let Some(lines) = input.recv().await {
            let lines = lines?;
            let mut records = Vec::with_capacity(lines.len());
            let mut begin = None;
            for line in lines {
                let number = next;
                next += 1;
                if number < first {
                    continue;
                }
                begin.get_or_insert(number);
                match self.read(line) {
                    Ok(record) => records.push(record),
                    Err(why) => {
                        // The lines before it are good.
                        self.send(records, begin).await?;
                        return Err(unreadable(number, &why));
                    }
                }
            }
            self.send(records, begin).await?;
            self.unknown_line.set(Some(next.max(first)));
        }
        Ok(())
    }

    /// The record of a line.
    fn read(&self, line: Vec<u8>) -> Result<AskedRecord, String> {
        if self.arguments.format == LineFormat::Json {
            let new: NewRecord =
                serde_json::from_slice(&line).map_err(|error| error.to_string())?;
            let id = new.id;
            let append =
                new.into_append(self.topic.clone(), id.unwrap_or_else(|| self.ids.mint()))?;
            return Ok(AskedRecord {
                id: append.record.headers.event_id(),
                partition: append.partition.map(|partition| partition.0),
                record: append.record,
            });
        }
        let Some(separator) = &self.arguments.key_separator else {
            return Ok(self.record(Some(line)));
        };
        let mut windows = line.windows(separator.len());
        let at = windows.position(|window| window == separator.as_bytes());
        let at = at.ok_or_else(|| format!("it has no `{separator}` between key and value"))?;
        let value = line[at + separator.len()..].to_vec();
        let mut asked = self.record(Some(value));
        asked.record = asked.record.key(line[..at].to_vec());
        Ok(asked)
    }

    /// Sends these records; `line` is where the first of them stands in the input.
    async fn send(&self, records: Vec<AskedRecord>, line: Option<u64>) -> Result<(), ErrorReport> {
        if records.is_empty() {
            return Ok(());
        }
        let mut ids = Vec::with_capacity(records.len());
        let mut appends = Vec::with_capacity(records.len());
        for asked in records {
            let id = asked.id.unwrap_or_else(|| self.ids.mint());
            ids.push(id);
            appends.push(self.append(id, asked));
        }
        let positions = self.append_all(appends).await;
        let positions = positions.map_err(|error| failed(error, &ids, line))?;
        if let Some(progress) = &self.progress {
            progress.counted().add(ids.len() as u64);
        }
        let mut text = Vec::new();
        for (id, position) in ids.into_iter().zip(positions) {
            let sent = Sent {
                id,
                topic: self.topic.as_str(),
                partition: position.at.partition.0,
                offset: position.offset.0,
            };
            let Sent {
                partition, offset, ..
            } = sent;
            let line = || format!("{id}  {partition}:{offset}");
            self.output.add_line(&mut text, &sent, line)?;
        }
        print_bytes(&text)
    }

    /// The record of a value, with what the command line says of all of them.
    fn record(&self, value: Option<Vec<u8>>) -> AskedRecord {
        let mut record = Record {
            value: value.map(Into::into),
            ..Record::default()
        };
        if let Some(key) = &self.arguments.key {
            record = record.key(key.clone());
        }
        for (name, value) in &self.arguments.headers {
            record = record.header(name, value);
        }
        AskedRecord {
            record,
            partition: self.arguments.partition,
            id: None,
        }
    }

    fn append(&self, id: EventId, asked: AskedRecord) -> Append {
        let has_key = asked.record.key.is_some();
        let append = Append::new(self.topic.clone(), asked.record.event_id(id));
        match asked.partition {
            Some(partition) => append.partition(partition),
            None if has_key => append,
            None => {
                let next = self.next_partition.get();
                self.next_partition.set(next.wrapping_add(1));
                let partition = next % u64::from(self.partitions.get());
                append.partition(i32::try_from(partition).unwrap_or(0))
            }
        }
    }
}

/// Where an input goes on.
fn resume(line: u64) -> String {
    format!(
        "line {line} is the first that is not known to be there; `--from-line {line}` goes on with it"
    )
}

/// The report of a line that is no record.
fn unreadable(line: u64, why: &str) -> ErrorReport {
    ErrorReport::new("input.invalid", format!("line {line} of the input: {why}")).with_hint(
        format!("all lines before it were sent; mend it and go on with `--from-line {line}`"),
    )
}

/// The report of records that were not sent, or whose outcome is unknown: then it names them, because no id
/// of them was printed.
fn failed(error: LogError, ids: &[EventId], line: Option<u64>) -> ErrorReport {
    let code = error.code();
    let report = ErrorReport::from(error);
    let is_in_doubt = matches!(
        code.as_str(),
        "log.outcome-unknown" | "log.stopped" | "log.closed"
    );
    let resume = line.map(resume);
    if !is_in_doubt {
        return match resume {
            Some(resume) => report.with_further_hint(&resume),
            None => report,
        };
    }
    let shown: Vec<String> = ids.iter().take(SHOWN_IDS).map(EventId::to_string).collect();
    let more = match ids.len().saturating_sub(SHOWN_IDS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let resume = resume.map_or_else(String::new, |resume| format!("; {resume}"));
    report.with_hint(format!(
        "look with `tidegate where ID` before sending again: each of these may be there: {}{more}{resume}",
        shown.join(", ")
    ))
}

/// Ids in doubt that a hint names.
const SHOWN_IDS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Code;

    #[test]
    fn records_in_doubt_are_named() {
        let ids = [7, 8].map(EventId::from_u128);
        let unknown = LogError::OutcomeUnknown {
            doing: "an append",
            why: "no answer".to_owned(),
        };
        let names = |error: LogError| {
            let told = failed(error, &ids, Some(41)).to_json().to_string();
            assert!(told.contains("--from-line 41"), "{told}");
            ids.iter().all(|id| told.contains(&id.to_string()))
        };
        assert!(names(unknown));
        assert!(names(LogError::Closed));
        let remote = |code| LogError::Remote {
            process: "http://127.0.0.1:9".to_owned(),
            code: Code::from_static(code),
            why: "no".to_owned(),
        };
        assert!(names(remote("log.stopped")));
        assert!(!names(remote("log.disk")));
        // Nothing was added, so there is nothing to look for.
        let full = LogError::Full { used: 1, limit: 1 };
        assert!(!names(full));
    }
}
