//! The tables of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_core::EventId;
use tidegate_core::books::{Account, Books, LossReason, Place};
use tidegate_store::span_ms;

use crate::port::{
    BatchSettlement, BucketLease, ClaimedRow, ClaimedRows, OutboxFilter, OutboxRow, OutboxStats,
    OutboxStatus, PurgeRequest, RelayLeases, RowClaim, RowSelection, Settled, SettledTo, place_of,
};
use crate::recount::{FinishedRow, OutboxRecount, RowCount, show_in_flight};
use crate::{NewOutboxEvent, OutboxOptions};

#[derive(Debug)]
pub(super) struct OutboxTables {
    buckets: u32,
    last_number: i64,
    rows: BTreeMap<i64, OutboxRow>,
    leases: BTreeMap<String, ModelLease>,
    /// The rows of each lane that were claimed last.
    claims: BTreeMap<(String, u32), (i64, Vec<i64>)>,
    books: Books,
    /// The topic of rows that name none.
    topic: Option<String>,
}

#[derive(Debug, Clone)]
struct ModelLease {
    owner: String,
    token: i64,
    until: i64,
}

impl OutboxTables {
    pub(super) fn new(options: &OutboxOptions) -> Self {
        Self {
            buckets: options.buckets,
            last_number: 0,
            rows: BTreeMap::new(),
            leases: BTreeMap::new(),
            claims: BTreeMap::new(),
            books: Books::default(),
            topic: options.topic.as_ref().map(ToString::to_string),
        }
    }

    pub(super) fn next_number(&mut self) -> i64 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn insert(&mut self, id: i64, event_id: EventId, event: &NewOutboxEvent, now: i64) {
        let bytes = event.payload.as_ref().map_or(0, String::len);
        let row = OutboxRow {
            id,
            event_id,
            aggregate_type: event.aggregate_type.clone(),
            aggregate_id: event.aggregate_id.clone(),
            type_name: event.type_name.clone(),
            topic: event.topic.clone(),
            payload: event.payload.clone(),
            payload_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            headers: event.headers_text(),
            created_at: now,
            sent: false,
            status: OutboxStatus::Pending,
            attempts: 0,
            locked_by: None,
            locked_at: None,
            sent_at: None,
            last_error_at: None,
            next_attempt_at: None,
            last_error: None,
        };
        self.rows.insert(id, row);
        self.books.move_one(event_id, None, Some(Place::Queued));
    }

    pub(super) fn delete(&mut self, id: i64) {
        self.rows.remove(&id);
    }

