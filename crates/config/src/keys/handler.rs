//! Keys of the handlers that are built in.

use super::{HTTP, Key, KeyKind, optional, required};

/// Handlers that are built in; as a library, handlers are Rust.
pub(super) static HANDLER: &[Key] = &[
    optional(
        "http",
        KeyKind::Section(HANDLER_HTTP),
        "Post each record; the status decides.",
    ),
    optional(
        "forward",
        KeyKind::Section(HANDLER_FORWARD),
        "Write each record to a topic.",
    ),
    optional(
        "queue",
        KeyKind::Section(&[]),
        "Publish each record into the durable queue.",
    ),
    optional(
        "log",
        KeyKind::Section(&[]),
        "Write each record to the program's log.",
    ),
];

static HANDLER_HTTP: &[Key] = &[required("url", HTTP, "Where records are posted to.")];

static HANDLER_FORWARD: &[Key] = &[required("topic", KeyKind::Text, "The topic to write to.")];
