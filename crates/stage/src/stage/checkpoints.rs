//! When a stage takes its checkpoints, and what becomes of one that fails.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::{Code, Failure, FailureClass};
use tokio::sync::oneshot;

use super::{LOOK_FOR_CHECKPOINT, Stage, failure};
use crate::checkpoint::{CheckpointManifest, STORAGE, is_gap};
use crate::lifecycle::StageEvent;
use crate::machine::AlignedTask;
use crate::restore::StageCheckpoints;
use crate::shard::ShardQuestion;

/// Markers that are sent for one checkpoint, where its tasks were not aligned or its changelog was cut.
const ALIGNMENTS: u32 = 3;
/// Failures of the storage in a row that are an alert.
const ALERT_AFTER: u32 = 3;
/// The longest wait for a storage that does not answer.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The checkpoints that were not taken.
#[derive(Debug, Default)]
pub(super) struct MissedCheckpoints {
    /// Failures of the storage in a row.
    pub(super) in_a_row: u32,
    /// The last failure.
    pub(super) last: Option<String>,
}

impl MissedCheckpoints {
    /// The alert, once the storage has failed often enough.
    pub(super) fn alert(&self) -> Option<String> {
        let last = self.last.as_ref()?;
        let count = self.in_a_row;
        (count >= ALERT_AFTER)
            .then(|| format!("{count} checkpoints in a row were not taken: {last}"))
    }

    /// The wait before the next try.
    fn wait(&self) -> Duration {
        let doubled = 1 << self.in_a_row.saturating_sub(1).min(16);
        Duration::from_secs(doubled).min(LONGEST_WAIT)
    }
}

/// Whether the state itself cannot be read. Then no checkpoint helps, and no new start either.
fn is_unreadable(failure: &Failure) -> bool {
    let damaged = ["stage.changelog.damaged", "stage.state.damaged"];
    damaged.contains(&failure.code.as_str())
}

impl Stage {
    /// Takes checkpoints as the flow says.
    ///
    /// # Errors
    /// The state cannot be read.
    pub(super) async fn checkpoints(&self) -> Result<(), Failure> {
        let (inner, plan) = (&*self.0, &self.0.process.checkpoint);
        let Some(options) = &inner.options.checkpoints else {
            return std::future::pending().await;
        };
        let clock = &inner.env.clock;
        let records = || self.status().records_in;
        let mut last = (clock.elapsed(), records());
        loop {
            clock.sleep(LOOK_FOR_CHECKPOINT).await;
            // Of several programs with one group, one takes them.
            if !self.status().tasks.iter().any(|task| task.partition == 0) {
                continue;
            }
            let passed = clock.elapsed().saturating_sub(last.0);
            let came = records().saturating_sub(last.1);
            let every = plan.every_ms.map(Duration::from_millis);
            let is_time = every.is_some_and(|every| passed >= every);
            let is_count = plan.records.is_some_and(|every| came >= every);
            if came == 0 || !(is_time || is_count) || passed < options.min_pause {
                continue;
            }
            match self.checkpoint().await {
                Err(failure) if is_unreadable(&failure) => return Err(failure),
                Err(failure) if failure.code.as_str() == STORAGE => {
                    let wait = inner.missed.lock().wait();
                    clock.sleep(wait).await;
                }
                // It was given up; the next interval tries again.
                Ok(_) | Err(_) => last = (clock.elapsed(), records()),
            }
        }
    }

