//! The books of a group on a topic, carried in the metadata of its committed offsets.
//!
//! ```text
//! t1;<base>;<count>;<id sum>;<what the caller wrote>
//! t2;<earlier>;<base>;<count>;<id sum>;<what the caller wrote>
//! t3;<earlier>;<base>;<count>;<id sum>;<places>;<what the caller wrote>
//! ```
//!
//! - `base`: the offset at which counting began.
//! - `count`: how many records between it and the committed offset were settled.
//! - `id sum`: the wrapping 128-bit sum of their event ids, as 32 hex digits.
//! - `earlier`: how many were settled before `base`. Version 1 is written where there are none.
//! - `places`: where the postings of all time put events, less those that they took away again, as
//!   `<place>=<count>=<id sum>` with a comma between two. The earlier versions say that all were delivered.
//!
//! All of it is ASCII; `docs/formats/kafka.md` is the specification.
//!
//! **Invariant:** the books change only in the same commit as the offset they belong to.

use std::collections::BTreeMap;

use tidegate_core::Offset;
use tidegate_core::books::{LossReason, Place, Posting, Tally};

const VERSION_1: &str = "t1;";
const VERSION_2: &str = "t2;";
const VERSION_3: &str = "t3;";

/// Reasons of losses that are told apart, and the longest one; any other loss is [`OTHER_LOSS`].
const MAX_LOSS_REASONS: usize = 3;
const MAX_LOSS_REASON: usize = 20;
const OTHER_LOSS: LossReason = LossReason::from_static("other");

/// The records of a partition that a group has settled since counting began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupBooks {
    /// Where counting began.
    pub base: Offset,
    /// How many records were settled since.
    pub count: u64,
    /// The wrapping sum of their ids.
    pub id_sum: u128,
    /// How many were settled before counting began here: nobody can verify them any more.
    pub earlier: u64,
    /// Where the postings of all time put events, less those that they took away again. A group that reads a
    /// tier takes from a place which another group filled, so a tally may be negative: only those of all groups
    /// of a component together are the truth. Events that wait or are being handled are in the topic alone.
    pub places: BTreeMap<Place, Tally>,
}

impl GroupBooks {
    /// Books that begin at an offset.
    #[must_use]
    pub fn begin(base: Offset) -> Self {
        Self {
            base,
            count: 0,
            id_sum: 0,
            earlier: 0,
            places: BTreeMap::new(),
        }
    }

    /// How many records the group has settled, ever. It falls only when an operator moves the group back.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.earlier.saturating_add(self.count)
    }

    /// The same books for an owner that finds the partition beginning at `start`. The records they
    /// cover must be there to be verified: if the broker has removed some of them, counting begins anew
    /// at `next`.
    #[must_use]
    pub(super) fn handed_on(self, start: Offset, next: Offset) -> Self {
        if self.base >= start {
            return self;
        }
        Self {
            earlier: self.settled(),
            places: self.places,
            ..Self::begin(next)
        }
    }

    /// The books of a group that an operator moved back to an offset, where it reads so many records again. The
    /// postings that say from which places they come are still to be added.
    #[must_use]
    pub(super) fn taken_back(self, to: Offset, records: Tally) -> Self {
        let count = records.count.unsigned_abs();
        if to >= self.base {
            return Self {
                count: self.count.saturating_sub(count),
                id_sum: self.id_sum.wrapping_sub(records.id_sum),
                ..self
            };
        }
        Self {
            earlier: self.settled().saturating_sub(count),
            places: self.places,
            ..Self::begin(to)
        }
    }

    /// The books after a commit that brings these postings.
    ///
    /// Postings that take records out of the group's hands are counted. A record that is passed without
    /// one is not: it lies in the topic and not in the books, and whoever counts misses it.
    #[must_use]
    pub(super) fn after(mut self, postings: &[Posting]) -> Self {
        for posting in postings {
            if settles(posting) {
                self.count = self.count.saturating_add(posting.count);
                self.id_sum = self.id_sum.wrapping_add(posting.id_sum);
            }
            // A clean-up leaves its events where they are in the books.
            let Some(to) = &posting.to else {
                continue;
            };
            let moved = Tally {
                count: i64::try_from(posting.count).unwrap_or(i64::MAX),
                id_sum: posting.id_sum,
            };
            if let Some(from) = &posting.from {
                self.add(from, Tally::default().minus(moved));
            }
            self.add(to, moved);
        }
        self
    }

    /// Adds to a place that the metadata has.
    fn add(&mut self, place: &Place, tally: Tally) {
        let place = match place {
            Place::Queued | Place::InFlight => return,
            Place::Lost(reason) => Place::Lost(self.known_reason(reason)),
            Place::Retrying
            | Place::Parked
            | Place::Spilled
            | Place::DeadLettered
            | Place::Delivered => place.clone(),
        };
        let sum = self.places.get(&place).copied().unwrap_or_default();
        let sum = Tally {
            count: sum.count.saturating_add(tally.count),
            id_sum: sum.id_sum.wrapping_add(tally.id_sum),
        };
        match sum.is_zero() {
            true => self.places.remove(&place),
            false => self.places.insert(place, sum),
        };
    }

    /// The reason under which a loss is kept: its own while there is room for it.
    fn known_reason(&self, reason: &LossReason) -> LossReason {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        let fits = (1..=MAX_LOSS_REASON).contains(&reason.as_str().len())
            && reason.as_str().bytes().all(is_plain);
        let is_kept = self.places.contains_key(&Place::Lost(reason.clone()));
        let losses = self.places.keys();
        let count = losses.filter(|place| matches!(place, Place::Lost(_)));
        match fits && (is_kept || count.count() < MAX_LOSS_REASONS) {
            true => reason.clone(),
            false => OTHER_LOSS,
        }
    }

    /// The places of the versions that had one tally for all.
    fn delivered(settled: u64, id_sum: u128) -> BTreeMap<Place, Tally> {
        let count = i64::try_from(settled).unwrap_or(i64::MAX);
        let tally = Tally { count, id_sum };
        let places = [(Place::Delivered, tally)].into_iter();
        places.filter(|(_, tally)| !tally.is_zero()).collect()
    }
}

