//! The embedded log: a directory of topics, and a lock on it.
//!
//! The **journal** makes writes durable and atomic: each is a commit group (see `group`), many of
//! them are written in one piece and synced once. **Segments** hold the records of one partition
//! each, as the same chunks (see `chunk`) that are in the groups; they are filled behind the scenes
//! and synced before a journal file is used again. The **manifest** is the log as of a checkpoint.
//!
//! | after a crash, this | is |
//! |---|---|
//! | what the manifest or its copy speaks of | there: it was synced before |
//! | groups of the journal behind it, as far as each follows the one before | applied again |
//! | a group that cannot be read, and none behind it that says it was synced | torn: kept aside, cut |
//! | a group that cannot be read, and one behind it that says it was synced | damage: named, a part of the unknown loss, and the rest is used, with what its segment has of it |
//! | records in a segment that the journal does not have | damage: they are taken in; what else was lost is unknown |
//! | a journal file that is shorter than its name says, or the next one | damage: what was lost is unknown |
//! | a group that is whole and holds what only a later version writes | refused by name, nothing is touched |
//! | any other file | a left-over, removed |

mod administration;
mod audit;
mod catalog;
mod change;
mod chunk;
mod codec;
mod config;
mod context;
mod files;
mod group;
mod injected_bugs;
mod inspect;
mod journal;
mod lock_holder;
mod log;
mod maintenance;
mod manifest;
mod open;
mod pending;
mod presence;
mod reader;
mod recover;
mod repair;
mod scan;
mod secret;
mod segment;
mod state;
mod storage;
mod sync_gate;
mod tally;
pub(crate) mod telemetry;
mod threads;
mod topic_books;
mod writer;

#[cfg(test)]
mod tests;

pub use audit::{
    DirectoryAudit, ScannedPartition, TopicAudit, audit_directory, books, recount, scan_topic,
    unknown_loss,
};
pub use config::{DeadLetterTopics, EmbeddedConfig};
pub use inspect::{Checked, ListedGroup, ListedPartition, Listing, LogProblem, check, ls};
pub use lock_holder::{LockHolder, lock_holder};
pub use log::EmbeddedLog;
pub use presence::{Presence, presence};
pub use repair::{COMMIT_DAMAGED, DAMAGED, RepairPlan, Repaired, plan_repair, repair};
pub use state::{JournalDamage, UnknownLoss};
pub use storage::EmbeddedStorage;
pub use topic_books::TopicBooks;
