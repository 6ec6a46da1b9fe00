//! When an entry is due: its row says so.

#![expect(clippy::wildcard_enum_match_arm, reason = "no other step has timers")]

use std::ops::ControlFlow;

use tidegate_core::Failure;
use tidegate_flow::plan::{OperatorPlan, WindowShape};

use super::chain_plan::ChainPlan;
use super::damaged;
use super::moving::ms;
use crate::state::backend::text_hash;
use crate::task_state::codec::{Reader, from_ordered, key_number};
use crate::task_state::{TableId, TaskState};
use crate::timers::{Timer, TimerKind, TimerSource, Timers};

/// The kinds of timers that a step has, and how long its entries wait at most.
fn kinds(operator: &OperatorPlan) -> Vec<(TimerKind, u64)> {
    match operator {
        OperatorPlan::Deduplicate { window_ms, .. } => {
            vec![(TimerKind::Forget, window_ms.saturating_mul(2))]
        }
        OperatorPlan::Await { timeout_ms, .. } | OperatorPlan::Hold { timeout_ms, .. } => {
            vec![(TimerKind::Due, *timeout_ms)]
        }
        OperatorPlan::Join { within_ms, .. } => vec![(TimerKind::Due, *within_ms)],
        OperatorPlan::Window {
            shape, lateness_ms, ..
        } => {
            let length = match shape {
                WindowShape::Tumbling { size_ms } | WindowShape::Sliding { size_ms, .. } => {
                    *size_ms
                }
                WindowShape::Session { gap_ms } => *gap_ms,
            };
            let gone = length.saturating_add(*lateness_ms);
            vec![(TimerKind::Due, length), (TimerKind::Gone, gone)]
        }
        _ => Vec::new(),
    }
}

/// When an entry is due for a kind of timer, and its number; none where it has no such timer any more.
fn due_of(
    operator: &OperatorPlan,
    kind: TimerKind,
    (table, row, value): (TableId, &[u8], &[u8]),
) -> Result<Option<(i64, u64)>, Failure> {
    let mut reader = Reader(value);
    let read = match operator {
        OperatorPlan::Deduplicate { window_ms, .. } => {
            let kept = ms(*window_ms).saturating_mul(2);
            from_ordered(value).map(|seen| Some((seen.saturating_add(kept), 0)))
        }
        OperatorPlan::Await { timeout_ms, .. } => kept_since(row, value)
            .map(|(time, entry)| Some((time.saturating_add(ms(*timeout_ms)), entry))),
        OperatorPlan::Join { within_ms, .. } => kept_since(row, value).map(|(time, entry)| {
            // A partner at exactly the distance still counts, so the timer fires after it.
            let due = time.saturating_add(ms(*within_ms)).saturating_add(1);
            Some((due, entry))
        }),
        OperatorPlan::Hold { timeout_ms, .. } => {
            let mut head = || Some((reader.number()?, reader.number()?, reader.signed()?));
            head().map(|(entry, _, since)| Some((since.saturating_add(ms(*timeout_ms)), entry)))
        }
        OperatorPlan::Window { lateness_ms, .. } => {
            let mut head = || Some((reader.number()?, reader.signed()?, reader.byte()? == 1));
            head().map(|(entry, end, has_fired)| match kind {
                TimerKind::Due => (!has_fired).then_some((end, entry)),
                _ => Some((end.saturating_add(ms(*lateness_ms)), entry)),
            })
        }
        _ => Some(None),
    };
    read.ok_or_else(|| damaged(table))
}

/// The time of a record that waits, and the number of its entry.
fn kept_since(row: &[u8], value: &[u8]) -> Option<(i64, u64)> {
    let mut reader = Reader(value);
    reader.bytes()?;
    let entry = key_number(row.get(row.len().checked_sub(8)?..)?)?;
    Some((reader.signed()?, entry))
}

impl ChainPlan {
    /// The sources of timers, each with its longest wait.
    pub(super) fn timer_sources(&self) -> Vec<(TimerSource, u64)> {
        let steps = self.process.steps.iter().enumerate();
        let sources = steps.flat_map(|(step, plan)| {
            let table = self.step_tables(step).main;
            let kinds = kinds(&plan.operator).into_iter();
            kinds.map(move |(kind, wait)| (TimerSource { step, kind, table }, wait))
        });
        sources.collect()
    }

    /// The timers of a source whose entries have this hash and this due time.
    pub(super) fn timers_due(
        &self,
        state: &dyn TaskState,
        source: TimerSource,
        (hash, due): (u32, i64),
    ) -> Result<Vec<Timer>, Failure> {
        let TimerSource { step, kind, table } = source;
        let operator = &self.process.steps[step].operator;
        let (mut found, mut failed) = (Vec::new(), None);
        state.rows_of_hash(table, hash, &mut |row, value| {
            match due_of(operator, kind, (table, row, value)) {
                Ok(Some((at, entry))) if at == due => found.push(Timer {
                    kind,
                    step,
                    entry,
                    row: row.to_vec(),
                }),
                Ok(_) => {}
                Err(failure) => {
                    failed = Some(failure);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        failed.map_or(Ok(found), Err)
    }

    /// Sets the timers of every entry that waits.
    pub(super) fn set_timers(
        &self,
        state: &dyn TaskState,
        timers: &mut Timers,
    ) -> Result<(), Failure> {
        timers.begin(self.timer_sources().into_iter());
        for source in timers.sources() {
            let TimerSource { step, kind, table } = source;
            let operator = &self.process.steps[step].operator;
            let mut failed = None;
            state.rows_behind(table, None, &mut |row, value| {
                match due_of(operator, kind, (table, row, value)) {
                    Ok(Some((due, _))) => timers.set(step, kind, due, text_hash(table, row)),
                    Ok(None) => {}
                    Err(failure) => {
                        failed = Some(failure);
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            });
            failed.map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}
