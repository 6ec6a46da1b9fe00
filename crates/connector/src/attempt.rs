//! A run: records of one lane, handled one after the other on a task of their own.
//!
//! A run stops at the first failure, because the records behind it may have to wait. It asks the gate
//! before each record, and gives back what it did not begin.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tidegate_core::breaker::CallResult;
use tidegate_core::env::CatchPanic;
use tidegate_core::{Code, Failure, FailureClass};
use tidegate_log::{Append, Fence, TopicPartition};
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::binding::BindingContext;
use crate::gate::BreakerAnswer;
use crate::handler::{ConsumedRecord, HandlerAnswer, HandlerFailure, HandlerKind};
use crate::lanes::{LaneKey, Work};
use crate::options::{HandOff, PayloadFormat};
use crate::parked::HeldUntil;
use crate::{span, telemetry};

/// How long results may wait for company before they are told.
const FLUSH_AFTER: Duration = Duration::from_millis(1);

/// Records of one lane, and where the results go.
pub(crate) struct LaneRun {
    pub(crate) at: TopicPartition,
    pub(crate) fence: Fence,
    pub(crate) lane: LaneKey,
    pub(crate) works: Vec<Work>,
    /// Whether this record is tried alone while the gate is closed.
    pub(crate) is_probe: bool,
    /// Set when the partition is to be let go, or its rest is handed back.
    pub(crate) stop: Arc<AtomicBool>,
    /// The lease under which it runs, where keys are ordered.
    pub(crate) held_until: Option<HeldUntil>,
    pub(crate) reports: mpsc::UnboundedSender<RunReport>,
}

/// Results of a run.
pub(crate) struct RunReport {
    pub(crate) at: TopicPartition,
    pub(crate) fence: Fence,
    pub(crate) lane: LaneKey,
    pub(crate) finished: Vec<(Work, AttemptOutcome)>,
    /// Whether the run is over.
    pub(crate) is_over: bool,
}

/// How an attempt ended.
pub(crate) enum AttemptOutcome {
    /// Handled, with these records to be written beside its offset.
    Handled(Vec<Append>),
    /// Not handled.
    Failed(HandlerFailure),
    /// Not begun.
    NotBegun,
}

impl LaneRun {
    /// Handles the records until one fails or nothing may go on.
    pub(crate) async fn run(mut self, binding: Arc<BindingContext>) {
        let works = std::mem::take(&mut self.works);
        let mut finished = Vec::with_capacity(works.len());
        match &binding.handler.kind {
            HandlerKind::Batch(_) => self.call_batch(&binding, works, &mut finished).await,
            HandlerKind::Single(_) => self.call_each(&binding, works, &mut finished).await,
        }
        self.report(finished, true);
    }

    fn report(&self, finished: Vec<(Work, AttemptOutcome)>, is_over: bool) {
        let report = RunReport {
            at: self.at.clone(),
            fence: self.fence,
            lane: self.lane.clone(),
            finished,
            is_over,
        };
        // A consumer that is gone settles nothing, and somebody else gets the records.
        self.reports.send(report).ok();
    }

    fn may_go_on(&self, binding: &BindingContext) -> bool {
        let flows = binding.gate.flows() || (self.is_probe && binding.gate.lets_probe_through());
        let now = binding.clock.elapsed();
        let is_held = self
            .held_until
            .as_ref()
            .is_none_or(|held| !held.is_over(now));
        flows && is_held && !self.stop.load(Ordering::Acquire)
    }

    async fn call_each(
        &self,
        binding: &BindingContext,
        works: Vec<Work>,
        finished: &mut Vec<(Work, AttemptOutcome)>,
    ) {
        let mut told_at = binding.clock.elapsed();
        let mut works = works.into_iter();
        while let Some(mut work) = works.next() {
            let outcome = match self.may_go_on(binding) {
                true => self.call(binding, &mut work, finished).await,
                false => AttemptOutcome::NotBegun,
            };
            let goes_on = matches!(outcome, AttemptOutcome::Handled(_));
            finished.push((work, outcome));
            if !goes_on {
                break;
            }
            let now = binding.clock.elapsed();
            if works.len() > 0 && now.saturating_sub(told_at) >= FLUSH_AFTER {
                told_at = now;
                self.report(std::mem::take(finished), false);
            }
        }
        finished.extend(works.map(|work| (work, AttemptOutcome::NotBegun)));
    }

