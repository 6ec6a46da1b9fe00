//! Records in and out of the client's memory.
//!
//! A message of the client keeps its whole batch alive and blocks the client's end, so records are
//! copied out at once.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};
use tidegate_core::Offset;

use crate::record::{Headers, Record, Stored};

/// A message could not be copied: a name of a header is not UTF-8.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) offset: Offset,
}

/// Copies a message out of the client's memory, exactly as it lies in the log.
pub(super) fn out(message: &BorrowedMessage<'_>) -> Result<Stored, Unreadable> {
    let offset = Offset(message.offset());
    let headers = match message.headers() {
        None => Headers::default(),
        // The client's own accessor panics on a name that is not UTF-8, which any program may write.
        Some(found) => catch_unwind(AssertUnwindSafe(|| {
            let mut headers = Headers::default();
            for header in found.iter() {
                headers.push(header.key, header.value);
            }
            headers
        }))
        .map_err(|_| Unreadable { offset })?,
    };
    let timestamp = message.timestamp().to_millis().unwrap_or(0);
    Ok(Stored {
        offset,
        record: Record {
            key: message.key().map(Bytes::copy_from_slice),
            value: message.payload().map(Bytes::copy_from_slice),
            headers,
            timestamp_ms: u64::try_from(timestamp).unwrap_or(0),
        },
    })
}

/// The headers of a record in the client's form; none where there are none.
pub(super) fn headers(record: &Record) -> Option<OwnedHeaders> {
    if record.headers.is_empty() {
        return None;
    }
    let mut headers = OwnedHeaders::new();
    for (key, value) in record.headers.iter() {
        headers = headers.insert(Header { key, value });
    }
    Some(headers)
}

/// The timestamp of a record in the client's form: 0 lets the client fill in the time.
pub(super) fn timestamp(record: &Record) -> i64 {
    i64::try_from(record.timestamp_ms).unwrap_or(i64::MAX)
}
