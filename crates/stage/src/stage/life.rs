//! The lives of a stage: start, run, end, and the next start.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Failure, FailureClass, Shutdown};
use tokio::sync::mpsc;

use super::{
    OTHER_SHARDS, RunningShard, SESSION_CLOSED, ShardEnd, Stage, StageFailure, TELL_PROGRESS,
    failure, lasting,
};
use crate::batch::{BatchInputs, LOOK_AGAIN};
use crate::lifecycle::{StageEvent, StageState};
use crate::shard::ShardQuestion;

impl Stage {
    /// Runs until `stop`, or until it ends by itself. A failure that a new start may mend is followed by one.
    ///
    /// # Errors
    /// The failure that no new start mends, or the last one that is allowed.
    pub async fn run(&self, stop: Shutdown) -> Result<(), Failure> {
        let restart = self.0.options.restart;
        let mut wait = restart.initial_delay;
        let mut attempts = 0;
        loop {
            let began = self.0.env.clock.elapsed();
            let Err(failure) = self.once(stop.clone()).await else {
                return Ok(());
            };
            let hint = lasting(&failure);
            let is_lasting = hint.is_some();
            self.failed(&failure, hint);
            let ran = self.0.env.clock.elapsed().saturating_sub(began);
            if ran > restart.max_delay {
                (wait, attempts) = (restart.initial_delay, 0);
            }
            attempts += 1;
            let is_last = restart.max_attempts > 0 && attempts >= restart.max_attempts;
            if is_lasting || is_last {
                return Err(failure);
            }
            tokio::select! {
                biased;
                () = stop.clone().requested() => return Err(failure),
                () = self.0.env.clock.sleep(wait) => {}
            }
            let longer = wait.as_secs_f64() * restart.multiplier.max(1.0);
            wait = Duration::from_secs_f64(longer).min(restart.max_delay);
        }
    }

    pub(super) fn set(&self, event: StageEvent) {
        let mut life = self.0.life.lock();
        if let Some(next) = life.state.after(event) {
            tracing::info!(stage = self.name(), from = %life.state, to = %next, "the state of a stage changed");
            life.state = next;
        }
    }

    fn failed(&self, failure: &Failure, hint: Option<&str>) {
        tracing::error!(stage = self.name(), code = %failure.code, %failure, "a stage failed");
        self.0.telemetry.failed(failure.code.as_str());
        self.set(StageEvent::Fail);
        let mut life = self.0.life.lock();
        life.shards.clear();
        life.failure = Some(StageFailure {
            code: failure.code.to_string(),
            message: match life.checkpoint {
                Some(number) => format!("{failure} (the last checkpoint is {number})"),
                None => failure.to_string(),
            },
            is_lasting: hint.is_some(),
            hint: hint.map(str::to_owned),
        });
    }

