//! The rules every log keeps, for the tests of its implementations.
//!
//! A rule is an async function named as a sentence. It is given a [`Scene`] over a [`Stage`], which is
//! an implementation with what a test needs around it. [`log_conformance!`](crate::log_conformance)
//! makes one test of each rule and a list of their names, both from one list. So no implementation can
//! leave a rule out. The further promises of an implementation are a value, [`Promises`], never a test
//! that is skipped.

pub mod administration;
pub mod appends;
pub mod books;
pub mod co_partitioned;
pub mod commits;
pub mod fences;
pub mod groups;
pub mod lost_answers;
mod member;
pub mod owned;
pub mod pauses;
pub mod reads;
pub mod rebalances;
mod rules;
mod scene;
pub mod topics;

pub use member::{Member, together};
pub use scene::{Account, Promises, Scene, Stage, Times, Written};