/// Whether a posting takes records out of the hands of the group: from its queue or its handlers to any
/// other place. A record that moves on from there later (a parked one that is delivered) was counted
/// when its offset was committed.
fn settles(posting: &Posting) -> bool {
    let is_in_hand =
        |place: &Option<Place>| matches!(place, None | Some(Place::Queued | Place::InFlight));
    is_in_hand(&posting.from) && !is_in_hand(&posting.to)
}

/// The metadata of a committed offset: the books, then what the caller wrote.
pub(super) fn write(books: &GroupBooks, metadata: &str) -> String {
    let GroupBooks {
        base,
        count,
        id_sum,
        earlier,
        places,
    } = books;
    let sums = format!("{base};{count};{id_sum:032x}");
    // The earlier versions are written where they say the same, for programs that know no other.
    let all_delivered = *places == GroupBooks::delivered(books.settled(), *id_sum);
    match (all_delivered, earlier) {
        (true, 0) => format!("{VERSION_1}{sums};{metadata}"),
        (true, _) => format!("{VERSION_2}{earlier};{sums};{metadata}"),
        (false, _) => {
            let entry = |(place, tally): (&Place, &Tally)| {
                format!("{}={}={:x}", place_code(place), tally.count, tally.id_sum)
            };
            let places: Vec<String> = places.iter().map(entry).collect();
            let places = places.join(",");
            format!("{VERSION_3}{earlier};{sums};{places};{metadata}")
        }
    }
}

/// A place in the metadata.
fn place_code(place: &Place) -> String {
    match place {
        Place::Retrying => "r".to_owned(),
        Place::Parked => "p".to_owned(),
        Place::Spilled => "s".to_owned(),
        Place::DeadLettered => "x".to_owned(),
        Place::Delivered => "d".to_owned(),
        Place::Lost(reason) => format!("l{reason}"),
        // They are in the topic and in no metadata.
        Place::Queued | Place::InFlight => String::new(),
    }
}

/// The reverse of [`place_code`].
fn place_of(code: &str) -> Option<Place> {
    Some(match code {
        "r" => Place::Retrying,
        "p" => Place::Parked,
        "s" => Place::Spilled,
        "x" => Place::DeadLettered,
        "d" => Place::Delivered,
        other => {
            let reason = other.strip_prefix('l').filter(|text| !text.is_empty())?;
            Place::Lost(LossReason::new(reason.to_owned()))
        }
    })
}

