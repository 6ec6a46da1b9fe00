//! One identity for each event, from birth to its last place.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha1_smol::Sha1;
use uuid::{Builder, Uuid};

use crate::env::{Clock, Entropy};
use crate::{Mutex, Offset, Partition, Topic};

/// The id of an event: a UUID, version 7 where the event was born here.
///
/// ```
/// use tidegate_core::EventId;
/// let id: EventId = "019a8f3e-5c00-7abc-8def-0123456789ab".parse()?;
/// assert_eq!(id.to_string(), "019a8f3e-5c00-7abc-8def-0123456789ab");
/// assert_eq!(id.born_ms(), Some(0x019a_8f3e_5c00));
/// # Ok::<(), tidegate_core::ParseEventIdError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(u128);

impl EventId {
    /// The id with these bits.
    #[must_use]
    pub fn from_u128(bits: u128) -> Self {
        Self(bits)
    }

    /// The id that these characters spell; none where they spell none.
    ///
    /// The same as parsing them as text, for those who have bytes.
    #[must_use]
    pub fn from_ascii(characters: &[u8]) -> Option<Self> {
        let uuid = Uuid::try_parse_ascii(characters).ok()?;
        Some(Self(uuid.as_u128()))
    }

    /// The bits of the id, which the books add up.
    #[must_use]
    pub fn as_u128(self) -> u128 {
        self.0
    }

    /// The id of a record that was born elsewhere and carries none: the same at each delivery.
    #[must_use]
    pub fn of_foreign(cluster: &str, topic: &Topic, partition: Partition, offset: Offset) -> Self {
        ForeignIds::new(cluster, topic, partition).at(offset)
    }

    /// The id of an event that was written down elsewhere without one: the same for the same bytes
    /// at the same place.
    #[must_use]
    pub fn of_bytes(place: u64, bytes: &[u8]) -> Self {
        let mut name = named(Uuid::NAMESPACE_OID);
        name.update(&place.to_le_bytes());
        name.update(bytes);
        Self::of_name(&name)
    }

    /// The id of an event that was made from others: the same for the same parts, so a replay makes it again.
    ///
    /// ```
    /// use tidegate_core::EventId;
    /// let input = EventId::from_u128(7).to_string();
    /// assert_eq!(EventId::derived(&[&input, "orders", "1"]), EventId::derived(&[&input, "orders", "1"]));
    /// assert_ne!(EventId::derived(&["ab", "c"]), EventId::derived(&["a", "bc"]));
    /// ```
    #[must_use]
    pub fn derived(parts: &[&str]) -> Self {
        let mut name = named(Uuid::NAMESPACE_OID);
        for part in parts {
            name.update(format!("{}:{part}", part.len()).as_bytes());
        }
        Self::of_name(&name)
    }

    /// The id of a name, of version 5.
    fn of_name(name: &Sha1) -> Self {
        let [first @ .., _, _, _, _] = name.digest().bytes();
        Self(Builder::from_sha1_bytes(first).into_uuid().as_u128())
    }

    /// When the event was born, in milliseconds since 1970, where the id tells (version 7).
    #[must_use]
    pub fn born_ms(self) -> Option<u64> {
        let is_version_7 = (self.0 >> 76) & 0xf == 7;
        is_version_7.then_some(u64::try_from(self.0 >> 80).unwrap_or(u64::MAX))
    }
}

/// The beginning of a name in a namespace.
fn named(namespace: Uuid) -> Sha1 {
    let mut name = Sha1::new();
    name.update(namespace.as_bytes());
    name
}

/// The ids of the records of one partition that were born elsewhere and carry none.
///
/// ```
/// use tidegate_core::{EventId, ForeignIds, Offset, Partition, Topic};
/// let topic = Topic::new("orders")?;
/// let ids = ForeignIds::new("main", &topic, Partition(3));
/// assert_eq!(ids.at(Offset(7)), EventId::of_foreign("main", &topic, Partition(3), Offset(7)));
/// # Ok::<(), tidegate_core::NameError>(())
/// ```
#[derive(Clone)]
pub struct ForeignIds {
    /// Everything of their names that comes before the offset.
    begun: Sha1,
}

