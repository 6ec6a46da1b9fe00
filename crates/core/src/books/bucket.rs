//! The groups of postings.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{EventId, Offset, Partition};

const MINUTE_MS: u64 = 60_000;
const MINUTES_PER_HOUR: u64 = 60;
const HOURS_PER_DAY: u64 = 24;
/// Minutes are told apart for a day.
const MINUTES_KEPT_MS: u64 = 24 * 60 * MINUTE_MS;
/// Hours are told apart for a month.
const HOURS_KEPT_MS: u64 = 30 * MINUTES_KEPT_MS;

/// A group of postings: when the events were born, or where they lie.
///
/// A bucket has a short text form, as it stands in tables and files: `m29384932` (minute since
/// 1970), `h489748`, `d20406`, `p3:100-199` (partition 3, offsets 100 to 199).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bucket {
    /// Born in this minute since 1970.
    Minute(u64),
    /// Born in this hour since 1970.
    Hour(u64),
    /// Born on this day since 1970.
    Day(u64),
    /// Records of a broker's partition, from the first up to and including the last offset.
    Offsets {
        /// The partition.
        partition: Partition,
        /// The first offset.
        first: Offset,
        /// The last offset.
        last: Offset,
    },
}

impl Bucket {
    /// The minute in which `id` was born; minute 0 for an id that does not tell.
    #[must_use]
    pub fn of(id: EventId) -> Self {
        Self::Minute(id.born_ms().unwrap_or(0) / MINUTE_MS)
    }

    /// The bucket that this one is kept in at `now_ms`: minutes fold into hours after a day, hours
    /// into days after a month. Folding twice is the same as folding once, later.
    #[must_use]
    pub fn folded(self, now_ms: u64) -> Self {
        let is_older = |end_ms: u64, kept_ms: u64| end_ms.saturating_add(kept_ms) <= now_ms;
        match self {
            Self::Minute(minute)
                if is_older(
                    minute.saturating_add(1).saturating_mul(MINUTE_MS),
                    MINUTES_KEPT_MS,
                ) =>
            {
                Self::Hour(minute / MINUTES_PER_HOUR).folded(now_ms)
            }
            Self::Hour(hour)
                if is_older(
                    hour.saturating_add(1)
                        .saturating_mul(MINUTES_PER_HOUR * MINUTE_MS),
                    HOURS_KEPT_MS,
                ) =>
            {
                Self::Day(hour / HOURS_PER_DAY)
            }
            Self::Minute(_) | Self::Hour(_) | Self::Day(_) | Self::Offsets { .. } => self,
        }
    }

    /// The time from which on everything that belongs here is folded into this bucket; 0 for one that
    /// nothing is folded into.
    #[must_use]
    pub fn folded_from(self) -> u64 {
        let hours = |count: u64| count.saturating_mul(MINUTES_PER_HOUR * MINUTE_MS);
        match self {
            Self::Minute(_) | Self::Offsets { .. } => 0,
            Self::Hour(hour) => hours(hour.saturating_add(1)).saturating_add(MINUTES_KEPT_MS),
            Self::Day(day) => {
                let end = day.saturating_add(1).saturating_mul(HOURS_PER_DAY);
                hours(end).saturating_add(HOURS_KEPT_MS)
            }
        }
    }

    /// The next coarser bucket that holds this one.
    pub(super) fn coarser(self) -> Option<Self> {
        match self {
            Self::Minute(minute) => Some(Self::Hour(minute / MINUTES_PER_HOUR)),
            Self::Hour(hour) => Some(Self::Day(hour / HOURS_PER_DAY)),
            Self::Day(_) | Self::Offsets { .. } => None,
        }
    }

    /// Whether an event with this id can belong here; an id that does not tell its birth can
    /// belong anywhere.
    #[must_use]
    pub fn may_hold(self, id: EventId) -> bool {
        let is_variant_right = (id.as_u128() >> 62) & 0b11 == 0b10;
        if !is_variant_right {
            return false;
        }
        let Some(born_ms) = id.born_ms() else {
            return !matches!(self, Self::Minute(m) if m != 0);
        };
        let minute = born_ms / MINUTE_MS;
        match self {
            Self::Minute(m) => m == minute,
            Self::Hour(h) => h == minute / MINUTES_PER_HOUR,
            Self::Day(d) => d == minute / MINUTES_PER_HOUR / HOURS_PER_DAY,
            Self::Offsets { .. } => true,
        }
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Minute(n) => write!(f, "m{n}"),
            Self::Hour(n) => write!(f, "h{n}"),
            Self::Day(n) => write!(f, "d{n}"),
            Self::Offsets {
                partition,
                first,
                last,
            } => write!(f, "p{partition}:{first}-{last}"),
        }
    }
}

