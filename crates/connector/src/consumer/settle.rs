//! A record that failed: the facts, the decision, and what is done about it.

use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_core::dead_letter::{LastFailure, Reason};
use tidegate_core::{Backoff, Code, Failure, PauseReason, Topic, error_chain};
use tidegate_log::{Append, Record, TopicPartition};

use super::{Consumer, GiveUpRequest};
use crate::decide::{RecordDecision, RecordFacts, route};
use crate::handler::HandlerFailure;
use crate::hop::{self, RetryHistory};
use crate::ladder::Rung;
use crate::lanes::{LaneKey, LaneRecord, Work};
use crate::options::{BatchFailureStrategy, ListenerType};
use crate::planted_bugs::{PlantedBug, is};
use crate::{span, telemetry};

/// The longest wait that a handler may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

impl Consumer {
    /// Decides about a record that failed. Returns it if it stays in its lane.
    pub(super) fn on_failure(
        &mut self,
        at: &TopicPartition,
        lane: &LaneKey,
        mut work: Work,
        failed: HandlerFailure,
    ) -> Option<Work> {
        let HandlerFailure {
            failure,
            retry_after,
            is_undecodable,
        } = failed;
        let binding = &self.binding;
        let options = &binding.options;
        telemetry::failed(&options.name, &options.topic, &failure.code);
        tracing::debug!(
            binding = options.name, topic = %at.topic, partition = %at.partition,
            offset = work.offset(), consumerGroup = %options.group,
            consumerInstance = self.name.instance, retryTier = %work.record.tier(), event = %work.record.event_id(),
            trace_id = span::trace_id(work.record.headers()), retry_attempt = work.attempt, %failure,
            "an attempt failed"
        );
        let history = work.history.get_or_insert_with(|| {
            let tier = work.record.tier();
            Box::new(RetryHistory::read(at, work.record.stored(), tier))
        });
        let rung = history.rung;
        let now_ms = binding.clock.now_ms();
        let first_ms = *history.first_failure_ms.get_or_insert(now_ms);
        let since = Duration::from_millis(now_ms.saturating_sub(first_ms));
        let wait = {
            let mut entropy = binding.entropy.lock();
            options
                .retry
                .tier0
                .backoff()
                .wait(work.attempt.saturating_sub(1), &mut **entropy)
        };
        let facts = RecordFacts {
            class: failure.class,
            classified: binding.classifier.classify(&failure, rung.tier),
            is_undecodable,
            attempt: work.attempt,
            attempts: options.retry.tier0.max_attempts,
            wait: wait.max(retry_after.unwrap_or_default().min(MAX_RETRY_AFTER)),
            breaker_open: binding.gate.is_breaker_open(),
            is_probing: binding.gate.is_half_open() && since < options.patience(),
            rung,
            ladder: &binding.ladder,
            ordering: options.ordering,
            strict_exhausted: options.strict_exhausted,
            key_exhausted: options.key_ordered.exhausted,
            batch_failure: match options.listener_type {
                ListenerType::Batch => options.batch_failure,
                ListenerType::Single => BatchFailureStrategy::SeekToFailed,
            },
        };
        let decision = route(&facts);
        if decision != RecordDecision::Keep(PauseReason::System) {
            self.end_probe(at, lane);
        }
        match decision {
            RecordDecision::RetryIn(wait) => {
                self.wait_in_lane(at, lane, wait);
                work.failure = Some(Box::new(failure));
                Some(work)
            }
            RecordDecision::Keep(reason) => {
                self.keep(at, lane, &mut work, reason, &failure);
                work.failure = Some(Box::new(failure));
                Some(work)
            }
            RecordDecision::Tier(rung) => self.hand_to_tier(at, work, rung, failure),
            RecordDecision::Park(rung) => self.park(at, work, rung, failure),
            RecordDecision::Block => self.block(at, work, failure),
            RecordDecision::DeadLetter(reason) => self.hand_to_dlt(at, work, reason, failure),
        }
    }

