//! The events that arrived.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::Value;
use tidegate_core::EventId;
use tidegate_core::books::{Books, Place};
use tidegate_logger::LoggerId;

/// The properties that belong to the transport; two events that differ only in them are the same.
const TRANSPORT: [&str; 4] = ["_id", "_seq", "_sum", "_crc"];

/// The events that arrived at an API of this crate. Clones share them.
///
/// ```
/// use tidegate_testkit::Stored;
/// let stored = Stored::new();
/// assert_eq!((stored.count(), stored.requests(), stored.duplicates()), (0, 0, 0));
/// ```
#[derive(Clone)]
pub struct Stored {
    kept: Arc<Mutex<Kept>>,
    is_bad: Arc<dyn Fn(&Value) -> bool + Send + Sync>,
}

#[derive(Default)]
struct Kept {
    /// In the order of their arrival.
    events: Vec<(EventId, Bytes)>,
    places: HashMap<EventId, usize>,
    /// The events that came from each logger, repeats included.
    loggers: BTreeMap<LoggerId, BTreeSet<EventId>>,
    requests: u64,
    duplicates: u64,
    rejected: u64,
}

impl Kept {
    fn note(&mut self, logger: Option<LoggerId>, id: EventId) {
        if let Some(logger) = logger {
            self.loggers.entry(logger).or_default().insert(id);
        }
    }
}

/// The outcome of one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is stored under this number, now or since an earlier request.
    Stored { number: usize, is_new: bool },
    /// It is not what the API takes: where, and why.
    Invalid { path: String, message: String },
    /// Its id belongs to an event with another content.
    Conflict,
}

impl Default for Stored {
    fn default() -> Self {
        Self::new()
    }
}

impl Stored {
    /// An empty store that refuses events whose `details` contain `REJECT`, as if they had no
    /// `processStatus`.
    #[must_use]
    pub fn new() -> Self {
        Self::rejecting(|event| {
            let details = event.get("details").and_then(Value::as_str);
            details.is_some_and(|details| details.contains("REJECT"))
        })
    }

    /// An empty store that refuses the events for which `is_bad` holds, as if they had no
    /// `processStatus`.
    pub fn rejecting(is_bad: impl Fn(&Value) -> bool + Send + Sync + 'static) -> Self {
        Self {
            kept: Arc::default(),
            is_bad: Arc::new(is_bad),
        }
    }

    /// The ids of all stored events, in the order of their arrival; each stands there once.
    #[must_use]
    pub fn ids(&self) -> Vec<EventId> {
        self.kept().events.iter().map(|(id, _)| *id).collect()
    }

    /// The event with this id, byte for byte as it came first.
    #[must_use]
    pub fn stored(&self, id: EventId) -> Option<Bytes> {
        let kept = self.kept();
        let place = *kept.places.get(&id)?;
        kept.events.get(place).map(|(_, json)| json.clone())
    }

    /// The books of the events that this logger sent, as the API keeps them.
    #[must_use]
    pub fn books_of(&self, logger: LoggerId) -> Books {
        let mut books = Books::default();
        for id in self.kept().loggers.get(&logger).into_iter().flatten() {
            books.move_one(*id, None, Some(Place::Delivered));
        }
        books
    }

    /// How many events are stored.
    #[must_use]
    pub fn count(&self) -> usize {
        self.kept().events.len()
    }

