//! A run: records of one lane, handled one after the other on a task of their own.
//!
//! A run stops at the first failure, because the records behind it may have to wait. It asks the gate
//! before each record, and gives back what it did not begin. A record that is handled at the first attempt costs
//! neither an allocation nor a message: the run tells many at once.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tidegate_core::breaker::CallResult;
use tidegate_core::env::CatchPanic;
use tidegate_core::{Code, EventId, Failure, FailureClass};
use tidegate_log::{Append, Fence};
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::binding::BindingContext;
use crate::gate::{BreakerAnswer, BreakerPermit};
use crate::handler::{
    BatchFn, ConsumedRecord, HandlerAnswer, HandlerFailure, HandlerKind, RecordSource,
};
use crate::lanes::{LaneKey, LaneRecord, Work};
use crate::options::{HandOff, PayloadFormat};
use crate::parked::HeldUntil;
use crate::span;
use crate::telemetry::RunTelemetry;

/// How long results may wait for company before they are told.
const FLUSH_AFTER: Duration = Duration::from_millis(1);

/// Records of one lane, and where the results go.
pub(crate) struct LaneRun {
    pub(crate) source: Arc<RecordSource>,
    pub(crate) fence: Fence,
    pub(crate) lane: LaneKey,
    /// Whether one record is tried alone while the gate is closed.
    pub(crate) is_probe: bool,
    /// Set when the partition is to be let go, or its rest is handed back.
    pub(crate) stop: Arc<AtomicBool>,
    /// The lease under which it runs, where keys are ordered.
    pub(crate) held_until: Option<HeldUntil>,
    pub(crate) telemetry: Arc<RunTelemetry>,
    pub(crate) reports: mpsc::UnboundedSender<RunReport>,
}

/// Results of a run.
pub(crate) struct RunReport {
    pub(crate) source: Arc<RecordSource>,
    pub(crate) fence: Fence,
    pub(crate) lane: LaneKey,
    pub(crate) results: RunResults,
    /// The queue that the run had, empty now, if it is over.
    pub(crate) ended: Option<VecDeque<LaneRecord>>,
}

/// A record that was handled, and for which nothing is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandledRecord {
    pub(crate) offset: i64,
    pub(crate) event_id: EventId,
}

/// How the attempts of a run ended.
#[derive(Default)]
pub(crate) struct RunResults {
    pub(crate) handled: Vec<HandledRecord>,
    /// Handled, with records to be written beside their offset.
    pub(crate) sent: Vec<(Work, Vec<Append>)>,
    pub(crate) failed: Vec<(Work, HandlerFailure)>,
    /// Not begun.
    pub(crate) kept: Vec<LaneRecord>,
}

impl RunResults {
    /// An attempt succeeded. Gives the record back if nobody needs it any more.
    fn succeeded(&mut self, binding: &BindingContext, mut work: Work) -> Option<Work> {
        let outputs = work.record.take_outputs();
        if outputs.is_empty() {
            self.handled.push(HandledRecord {
                offset: work.offset(),
                event_id: work.record.event_id(),
            });
            return Some(work);
        }
        match may_send(binding) {
            Ok(()) => self.sent.push((work, outputs)),
            Err(failure) => self.failed.push((work, failure)),
        }
        None
    }
}

impl LaneRun {
    /// Handles the records until one fails or nothing may go on.
    pub(crate) async fn run(self, mut works: VecDeque<LaneRecord>, binding: Arc<BindingContext>) {
        let mut results = match &binding.handler.kind {
            HandlerKind::Batch(act) => self.call_batch(&binding, &mut works, &**act).await,
            HandlerKind::Single(handler) => {
                let mut run = SingleRun::new(&self, &binding, &mut works);
                handler.drive(&mut run).await;
                run.results
            }
        };
        results.kept.extend(works.drain(..));
        self.report(results, Some(works));
    }

    fn report(&self, results: RunResults, ended: Option<VecDeque<LaneRecord>>) {
        let report = RunReport {
            source: Arc::clone(&self.source),
            fence: self.fence,
            lane: self.lane.clone(),
            results,
            ended,
        };
        // A consumer that is gone settles nothing, and somebody else gets the records.
        self.reports.send(report).ok();
    }

