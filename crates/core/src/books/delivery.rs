//! The path of events from one component to the next.
//!
//! Each component keeps books of its own. A path is closed by comparing two of them: the events that the
//! first one calls delivered, and those that the second one has of it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Books, ComponentKind, Discrepancy, Place, Tally, difference};

/// Events that a component calls delivered to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveredEvents {
    /// The component that delivered them, by its name in the audit.
    pub from: String,
    /// The kind of component that they were delivered to.
    pub to: ComponentKind,
    /// The id under which the receiver keeps them apart from others; none while the sender has none.
    pub origin: Option<String>,
    /// Books that have them as delivered. Those that were removed from there left before the sender had
    /// this id, and no receiver has them under it.
    pub books: Books,
}

/// Why events were not compared with their receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotCompared {
    /// Nothing that was asked receives them.
    NoReceiver,
    /// The sender has no id yet under which a receiver could keep them.
    NoOrigin,
    /// They were delivered before the sender had its id.
    OlderThanOrigin,
    /// The topic that they were delivered to is not there any more.
    TopicGone,
    /// The receiver has more events of their time than the sender calls delivered, so that one of them may be
    /// missing there unseen.
    MoreReceived,
}

impl fmt::Display for NotCompared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoReceiver => "their receiver was not audited here",
            Self::NoOrigin => "their sender has no id yet",
            Self::OlderThanOrigin => "they were delivered before their sender had its id",
            Self::TopicGone => "their topic does not exist any more",
            Self::MoreReceived => "their receiver has more events of that time than were delivered",
        })
    }
}

/// The delivered events of a component, beside those that their receiver has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedPath {
    /// The kind of component that the events were delivered to.
    pub kind: ComponentKind,
    /// The component that has them, by its name; none where none was found.
    pub to: Option<String>,
    /// The id under which it keeps them.
    pub origin: Option<String>,
    /// Events that were compared.
    pub compared: u64,
    /// Events that could not be.
    pub not_compared: u64,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<NotCompared>,
    /// Delivered events that the receiver does not have.
    pub missing: Vec<Discrepancy>,
}

impl AuditedPath {
    /// Compares delivered events with those that their receiver has, by its name, removed ones included.
    ///
    /// ```
    /// use tidegate_core::EventId;
    /// use tidegate_core::books::{AuditedPath, Books, ComponentKind, DeliveredEvents, NotCompared, Place};
    /// let id: EventId = "019a8f3e-5c00-7abc-8def-0123456789ab".parse()?;
    /// let mut books = Books::default();
    /// books.move_one(id, None, Some(Place::Delivered));
    /// let delivered = DeliveredEvents {
    ///     from: "logger:./spill".to_owned(),
    ///     to: ComponentKind::EventLog,
    ///     origin: Some("a".to_owned()),
    ///     books,
    /// };
    /// let path = AuditedPath::new(&delivered, Some(("eventlog", &Books::default())));
    /// assert_eq!((path.compared, path.missing[0].id), (1, Some(id)));
    /// let path = AuditedPath::new(&delivered, None);
    /// assert_eq!((path.not_compared, path.reason), (1, Some(NotCompared::NoReceiver)));
    /// # Ok::<(), tidegate_core::ParseEventIdError>(())
    /// ```
    #[must_use]
    pub fn new(delivered: &DeliveredEvents, received: Option<(&str, &Books)>) -> Self {
        let count = |sum: i64| u64::try_from(sum).unwrap_or(0);
        let all = delivered.books.in_place(&Place::Delivered);
        let older = delivered.books.removed_tallies(&Place::Delivered);
        let older: i64 = older.values().map(|tally| tally.count).sum();
        let path = Self {
            kind: delivered.to,
            to: None,
            origin: delivered.origin.clone(),
            compared: 0,
            not_compared: count(all),
            reason: None,
            missing: Vec::new(),
        };
        let (name, books) = match (&delivered.origin, received) {
            (None, _) => {
                let reason = Some(NotCompared::NoOrigin);
                return Self { reason, ..path };
            }
            (Some(_), None) => {
                let reason = Some(NotCompared::NoReceiver);
                return Self { reason, ..path };
            }
            (Some(_), Some(received)) => received,
        };
        let beside = PathDifference::new(&delivered.books, books);
        let covered = beside.covered;
        Self {
            to: Some(name.to_owned()),
            compared: count(all - older - covered),
            not_compared: count(older + covered),
            reason: match (covered, older) {
                (1.., _) => Some(NotCompared::MoreReceived),
                (_, 1..) => Some(NotCompared::OlderThanOrigin),
                _ => None,
            },
            missing: beside.missing,
            ..path
        }
    }

