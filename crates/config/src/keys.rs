//! The table of keys: what may stand in the file, as data.
//!
//! Everything else in this crate walks this table: reading, defaults, environment overrides, the
//! schema and the reference text. A key that is not in it does not exist.
//!
//! **Invariant:** within one section no two names, in any of their spellings, read the same.

/// A section of the table. Each key is its line of documentation, its name, its kind, its default,
/// and whatever else differs from [`Key::new`].
macro_rules! keys {
    ($(
        #[doc = $doc:literal]
        $name:tt: $kind:expr => $default:expr $(, $field:ident: $value:expr)*;
    )*) => {
        &[$(Key {
            $($field: $value,)*
            ..Key::new($name, $kind, $default, $doc.trim_ascii())
        }),*]
    };
}

mod eventbus;
mod eventlog;
mod flow;
mod handler;
mod list;
mod log;
mod names;
mod queue;
mod server;
mod store;

pub(crate) use list::every;
pub use list::{ListedKey, all};
pub(crate) use names::{FoundKey, Unit, camel, find, relaxed};

use DefaultValue::{Filled, Value};
use KeyKind::{Map, Section};

/// A part of the system that owns a section of the file.
///
/// ```
/// use tidegate_config::Part;
/// assert_eq!(Part::Eventbus.name(), "eventbus");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The log: embedded files or Kafka clusters.
    Log,
    /// The SQL store.
    Store,
    /// The HTTP server.
    Server,
    /// The event logger and the Event Log API.
    Eventlog,
    /// The durable queue.
    Queue,
    /// The outbox relays.
    Outbox,
    /// The bindings of the connector.
    Eventbus,
    /// The stage flows.
    Flows,
    /// The console.
    Console,
}

impl Part {
    /// Every part there is, in the order of the file.
    pub const ALL: [Self; 9] = [
        Self::Log,
        Self::Store,
        Self::Server,
        Self::Eventlog,
        Self::Queue,
        Self::Outbox,
        Self::Eventbus,
        Self::Flows,
        Self::Console,
    ];

    /// The part of a section.
    pub(crate) fn of_section(name: &str) -> Option<Self> {
        let is_flow = FLOW_SECTIONS.contains(&name).then_some(Self::Flows);
        is_flow.or_else(|| Self::ALL.into_iter().find(|part| part.name() == name))
    }

    /// The name of the part, which is also the name of its section.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Store => "store",
            Self::Server => "server",
            Self::Eventlog => "eventlog",
            Self::Queue => "queue",
            Self::Outbox => "outbox",
            Self::Eventbus => "eventbus",
            Self::Flows => "flows",
            Self::Console => "console",
        }
    }
}

/// The values that a key takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum KeyKind {
    /// `true` or `false`.
    Flag,
    /// A whole number within a range, both ends included.
    Integer {
        /// The smallest value.
        min: i64,
        /// The largest value.
        max: i64,
    },
    /// A number within a range, both ends included.
    Float {
        /// The smallest value.
        min: f64,
        /// The largest value.
        max: f64,
    },
    /// A text that is not empty.
    Text,
    /// A time span: `10s`, `1m30s`, or a bare number of milliseconds.
    Duration {
        /// The shortest value, in milliseconds.
        min_ms: u64,
    },
    /// A byte size: `50MiB`, or a bare number of bytes.
    Size {
        /// The smallest value, in bytes.
        min: u64,
    },
    /// One of a few words, in any case.
    Choice(&'static [&'static str]),
    /// An address with one of these schemes.
    Url(&'static [&'static str]),
    /// A host and a port to listen on or to connect to.
    Address,
    /// A failure code or a pattern of codes (`timeout.*`).
    Code,
    /// A property handed on to a client library as it is; secret when its name says so.
    Property,
    /// A value that is never shown.
    Secret,
    /// Any value, kept as JSON; numbers keep their digits.
    Json,
    /// A list; a text with commas is read as one.
    List(&'static Self),
    /// A group of keys.
    Section(&'static [Key]),
    /// Entries under names the user chooses.
    Map {
        /// The kind of the value under each name.
        each: &'static Self,
        /// The name of the entry whose keys may also stand directly in the section.
        flat: Option<&'static str>,
    },
}

/// The value that holds when a key is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultValue {
    /// Nothing: the key is optional.
    Nothing,
    /// Nothing in the table: the part works it out, as this text says.
    Explained(&'static str),
    /// The key must be given.
    Required,
    /// This value.
    Value(&'static str),
    /// A value that depends on a choice in the same or an enclosing section.
    By {
        /// The key of the choice.
        choice: &'static str,
        /// The word of the choice for which `then` holds.
        is: &'static str,
        then: &'static str,
        /// The default for every other word.
        otherwise: &'static str,
    },
    /// In a list: the value for the first entry, the second, and so on; required after that.
    Nth(&'static [&'static str]),
    /// The section is there, filled from the defaults of its keys.
    Filled,
}

/// One key of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Key {
    /// The name, in kebab case, as the documentation writes it.
    pub(crate) name: &'static str,
    pub(crate) kind: KeyKind,
    pub(crate) default: DefaultValue,
    /// One line of documentation.
    pub(crate) doc: &'static str,
    /// Whether `none` is a value, beside those of the kind.
    pub(crate) accepts_none: bool,
    /// Why the key is read and then not used, if so.
    pub(crate) unused: Option<&'static str>,
}