fn read_places(text: &str) -> Option<BTreeMap<Place, Tally>> {
    let entries = text.split(',').filter(|entry| !entry.is_empty());
    let read = |entry: &str| {
        let mut parts = entry.split('=');
        let place = place_of(parts.next()?)?;
        let tally = Tally {
            count: parts.next()?.parse().ok()?,
            id_sum: u128::from_str_radix(parts.next()?, 16).ok()?,
        };
        parts.next().is_none().then_some((place, tally))
    };
    entries.map(read).collect()
}

/// Takes metadata apart. Text that we did not write has no books and is the caller's whole.
pub(super) fn read(text: &str) -> (Option<GroupBooks>, &str) {
    fn parse(text: &str) -> Option<(GroupBooks, &str)> {
        let (version, rest) = text.split_at_checked(VERSION_1.len())?;
        let (earlier, rest) = match version {
            VERSION_1 => (0, rest),
            VERSION_2 | VERSION_3 => {
                let (earlier, rest) = rest.split_once(';')?;
                (earlier.parse().ok()?, rest)
            }
            _ => return None,
        };
        let mut parts = rest.splitn(4, ';');
        let base = Offset(parts.next()?.parse().ok()?);
        let count = parts.next()?.parse().ok()?;
        let id_sum = parts.next().filter(|digits| digits.len() == 32)?;
        let id_sum = u128::from_str_radix(id_sum, 16).ok()?;
        let mut rest = parts.next()?;
        let mut books = GroupBooks {
            count,
            id_sum,
            earlier,
            ..GroupBooks::begin(base)
        };
        if version == VERSION_3 {
            let (places, metadata) = rest.split_once(';')?;
            (books.places, rest) = (read_places(places)?, metadata);
        } else {
            books.places = GroupBooks::delivered(books.settled(), id_sum);
        }
        Some((books, rest))
    }
    parse(text).map_or((None, text), |(books, rest)| (Some(books), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::MAX_METADATA;
    use tidegate_core::EventId;
    use tidegate_core::books::postings;

    fn ids() -> [EventId; 2] {
        [EventId::from_u128(3), EventId::from_u128(4)]
    }

    #[test]
    fn books_are_read_back_as_written_and_fit_a_broker() {
        let most = Tally {
            count: i64::MIN,
            id_sum: u128::MAX,
        };
        let mut all: BTreeMap<Place, Tally> = [
            Place::Retrying,
            Place::Parked,
            Place::Spilled,
            Place::DeadLettered,
            Place::Delivered,
            Place::Lost(OTHER_LOSS),
        ]
        .map(|place| (place, most))
        .into();
        for number in 0..MAX_LOSS_REASONS {
            let reason = format!("{number}{}", "r".repeat(MAX_LOSS_REASON - 1));
            all.insert(Place::Lost(LossReason::new(reason)), most);
        }
        for places in [BTreeMap::new(), all] {
            for earlier in [0, u64::MAX] {
                let books = GroupBooks {
                    base: Offset(i64::MAX),
                    count: u64::MAX,
                    id_sum: u128::MAX,
                    earlier,
                    places: places.clone(),
                };
                for metadata in ["", "a;b;;c", "t1;1;2;3;4", "t3;1;2;3;4;;5"] {
                    let text = write(&books, metadata);
                    assert_eq!(read(&text), (Some(books.clone()), metadata));
                }
                assert!(write(&books, &"x".repeat(MAX_METADATA)).len() <= 4_096);
            }
        }
    }

    #[test]
    fn books_of_all_versions_are_read() {
        let sum = "00000000000000000000000000000007";
        let first = GroupBooks::begin(Offset(1)).after(&postings(
            ids(),
            Some(Place::Queued),
            Some(Place::Delivered),
        ));
        let text = format!("t1;1;2;{sum};x");
        assert_eq!(read(&text), (Some(first.clone()), "x"));
        assert_eq!(write(&first, "x"), text);
        let second = GroupBooks {
            earlier: 9,
            places: GroupBooks::delivered(11, 7),
            ..first.clone()
        };
        let text = format!("t2;9;1;2;{sum};x");
        assert_eq!(read(&text), (Some(second.clone()), "x"));
        assert_eq!(write(&second, "x"), text);
        let third = first.after(&postings(ids(), Some(Place::Queued), Some(Place::Retrying)));
        let text = "t3;0;1;4;0000000000000000000000000000000e;r=2=7,d=2=7;x";
        assert_eq!(read(text), (Some(third.clone()), "x"));
        assert_eq!(write(&third, "x"), text);
        // Counting begins anew, and the places stay.
        let anew = third.clone().handed_on(Offset(2), Offset(8));
        assert_eq!(anew.places, third.places);
        let text = write(&anew, "");
        assert_eq!(read(&text), (Some(anew), ""));
    }

    #[test]
    fn each_place_has_a_tally_and_groups_together_tell_the_truth() {
        let moved = |from, to| postings(ids(), Some(from), Some(to));
        let lost = |reason: &str| Place::Lost(LossReason::new(reason.to_owned()));
        let begin = GroupBooks::begin(Offset(0));
        let main = begin
            .clone()
            .after(&moved(Place::Queued, Place::Retrying))
            .after(&moved(Place::Queued, Place::Parked))
            .after(&moved(Place::Parked, Place::DeadLettered))
            .after(&moved(Place::Queued, lost("log_retention")));
        let tier = begin.after(&moved(Place::Retrying, Place::Delivered));
        let of = |books: &GroupBooks, place: &Place| {
            books.places.get(place).map_or(0, |tally| tally.count)
        };
        assert_eq!(of(&main, &Place::Retrying), 2);
        assert_eq!(of(&main, &Place::Parked), 0);
        assert_eq!(of(&main, &Place::DeadLettered), 2);
        assert_eq!(of(&main, &lost("log_retention")), 2);
        assert_eq!((main.count, tier.count), (6, 0));
        assert_eq!(of(&tier, &Place::Retrying), -2);
        assert_eq!(of(&tier, &Place::Delivered), 2);
    }

    #[test]
    fn losses_of_many_reasons_fit() {
        let reasons = ["a", "b", "c", "d", "a", "with space", &"x".repeat(99)];
        let mut books = GroupBooks::begin(Offset(0));
        for reason in reasons {
            let to = Place::Lost(LossReason::new((*reason).to_owned()));
            books = books.after(&postings(ids(), Some(Place::Queued), Some(to)));
        }
        let found: Vec<String> = books.places.keys().map(place_code).collect();
        assert_eq!(found, ["la", "lb", "lc", "lother"]);
        assert_eq!(books.places[&Place::Lost(OTHER_LOSS)].count, 6);
    }

    #[test]
    fn metadata_of_others_is_the_callers_whole() {
        let long = "t1;1;2;00000000000000000000000000000007";
        for text in [
            "",
            "hello",
            "t1;",
            "t1;1;2;7;x",
            "t1;x;2;7;",
            "t2;1;2;3;",
            "t2;1;2;3;4;5",
            "t3;0;1;2;00000000000000000000000000000007;x",
            "t3;0;1;2;00000000000000000000000000000007;y=1=7;x",
            "t3;0;1;2;00000000000000000000000000000007;r=1;x",
            "t4;1;2;3;4;5;6",
            "t€",
            long,
        ] {
            assert_eq!(read(text), (None, text));
        }
    }

    #[test]
    fn only_what_leaves_the_hands_of_the_group_is_counted() {
        let moved = |from, to| postings(ids(), from, to);
        let begin = GroupBooks::begin(Offset(10));
        let mut all = moved(Some(Place::InFlight), Some(Place::Delivered));
        all.extend(moved(Some(Place::Queued), Some(Place::InFlight)));
        all.extend(moved(Some(Place::Parked), Some(Place::Delivered)));
        let books = begin.after(&all);
        assert_eq!((books.base, books.count, books.id_sum), (Offset(10), 2, 7));
        let tier = moved(Some(Place::Queued), Some(Place::Retrying));
        assert_eq!(books.after(&tier).count, 4);
    }

    #[test]
    fn books_whose_beginning_was_removed_begin_anew_and_forget_no_count() {
        let books = GroupBooks {
            base: Offset(1),
            count: 5,
            id_sum: 9,
            earlier: 2,
            places: GroupBooks::delivered(7, 9),
        };
        let same = books.clone().after(&[]);
        assert_eq!(same, books, "without postings nothing changes");
        assert_eq!(same.handed_on(Offset(1), Offset(8)), books);
        let anew = books.clone().handed_on(Offset(2), Offset(8));
        assert_eq!((anew.base, anew.count, anew.id_sum), (Offset(8), 0, 0));
        assert_eq!(anew.settled(), books.settled());
    }
}
