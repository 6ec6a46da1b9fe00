//! A logger that only remembers.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_logger::{Event, EventSink, Refused};

/// A logger that remembers what it was given, for tests of code that logs. Clones share what they
/// remember.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_logger::{Event, EventSink};
/// use tidegate_testkit::RecordingLogger;
///
/// fn book(log: &dyn EventSink) {
///     let event = Event::step("CreateBooking", "BookingCreated", "Booking BK-1 created");
///     log.log(event).ok();
/// }
///
/// let recorder = RecordingLogger::new();
/// book(&recorder);
/// recorder.assert_logged(|event| event.step.as_deref() == Some("BookingCreated"));
/// recorder.assert_not_logged(|event| event.extras().error_code.is_some());
/// assert_eq!(recorder.count(), 1);
/// ```
#[derive(Clone, Default)]
pub struct RecordingLogger {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    events: Vec<Event>,
    /// Why events are refused, while they are.
    refusing: Option<&'static str>,
    refused: u64,
}

impl RecordingLogger {
    /// A logger that accepts every event.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on every event is refused for this reason.
    pub fn refuse(&self, reason: &'static str) {
        self.kept().refusing = Some(reason);
    }

    /// From now on every event is accepted.
    pub fn accept(&self) {
        self.kept().refusing = None;
    }

    /// The accepted events, in the order they came.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.kept().events.clone()
    }

    /// How many events were accepted.
    #[must_use]
    pub fn count(&self) -> usize {
        self.kept().events.len()
    }

    /// How many events were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.kept().refused
    }

    /// Forgets what it was given.
    pub fn clear(&self) {
        let mut kept = self.kept();
        kept.events.clear();
        kept.refused = 0;
    }

    /// The first accepted event for which `is_it` holds.
    ///
    /// # Panics
    /// It holds for none; the message lists those there are.
    #[track_caller]
    pub fn assert_logged(&self, is_it: impl Fn(&Event) -> bool) -> Event {
        let events = self.events();
        match events.iter().find(|event| is_it(event)) {
            Some(event) => event.clone(),
            None => panic!("no such event was logged; there are{}", list(&events)),
        }
    }

    /// # Panics
    /// An event was accepted for which `is_it` holds; the message shows it.
    #[track_caller]
    pub fn assert_not_logged(&self, is_it: impl Fn(&Event) -> bool) {
        let events = self.events();
        if let Some(event) = events.iter().find(|event| is_it(event)) {
            panic!(
                "such an event was logged:{}",
                list(std::slice::from_ref(event))
            );
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSink for RecordingLogger {
    fn log(&self, event: Event) -> Result<(), Refused> {
        let mut kept = self.kept();
        if let Some(reason) = kept.refusing {
            kept.refused += 1;
            return Err(Refused::new(event, reason));
        }
        kept.events.push(event);
        Ok(())
    }
}

impl fmt::Debug for RecordingLogger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordingLogger({} events)", self.count())
    }
}

fn list(events: &[Event]) -> String {
    if events.is_empty() {
        return " none".to_owned();
    }
    let mut text = String::new();
    for event in events {
        let status = event.process_status.map(|status| format!("{status:?}"));
        let words = [
            event.process_name.as_deref(),
            status.as_deref(),
            event.step.as_deref(),
            event.details.as_deref(),
        ];
        let words: Vec<&str> = words.into_iter().flatten().collect();
        // Writing to a text cannot fail.
        write!(text, "\n  {}", words.join(" | ")).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(details: &'static str) -> Event {
        Event::step("Book", "Pay", details)
    }

    #[test]
    fn a_refused_event_comes_back_and_is_not_remembered() {
        let recorder = RecordingLogger::new();
        recorder.refuse("shutdown_in_progress");
        let refused = recorder.log(event("a")).unwrap_err();
        assert_eq!(refused.reason, "shutdown_in_progress");
        assert_eq!(refused.event.details.as_deref(), Some("a"));
        assert_eq!((recorder.count(), recorder.refused()), (0, 1));
        recorder.accept();
        recorder.log(event("b")).unwrap();
        let found = recorder.assert_logged(|event| event.details.as_deref() == Some("b"));
        assert_eq!(found.step.as_deref(), Some("Pay"));
        recorder.clear();
        assert_eq!((recorder.count(), recorder.refused()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "no such event was logged; there are\n  Book | Step | Pay | a")]
    fn a_missing_event_is_told_with_those_there_are() {
        let recorder = RecordingLogger::new();
        recorder.log(event("a")).unwrap();
        recorder.assert_logged(|event| event.details.as_deref() == Some("b"));
    }

    #[test]
    #[should_panic(expected = "such an event was logged")]
    fn an_unwanted_event_is_told() {
        let recorder = RecordingLogger::new();
        recorder.log(event("a")).unwrap();
        recorder.assert_not_logged(|_| true);
    }
}