    fn may_go_on(&self, binding: &BindingContext, now: Duration) -> bool {
        let flows = binding.gate.flows() || (self.is_probe && binding.gate.lets_probe_through());
        let is_held = self
            .held_until
            .as_ref()
            .is_none_or(|held| !held.is_over(now));
        flows && is_held && !self.stop.load(Ordering::Acquire)
    }

    /// One call for all records; each gets its own answer.
    async fn call_batch(
        &self,
        binding: &BindingContext,
        works: &mut VecDeque<LaneRecord>,
        act: &BatchFn,
    ) -> RunResults {
        let mut results = RunResults::default();
        if !self.may_go_on(binding, binding.clock.elapsed()) {
            return results;
        }
        let mut good = Vec::with_capacity(works.len());
        for waiting in works.drain(..) {
            let mut work = waiting.into_work(&self.source, &mut None);
            match undecodable(binding, &work.record) {
                Some(failure) => {
                    work.attempt += 1;
                    results.failed.push((work, failure));
                }
                None => good.push(work),
            }
        }
        let permit = match binding.gate.permit() {
            BreakerAnswer::Go(permit) => permit,
            BreakerAnswer::Keep => {
                results.kept.extend(good.into_iter().map(LaneRecord::Known));
                return results;
            }
            BreakerAnswer::FailFast => {
                for mut work in good {
                    work.attempt += 1;
                    results.failed.push((work, breaker_open()));
                }
                return results;
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
        self.telemetry.called(took);
        let mut answers = match answer {
            Some(Ok(answers)) => answers.into_iter(),
            Some(Err(message)) => same(&panicked(&message), good.len()).into_iter(),
            None => same(&timed_out(binding), good.len()).into_iter(),
        };
        // As for one record: an answer that is not about the other side says nothing about it.
        let mut result = None;
        for work in good {
            match answers.next() {
                Some(Ok(())) => {
                    self.telemetry.attempts(&binding.options.name, &work);
                    result = result.or(Some(CallResult::Success));
                    results.succeeded(binding, work);
                }
                Some(Err(failure)) => {
                    if failure.failure.class == FailureClass::Transient {
                        result = Some(CallResult::Failure);
                    }
                    results.failed.push((work, failure));
                }
                None => {
                    result = Some(CallResult::Failure);
                    results.failed.push((work, no_answer()));
                }
            }
        }
        if let Some(result) = result {
            permit.record(result, took);
        }
        results
    }
}

/// A run of a handler of single records.
pub(crate) struct SingleRun<'a> {
    run: &'a LaneRun,
    binding: &'a BindingContext,
    waiting: &'a mut VecDeque<LaneRecord>,
    results: RunResults,
    /// The time at the end of the last attempt.
    now: Duration,
    told_at: Duration,
    /// The record before, whose memory serves for the next one unless the handler has kept it.
    spare: Option<Arc<ConsumedRecord>>,
}

/// An attempt that may begin.
struct SingleAttempt<'a> {
    work: Work,
    permit: BreakerPermit<'a>,
}

/// The answer of a handler; an error where it panicked, and none where it took too long.
type CallAnswer = Option<Result<HandlerAnswer, String>>;

impl<'a> SingleRun<'a> {
    fn new(
        run: &'a LaneRun,
        binding: &'a BindingContext,
        waiting: &'a mut VecDeque<LaneRecord>,
    ) -> Self {
        let now = binding.clock.elapsed();
        Self {
            run,
            binding,
            waiting,
            results: RunResults::default(),
            now,
            told_at: now,
            spare: None,
        }
    }