    /// One attempt. If it takes a while, the results before it are told first: their offset need not wait.
    async fn call(
        &self,
        binding: &BindingContext,
        work: &mut Work,
        finished: &mut Vec<(Work, AttemptOutcome)>,
    ) -> AttemptOutcome {
        let mut attempt = pin!(attempt(binding, work));
        let first = poll_fn(|context| Poll::Ready(attempt.as_mut().poll(context))).await;
        match first {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => {
                if !finished.is_empty() {
                    self.report(std::mem::take(finished), false);
                }
                attempt.await
            }
        }
    }

    /// One call for all records; each gets its own answer.
    async fn call_batch(
        &self,
        binding: &BindingContext,
        works: Vec<Work>,
        finished: &mut Vec<(Work, AttemptOutcome)>,
    ) {
        let HandlerKind::Batch(act) = &binding.handler.kind else {
            return;
        };
        let keep = |works: Vec<Work>, finished: &mut Vec<(Work, AttemptOutcome)>| {
            finished.extend(
                works
                    .into_iter()
                    .map(|work| (work, AttemptOutcome::NotBegun)),
            );
        };
        if !self.may_go_on(binding) {
            return keep(works, finished);
        }
        let mut good = Vec::with_capacity(works.len());
        for mut work in works {
            match undecodable(binding, &work.record) {
                Some(failure) => {
                    work.attempt += 1;
                    finished.push((work, AttemptOutcome::Failed(failure)));
                }
                None => good.push(work),
            }
        }
        let permit = match binding.gate.permit() {
            BreakerAnswer::Go(permit) => permit,
            BreakerAnswer::Keep => return keep(good, finished),
            BreakerAnswer::FailFast => {
                for mut work in good {
                    work.attempt += 1;
                    finished.push((work, AttemptOutcome::Failed(breaker_open())));
                }
                return;
            }
        };
        for work in &mut good {
            work.attempt += 1;
            work.record.begin_attempt(work.attempt);
        }
        let records: Vec<Arc<ConsumedRecord>> =
            good.iter().map(|work| Arc::clone(&work.record)).collect();
        let began = binding.clock.elapsed();
        let span = span::process_batch(&records);
        let call = CatchPanic(act(records)).instrument(span);
        let answer = binding
            .clock
            .within(binding.options.handler_timeout, call)
            .await;
        let took = binding.clock.elapsed().saturating_sub(began);
        telemetry::called(&binding.options.name, binding.options.listener_type, took);
        let mut answers = match answer {
            Some(Ok(answers)) => answers.into_iter(),
            Some(Err(message)) => same(&panicked(&message), good.len()).into_iter(),
            None => same(&timed_out(binding), good.len()).into_iter(),
        };
        // As for one record: an answer that is not about the other side says nothing about it.
        let mut result = None;
        for work in good {
            let outcome = match answers.next() {
                Some(Ok(())) => handled(binding, &work.record),
                Some(Err(failure)) => AttemptOutcome::Failed(failure),
                None => AttemptOutcome::Failed(no_answer()),
            };
            result = match &outcome {
                AttemptOutcome::Failed(failed)
                    if failed.failure.class == FailureClass::Transient =>
                {
                    Some(CallResult::Failure)
                }
                AttemptOutcome::Handled(_) => result.or(Some(CallResult::Success)),
                AttemptOutcome::Failed(_) | AttemptOutcome::NotBegun => result,
            };
            finished.push((work, outcome));
        }
        if let Some(result) = result {
            permit.record(result, took);
        }
    }
}

fn same(failure: &Failure, count: usize) -> Vec<HandlerAnswer> {
    let one = || Failure::new(failure.class, failure.code.clone(), failure.message.clone());
    (0..count).map(|_| Err(one().into())).collect()
}