    fn bucket_of(&self, key: &str) -> u32 {
        let hash = key.bytes().fold(7_u32, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(u32::from(byte))
        });
        hash % self.buckets
    }

    fn relays(&self, now: i64) -> u32 {
        let alive = self
            .leases
            .iter()
            .filter(|(name, lease)| **name == lease.owner && lease.until > now);
        u32::try_from(alive.count()).unwrap_or(u32::MAX)
    }

    fn bucket_lease(&self, lease: BucketLease) -> Option<&ModelLease> {
        let found = self.leases.get(&lease.bucket.to_string());
        found.filter(|found| found.token == lease.token)
    }

    pub(super) fn renew(
        &mut self,
        worker: &str,
        held: &[BucketLease],
        span: Duration,
        now: i64,
    ) -> RelayLeases {
        let until = now + span_ms(span);
        let own = ModelLease {
            owner: worker.to_owned(),
            token: 1,
            until,
        };
        self.leases.insert(worker.to_owned(), own);
        let mut kept = Vec::new();
        for lease in held {
            let found = self.leases.get_mut(&lease.bucket.to_string());
            if let Some(found) = found.filter(|found| found.token == lease.token) {
                found.until = until;
                kept.push(*lease);
            }
        }
        RelayLeases {
            held: kept,
            relays: self.relays(now).max(1),
        }
    }

    pub(super) fn acquire(
        &mut self,
        worker: &str,
        count: u32,
        span: Duration,
        now: i64,
    ) -> Vec<BucketLease> {
        let mut taken = Vec::new();
        for bucket in 0..self.buckets {
            let name = bucket.to_string();
            let found = self.leases.get(&name);
            let is_free = found.is_none_or(|lease| lease.until < now);
            if !is_free || taken.len() >= usize::try_from(count).unwrap_or(usize::MAX) {
                continue;
            }
            let token = found.map_or(0, |lease| lease.token) + 1;
            let lease = ModelLease {
                owner: worker.to_owned(),
                token,
                until: now + span_ms(span),
            };
            self.leases.insert(name, lease);
            taken.push(BucketLease { bucket, token });
        }
        taken
    }

    pub(super) fn release(
        &mut self,
        worker: &str,
        held: &[BucketLease],
        is_leaving: bool,
        now: i64,
    ) {
        for lease in held {
            let found = self.leases.get_mut(&lease.bucket.to_string());
            if let Some(found) = found.filter(|found| found.token == lease.token) {
                found.until = now - 1;
            }
        }
        if is_leaving {
            self.leases.remove(worker);
            self.claims.retain(|(owner, _), _| owner != worker);
        }
    }

    pub(super) fn claim(&mut self, claim: &RowClaim, now: i64) -> ClaimedRows {
        let is_held = claim.buckets.iter().all(|cursor| {
            let lease = self.bucket_lease(cursor.lease);
            lease.is_some_and(|lease| lease.until > now)
        });
        let mut claimed = ClaimedRows {
            rows: Vec::new(),
            is_held,
            has_more: false,
            up_to: self.rows.keys().next_back().copied().unwrap_or(0),
        };
        if !is_held {
            return claimed;
        }
        let after: BTreeMap<u32, i64> = claim
            .buckets
            .iter()
            .map(|cursor| (cursor.lease.bucket, cursor.after))
            .collect();
        let up_to = claim.up_to.unwrap_or(i64::MAX);
        let most = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
        let mut waiting: BTreeSet<&str> = BTreeSet::new();
        let mut taken: BTreeMap<u32, usize> = BTreeMap::new();
        for row in self.rows.values() {
            let key = row.aggregate_id.as_str();
            let bucket = self.bucket_of(key);
            let Some(after) = after.get(&bucket) else {
                continue;
            };
            if row.status != OutboxStatus::Pending {
                continue;
            }
            if let Some(due) = row.next_attempt_at
                && (due > now || row.id <= *after)
            {
                waiting.insert(key);
            }
            let is_wanted = row.id > *after && row.id <= up_to && !waiting.contains(key);
            let taken = taken.entry(bucket).or_default();
            let is_room = claimed.rows.len() < most(claim.limit) && *taken < most(claim.per_bucket);
            if is_wanted && is_room {
                *taken += 1;
                claimed.rows.push(ClaimedRow {
                    id: row.id,
                    bucket,
                    event_id: row.event_id,
                    aggregate_id: row.aggregate_id.clone(),
                    aggregate_type: row.aggregate_type.clone(),
                    type_name: row.type_name.clone(),
                    topic: row.topic.clone(),
                    payload: row.payload.clone().map(Into::into),
                    headers: row.headers.clone(),
                    attempts: row.attempts,
                    created_ms: row.created_at,
                });
            }
        }
        let is_cut = |taken: &usize| *taken >= most(claim.per_bucket);
        claimed.has_more = claimed.rows.len() >= most(claim.limit) || taken.values().any(is_cut);
        if !claimed.rows.is_empty() {
            let ids = claimed.rows.iter().map(|row| row.id).collect();
            let lane = (claim.worker.clone(), claim.lane);
            self.claims.insert(lane, (now, ids));
        }
        claimed
    }

    pub(super) fn settle(&mut self, settlement: &BatchSettlement, now: i64) -> Settled {
        let mut leases = settlement.leases.iter();
        if !leases.all(|lease| self.bucket_lease(*lease).is_some()) {
            return Settled::Fenced;
        }
        let mut foreign = Vec::new();
        for settled in &settlement.rows {
            let found = self.rows.get_mut(&settled.id).filter(|row| {
                row.status == OutboxStatus::Pending && row.attempts == settled.attempts_before
            });
            let Some(row) = found else {
                foreign.push(settled.id);
                continue;
            };
            row.locked_by = Some(settlement.worker.clone());
            row.locked_at = Some(now);
            row.attempts = settled.attempts();
            row.next_attempt_at = None;
            let error = match &settled.to {
                SettledTo::Sent => {
                    (row.status, row.sent, row.sent_at) = (OutboxStatus::Sent, true, Some(now));
                    row.topic = row.topic.take().or_else(|| self.topic.clone());
                    None
                }
                SettledTo::Retry { wait, error } => {
                    row.next_attempt_at = Some(now + span_ms(*wait));
                    Some(error)
                }
                SettledTo::Dead { error } => {
                    row.status = OutboxStatus::Dead;
                    Some(error)
                }
            };
            if let Some(error) = error {
                (row.last_error, row.last_error_at) = (Some(error.clone()), Some(now));
            }
            let (from, to) = settled.places();
            if from != to {
                self.books.move_one(settled.event_id, Some(from), Some(to));
            }
        }
        let lane = (settlement.worker.clone(), settlement.lane);
        self.claims.remove(&lane);
        match foreign.is_empty() {
            true => Settled::Done,
            false => Settled::Foreign(foreign),
        }
    }

    /// The rows of live relays that are claimed, with who has them.
    fn claimed(&self, now: i64) -> BTreeMap<i64, (&str, i64)> {
        let mut claimed = BTreeMap::new();
        for ((worker, _), (at, ids)) in &self.claims {
            let is_alive = self
                .leases
                .get(worker)
                .is_some_and(|lease| lease.until > now);
            for id in ids.iter().filter(|_| is_alive) {
                let row = self.rows.get(id);
                if row.is_some_and(|row| row.status == OutboxStatus::Pending) {
                    claimed.insert(*id, (worker.as_str(), *at));
                }
            }
        }
        claimed
    }

    fn claimed_counts(&self, now: i64) -> (i64, i64) {
        let mut counts = (0, 0);
        for id in self.claimed(now).keys() {
            match self.rows.get(id).map(|row| row.attempts) {
                Some(0) => counts.0 += 1,
                Some(_) => counts.1 += 1,
                None => {}
            }
        }
        counts
    }

    fn shown(&self, row: &OutboxRow, now: i64) -> OutboxRow {
        let mut row = row.clone();
        if let Some((worker, at)) = self.claimed(now).get(&row.id) {
            row.status = OutboxStatus::Claimed;
            row.locked_by = Some((*worker).to_owned());
            row.locked_at = Some(*at);
        }
        row
    }

    pub(super) fn list(&self, filter: &OutboxFilter, now: i64) -> Vec<OutboxRow> {
        let rows = self
            .rows
            .range(filter.after + 1..)
            .map(|(_, row)| self.shown(row, now));
        let is_wanted = |row: &OutboxRow| {
            let status = match filter.status {
                Some(status) => row.status == status,
                None => row.status != OutboxStatus::Sent,
            };
            let key = filter.aggregate_id.as_ref();
            status && key.is_none_or(|key| *key == row.aggregate_id)
        };
        let wanted = rows.filter(is_wanted).map(|row| OutboxRow {
            payload: None,
            ..row
        });
        wanted
            .take(usize::try_from(filter.limit).unwrap_or(usize::MAX))
            .collect()
    }

    fn is_selected(which: &RowSelection, row: &OutboxRow) -> bool {
        match which {
            RowSelection::Id(id) => row.id == *id,
            RowSelection::Event(id) => row.event_id == *id,
            RowSelection::All => true,
        }
    }

    pub(super) fn show(&self, which: &RowSelection, now: i64) -> Option<OutboxRow> {
        if *which == RowSelection::All {
            return None;
        }
        let mut rows = self.rows.values();
        let row = rows.find(|row| Self::is_selected(which, row))?;
        Some(self.shown(row, now))
    }

    pub(super) fn retry(&mut self, which: &RowSelection, now: i64) -> u64 {
        let mut retried = 0;
        for row in self.rows.values_mut() {
            let is_due = match row.status {
                OutboxStatus::Dead => true,
                OutboxStatus::Pending => row.next_attempt_at.is_some_and(|due| due > now),
                OutboxStatus::Claimed | OutboxStatus::Sent => false,
            };
            if !is_due || !Self::is_selected(which, row) {
                continue;
            }
            let from = place_of(row.status, row.attempts);
            if from != Place::Queued {
                self.books
                    .move_one(row.event_id, Some(from), Some(Place::Queued));
            }
            // It is due now. Without a time, rows of its key behind a lane's cursor would overtake it.
            (row.status, row.attempts, row.next_attempt_at) = (OutboxStatus::Pending, 0, Some(now));
            retried += 1;
        }
        retried
    }

    pub(super) fn purge(&mut self, request: PurgeRequest) -> u64 {
        let is_old = |row: &OutboxRow| {
            let at = row.sent_at.or(row.last_error_at).unwrap_or(row.created_at);
            row.status == request.status && at < request.before_ms
        };
        self.remove(is_old, request.limit)
    }

    pub(super) fn clean(&mut self, retention: Option<Duration>, limit: u32, now: i64) -> u64 {
        let Some(retention) = retention else {
            return 0;
        };
        let before = now - span_ms(retention);
        let is_old = |row: &OutboxRow| {
            row.status == OutboxStatus::Sent && row.sent_at.is_some_and(|at| at < before)
        };
        self.remove(is_old, limit)
    }

    fn remove(&mut self, is_meant: impl Fn(&OutboxRow) -> bool, limit: u32) -> u64 {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let meant = self.rows.values().filter(|row| is_meant(row)).take(limit);
        let meant: Vec<OutboxRow> = meant.cloned().collect();
        for row in &meant {
            self.rows.remove(&row.id);
            let from = place_of(row.status, row.attempts);
            let to = (from == Place::DeadLettered).then_some(Place::Lost(LossReason::PURGED));
            self.books.move_one(row.event_id, Some(from), to);
        }
        meant.len() as u64
    }

    pub(super) fn stats(&self, now: i64) -> OutboxStats {
        let count = |is: &dyn Fn(&OutboxRow) -> bool| {
            i64::try_from(self.rows.values().filter(|row| is(row)).count()).unwrap_or(i64::MAX)
        };
        let (fresh, again) = self.claimed_counts(now);
        let is_pending = |row: &OutboxRow| row.status == OutboxStatus::Pending;
        let oldest = self.rows.values().filter(|row| is_pending(row));
        OutboxStats {
            pending: count(&is_pending) - fresh - again,
            retrying: count(&|row| is_pending(row) && row.attempts > 0) - again,
            claimed: fresh + again,
            dead: count(&|row| row.status == OutboxStatus::Dead),
            oldest_age_ms: oldest.map(|row| (now - row.created_at).max(0)).max(),
            relays: i64::from(self.relays(now)),
        }
    }

    pub(super) fn account(&self, now: i64) -> Account {
        let mut account = self.books.account();
        show_in_flight(&mut account, self.claimed_counts(now));
        account
    }

    pub(super) fn books(&self) -> Books {
        self.books.clone()
    }

    pub(super) fn recount(&self, now: i64) -> OutboxRecount {
        let mut count = RowCount::default();
        for row in self.rows.values() {
            count.add(FinishedRow {
                event_id: row.event_id,
                status: row.status,
                attempts: row.attempts,
                key: row.aggregate_id.clone(),
                topic: row.topic.clone(),
                at_ms: row.sent_at.or(row.last_error_at),
            });
        }
        count.finish(self.books.clone(), self.claimed_counts(now))
    }
}
