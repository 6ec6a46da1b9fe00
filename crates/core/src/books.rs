//! The books: double entry for events.
//!
//! Every event that a component accepts is in exactly one [`Place`]. Every move between places is a
//! [`Posting`] of how many events moved and the sum of their ids. Postings are kept per [`Bucket`], so
//! that they stay meaningful after what they describe is gone. [`Books`] is the sum of postings, and
//! [`Account`] is the part of it that users see. [`difference`] is what an audit finds between the
//! books and a recount of the files, topics and tables themselves. [`AuditedPath`] is what it finds between
//! the books of two components that events pass through. [`AcceptedEvents`] are the numbers of an earlier time, kept
//! elsewhere, to hold the books of today against.
//!
//! **Invariant:** for each bucket, and so in all, `accepted` equals the sum of all places, both in
//! number and in the sum of ids. Because the ids are summed, one missing event can be named: the
//! difference of the sums is its id.

mod account;
mod audit;
mod bucket;
mod delivery;
mod difference;
mod place;
mod posting;
mod tally;
mod witness;

pub use account::{Account, ComponentAccount, ComponentKind, Ledger, LostCounts};
pub use audit::{Audit, AuditFinding, AuditVerdict, Audited};
pub use bucket::{Bucket, ParseBucketError};
pub use delivery::{AuditedPath, DeliveredEvents, NotCompared, undelivered};
pub use difference::{Discrepancy, difference};
pub use place::{LossReason, ParsePlaceError, Place};
pub use posting::{Posting, postings};
pub use tally::{Books, Row, Tally};
pub use witness::{AcceptedEvents, WitnessChange, WitnessLoss, next_witness, witness_losses};

#[cfg(test)]
mod properties;
