//! The limits of the Event Log API.
//!
//! Each has a name here, and hitting one is an error that names it or a metric that counts it.

use std::time::Duration;

/// Events that one commit stores, at most. A larger batch is a commit of its own.
pub const GROUP_EVENTS: usize = 4_000;
/// Posts that may wait for the writer. The next one waits for room.
pub const WAITING_POSTS: usize = 1_024;
/// Events of all posts that may wait for the writer. The next post waits for room.
pub const WAITING_EVENTS: u32 = 32_000;
/// How often a commit that lost against another process is tried.
pub const COMMIT_ATTEMPTS: u32 = 4;

/// Characters of a word that the text search keeps. Longer words are cut, in events and in queries.
pub const WORD_CHARACTERS: usize = 64;
/// Different words of an event that the text search knows.
///
/// PostgreSQL takes a megabyte of words, and four bytes may be a character.
pub const WORDS_OF_EVENT: usize = 2_000;
/// Words of a query.
pub const WORDS_OF_QUERY: usize = 20;

/// The largest page of a listing by batch or account, of a lookup, and of traces.
pub const PAGE: u32 = 100;
/// The page of these listings when nobody says otherwise.
pub const USUAL_PAGE: u32 = 20;
/// The largest page of the events of one correlation or trace.
pub const LONG_PAGE: u32 = 500;
/// The page of these when nobody says otherwise.
pub const USUAL_LONG_PAGE: u32 = 200;
/// The largest page of a text search.
pub const TEXT_PAGE: u32 = 50;
/// The last page that is counted; further ones are reached with `after`.
pub const LAST_PAGE: u32 = 1_000_000;

/// The longest time span of a lookup or a text search.
pub const WINDOW: Duration = Duration::from_secs(30 * 86_400);
/// Correlation ids, systems and such that a summary lists.
pub const LISTED: i64 = 1_000;
/// Recent events in the summary of an account.
pub const RECENT_EVENTS: i64 = 10;
/// Recent errors in the summary of an account.
pub const RECENT_ERRORS: i64 = 5;

/// The longest name of a logger, in characters.
pub const LOGGER_NAME: usize = 64;
/// Application ids that the rate limit remembers.
pub const RATED_APPLICATIONS: usize = 10_000;
/// Numbers of events that one transaction of the clean-up covers.
pub const REMOVED_AT_ONCE: i64 = 2_000;
/// Numbers of events that one step of a recount covers.
pub const COUNTED_AT_ONCE: i64 = 50_000;