    fn wait_in_lane(&mut self, at: &TopicPartition, lane: &LaneKey, wait: Duration) {
        let until = self.now() + wait;
        let lane = self
            .partitions
            .get_mut(at)
            .and_then(|found| found.lanes.get_mut(lane));
        if let Some(lane) = lane {
            lane.wait_until = Some(lane.wait_until.map_or(until, |before| before.max(until)));
        }
    }

    /// Keeps a record until a reason is gone; its attempt does not count.
    fn keep(
        &mut self,
        at: &TopicPartition,
        lane: &LaneKey,
        work: &mut Work,
        reason: PauseReason,
        failure: &Failure,
    ) {
        let why = format!("record {} of {at}: {failure}", work.offset());
        work.attempt = match reason {
            // After a resume it begins again at attempt 1.
            PauseReason::Operator => 0,
            PauseReason::Breaker
            | PauseReason::System
            | PauseReason::Delay
            | PauseReason::BackPressure
            | PauseReason::Shutdown
            | PauseReason::Damaged => work.attempt.saturating_sub(1),
        };
        // The breaker adds and removes its own reason.
        if reason == PauseReason::Operator && self.binding.gate.add(reason, Some(why.clone())) {
            tracing::warn!(
                binding = self.binding.options.name,
                why,
                "paused until somebody resumes it"
            );
        }
        if reason != PauseReason::System {
            return;
        }
        let found = self
            .partitions
            .get_mut(at)
            .and_then(|found| found.lanes.get_mut(lane));
        let Some(found) = found else { return };
        let is_first = found.probes.is_none();
        if is_first && !self.binding.gate.begin_probe(why.clone()) {
            return;
        }
        if is_first {
            let name = &self.binding.options.name;
            tracing::error!(
                binding = name,
                why,
                "the handler cannot work; paused until it can"
            );
        }
        let probes = found.probes.map_or(0, |probes| probes + 1);
        found.probes = Some(probes);
        let backoff = Backoff::exponential(Duration::from_secs(1), 2.0, Duration::from_secs(60));
        self.wait_in_lane(at, lane, backoff.wait_without_jitter(probes));
    }

    /// The record that was tried alone got an answer.
    pub(super) fn end_probe(&mut self, at: &TopicPartition, lane: &LaneKey) {
        let found = self
            .partitions
            .get_mut(at)
            .and_then(|found| found.lanes.get_mut(lane));
        if found.is_some_and(|lane| lane.probes.take().is_some()) {
            tracing::info!(
                binding = self.binding.options.name,
                "the handler works again"
            );
            self.binding.gate.end_probe();
        }
    }

    fn hand_to_tier(
        &mut self,
        at: &TopicPartition,
        mut work: Work,
        rung: Rung,
        failure: Failure,
    ) -> Option<Work> {
        let mut index = usize::try_from(rung.tier.0.saturating_sub(1)).unwrap_or(usize::MAX);
        if is(PlantedBug::TierOffByOne) {
            index = (index + 1).min(self.binding.tier_topics.len() - 1);
        }
        let topic = self.binding.tier_topics.get(index).cloned()?;
        let now_ms = self.binding.clock.now_ms();
        let mut history = self.history(at, &work);
        history.fail(work.attempt, &failure, now_ms);
        let (id, group) = (work.record.event_id(), &self.binding.options.group);
        let record = history.to_tier(work.record.record(), id, rung, group, now_ms);
        work.failure = Some(Box::new(failure));
        self.hand_off(at, work, &topic, record, None)
    }

