//! `tidegate send`.

use std::cell::Cell;
use std::io::Read;

use serde::Serialize;
use tidegate_client::wire::NewRecord;
use tidegate_core::env::Env;
use tidegate_core::{EventId, EventIds, Topic};
use tidegate_log::{Append, EVENT_ID, Log, LogError, Record};

use super::input::InputLines;
use crate::args::{LineFormat, Output, SendArgs};
use crate::log;
use crate::report::{ErrorReport, Exit, print_bytes};

/// A record that was sent.
#[derive(Debug, Serialize)]
struct Sent<'a> {
    id: EventId,
    topic: &'a str,
    partition: i32,
    offset: i64,
}

pub(crate) async fn run(arguments: &SendArgs, output: Output) -> Result<Exit, ErrorReport> {
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
    };
    // A topic that is not there is said before anything is read.
    let described = sender.log.describe(&sender.topic).await;
    let sent = match described {
        Err(error) => Err(error.into()),
        Ok(described) => {
            sender.partitions.set(described.config.partitions.max(1));
            match &arguments.value {
                _ if arguments.tombstone => sender.send(vec![sender.record(None)], None).await,
                Some(value) => {
                    let record = sender.record(Some(value.clone().into_bytes()));
                    sender.send(vec![record], None).await
                }
                None => sender.send_lines(std::io::stdin().lock()).await,
            }
        }
    };
    drop(sender);
    reached.close().await;
    sent.map(|()| Exit::Ok)
}

/// The topic of a name on the command line.
pub(super) fn topic(name: &str) -> Result<Topic, ErrorReport> {
    Topic::new(name)
        .map_err(|error| ErrorReport::new("usage.topic", error.to_string()).with_exit(Exit::Usage))
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
}

/// A record as it is asked for: where it goes, apart from its topic.
struct AskedRecord {
    record: Record,
    partition: Option<i32>,
    id: Option<EventId>,
}

impl Sender<'_> {
    /// Sends every line from the one that is asked for.
    async fn send_lines(&self, input: impl Read) -> Result<(), ErrorReport> {
        let mut input = InputLines::new(input);
        let first = self.arguments.from_line.unwrap_or(1);
        let mut next = 1;
        while let Some(lines) = input.next_batch()? {
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
        let positions = self.log.append(appends).await;
        let positions = positions.map_err(|error| failed(error, &ids, line))?;
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
    let resume = line.map(|line| {
        format!("line {line} is the first that is not known to be there; `--from-line {line}` goes on with it")
    });
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
