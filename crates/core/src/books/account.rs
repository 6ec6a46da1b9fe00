//! The part of the books that users see.

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Place;

/// How many events of a component are where, read as one snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Account {
    /// All events it ever took on.
    pub accepted: i64,
    /// Durable, waiting for their turn.
    pub queued: i64,
    /// Being sent or handled, or in a memory queue.
    pub in_flight: i64,
    /// In a tier or a back-off.
    pub retrying: i64,
    /// Durably behind an earlier record of their key.
    pub parked: i64,
    /// On disk, waiting for replay.
    pub spilled: i64,
    /// Given up on and kept.
    pub dead_lettered: i64,
    /// Arrived.
    pub delivered: i64,
    /// Gone, by reason.
    pub lost: LostCounts,
}

impl Account {
    pub(super) fn add(&mut self, place: &Place, count: i64) {
        match place {
            Place::Queued => self.queued += count,
            Place::InFlight => self.in_flight += count,
            Place::Retrying => self.retrying += count,
            Place::Parked => self.parked += count,
            Place::Spilled => self.spilled += count,
            Place::DeadLettered => self.dead_lettered += count,
            Place::Delivered => self.delivered += count,
            Place::Lost(reason) => {
                *self.lost.0.entry(reason.as_str().to_owned()).or_default() += count;
            }
        }
    }

    /// The places with their numbers, in the order in which they are shown; lost as one.
    #[must_use]
    pub fn places(&self) -> [(&'static str, i64); 8] {
        [
            ("queued", self.queued),
            ("in_flight", self.in_flight),
            ("retrying", self.retrying),
            ("parked", self.parked),
            ("spilled", self.spilled),
            ("dead_lettered", self.dead_lettered),
            ("delivered", self.delivered),
            ("lost", self.lost.total()),
        ]
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut lost = self.lost.clone();
        for (reason, count) in other.lost.reasons() {
            *lost.0.entry(reason.to_owned()).or_default() += count;
        }
        Self {
            accepted: self.accepted + other.accepted,
            queued: self.queued + other.queued,
            in_flight: self.in_flight + other.in_flight,
            retrying: self.retrying + other.retrying,
            parked: self.parked + other.parked,
            spilled: self.spilled + other.spilled,
            dead_lettered: self.dead_lettered + other.dead_lettered,
            delivered: self.delivered + other.delivered,
            lost,
        }
    }

    /// Whether `accepted` equals the sum of all places, and none of them is negative.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let places = self.places();
        let sum: i64 = places.iter().map(|(_, count)| count).sum();
        self.accepted == sum && places.iter().all(|(_, count)| *count >= 0)
    }
}

/// Events that are gone, by reason.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LostCounts(BTreeMap<String, i64>);

impl LostCounts {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> i64 {
        self.0.values().sum()
    }

    /// The reasons that occurred, with their numbers.
    pub fn reasons(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0
            .iter()
            .map(|(reason, count)| (reason.as_str(), *count))
    }
}

impl Serialize for LostCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len() + 1))?;
        map.serialize_entry("total", &self.total())?;
        for (reason, count) in &self.0 {
            map.serialize_entry(reason, count)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for LostCounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut reasons = BTreeMap::<String, i64>::deserialize(deserializer)?;
        reasons.remove("total");
        Ok(Self(reasons))
    }
}

/// The kinds of components that keep books.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComponentKind {
    /// An event client with its spill directory.
    Logger,
    /// A durable queue.
    Queue,
    /// An outbox relay.
    Relay,
    /// The store of the Event Log API.
    EventLog,
    /// A topic of a log.
    Topic,
    /// A consumer group on a topic.
    Group,
    /// The path of a demo.
    Demo,
}

impl ComponentKind {
    /// Whether events stay where they can be counted after they were delivered, as in the tables of a
    /// queue; a spill and a topic keep those that wait.
    #[must_use]
    pub fn keeps_delivered(self) -> bool {
        match self {
            Self::Queue | Self::Relay | Self::EventLog => true,
            Self::Logger | Self::Topic | Self::Group | Self::Demo => false,
        }
    }
}

impl fmt::Display for ComponentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Logger => "logger",
            Self::Queue => "queue",
            Self::Relay => "relay",
            Self::EventLog => "event-log",
            Self::Topic => "topic",
            Self::Group => "group",
            Self::Demo => "demo",
        })
    }
}

/// The account of one component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentAccount {
    /// Its name, unique within the process.
    pub name: String,
    /// Its kind.
    pub kind: ComponentKind,
    /// Where its events are.
    pub account: Account,
}

/// The accounts of all components of a process.
///
/// ```
/// use tidegate_core::books::Ledger;
/// let ledger = Ledger::new(Vec::new());
/// assert_eq!(serde_json::to_string(&ledger)?, r#"{"components":[],"balanced":true}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// The components, in the order of their names.
    pub components: Vec<ComponentAccount>,
    /// Whether the account of each of them is.
    pub balanced: bool,
}

impl Ledger {
    /// The ledger of these components.
    #[must_use]
    pub fn new(mut components: Vec<ComponentAccount>) -> Self {
        components.sort_by(|a, b| a.name.cmp(&b.name));
        let balanced = components.iter().all(|c| c.account.is_balanced());
        Self {
            components,
            balanced,
        }
    }
}