    pub(super) fn hand_to_dlt(
        &mut self,
        at: &TopicPartition,
        mut work: Work,
        reason: Reason,
        failure: Failure,
    ) -> Option<Work> {
        let topic = self.binding.dlt_topic.clone();
        let now_ms = self.binding.clock.now_ms();
        let mut history = self.history(at, &work);
        history.fail(work.attempt, &failure, now_ms);
        let last = LastFailure {
            code: failure.code.clone(),
            message: failure.message.clone(),
            stack: failure
                .source
                .as_ref()
                .map_or_else(String::new, |source| error_chain(&**source)),
        };
        let (id, group) = (work.record.event_id(), &self.binding.options.group);
        let record = history.to_dead_letter(work.record.record(), id, reason, last, group, now_ms);
        tracing::warn!(
            binding = self.binding.options.name, %at, offset = work.offset(), consumerGroup = %group,
            consumerInstance = self.name.instance, retryTier = %work.record.tier(), event = %id,
            reason = reason.as_str(), trace_id = span::trace_id(work.record.headers()),
            retry_attempt = work.attempt, %failure, "given up on"
        );
        work.failure = Some(Box::new(failure));
        self.hand_off(at, work, &topic, record, Some(reason))
    }

    pub(super) fn history(&self, at: &TopicPartition, work: &Work) -> RetryHistory {
        match &work.history {
            Some(history) => (**history).clone(),
            None => RetryHistory::read(at, work.record.stored(), work.record.tier()),
        }
    }

    /// Settles a record by a copy in another topic; both are one commit. A record that does not fit there waits in
    /// the store; without one it is kept, and the binding is paused.
    pub(super) fn hand_off(
        &mut self,
        at: &TopicPartition,
        mut work: Work,
        topic: &Topic,
        record: Record,
        reason: Option<Reason>,
    ) -> Option<Work> {
        let limit = self.binding.record_limit(topic);
        let fits = |record: &Record| record.size() as u64 <= limit;
        let record = match fits(&record) {
            true => record,
            false => hop::shrunk(&record),
        };
        let has_store = self
            .partitions
            .get(at)
            .is_some_and(|found| found.park.is_some());
        if !fits(&record) && has_store {
            self.park_for(at, work, topic, record);
            return None;
        }
        if !fits(&record) {
            let why = format!(
                "record {} of {at} has {} bytes with its history, and `{topic}` takes at most {limit}",
                work.offset(),
                record.size()
            );
            tracing::error!(binding = self.binding.options.name, why, "paused");
            self.binding.gate.add(PauseReason::Operator, Some(why));
            work.attempt = 0;
            return Some(work);
        }
        telemetry::attempts(&self.binding.options.name, work.record.tier(), work.attempt);
        let append = Append::new(topic.clone(), record).partition(at.partition.0);
        let is_swallowed = reason.is_some() && is(PlantedBug::SwallowedLetter);
        let appends = if is_swallowed { vec![] } else { vec![append] };
        let to = match reason {
            Some(_) => Place::DeadLettered,
            None => Place::Retrying,
        };
        self.settle(at, work, to, appends, reason);
        None
    }

    /// An operator gives a record up that is held.
    pub(super) fn give_up(&mut self, request: GiveUpRequest) {
        let GiveUpRequest { at, offset, answer } = request;
        let found = self
            .partitions
            .get_mut(&at)
            .and_then(|found| found.take_held(offset.0));
        let Some((lane, work)) = found else {
            answer.send(false).ok();
            return;
        };
        let code = Code::from_static("operator.gave-up");
        let failure = match &work.failure {
            Some(last) => Failure::new(last.class, last.code.clone(), last.message.clone()),
            None => Failure::permanent(code, "an operator gave the record up"),
        };
        self.end_probe(&at, &lane);
        if let Some(kept) = self.hand_to_dlt(&at, work, Reason::Manual, failure)
            && let Some(partition) = self.partitions.get_mut(&at)
        {
            partition.put_back(&lane, vec![LaneRecord::Known(kept)]);
        }
        self.make_ready(&at, &lane);
        self.want_commit(&at);
        answer.send(true).ok();
    }
}