impl ForeignIds {
    /// Ids of a partition in a cluster.
    #[must_use]
    pub fn new(cluster: &str, topic: &Topic, partition: Partition) -> Self {
        // Lengths keep `a` + `bc` and `ab` + `c` apart.
        let name = format!(
            "{}:{cluster}/{}:{topic}/{partition}/",
            cluster.len(),
            topic.as_str().len()
        );
        let mut begun = named(Uuid::NAMESPACE_URL);
        begun.update(name.as_bytes());
        Self { begun }
    }

    /// The id of the record at an offset.
    #[must_use]
    pub fn at(&self, offset: Offset) -> EventId {
        let mut digits = itoa::Buffer::new();
        let mut name = self.begun.clone();
        name.update(digits.format(offset.0).as_bytes());
        EventId::of_name(&name)
    }
}

impl fmt::Debug for ForeignIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ForeignIds")
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_u128(self.0).hyphenated().fmt(f)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not an event id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an event id; one looks like 019a8f3e-5c00-7abc-8def-0123456789ab")]
pub struct ParseEventIdError {
    text: String,
}

impl FromStr for EventId {
    type Err = ParseEventIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::try_parse(text)
            .map(|uuid| Self(uuid.as_u128()))
            .map_err(|_| ParseEventIdError {
                // An id has 36 characters; more of a wrong one would only fill the log.
                text: text.chars().take(60).collect(),
            })
    }
}

impl Serialize for EventId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EventId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Mints event ids.
///
/// The ids of one minter grow strictly, also when the clock stands still or goes back; the time in
/// an id is then that of the newest id before it. Cloning shares the order, so a process needs one
/// minter and clones of it.
///
/// ```
/// use tidegate_core::EventIds;
/// use tidegate_core::env::Env;
/// let env = Env::system();
/// let ids = EventIds::new(env.clock.clone(), env.entropy.fork("ids"));
/// assert!(ids.mint() < ids.mint());
/// ```
#[derive(Debug, Clone)]
pub struct EventIds {
    clock: Arc<dyn Clock>,
    minter: Arc<Mutex<EventIdMinter>>,
}

impl EventIds {
    /// Ids by `clock`, with their random part from `entropy`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, entropy: Box<dyn Entropy>) -> Self {
        Self {
            clock,
            minter: Arc::new(Mutex::new(EventIdMinter::new(entropy))),
        }
    }

    /// The next id.
    #[must_use]
    pub fn mint(&self) -> EventId {
        let now_ms = self.clock.now_ms();
        // Whatever a panic leaves, the next id is greater than all before it.
        let mut minter = self.minter.lock();
        minter.mint_at(now_ms)
    }
}

/// Mints event ids for a single owner, who has a lock and a clock already.
///
/// The ids grow strictly, as those of [`EventIds`] do.
///
/// ```
/// use tidegate_core::EventIdMinter;
/// use tidegate_core::env::Env;
/// let mut minter = EventIdMinter::new(Env::system().entropy.fork("ids"));
/// assert!(minter.mint_at(5_000) < minter.mint_at(4_000));
/// ```
#[derive(Debug)]
pub struct EventIdMinter {
    entropy: Box<dyn Entropy>,
    ms: u64,
    /// The 74 bits of an id that are not time, version or variant.
    tail: u128,
}

const TAIL_BITS: u32 = 74;
const TIME_MASK: u64 = (1 << 48) - 1;

impl EventIdMinter {
    /// Ids with their random part from `entropy`.
    #[must_use]
    pub fn new(entropy: Box<dyn Entropy>) -> Self {
        Self {
            entropy,
            ms: 0,
            tail: 0,
        }
    }

