//! `tidegate queue publish`.

use std::io::Read;

use serde::Serialize;
use tidegate_core::EventId;
use tidegate_queue::{NewEvent, QueueError};

use super::open;
use crate::args::{Output, QueuePublish};
use crate::commands::input::InputLines;
use crate::report::{ErrorReport, Exit, print_bytes};
use crate::store::OpenedStore;

/// An event that was published, under the names of its columns.
#[derive(Debug, Serialize)]
struct Published<'a> {
    id: i64,
    event_id: EventId,
    #[serde(rename = "type")]
    type_name: &'a str,
}

pub(super) async fn publish(arguments: &QueuePublish, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(&arguments.at).await?;
    let publisher = Publisher {
        opened: &opened,
        arguments,
        output,
    };
    let published = match &arguments.payload {
        Some(payload) => {
            let event = publisher.event(payload, "the payload")?;
            publisher.publish(vec![event]).await
        }
        None => publisher.publish_lines(std::io::stdin().lock()).await,
    };
    // The process ends next, and dispatchers are not to wait for their poll because of it.
    opened.queue.wakes_sent().await;
    opened.close().await;
    published?;
    Ok(Exit::Ok)
}

struct Publisher<'a> {
    opened: &'a OpenedStore,
    arguments: &'a QueuePublish,
    output: Output,
}

impl Publisher<'_> {
    /// Publishes every line. The events before a line that is no JSON are published before that ends it; the
    /// report then says how many that were.
    async fn publish_lines(&self, input: impl Read) -> Result<(), ErrorReport> {
        let mut input = InputLines::new(input);
        let (mut number, mut published) = (0_u64, 0_u64);
        while let Some(lines) = input.next_batch()? {
            let (mut events, mut refused) = (Vec::new(), None);
            for line in lines {
                number += 1;
                match self.event_of_line(line.trim_ascii(), number) {
                    Ok(event) => events.extend(event),
                    Err(report) => {
                        refused = Some(report);
                        break;
                    }
                }
            }
            published += events.len() as u64;
            self.publish(events).await?;
            if let Some(report) = refused {
                return Err(report.with_hint(before(published)));
            }
        }
        Ok(())
    }

    /// The event of a line; none where it is empty. Bytes that are no text are refused: the text that would
    /// be published in their place is not what was given.
    fn event_of_line(&self, line: &[u8], number: u64) -> Result<Option<NewEvent>, ErrorReport> {
        if line.is_empty() {
            return Ok(None);
        }
        let what = format!("line {number}");
        let text = std::str::from_utf8(line);
        let text = text.map_err(|error| {
            ErrorReport::of("queue.payload", &format!("{what} is no UTF-8"), &error)
        })?;
        self.event(text, &what).map(Some)
    }

    fn event(&self, payload: &str, what: &str) -> Result<NewEvent, ErrorReport> {
        let QueuePublish {
            type_name,
            key,
            headers,
            ..
        } = self.arguments;
        let made = NewEvent::raw(self.opened.queue.ids().mint(), type_name, payload);
        let mut event = made.map_err(|error| {
            if let QueueError::Encode { source, .. } = &error {
                ErrorReport::of("queue.payload", &format!("{what} is no JSON"), source)
            } else {
                self.opened.report(&error)
            }
        })?;
        if let Some(key) = key {
            event = event.with_key(key);
        }
        for (name, value) in headers {
            event = event.with_header(name, value);
        }
        Ok(event)
    }

    async fn publish(&self, events: Vec<NewEvent>) -> Result<(), ErrorReport> {
        let Some(first) = events.first() else {
            return Ok(());
        };
        let published = self.opened.queue.publish_all(&events).await;
        let numbers = published.map_err(|error| {
            let report = self.opened.report(&error);
            match error.may_have_happened() {
                true => report.with_hint(format!(
                    "look with `tidegate where {}` before publishing again: these events may all \
                     be there",
                    first.event_id
                )),
                false => report,
            }
        })?;
        let mut text = Vec::new();
        for (event, id) in events.iter().zip(numbers) {
            let published = Published {
                id,
                event_id: event.event_id,
                type_name: &event.type_name,
            };
            let line = || format!("{}  {id}", event.event_id);
            self.output.add_line(&mut text, &published, line)?;
        }
        print_bytes(&text)
    }
}

/// The hint beside the report of a line that ended the input.
fn before(published: u64) -> String {
    match published {
        0 => "nothing was published".to_owned(),
        1 => "the event before it is published and was printed; nothing after it is".to_owned(),
        count => format!(
            "the {count} events before it are published and were printed; nothing after it is"
        ),
    }
}