/// One attempt at one record.
async fn attempt(binding: &BindingContext, work: &mut Work) -> AttemptOutcome {
    let HandlerKind::Single(act) = &binding.handler.kind else {
        return AttemptOutcome::NotBegun;
    };
    if let Some(failure) = undecodable(binding, &work.record) {
        work.attempt += 1;
        return AttemptOutcome::Failed(failure);
    }
    let permit = match binding.gate.permit() {
        BreakerAnswer::Go(permit) => permit,
        BreakerAnswer::Keep => return AttemptOutcome::NotBegun,
        BreakerAnswer::FailFast => {
            work.attempt += 1;
            return AttemptOutcome::Failed(breaker_open());
        }
    };
    work.attempt += 1;
    work.record.begin_attempt(work.attempt);
    let began = binding.clock.elapsed();
    let call = CatchPanic(act(Arc::clone(&work.record))).instrument(span::process(&work.record));
    let answer = binding
        .clock
        .within(binding.options.handler_timeout, call)
        .await;
    let took = binding.clock.elapsed().saturating_sub(began);
    telemetry::called(&binding.options.name, binding.options.listener_type, took);
    let answer = match answer {
        Some(Ok(answer)) => answer,
        Some(Err(message)) => Err(panicked(&message).into()),
        None => Err(timed_out(binding).into()),
    };
    match answer {
        Ok(()) => {
            permit.record(CallResult::Success, took);
            handled(binding, &work.record)
        }
        Err(failure) => {
            match failure.failure.class {
                FailureClass::Transient => permit.record(CallResult::Failure, took),
                // The other side answered, or it is not about the other side: the permit goes back.
                FailureClass::Permanent | FailureClass::System => drop(permit),
            }
            AttemptOutcome::Failed(failure)
        }
    }
}

/// A handler succeeded; its outputs are written with the offset, if the binding allows that.
fn handled(binding: &BindingContext, record: &ConsumedRecord) -> AttemptOutcome {
    let outputs = record.take_outputs();
    let options = &binding.options;
    let are_allowed = options.transactional || options.hand_off == HandOff::AtLeastOnce;
    if outputs.is_empty() || are_allowed {
        return AttemptOutcome::Handled(outputs);
    }
    let code = Code::from_static("handler.not-transactional");
    let message = "the handler sends records, and the binding is not `transactional`";
    AttemptOutcome::Failed(Failure::new(FailureClass::System, code, message).into())
}

fn undecodable(binding: &BindingContext, record: &ConsumedRecord) -> Option<HandlerFailure> {
    let options = &binding.options;
    let parts = [
        ("key", options.key_format, record.key()),
        ("value", options.value_format, record.value()),
    ];
    parts
        .into_iter()
        .find_map(|(what, format, bytes)| match (format, bytes) {
            (PayloadFormat::Bytes, _) | (PayloadFormat::Json, None) => None,
            (PayloadFormat::Json, Some(bytes)) => {
                let read = serde_json::from_slice::<serde::de::IgnoredAny>(bytes);
                let error = read.err()?;
                Some(HandlerFailure::undecodable(format!(
                    "the {what} is not JSON: {error}"
                )))
            }
        })
}

fn panicked(message: &str) -> Failure {
    Failure::transient(Code::from_static("handler.panic"), message.to_owned())
}

fn timed_out(binding: &BindingContext) -> Failure {
    let limit = binding.options.handler_timeout.as_millis();
    let message = format!("the handler did not answer within {limit} ms (`handler-timeout`)");
    Failure::transient(Code::from_static("handler.timeout"), message)
}

fn no_answer() -> HandlerFailure {
    let message = "the batch handler did not answer for this record";
    Failure::transient(Code::from_static("handler.no-answer"), message).into()
}

fn breaker_open() -> HandlerFailure {
    let message = "the breaker is open (`automatic-pause-on-open: false`)";
    Failure::transient(Code::from_static("breaker.open"), message).into()
}
