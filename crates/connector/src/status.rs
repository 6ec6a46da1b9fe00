//! Where the consumers of a binding stand, for health and for people.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::{HealthFinding, HealthStatus, TierIndex};
use tidegate_log::TopicPartition;

use crate::consumer::ConsumerSeat;
use crate::gate::BindingGate;
use crate::lanes::PartitionWork;
use crate::options::BindingOptions;

/// Where the consumers of a binding stand.
#[derive(Debug, Default)]
pub(crate) struct BindingStatus {
    members: BTreeMap<(TierIndex, u32), MemberStatus>,
    partitions: BTreeMap<TopicPartition, PartitionStatus>,
    /// Partitions with records behind their committed offset, as the last look found them.
    behind: BTreeMap<TopicPartition, BehindStatus>,
    /// Partitions whose next record cannot be read, and why.
    pub(crate) damaged: BTreeMap<TopicPartition, String>,
    /// Why the binding stopped by itself.
    pub(crate) fatal: Option<String>,
    /// Why it did not start.
    pub(crate) not_started: Option<String>,
    /// Something that was found at the start and does not keep it from working.
    warning: Option<String>,
}

#[derive(Debug, Default)]
struct MemberStatus {
    join_error: Option<String>,
    commit_error: Option<String>,
    store_error: Option<String>,
}

#[derive(Debug)]
struct PartitionStatus {
    tier: TierIndex,
    /// The first record that is not settled, and its key.
    blocker: Option<(i64, Option<Bytes>)>,
    standing_since: Duration,
    committed: Option<i64>,
    /// Why records wait in the store although nothing is on its way.
    parked: Option<String>,
}

/// A partition whose group has not passed everything.
#[derive(Debug, Clone, Copy)]
struct BehindStatus {
    next: i64,
    since: Duration,
}

/// Lanes that are looked through for the key of the record that holds the others up.
const MAX_LANES: usize = 1_000;

impl BindingStatus {
    /// Nobody has joined yet.
    pub(crate) fn started(warning: Option<String>) -> Self {
        Self {
            warning,
            ..Self::default()
        }
    }

    fn member(&mut self, seat: &ConsumerSeat) -> &mut MemberStatus {
        self.members.entry((seat.tier, seat.index)).or_default()
    }

    pub(crate) fn joined(&mut self, seat: &ConsumerSeat) {
        *self.member(seat) = MemberStatus::default();
    }

    pub(crate) fn not_joined(&mut self, seat: &ConsumerSeat, error: String) {
        self.member(seat).join_error = Some(error);
    }

    pub(crate) fn left(&mut self, seat: &ConsumerSeat) {
        self.members.remove(&(seat.tier, seat.index));
    }

    pub(crate) fn commit_failed(&mut self, seat: &ConsumerSeat, error: String) {
        self.member(seat).commit_error = Some(error);
    }

    pub(crate) fn commits_again(&mut self, seat: &ConsumerSeat) {
        self.member(seat).commit_error = None;
    }

    pub(crate) fn store_failed(&mut self, seat: &ConsumerSeat, error: String) {
        self.member(seat).store_error = Some(error);
    }

    pub(crate) fn store_answers(&mut self, seat: &ConsumerSeat) {
        self.member(seat).store_error = None;
    }

    pub(crate) fn shown(&mut self, seat: &ConsumerSeat, partition: &PartitionWork) {
        let blocker = match partition.lanes.len() {
            0..MAX_LANES => partition.blocker(),
            _ => Some((partition.tracker.next(), None)),
        };
        let status = PartitionStatus {
            tier: seat.tier,
            blocker,
            standing_since: partition.standing_since,
            committed: partition.committed.as_ref().map(|(next, _)| *next),
            parked: parked(partition),
        };
        self.partitions.insert(partition.at.clone(), status);
    }

    pub(crate) fn gone(&mut self, _seat: &ConsumerSeat, at: &TopicPartition) {
        self.partitions.remove(at);
        self.damaged.remove(at);
    }

    /// A look at a partition: the offset that its group goes on at, and the records behind it.
    pub(crate) fn looked(
        &mut self,
        at: TopicPartition,
        next: i64,
        records: u64,
        flows: bool,
        now: Duration,
    ) {
        let before = self.behind.remove(&at);
        if records > 0 {
            let is_same = |before: &BehindStatus| before.next == next && flows;
            let before = before.filter(is_same);
            let since = before.map_or(now, |before| before.since);
            self.behind.insert(at, BehindStatus { next, since });
        }
    }

