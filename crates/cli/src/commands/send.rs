//! `tidegate send`.

use std::io::Read;

use serde::Serialize;
use tidegate_core::env::Env;
use tidegate_core::{EventId, EventIds, Topic};
use tidegate_log::{Append, EVENT_ID, Log, LogError, Record};

use super::input::InputLines;
use crate::args::{Output, SendArgs};
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
    };
    // A topic that is not there is said before anything is read.
    let described = sender.log.describe(&sender.topic).await;
    let sent = match described {
        Err(error) => Err(error.into()),
        Ok(_) if arguments.tombstone => sender.send(vec![None]).await,
        Ok(_) => match &arguments.value {
            Some(value) => sender.send(vec![Some(value.clone().into_bytes())]).await,
            None => sender.send_lines(std::io::stdin().lock()).await,
        },
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
}

impl Sender<'_> {
    /// Sends every line.
    async fn send_lines(&self, input: impl Read) -> Result<(), ErrorReport> {
        let mut input = InputLines::new(input);
        while let Some(lines) = input.next_batch()? {
            self.send(lines.into_iter().map(Some).collect()).await?;
        }
        Ok(())
    }

    async fn send(&self, values: Vec<Option<Vec<u8>>>) -> Result<(), ErrorReport> {
        let mut ids = Vec::with_capacity(values.len());
        let mut appends = Vec::with_capacity(values.len());
        for value in values {
            let id = self.ids.mint();
            ids.push(id);
            appends.push(self.append(id, value));
        }
        let positions = self.log.append(appends).await;
        let positions = positions.map_err(|error| failed(error, &ids))?;
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

    fn append(&self, id: EventId, value: Option<Vec<u8>>) -> Append {
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
        let append = Append::new(self.topic.clone(), record.event_id(id));
        match self.arguments.partition {
            Some(partition) => append.partition(partition),
            None => append,
        }
    }
}

/// The report of records that were not sent, or whose outcome is unknown: then it names them, because no id
/// of them was printed.
fn failed(error: LogError, ids: &[EventId]) -> ErrorReport {
    let code = error.code();
    let report = ErrorReport::from(error);
    let is_in_doubt = matches!(
        code.as_str(),
        "log.outcome-unknown" | "log.stopped" | "log.closed"
    );
    if !is_in_doubt {
        return report;
    }
    let ids: Vec<String> = ids.iter().map(EventId::to_string).collect();
    report.with_hint(format!(
        "look with `tidegate where ID` before sending again: each of these may be there: {}",
        ids.join(", ")
    ))
}

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
            let told = failed(error, &ids).to_json().to_string();
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
