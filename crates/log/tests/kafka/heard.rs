//! The log lines about its own work, for tests that wait until it has done something which cannot be
//! seen from outside otherwise.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::scene::LIMIT;

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
static LISTENING: Once = Once::new();

/// Begins to listen. All tests of this program share one ear, so each waits for names of its own.
pub(crate) fn listen() {
    LISTENING.call_once(|| tracing::subscriber::set_global_default(Listener).unwrap());
}

/// Waits until this was said.
pub(crate) async fn until_said(text: &str) {
    let is_said = || {
        let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        said.iter().any(|line| line.contains(text))
    };
    let waiting = async {
        while !is_said() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, waiting).await;
    assert!(waited.is_ok(), "nobody said `{text}`");
}

struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata
                .target()
                .starts_with("tidegate_log::kafka::session")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        said.push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}