impl Key {
    const fn new(
        name: &'static str,
        kind: KeyKind,
        default: DefaultValue,
        doc: &'static str,
    ) -> Self {
        let accepts_none = matches!(default, DefaultValue::Nothing)
            && matches!(
                kind,
                KeyKind::Duration { .. } | KeyKind::Size { .. } | KeyKind::Integer { .. }
            );
        Self {
            name,
            kind,
            default,
            doc,
            accepts_none,
            unused: None,
        }
    }
}

/// A map of entries under names of the user.
const fn map(each: &'static KeyKind) -> KeyKind {
    KeyKind::Map { each, flat: None }
}

/// Counts and sizes of pools: at least one, and no more than fits the documents' `int`.
const COUNT: KeyKind = KeyKind::Integer {
    min: 1,
    max: i32::MAX as i64,
};
/// Counts that may be zero.
const COUNT_FROM_ZERO: KeyKind = KeyKind::Integer {
    min: 0,
    max: i32::MAX as i64,
};
/// A time span that may be zero.
const SPAN: KeyKind = KeyKind::Duration { min_ms: 0 };
/// A time span that makes no sense as zero: an interval that would spin, a limit nothing meets.
const SPAN_ABOVE_ZERO: KeyKind = KeyKind::Duration { min_ms: 1 };
/// A byte size that makes no sense as zero.
const SIZE: KeyKind = KeyKind::Size { min: 1 };
/// A percentage above which something trips.
const PERCENT: KeyKind = KeyKind::Float {
    min: 0.0,
    max: 100.0,
};
/// A growth factor; below one the waits would shrink.
const FACTOR: KeyKind = KeyKind::Float {
    min: 1.0,
    max: 1000.0,
};
const TEXTS: KeyKind = KeyKind::List(&KeyKind::Text);
const HTTP: KeyKind = KeyKind::Url(&["http", "https"]);

/// Sections that are about flows, beside the one of their name.
const FLOW_SECTIONS: [&str; 7] = [
    "stage-namespace",
    "streams",
    "lookups",
    "circuit-breakers",
    "checkpoints",
    "state-backends",
    "resources",
];

/// The key that names other files.
pub(crate) const IMPORTS: &str = "imports";

/// The whole file.
pub(crate) static ROOT: &[Key] = keys! {
    /// Files that stand under this one; `*` may stand in the last part of a path.
    IMPORTS: TEXTS => Value("[]");
    /// Where records live: embedded files, or Kafka clusters.
    "log": Section(log::LOG) => Filled;
    /// The SQL database.
    "store": Section(store::STORE) => Filled;
    /// The HTTP API and the metrics.
    "server": Section(server::SERVER) => Filled;
    /// The witness that an audit holds the books against.
    "audit": Section(server::AUDIT) => Filled;
    /// How long the whole process may take to stop.
    "shutdown-timeout": SPAN_ABOVE_ZERO => Value("30s");
    /// How long the answer to an `Idempotency-Key` is kept for repeats.
    "idempotency-ttl": SPAN_ABOVE_ZERO => Value("24h");
    /// The event logger, and the Event Log API it sends to.
    "eventlog": Section(eventlog::EVENTLOG) => Filled;
    /// The durable queue and its dispatcher.
    "queue": Section(queue::QUEUE) => Filled;
    /// The outbox relays by name; keys directly here are those of the relay `default`.
    "outbox": Map { each: &Section(queue::RELAY), flat: Some("default") } => Filled;
    /// The connector.
    "eventbus": Section(eventbus::EVENTBUS) => Filled;
    /// Flow files to run; patterns with `*` are allowed.
    "flows": TEXTS => Value("[]");
    /// How the names of the metrics of flows begin.
    "stage-namespace": KeyKind::Text => Value("tidegate");
    /// Where the streams of flows live, by name.
    "streams": map(&Section(flow::STREAM)) => Filled;
    /// Where the lookups of flows live, by name.
    "lookups": map(&Section(flow::LOOKUP)) => Filled;
    /// Circuit breakers of lookups, by name.
    "circuit-breakers": map(&Section(flow::BREAKER)) => Filled;
    /// Where snapshots of flows are kept, by name.
    "checkpoints": map(&Section(flow::CHECKPOINT)) => Filled;
    /// Where the state of flows lives, by name.
    "state-backends": map(&Section(flow::STATE_BACKEND)) => Filled;
    /// Tasks, epochs and limits of each process of the flows, by name.
    "resources": map(&Section(flow::RESOURCES)) => Filled;
    /// The console.
    "console": Section(server::CONSOLE) => Filled;
};

#[cfg(test)]
mod tests;
