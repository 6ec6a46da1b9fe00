//! The id of a request in answers and logs.

use std::sync::Arc;

use tidegate_core::Mutex;
use tidegate_core::env::{Clock, Entropy};

/// The characters of the longest id that is taken from a client.
const MAX_LEN: usize = 128;

/// Gives every request an id.
#[derive(Debug)]
pub(crate) struct RequestIds {
    clock: Arc<dyn Clock>,
    entropy: Mutex<Box<dyn Entropy>>,
}

impl RequestIds {
    pub(crate) fn new(clock: Arc<dyn Clock>, entropy: Box<dyn Entropy>) -> Self {
        Self {
            clock,
            entropy: Mutex::new(entropy),
        }
    }

    /// The id that the client gave, if it is sane, else a new one: the time in milliseconds and 64
    /// random bits, so that ids sort by time.
    pub(crate) fn of(&self, given: Option<&str>) -> String {
        if let Some(given) = given.filter(|text| is_sane(text)) {
            return given.to_owned();
        }
        let random = self.entropy.lock().next_u64();
        format!("{:012x}-{random:016x}", self.clock.now_ms())
    }
}

/// Whether an id can stand in a log without being mistaken for something else.
fn is_sane(id: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':');
    (1..=MAX_LEN).contains(&id.len()) && id.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_short_and_plain() {
        for id in ["a", "0191-ab_c.d:e", &"x".repeat(MAX_LEN)] {
            assert!(is_sane(id), "{id}");
        }
        for id in [
            "",
            "a b",
            "a\tb",
            "é",
            "a=b",
            "<b>",
            &"x".repeat(MAX_LEN + 1),
        ] {
            assert!(!is_sane(id), "{id}");
        }
    }
}