    /// How many delivered events are missing.
    #[must_use]
    pub fn unaccounted(&self) -> u64 {
        let counts = self.missing.iter();
        counts.map(|one| one.count.unsigned_abs().max(1)).sum()
    }
}

/// Events that a sender calls delivered and its receiver does not have.
///
/// Events that the sender has removed are not compared. Those that the receiver has removed were there. An
/// event that the receiver has and the sender does not call delivered is no finding: its answer may be on
/// its way, or was lost. So the books of the sender must be the older ones.
#[must_use]
pub fn undelivered(sender: &Books, receiver: &Books) -> Vec<Discrepancy> {
    PathDifference::new(sender, receiver).missing
}

/// The books of a sender beside those of its receiver.
struct PathDifference {
    missing: Vec<Discrepancy>,
    /// Delivered events in buckets of which the receiver has more. The surplus covers one that is missing.
    covered: i64,
}

impl PathDifference {
    fn new(sender: &Books, receiver: &Books) -> Self {
        let sent = delivered(sender, |tally, removed| tally.minus(removed));
        let received = delivered(receiver, |tally, _| tally);
        let found = difference(&sent, &received).into_iter();
        let (missing, surplus): (Vec<_>, Vec<_>) = found.partition(|one| one.count >= 0);
        let sent = sent.aligned_with(&received).tallies(&Place::Delivered);
        let covered = surplus.iter().filter_map(|one| sent.get(&one.bucket));
        let covered = covered.map(|tally| tally.count).sum();
        Self { missing, covered }
    }
}