    /// The next id, at this time in milliseconds since 1970.
    pub fn mint_at(&mut self, now_ms: u64) -> EventId {
        let now_ms = now_ms & TIME_MASK;
        if now_ms > self.ms {
            let random =
                (u128::from(self.entropy.next_u64()) << 64) | u128::from(self.entropy.next_u64());
            self.ms = now_ms;
            // The top bit stays free, so that a busy millisecond has room to count on.
            self.tail = random >> (128 - TAIL_BITS + 1);
        } else {
            // A random step keeps ids hard to guess from their neighbors; below 2^32, the tail of
            // one millisecond holds at least 2^41 of them.
            self.tail += u128::from(self.entropy.next_u64() >> 32) + 1;
            if self.tail >> TAIL_BITS != 0 {
                self.ms += 1;
                self.tail = u128::from(self.entropy.next_u64());
            }
        }
        let high = (u128::from(self.ms & TIME_MASK) << 16) | 0x7000 | (self.tail >> 62);
        let low = (0b10 << 62) | (self.tail & ((1 << 62) - 1));
        EventId((high << 64) | low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Stream;

    fn minter() -> EventIdMinter {
        EventIdMinter::new(Box::new(Stream::new(1)))
    }

    #[test]
    fn ids_grow_while_the_clock_stands_still_or_goes_back() {
        let mut minter = minter();
        let times = [5_000, 5_000, 5_000, 4_000, 1, 5_001, 5_001, 70_000];
        let ids: Vec<EventId> = times.iter().map(|ms| minter.mint_at(*ms)).collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
        let born: Vec<u64> = ids.iter().filter_map(|id| id.born_ms()).collect();
        assert_eq!(
            born,
            [5_000, 5_000, 5_000, 5_000, 5_000, 5_001, 5_001, 70_000]
        );
    }

    #[test]
    fn a_full_millisecond_borrows_the_next_one() {
        let mut minter = minter();
        let first = minter.mint_at(9);
        minter.tail = (1 << TAIL_BITS) - 1;
        let next = minter.mint_at(9);
        assert!(first < next);
        assert_eq!(next.born_ms(), Some(10));
    }

    #[test]
    fn an_id_is_a_version_7_uuid_of_the_right_variant() {
        let mut minter = minter();
        for ms in [1, 1_700_000_000_000, TIME_MASK] {
            for _ in 0..100 {
                let uuid = Uuid::from_u128(minter.mint_at(ms).as_u128());
                assert_eq!(uuid.get_version_num(), 7);
                assert_eq!(uuid.get_variant(), uuid::Variant::RFC4122);
            }
        }
    }

    #[test]
    fn a_foreign_record_has_the_same_id_at_each_delivery_and_no_birth() {
        let topic = Topic::new("orders").unwrap();
        let id =
            |cluster, offset| EventId::of_foreign(cluster, &topic, Partition(1), Offset(offset));
        assert_eq!(id("a", 7), id("a", 7));
        assert_ne!(id("a", 7), id("a", 8));
        assert_ne!(id("a", 7), id("b", 7));
        assert_eq!(id("a", 7).born_ms(), None);
    }

    #[test]
    fn ids_of_names_are_those_of_every_other_program() {
        let topic = Topic::new("orders").unwrap();
        let ids = [
            EventId::of_foreign("a", &topic, Partition(1), Offset(7)),
            EventId::of_bytes(5, b"line"),
            EventId::derived(&["ab", "c"]),
        ];
        let expect = [
            "93da13b9-d78c-57d5-bfe7-c2fb6ed242fa",
            "d1e10ab8-5e1e-5791-9c72-c5f010b868e4",
            "8fd318ca-70b4-50e6-8280-0ca7a2635f00",
        ];
        assert_eq!(ids.map(|id| id.to_string()), expect);
    }

    #[test]
    fn a_text_that_is_no_id_is_refused_with_an_example() {
        let error = "not-an-id".parse::<EventId>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("`not-an-id` is not an event id"),
            "{error}"
        );
        assert!(serde_json::from_str::<EventId>("\"019a\"").is_err());
    }
}
