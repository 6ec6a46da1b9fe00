//! Keys of the handlers that are built in.

use super::DefaultValue::{Nothing, Required};
use super::KeyKind::{Section, Text};
use super::{HTTP, Key};

/// Handlers that are built in; as a library, handlers are Rust.
pub(super) static HANDLER: &[Key] = keys! {
    /// Post each record; the status decides.
    "http": Section(HANDLER_HTTP) => Nothing;
    /// Write each record to a topic.
    "forward": Section(HANDLER_FORWARD) => Nothing;
    /// Publish each record into the durable queue.
    "queue": Section(&[]) => Nothing;
    /// Write each record to the program's log.
    "log": Section(&[]) => Nothing;
};

static HANDLER_HTTP: &[Key] = keys! {
    /// Where records are posted to.
    "url": HTTP => Required;
};

static HANDLER_FORWARD: &[Key] = keys! {
    /// The topic to write to.
    "topic": Text => Required;
};