    /// Takes a checkpoint now. The tasks that run here are aligned, so it has them at one moment; others are as they
    /// last committed. Records flow meanwhile.
    ///
    /// # Errors
    /// No place for checkpoints is set, it cannot be written, or it takes too long.
    pub async fn checkpoint(&self) -> Result<CheckpointManifest, Failure> {
        let inner = &*self.0;
        self.set(StageEvent::CheckpointBegin);
        let began = inner.env.clock.elapsed();
        let limit = inner.options.checkpoints.as_ref();
        let limit = limit.map_or(Duration::MAX, |options| options.timeout);
        let (tell, told) = oneshot::channel();
        let stage = self.clone();
        let taking = async move {
            tell.send(stage.take_checkpoint().await).ok();
        };
        // It writes much, and must not hold up others.
        let spawn = &inner.env.spawn;
        let task = spawn.spawn_thread("stage-checkpoint", Box::pin(taking));
        let taken = match inner.env.clock.within(limit, told).await {
            Some(told) => told.unwrap_or_else(|_| {
                let message = "a checkpoint panicked; the log of the process says where";
                Err(failure(FailureClass::Transient, "stage.panic", message))
            }),
            None => {
                task.abort();
                let message = format!("the checkpoint took longer than {limit:?}");
                let code = Code::from_static("stage.checkpoint.timeout");
                Err(Failure::transient(code, message))
            }
        };
        drop(task);
        self.set(StageEvent::CheckpointEnd);
        let took = inner.env.clock.elapsed().saturating_sub(began);
        self.tell_checkpoint(&taken, took);
        taken
    }

    fn tell_checkpoint(&self, taken: &Result<CheckpointManifest, Failure>, took: Duration) {
        let mut missed = self.0.missed.lock();
        match taken {
            Ok(manifest) => {
                *missed = MissedCheckpoints::default();
                let bytes = manifest.bytes();
                self.0.telemetry.checkpoint(took, bytes);
                let number = manifest.number;
                self.0.life.lock().checkpoint = Some(number);
                tracing::info!(
                    stage = self.name(),
                    number,
                    bytes,
                    ?took,
                    "a checkpoint was taken"
                );
            }
            Err(failure) => {
                if failure.code.as_str() == STORAGE {
                    missed.in_a_row += 1;
                }
                missed.last = Some(failure.to_string());
                let in_a_row = missed.in_a_row;
                match missed.alert() {
                    Some(alert) => tracing::error!(stage = self.name(), in_a_row, "{alert}"),
                    None => {
                        tracing::warn!(stage = self.name(), %failure, "a checkpoint was not taken");
                    }
                }
            }
        }
    }

    async fn take_checkpoint(&self) -> Result<CheckpointManifest, Failure> {
        let checkpoints = self.open_checkpoints()?;
        let transient = |code, message| Err(Failure::transient(Code::from_static(code), message));
        let mut tries = 1;
        loop {
            let is_last = tries == ALIGNMENTS;
            tries += 1;
            let aligned = match self.align().await {
                Ok(aligned) => aligned,
                Err(why) if is_last => {
                    let message = format!("the tasks were not aligned: {why}");
                    return transient("stage.checkpoint.alignment", message);
                }
                Err(why) => {
                    tracing::debug!(stage = self.name(), why, "the marker is sent again");
                    continue;
                }
            };
            match checkpoints.take_at(&aligned).await {
                // The changelog was cut while it was read.
                Err(failure) if is_gap(&failure) && is_last => {
                    let message =
                        format!("the changelog was cut faster than it was read: {failure}");
                    return transient("stage.checkpoint.behind", message);
                }
                Err(failure) if is_gap(&failure) => {}
                taken => return taken,
            }
        }
    }

    /// Aligns the tasks that run here. A stage that has stopped has nothing to align.
    async fn align(&self) -> Result<BTreeMap<i32, AlignedTask>, &'static str> {
        let shards: Vec<_> = {
            let life = self.0.life.lock();
            let shards = life.shards.iter();
            shards.map(|shard| shard.questions.clone()).collect()
        };
        let mut told = Vec::new();
        for questions in shards {
            let (tell, aligned) = oneshot::channel();
            if questions.send(ShardQuestion::Align(tell)).is_ok() {
                told.push(aligned);
            }
        }
        let mut tasks = BTreeMap::new();
        for aligned in told {
            // A shard that has ended committed what it had.
            if let Ok(aligned) = aligned.await {
                tasks.extend(aligned?);
            }
        }
        Ok(tasks)
    }

    /// The checkpoints of this stage.
    ///
    /// # Errors
    /// A stream has no name that a topic can have, or this build cannot keep checkpoints where the options say.
    pub fn open_checkpoints(&self) -> Result<StageCheckpoints, Failure> {
        StageCheckpoints::new(self.books()?, &self.0.env)
    }
}