    /// How many requests came in, those that were made to fail included.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.kept().requests
    }

    /// How often an event came that was stored already.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.kept().duplicates
    }

    /// How often an event was refused for good.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.kept().rejected
    }

    pub(crate) fn count_request(&self) -> u64 {
        let mut kept = self.kept();
        kept.requests += 1;
        kept.requests
    }

    /// Judges one event of this logger, and stores it if it is good. `id` counts where the event has none.
    pub(crate) fn put(
        &self,
        json: &[u8],
        id: Option<EventId>,
        logger: Option<LoggerId>,
    ) -> Outcome {
        let event = match serde_json::from_slice::<Value>(json) {
            Ok(event) if event.is_object() => event,
            Ok(_) | Err(_) => return self.reject("", "not a JSON object"),
        };
        if (self.is_bad)(&event) {
            return self.reject("processStatus", "missing");
        }
        let own = event.get("_id").and_then(Value::as_str);
        let own = match own.map(str::parse::<EventId>).transpose() {
            Ok(own) => own,
            Err(_) => return self.reject("_id", "not a UUID"),
        };
        let mut kept = self.kept();
        // An event without any id cannot be told from another; it gets the next free number.
        let minted = EventId::from_u128(kept.events.len() as u128);
        let id = own.or(id).unwrap_or(minted);
        if let Some(place) = kept.places.get(&id).copied() {
            if kept
                .events
                .get(place)
                .is_some_and(|(_, first)| is_same(first, &event))
            {
                kept.duplicates += 1;
                kept.note(logger, id);
                return Outcome::Stored {
                    number: place,
                    is_new: false,
                };
            }
            kept.rejected += 1;
            return Outcome::Conflict;
        }
        let number = kept.events.len();
        kept.events.push((id, Bytes::copy_from_slice(json)));
        kept.places.insert(id, number);
        kept.note(logger, id);
        Outcome::Stored {
            number,
            is_new: true,
        }
    }

    fn reject(&self, path: &str, message: &str) -> Outcome {
        self.kept().rejected += 1;
        Outcome::Invalid {
            path: path.to_owned(),
            message: message.to_owned(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept();
        write!(
            f,
            "{} events by {} requests, {} duplicates, {} rejected",
            kept.events.len(),
            kept.requests,
            kept.duplicates,
            kept.rejected
        )
    }
}

fn is_same(first: &[u8], again: &Value) -> bool {
    let Ok(mut first) = serde_json::from_slice::<Value>(first) else {
        return false;
    };
    let mut again = again.clone();
    for event in [&mut first, &mut again] {
        if let Some(event) = event.as_object_mut() {
            for name in TRANSPORT {
                event.remove(name);
            }
        }
    }
    first == again
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "019a8f3e-5c00-7abc-8def-0123456789ab";

    fn put(stored: &Stored, details: &str, seq: u32) -> Outcome {
        let json = format!(r#"{{"_id":"{ID}","_seq":{seq},"details":"{details}"}}"#);
        stored.put(json.as_bytes(), None, None)
    }

    #[test]
    fn an_id_is_stored_once_and_keeps_its_first_content() {
        let stored = Stored::new();
        assert_eq!(
            put(&stored, "a", 1),
            Outcome::Stored {
                number: 0,
                is_new: true
            }
        );
        assert_eq!(
            put(&stored, "a", 2),
            Outcome::Stored {
                number: 0,
                is_new: false
            }
        );
        assert_eq!(put(&stored, "b", 1), Outcome::Conflict);
        assert_eq!(
            (stored.count(), stored.duplicates(), stored.rejected()),
            (1, 1, 1)
        );
        let id: EventId = ID.parse().unwrap();
        assert_eq!(stored.ids(), [id]);
        assert!(
            stored
                .stored(id)
                .unwrap()
                .ends_with(br#""_seq":1,"details":"a"}"#)
        );
    }

    #[test]
    fn bad_events_are_not_stored() {
        let stored = Stored::new();
        assert!(matches!(
            put(&stored, "please REJECT", 1),
            Outcome::Invalid { .. }
        ));
        for json in ["", "[]", "{", r#"{"_id":"x"}"#] {
            assert!(
                matches!(
                    stored.put(json.as_bytes(), None, None),
                    Outcome::Invalid { .. }
                ),
                "{json}"
            );
        }
        assert_eq!((stored.count(), stored.rejected()), (0, 5));
    }

    #[test]
    fn an_event_without_an_id_gets_that_of_the_header_or_a_new_one() {
        let stored = Stored::new();
        let id: EventId = ID.parse().unwrap();
        stored.put(b"{}", Some(id), None);
        stored.put(b"{}", None, None);
        stored.put(b"{}", None, None);
        assert_eq!(stored.count(), 3);
        assert_eq!(stored.ids()[0], id);
    }

    #[test]
    fn an_event_counts_once_for_each_logger_that_sent_it() {
        let stored = Stored::new();
        let logger = |n: u32| -> LoggerId {
            let text = format!("019a8f3e-5c00-7abc-8def-0123456789a{n}");
            text.parse().unwrap()
        };
        let json = format!(r#"{{"_id":"{ID}"}}"#);
        for from in [None, Some(logger(1)), Some(logger(1)), Some(logger(2))] {
            stored.put(json.as_bytes(), None, from);
        }
        assert_eq!(stored.count(), 1);
        for (n, count) in [(1, 1), (2, 1), (3, 0)] {
            let books = stored.books_of(logger(n));
            assert_eq!(books.in_place(&Place::Delivered), count);
        }
    }
}
