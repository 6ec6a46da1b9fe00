//! Limits on the length of texts.
//!
//! Keys, types and handler ids stand in indexes, and PostgreSQL takes no more than about 2,700 bytes
//! into a row of one. A text that would be refused only when an event is settled is refused where it comes
//! in: there it is one caller's error, later it would be in the way of everybody's events.

use crate::QueueError;
use crate::event::NewEvent;
use crate::port::{Lane, Registry};

/// The longest key of an event, in bytes.
pub const MAX_KEY: usize = 1_024;
/// The longest type of an event, in bytes.
pub const MAX_TYPE: usize = 255;
/// The longest id of a handler, in bytes.
pub const MAX_HANDLER_ID: usize = 128;
/// The longest name of a side effect, in bytes.
pub const MAX_SUB_TASK: usize = 512;
/// How long a type and the ids of all its handlers may be together, in bytes.
pub const MAX_LANE: usize = 2_000;
/// The longest name of a projection's table, in bytes: PostgreSQL cuts names after 63, and the table
/// of a rebuild has nine more.
pub const MAX_TABLE: usize = 54;
/// The longest text of an error that is kept, in bytes; the rest is cut, and the text says so.
pub const MAX_ERROR: usize = 8 * 1_024;

/// Whether a text can stand in the tables under a limit.
pub(crate) fn check(what: &'static str, text: &str, limit: usize) -> Result<(), QueueError> {
    let refuse = |why| QueueError::InvalidName {
        what,
        name: text.escape_debug().to_string(),
        why,
    };
    if text.len() > limit {
        let bytes = text.len();
        return Err(QueueError::TooLong { what, bytes, limit });
    }
    if text.is_empty() {
        return Err(refuse("it is empty"));
    }
    if text.contains('\0') {
        return Err(refuse("it holds a zero byte"));
    }
    Ok(())
}

/// Whether these events can be published.
pub(crate) fn check_events(events: &[NewEvent]) -> Result<(), QueueError> {
    for event in events {
        check("event type", &event.type_name, MAX_TYPE)?;
        match event.key.as_deref() {
            // An empty key orders like another.
            None | Some("") => {}
            Some(key) => check("key", key, MAX_KEY)?,
        }
        let has_zero =
            |(name, value): &(&String, &String)| name.contains('\0') || value.contains('\0');
        if let Some((name, _)) = event.headers.iter().find(has_zero) {
            return Err(QueueError::InvalidName {
                what: "header",
                name: name.escape_debug().to_string(),
                why: "it holds a zero byte",
            });
        }
    }
    Ok(())
}

/// Whether types have room for these handlers beside those that are registered.
pub(crate) fn check_lanes(
    registry: &Registry,
    handlers: &[(String, String)],
) -> Result<(), QueueError> {
    for (type_name, _) in handlers {
        let more = handlers.iter().filter(|(of, _)| of == type_name);
        let more = more.map(|(_, handler)| handler.as_str());
        let all = registry.of(type_name).chain(more);
        let bytes = Lane::new(type_name, all).to_string().len();
        if bytes > MAX_LANE {
            return Err(QueueError::TooLong {
                what: "the type with the ids of all its handlers",
                bytes,
                limit: MAX_LANE,
            });
        }
    }
    Ok(())
}

/// An error's text as it is kept: without zero bytes, which PostgreSQL takes in no text, and cut.
pub(crate) fn kept(text: &str) -> String {
    let cut = text.floor_char_boundary(MAX_ERROR);
    let (head, rest) = text.split_at(cut);
    let mut kept = head.replace('\0', "\u{fffd}");
    if !rest.is_empty() {
        kept.push_str(&format!(" … ({} more bytes)", rest.len()));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_was_hit_is_named() {
        let error = check("key", &"k".repeat(1_025), MAX_KEY).unwrap_err();
        assert_eq!(error.to_string(), "key has 1025 bytes; 1024 are allowed");
        assert!(check("key", &"k".repeat(1_024), MAX_KEY).is_ok());
        let error = check("key", "a\0b", MAX_KEY).unwrap_err();
        assert_eq!(
            error.to_string(),
            "key `a\\0b` cannot be used: it holds a zero byte"
        );
    }

    #[test]
    fn handlers_of_other_processes_count() {
        let id = |n: usize| format!("{n:0>100}");
        let mut registry = Registry::default();
        let registered = registry.handlers.entry("a".to_owned()).or_default();
        registered.extend((0..15).map(id));
        let mine = |n| ("a".to_owned(), id(n));
        assert!(check_lanes(&registry, &[mine(14), mine(15)]).is_ok());
        let many: Vec<_> = (15..25).map(mine).collect();
        assert!(check_lanes(&registry, &many).is_err());
    }

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_so() {
        let text = format!("{}ü{}", "x".repeat(MAX_ERROR - 1), "y".repeat(10));
        let kept = kept(&text);
        assert!(
            kept.ends_with("x … (12 more bytes)"),
            "{}",
            &kept[MAX_ERROR - 10..]
        );
        assert_eq!(super::kept("a\0b"), "a\u{fffd}b");
    }
}