    /// The partitions that are held now, with their committed offsets.
    pub(crate) fn positions(&self) -> BTreeMap<TopicPartition, Option<i64>> {
        let all = self.partitions.iter();
        all.map(|(at, status)| (at.clone(), status.committed))
            .collect()
    }

    /// How a running binding is.
    pub(crate) fn health(
        &self,
        options: &BindingOptions,
        gate: &BindingGate,
        now: Duration,
    ) -> HealthFinding {
        let mut found: Vec<(HealthStatus, String)> = Vec::new();
        if let Some(why) = &self.fatal {
            found.push((HealthStatus::Down, why.clone()));
        }
        for ((tier, index), member) in &self.members {
            let name = options.container_name(*tier);
            if let Some(error) = &member.join_error {
                let text = format!("consumer {index} of {name} is no member: {error}");
                found.push((HealthStatus::Down, text));
            }
            if let Some(error) = &member.store_error {
                let text =
                    format!("the store of {name} does not answer, and its records wait: {error}");
                found.push((HealthStatus::Degraded, text));
            }
            if let Some(error) = &member.commit_error {
                let text = format!("commits of {name} fail, and its records are kept: {error}");
                found.push((HealthStatus::Down, text));
            }
        }
        let reasons = gate.reasons();
        if !reasons.flows() {
            let why = gate
                .why()
                .map_or_else(String::new, |why| format!(": {why}"));
            found.push((HealthStatus::Degraded, format!("paused ({reasons}){why}")));
        }
        for why in self.damaged.values().chain(&self.warning) {
            found.push((HealthStatus::Degraded, why.clone()));
        }
        let parked = self
            .partitions
            .values()
            .filter_map(|status| status.parked.clone());
        found.extend(parked.map(|why| (HealthStatus::Degraded, why)));
        found.extend(self.stalled(options, gate, now));
        let status = found
            .iter()
            .map(|(status, _)| *status)
            .max()
            .unwrap_or(HealthStatus::Up);
        let texts: Vec<String> = found.into_iter().map(|(_, text)| text).collect();
        HealthFinding {
            status,
            message: (!texts.is_empty()).then(|| texts.join("; ")),
        }
    }

    /// Partitions whose offset does not move although there is work.
    fn stalled(
        &self,
        options: &BindingOptions,
        gate: &BindingGate,
        now: Duration,
    ) -> Vec<(HealthStatus, String)> {
        if !gate.flows() {
            return Vec::new();
        }
        let told = self.partitions.iter().filter_map(|(at, status)| {
            // Records may lie there and be in nobody's hand.
            let behind = self.behind.get(at);
            let (offset, key, since) = match (&status.blocker, behind) {
                (Some((offset, key)), _) => (*offset, key.as_ref(), status.standing_since),
                (None, Some(behind)) => {
                    (behind.next, None, behind.since.max(status.standing_since))
                }
                (None, None) => return None,
            };
            let stood = now.saturating_sub(since);
            // Records of a tier wait for their time.
            if stood
                <= options
                    .stall_alarm
                    .saturating_add(options.delay(status.tier))
            {
                return None;
            }
            let key = key.map_or_else(String::new, |key| format!(", key `{}`", key.escape_ascii()));
            let text = format!(
                "{at} stands at offset {offset}{key} for {} s",
                stood.as_secs()
            );
            Some((HealthStatus::Degraded, text))
        });
        told.collect()
    }
}

/// Rows of a partition that only somebody outside can help.
fn parked(partition: &PartitionWork) -> Option<String> {
    let park = partition.park.as_ref()?;
    let at = &partition.at;
    let (_, stuck) = park.counts();
    if stuck > 0 {
        return Some(format!(
            "{stuck} records of {at} fit into no topic, and wait in the store"
        ));
    }
    let blocked = partition.blocked()?;
    let key = blocked
        .record
        .key()
        .map_or_else(String::new, |key| key.escape_ascii().to_string());
    let offset = blocked.offset();
    Some(format!(
        "record {offset} of {at} blocks its key `{key}` (`key-ordered.on-exhausted`)"
    ))
}