/// A text that names no bucket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a bucket")]
pub struct ParseBucketError(String);

impl FromStr for Bucket {
    type Err = ParseBucketError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParseBucketError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Bucket> {
    let rest = text.get(1..)?;
    match text.as_bytes().first()? {
        b'm' => rest.parse().ok().map(Bucket::Minute),
        b'h' => rest.parse().ok().map(Bucket::Hour),
        b'd' => rest.parse().ok().map(Bucket::Day),
        b'p' => {
            let (partition, range) = rest.split_once(':')?;
            let (first, last) = range.split_once('-')?;
            Some(Bucket::Offsets {
                partition: Partition(partition.parse().ok()?),
                first: Offset(first.parse().ok()?),
                last: Offset(last.parse().ok()?),
            })
        }
        _ => None,
    }
}

impl Serialize for Bucket {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bucket {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_reads_back_from_its_text() {
        for text in ["m29384932", "h489748", "d20406", "p3:100-199"] {
            assert_eq!(
                text.parse::<Bucket>().map(|b| b.to_string()).as_deref(),
                Ok(text)
            );
        }
        for text in ["", "m", "x1", "p3", "p3:1", "m-1", "é1"] {
            assert!(text.parse::<Bucket>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn minutes_fold_into_hours_after_a_day_and_hours_into_days_after_a_month() {
        let minute = Bucket::Minute(60 * 24 * 100 + 61);
        let end_ms = (60 * 24 * 100 + 62) * MINUTE_MS;
        assert_eq!(minute.folded(end_ms + MINUTES_KEPT_MS - 1), minute);
        let hour = Bucket::Hour(24 * 100 + 1);
        assert_eq!(minute.folded(end_ms + MINUTES_KEPT_MS), hour);
        assert_eq!(
            minute.folded(end_ms + HOURS_KEPT_MS + 60 * MINUTE_MS),
            Bucket::Day(100)
        );
        for folded in [hour, Bucket::Day(100)] {
            assert_eq!(minute.folded(folded.folded_from()), folded);
        }
        let offsets = Bucket::Offsets {
            partition: Partition(0),
            first: Offset(0),
            last: Offset(9),
        };
        assert_eq!(offsets.folded(u64::MAX), offsets);
        assert_eq!(Bucket::Minute(u64::MAX).folded(0), Bucket::Minute(u64::MAX));
    }

    #[test]
    fn a_bucket_holds_the_ids_that_were_born_in_it_and_no_others() {
        const MINUTE: u64 = 60 * 24 * 100 + 61;
        let version_7 = (7 << 76) | (0b10 << 62);
        let born = |ms: u64| EventId::from_u128((u128::from(ms) << 80) | version_7);
        let ids = [
            born(MINUTE * MINUTE_MS),
            born((MINUTE + 1) * MINUTE_MS - 1),
            born((MINUTE + 1) * MINUTE_MS),
            born((MINUTE + 60) * MINUTE_MS),
            born((MINUTE + 60 * 24) * MINUTE_MS),
            // One that does not tell its birth, and a sum that is no id at all.
            EventId::of_bytes(0, b"foreign"),
            EventId::from_u128(5),
        ];
        let offsets = Bucket::Offsets {
            partition: Partition(0),
            first: Offset(0),
            last: Offset(9),
        };
        for (bucket, held) in [
            (Bucket::Minute(MINUTE), [1, 1, 0, 0, 0, 0, 0]),
            (Bucket::Minute(0), [0, 0, 0, 0, 0, 1, 0]),
            (Bucket::Hour(MINUTE / 60), [1, 1, 1, 0, 0, 1, 0]),
            (Bucket::Day(MINUTE / 60 / 24), [1, 1, 1, 1, 0, 1, 0]),
            (offsets, [1, 1, 1, 1, 1, 1, 0]),
        ] {
            assert_eq!(
                ids.map(|id| i32::from(bucket.may_hold(id))),
                held,
                "{bucket}"
            );
        }
    }
}