    /// Calls the handler for one record after the other, until one fails or nothing may go on.
    pub(crate) async fn call_each<R>(&mut self, act: &(impl Fn(Arc<ConsumedRecord>) -> R + Sync))
    where
        R: Future<Output = HandlerAnswer> + Send,
    {
        let binding = self.binding;
        while let Some(attempt) = self.begin() {
            let record = Arc::clone(&attempt.work.record);
            let span = span::process(&record);
            let answer = {
                // Inside, so that a panic of the closure itself is caught as well.
                let call = pin!(async { act(record).await }.instrument(span));
                let mut call = CatchPanic(call);
                match poll_fn(|context| Poll::Ready(Pin::new(&mut call).poll(context))).await {
                    Poll::Ready(answer) => Some(answer),
                    Poll::Pending => {
                        // The offsets of those before it need not wait.
                        self.tell();
                        let limit = binding.options.handler_timeout;
                        binding.clock.within(limit, call).await
                    }
                }
            };
            if !self.finish(attempt, answer) {
                return;
            }
        }
    }

    /// The next attempt; none if there is none, or it may not begin.
    fn begin(&mut self) -> Option<SingleAttempt<'a>> {
        let binding = self.binding;
        if !self.run.may_go_on(binding, self.now) {
            return None;
        }
        let waiting = self.waiting.pop_front()?;
        let mut work = waiting.into_work(&self.run.source, &mut self.spare);
        let failure = match undecodable(binding, &work.record) {
            Some(failure) => failure,
            None => match binding.gate.permit() {
                BreakerAnswer::Go(permit) => {
                    work.attempt += 1;
                    work.record.begin_attempt(work.attempt);
                    return Some(SingleAttempt { work, permit });
                }
                BreakerAnswer::Keep => {
                    self.results.kept.push(LaneRecord::Known(work));
                    return None;
                }
                BreakerAnswer::FailFast => breaker_open(),
            },
        };
        work.attempt += 1;
        self.results.failed.push((work, failure));
        None
    }

    /// An attempt has ended. Says whether the next one may begin.
    fn finish(&mut self, attempt: SingleAttempt<'a>, answer: CallAnswer) -> bool {
        let SingleAttempt { work, permit } = attempt;
        let now = self.binding.clock.elapsed();
        let took = now.saturating_sub(self.now);
        self.now = now;
        self.run.telemetry.called(took);
        let answer = match answer {
            Some(Ok(answer)) => answer,
            Some(Err(message)) => Err(panicked(&message).into()),
            None => Err(timed_out(self.binding).into()),
        };
        match answer {
            Ok(()) => {
                permit.record(CallResult::Success, took);
                self.run
                    .telemetry
                    .attempts(&self.binding.options.name, &work);
                let done = self.results.succeeded(self.binding, work);
                self.spare = done.map(|work| work.record);
            }
            Err(failure) => {
                match failure.failure.class {
                    FailureClass::Transient => permit.record(CallResult::Failure, took),
                    // The other side answered, or it is not about the other side: the permit goes back.
                    FailureClass::Permanent | FailureClass::System => drop(permit),
                }
                self.results.failed.push((work, failure));
            }
        }
        let goes_on = self.results.failed.is_empty();
        if goes_on && !self.waiting.is_empty() && now.saturating_sub(self.told_at) >= FLUSH_AFTER {
            self.tell();
        }
        goes_on
    }

    /// Tells what there is before the run is over.
    fn tell(&mut self) {
        self.told_at = self.now;
        if !self.results.handled.is_empty() || !self.results.sent.is_empty() {
            self.run.report(std::mem::take(&mut self.results), None);
        }
    }
}

fn same(failure: &Failure, count: usize) -> Vec<HandlerAnswer> {
    let one = || Failure::new(failure.class, failure.code.clone(), failure.message.clone());
    (0..count).map(|_| Err(one().into())).collect()
}

/// Outputs of a handler are written with the offset, if the binding allows that.
fn may_send(binding: &BindingContext) -> Result<(), HandlerFailure> {
    let options = &binding.options;
    if options.transactional || options.hand_off == HandOff::AtLeastOnce {
        return Ok(());
    }
    let code = Code::from_static("handler.not-transactional");
    let message = "the handler sends records, and the binding is not `transactional`";
    Err(Failure::new(FailureClass::System, code, message).into())
}

fn undecodable(binding: &BindingContext, record: &ConsumedRecord) -> Option<HandlerFailure> {
    let options = &binding.options;
    if (options.key_format, options.value_format) == (PayloadFormat::Bytes, PayloadFormat::Bytes) {
        return None;
    }
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