/// The delivered events of these books alone. `count` is given those of a bucket, and how many of them are
/// removed.
fn delivered(books: &Books, count: impl Fn(Tally, Tally) -> Tally) -> Books {
    let removed = books.removed_tallies(&Place::Delivered);
    let mut alone = Books::default();
    for (bucket, tally) in books.tallies(&Place::Delivered) {
        let removed = removed.get(&bucket).copied().unwrap_or_default();
        alone.move_tally(bucket, None, Some(Place::Delivered), count(tally, removed));
    }
    alone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventId;

    const MINUTE_MS: u128 = 60_000;

    fn id(n: u128) -> EventId {
        EventId::from_u128((MINUTE_MS << 80) | (7 << 76) | (0b10 << 62) | n)
    }

    fn books(moves: &[(u128, Place)]) -> Books {
        let mut books = Books::default();
        for (n, place) in moves {
            books.move_one(id(*n), None, Some(place.clone()));
        }
        books
    }

    fn delivered_events(origin: Option<&str>, books: Books) -> DeliveredEvents {
        DeliveredEvents {
            from: "logger:a".to_owned(),
            to: ComponentKind::EventLog,
            origin: origin.map(str::to_owned),
            books,
        }
    }

    #[test]
    fn an_event_that_is_delivered_and_not_received_is_named() {
        let sender = books(&[
            (1, Place::Delivered),
            (2, Place::Delivered),
            (3, Place::Spilled),
            (4, Place::DeadLettered),
        ]);
        let found = undelivered(&sender, &books(&[(1, Place::Delivered)]));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].count, found[0].id), (1, Some(id(2))));
    }

    #[test]
    fn an_event_that_is_received_and_not_known_as_delivered_is_no_finding() {
        let sender = books(&[(1, Place::Delivered), (2, Place::Spilled)]);
        let receiver = books(&[(1, Place::Delivered), (2, Place::Delivered)]);
        assert_eq!(undelivered(&sender, &receiver), []);
    }

    #[test]
    fn an_event_that_the_receiver_removed_was_there() {
        let sender = books(&[(1, Place::Delivered)]);
        let mut receiver = sender.clone();
        receiver.move_one(id(1), Some(Place::Delivered), None);
        assert_eq!(undelivered(&sender, &receiver), []);
    }

    #[test]
    fn an_event_that_the_sender_removed_is_not_compared() {
        let mut sender = books(&[(1, Place::Delivered), (2, Place::Delivered)]);
        sender.move_one(id(1), Some(Place::Delivered), None);
        assert_eq!(undelivered(&sender, &books(&[(2, Place::Delivered)])), []);
        let found = undelivered(&sender, &Books::default());
        assert_eq!((found[0].count, found[0].id), (1, Some(id(2))));
    }

    #[test]
    fn events_that_were_exchanged_are_a_finding() {
        let sender = books(&[(1, Place::Delivered)]);
        let found = undelivered(&sender, &books(&[(2, Place::Delivered)]));
        assert_eq!((found[0].count, found[0].id), (0, None));
    }

    #[test]
    fn buckets_that_were_folded_on_one_side_are_compared_alike() {
        const YEAR_MS: u64 = 365 * 86_400_000;
        for (fold_sender, fold_receiver) in [(0, YEAR_MS), (YEAR_MS, 0), (172_800_000, YEAR_MS)] {
            let mut sender = books(&[(1, Place::Delivered), (2, Place::Delivered)]);
            sender.move_one(id(1), Some(Place::Delivered), None);
            let mut receiver = books(&[(2, Place::Delivered)]);
            let mut short = books(&[(3, Place::Spilled)]);
            sender.fold(fold_sender);
            receiver.fold(fold_receiver);
            short.fold(fold_receiver);
            assert_eq!(undelivered(&sender, &receiver), []);
            let found = undelivered(&sender, &short);
            assert_eq!((found[0].count, found[0].id), (1, Some(id(2))));
        }
    }

    #[test]
    fn a_path_says_which_events_were_compared_and_why_the_others_were_not() {
        let mut sender = books(&[(1, Place::Delivered), (2, Place::Delivered)]);
        sender.move_one(id(1), Some(Place::Delivered), None);
        let receiver = books(&[(2, Place::Delivered)]);
        let with_id = delivered_events(Some("a"), sender.clone());
        let without_id = delivered_events(None, sender);
        let seen = Some(("eventlog", &receiver));
        for (delivered, received, compared, not_compared, reason) in [
            (&with_id, seen, 1, 1, NotCompared::OlderThanOrigin),
            (&with_id, None, 0, 2, NotCompared::NoReceiver),
            (&without_id, seen, 0, 2, NotCompared::NoOrigin),
        ] {
            let path = AuditedPath::new(delivered, received);
            assert_eq!((path.compared, path.not_compared), (compared, not_compared));
            assert_eq!((path.reason, path.unaccounted()), (Some(reason), 0));
        }
        // The receiver has one more, and it may lack another: nobody can tell.
        let hidden = books(&[(3, Place::Delivered), (4, Place::Delivered)]);
        let more = delivered_events(Some("a"), receiver.clone());
        let path = AuditedPath::new(&more, Some(("eventlog", &hidden)));
        assert_eq!((path.compared, path.not_compared), (0, 1));
        assert_eq!(path.reason, Some(NotCompared::MoreReceived));
        let young = delivered_events(Some("a"), receiver.clone());
        let path = AuditedPath::new(&young, Some(("eventlog", &Books::default())));
        assert_eq!((path.unaccounted(), path.reason), (1, None));
        assert_eq!(path.to.as_deref(), Some("eventlog"));
    }
}
