//! The embedded log and space: retention, its own limit, and a disk without room.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "these tests are about the real disk and real processes"
)]

mod full;
mod retention;
mod room;
mod small_room;

use std::path::Path;

use tidegate_core::env::Env;
use tidegate_core::{EventId, Topic};
use tidegate_log::{Append, EmbeddedConfig, EmbeddedLog, Record};

pub(crate) fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

pub(crate) fn open(config: EmbeddedConfig) -> EmbeddedLog {
    EmbeddedLog::open(&Env::system(), config).unwrap()
}

/// A record of about `size` bytes, with an id of its own.
pub(crate) fn append(name: &str, number: u64, size: usize) -> Append {
    let mut value = format!("{number:020}").into_bytes();
    value.resize(size.max(20), b'.');
    let id = EventId::of_bytes(number, name.as_bytes());
    Append::new(topic(name), Record::new(value).event_id(id)).partition(0)
}

/// The number that [`append`] wrote.
pub(crate) fn number(record: &Record) -> u64 {
    let value = record.value.as_ref().unwrap();
    std::str::from_utf8(&value[..20]).unwrap().parse().unwrap()
}

/// Bytes of all files below a directory, as the file system counts them.
pub(crate) fn bytes_below(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        // A file may be removed while we look.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        bytes += if metadata.is_dir() {
            bytes_below(&entry.path())
        } else {
            metadata.blocks() * 512
        };
    }
    bytes
}
