//! Timers that fire.

use tidegate_core::Failure;
use tidegate_flow::apply::StepRefusal;
use tidegate_flow::plan::FailureKind;

use super::moving::StepFailure;
use super::results::RecordAsCame;
use super::{Run, TaskChain};
use crate::chain::{ChainOutput, RejectedContent, TaskTime};
use crate::task_state::TaskState;
use crate::timers::Timer;

impl TaskChain {
    /// Fires the timers that are due by `until`, at most so many. Says whether more are.
    pub(super) fn fire_until(
        &mut self,
        state: &mut dyn TaskState,
        (time, until): (TaskTime, Option<i64>),
        limit: usize,
        out: &mut ChainOutput,
    ) -> Result<bool, Failure> {
        let now = self.ready(state, time)?;
        self.move_watermark(now);
        let is_event_time = self.fixed.process.time.is_some();
        let own = if is_event_time {
            self.progress.watermark
        } else {
            now
        };
        let until = until.unwrap_or(own);
        let mut left = limit;
        loop {
            let has_more = self.timers.first_due().is_some_and(|due| due <= until);
            if left == 0 && has_more {
                self.save(state);
                return Ok(true);
            }
            let (fixed, of) = (&self.fixed, &*state);
            let next = self.timers.next(until, |source, hash, due| {
                fixed.timers_due(of, source, (hash, due))
            });
            let Some((due, timer)) = next? else { break };
            left = left.saturating_sub(1);
            self.fire_one(state, (now, time.epoch_start_ms), (due, &timer), out)?;
        }
        self.progress.clock = Some(now);
        // Time that passes changes nothing by itself: an idle task has nothing to commit.
        if left < limit {
            self.save(state);
        }
        Ok(false)
    }

    fn fire_one(
        &mut self,
        state: &mut dyn TaskState,
        (now, epoch_start): (i64, i64),
        (due, timer): (i64, &Timer),
        out: &mut ChainOutput,
    ) -> Result<(), Failure> {
        let is_event_time = self.fixed.process.time.is_some();
        let at = due.min(now);
        let at = self.progress.clock.map_or(at, |clock| clock.max(at));
        let times = (if is_event_time { now } else { at }, epoch_start);
        let memory = (&mut self.progress, &mut self.timers);
        let mut run = Self::run(&self.fixed, memory, state, times);
        if !is_event_time {
            // A timer that fires late still fires at its time.
            run.progress.clock = Some(at);
        }
        run.rejecting = self.rejecting.take();
        if let Err(failure) = run.fired(due, timer) {
            run.timer_failed(failure)?;
        }
        run.commit(out)?;
        self.rejecting = run.rejecting.take();
        Ok(())
    }

    /// Whether a timer is due before the next record.
    pub(super) fn is_due(&mut self, time: TaskTime) -> bool {
        let now = self
            .progress
            .clock
            .map_or(time.now_ms, |clock| clock.max(time.now_ms));
        let first = self.timers.first_due().unwrap_or(i64::MAX);
        if self.fixed.process.time.is_none() {
            return first <= now;
        }
        // Before the first record no input has been silent yet.
        if self.progress.clock.is_some() {
            self.move_watermark(now);
        }
        first <= self.progress.watermark
    }
}

impl Run<'_> {
    /// A timer took its entry out for good, and nothing else stays: the handler gets the record as it was.
    pub(super) fn timer_failed(&mut self, failure: StepFailure) -> Result<(), Failure> {
        let (refusal, moving) = match failure {
            StepFailure::Stage(failure) => return Err(failure),
            StepFailure::Record { refusal, moving } => (refusal, moving),
        };
        self.results.clear();
        if let Some((mark, copies)) = self.taken_out.take() {
            self.journal.undo_to(mark);
            self.results.restore(copies);
        }
        let came = moving.clone();
        if let Some((refusal, keep)) = self.rejecting.take() {
            let whole = RecordAsCame::of(&came);
            self.bury_rejected(refusal, keep, "commit", &whole);
            return Ok(());
        }
        self.handle(
            StepFailure::Record { refusal, moving },
            &RecordAsCame::of(&came),
        )
    }

    /// Writes the dead letter of a record or entry that the log refuses.
    pub(super) fn bury_rejected(
        &mut self,
        refusal: StepRefusal,
        keep: RejectedContent,
        by: &str,
        whole: &RecordAsCame<'_>,
    ) {
        let fixed = self.fixed;
        match keep {
            RejectedContent::All => self.bury(&fixed.dead_letters, &refusal, by, whole),
            RejectedContent::Nothing => {
                let mut metadata = whole.metadata.clone();
                metadata.key = None;
                let place = RecordAsCame {
                    metadata: &metadata,
                    key: None,
                    value: None,
                    headers: None,
                    events: whole.events,
                };
                self.bury(&fixed.dead_letters, &refusal, by, &place);
            }
        }
    }
}

/// Why a record or an entry is a dead letter: the log refuses what it makes.
pub(super) fn rejection(failure: &Failure, keep: RejectedContent) -> StepRefusal {
    let mut message = failure.message.clone();
    if keep == RejectedContent::Nothing {
        message.push_str("; the dead letter with its content was refused, too: the record lies where it came from");
    }
    StepRefusal::new(FailureKind::Transform, "stage.commit.refused", message)
}