    /// One life: start, run, end.
    pub(super) async fn once(&self, stop: Shutdown) -> Result<(), Failure> {
        let inner = &*self.0;
        {
            let mut life = inner.life.lock();
            // A new start is a new stage: the one before has ended.
            life.state = StageState::Created;
            life.starts += 1;
            life.shards.clear();
        }
        self.set(StageEvent::Start);
        let started = inner
            .env
            .clock
            .within(inner.options.init_timeout, self.start());
        let (shards, batch) = match started.await {
            Some(started) => started?,
            None => {
                let message = format!(
                    "the start took longer than {:?}",
                    inner.options.init_timeout
                );
                return Err(failure(
                    FailureClass::Transient,
                    "stage.init.timeout",
                    message,
                ));
            }
        };
        let (ended, mut ends) = mpsc::unbounded_channel();
        let mut tasks = Vec::new();
        let count = shards.len();
        {
            let mut life = inner.life.lock();
            for (number, (shard, questions)) in shards.into_iter().enumerate() {
                life.shards.push(RunningShard {
                    status: Arc::clone(&shard.status),
                    questions,
                });
                let mut ended = ShardEnd(Some(ended.clone()));
                let name = format!("stage-{}-{number}", inner.options.process);
                let running = Box::pin(async move {
                    let end = shard.run().await;
                    ended.tell(end);
                });
                tasks.push(inner.env.spawn.spawn_thread(&name, running));
            }
            life.failure = None;
        }
        drop(ended);
        self.set(StageEvent::Ready);
        let mut is_stopping = false;
        let mut left = count;
        let mut outcome: Result<(), Failure> = Ok(());
        let mut deadline = None;
        let mut batch = std::pin::pin!(self.end_of_batch(batch));
        let mut is_batch = true;
        let mut checkpoints = std::pin::pin!(self.checkpoints());
        let mut progress = std::pin::pin!(self.tell_progress());
        while left > 0 {
            let late = deadline.map_or(Duration::from_secs(86_400), |at: Duration| {
                at.saturating_sub(inner.env.clock.elapsed())
            });
            tokio::select! {
                biased;
                end = ends.recv() => {
                    left -= 1;
                    let end = end.unwrap_or(Ok(()));
                    let known = outcome.as_ref().err().and_then(lasting);
                    if let Err(failure) = end && known.is_none() {
                        outcome = Err(failure);
                    }
                    // A shard without partitions does not see who took its place; another one does.
                    let is_closed = |failure: &Failure| failure.code.as_str() == SESSION_CLOSED;
                    match &outcome {
                        Ok(()) => {}
                        Err(failure) if is_closed(failure) => {
                            deadline = Some(inner.env.clock.elapsed() + OTHER_SHARDS);
                        }
                        Err(_) => break,
                    }
                }
                () = stop.clone().requested(), if !is_stopping => {
                    is_stopping = true;
                    deadline = Some(inner.env.clock.elapsed() + inner.options.drain_timeout);
                    self.drain();
                }
                read = &mut batch, if is_batch => {
                    is_batch = false;
                    match read {
                        Ok(()) => self.drain(),
                        Err(failure) => {
                            outcome = Err(failure);
                            break;
                        }
                    }
                }
                ended = &mut checkpoints, if !is_stopping => {
                    outcome = ended;
                    break;
                }
                () = &mut progress => {}
                () = inner.env.clock.sleep(late), if deadline.is_some() => {
                    if outcome.is_ok() {
                        outcome = Err(failure(FailureClass::System, "stage.drain.timeout",
                            format!("the stop took longer than {:?}", inner.options.drain_timeout)));
                    }
                    break;
                }
            }
        }
        for task in &tasks {
            if outcome.is_err() {
                task.abort();
            }
        }
        for task in tasks {
            task.join().await;
        }
        outcome?;
        if inner.options.checkpoints.is_some() {
            // The changelog has the state, too.
            self.checkpoint().await.ok();
        }
        // A batch ends by itself.
        self.set(StageEvent::Drain);
        self.set(StageEvent::Drained);
        Ok(())
    }

    /// Tells how fast the stage is and how far behind, for ever.
    async fn tell_progress(&self) {
        let inner = &*self.0;
        // Nothing is asked while nothing comes and nothing waits.
        let (mut records, mut waits) = (None, true);
        loop {
            inner.env.clock.sleep(TELL_PROGRESS).await;
            let now = self.status().records_in;
            let moved = records.replace(now) != Some(now);
            let mut lag = None;
            if moved || waits {
                lag = match self.books() {
                    Ok(books) => books.lag().await.ok(),
                    Err(_) => None,
                };
                waits = lag != Some(0);
            }
            inner.telemetry.progress(inner.env.clock.elapsed(), lag);
        }
    }

    /// Waits for the end of a batch: everything is read, and what waited in the state went on. Never, without one.
    async fn end_of_batch(&self, batch: Option<BatchInputs>) -> Result<(), Failure> {
        let Some(inputs) = batch else {
            return std::future::pending().await;
        };
        inputs.read().await?;
        for shard in &self.0.life.lock().shards {
            shard.questions.send(ShardQuestion::Finish).ok();
        }
        // Records that go on now may pass topics of the stage's own.
        while !self.is_finished() || !inputs.are_read().await? {
            self.0.env.clock.sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    fn is_finished(&self) -> bool {
        let life = self.0.life.lock();
        let mut shards = life.shards.iter();
        shards.all(|shard| shard.status.lock().is_finished)
    }
}
