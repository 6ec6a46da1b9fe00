//! The marker of a checkpoint, and the tasks that wait for each other at it.

use super::{ALIGN_MS, Effect, Machine};
use crate::task::StageTask;

impl Machine {
    /// The marker enters the queues of all tasks.
    pub(super) fn begin_alignment(&mut self, now_ms: i64, effects: &mut Vec<Effect>) {
        if self.is_draining {
            return effects.push(Effect::NotAligned("the stage ends"));
        }
        if !self.revoking.is_empty() {
            return effects.push(Effect::NotAligned(super::MOVED));
        }
        let tasks = self.tasks.keys().copied().collect();
        match self.aligner.begin(tasks, now_ms.saturating_add(ALIGN_MS)) {
            true => self.tasks.values_mut().for_each(StageTask::mark_checkpoint),
            false => effects.push(Effect::NotAligned("another checkpoint has begun")),
        }
    }

    /// Everything before the marker is committed.
    pub(super) fn aligned(&mut self, effects: &mut Vec<Effect>) {
        self.aligner.end();
        let tasks = self.tasks.iter();
        let committed = tasks.filter_map(|(partition, task)| {
            let at = task.committed_at()?;
            Some((*partition, at))
        });
        effects.push(Effect::Aligned(committed.collect()));
    }

    /// The marker is given up, where there is one. Nothing is lost: the tasks go on behind it.
    pub(super) fn end_alignment(&mut self, why: &'static str, effects: &mut Vec<Effect>) {
        if self.aligner.end() {
            self.tasks.values_mut().for_each(StageTask::unmark);
            effects.push(Effect::NotAligned(why));
        }
    }
}
