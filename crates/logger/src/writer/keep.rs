//! How the writer gets events to the disk.
//!
//! An event stays in the writer's hand until the disk has it. While many wait, one batch is synced by
//! a helper thread and the next one is made and written here at the same time.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{BATCH, PAUSE, Writer};
use crate::config::OnFull;
use crate::spill::{Append, Lent, Mark, Outcome, Prepared, SpillError};
use crate::spilling::Settled;

/// Batches that are with the helper at a time: some are synced, and the next ones wait, so that the
/// disk never waits for us to wake up.
const AHEAD: usize = 6;
/// Batches after which we are woken, while more wait: being woken for each of them would cost the
/// disk more time than it saves us.
const TOGETHER: usize = 3;

/// What the helper is asked.
enum Job {
    Begin(Lent),
    /// The batch is written.
    Sync(Prepared),
    End,
}

/// What the helper answers.
enum Done {
    Tried(Vec<Tried>),
    Ended(Lent),
}

/// A batch, and how keeping it went.
type Tried = (Prepared, Outcome);

/// Hands batches to the helper thread and takes them back.
pub(crate) struct Helper {
    jobs: mpsc::Sender<Job>,
    done: mpsc::Receiver<Done>,
}

/// A helper, and what its thread is to run.
pub(crate) fn help() -> (Helper, impl Future<Output = ()> + Send) {
    let (jobs, given) = mpsc::channel(AHEAD);
    let (back, done) = mpsc::channel(AHEAD);
    (Helper { jobs, done }, sync_batches(given, back))
}

/// Syncs after each batch; after one that failed, none until it is told to begin anew.
async fn sync_batches(mut jobs: mpsc::Receiver<Job>, back: mpsc::Sender<Done>) {
    let mut file: Option<Lent> = None;
    let mut has_failed = false;
    while let Some(mut job) = jobs.recv().await {
        let mut tried = Vec::new();
        loop {
            match job {
                Job::Begin(lent) => {
                    file = Some(lent);
                    has_failed = false;
                }
                Job::Sync(prepared) => {
                    let outcome = match &mut file {
                        Some(lent) if !has_failed => lent.sync(),
                        Some(_) | None => Outcome::Skipped,
                    };
                    has_failed = !matches!(outcome, Outcome::Kept);
                    tried.push((prepared, outcome));
                }
                // Asked for when all that was tried has been told.
                Job::End => {
                    let Some(lent) = file.take() else { return };
                    if back.send(Done::Ended(lent)).await.is_err() {
                        return;
                    }
                }
            }
            if tried.len() >= TOGETHER {
                break;
            }
            let Ok(next) = jobs.try_recv() else { break };
            job = next;
        }
        if !tried.is_empty() && back.send(Done::Tried(tried)).await.is_err() {
            return;
        }
    }
}

impl Helper {
    async fn give(&self, job: Job) -> Result<(), SpillError> {
        self.jobs.send(job).await.map_err(|_| Self::gone())
    }

    /// Waits for the outcome of the oldest batch, and of those that were tried since.
    async fn tried(&mut self) -> Result<Vec<Tried>, SpillError> {
        match self.done.recv().await {
            Some(Done::Tried(tried)) => Ok(tried),
            Some(Done::Ended(_)) | None => Err(Self::gone()),
        }
    }

    /// Takes the file back.
    async fn end(&mut self) -> Result<Lent, SpillError> {
        self.give(Job::End).await?;
        match self.done.recv().await {
            Some(Done::Ended(lent)) => Ok(lent),
            Some(Done::Tried(..)) | None => Err(Self::gone()),
        }
    }

    pub(super) fn gone() -> SpillError {
        SpillError::Disk {
            doing: "write",
            path: crate::spill::ACTIVE.into(),
            source: std::io::Error::other("the thread that writes has ended"),
        }
    }
}

impl Writer {
    /// Writes what waits: full batches with the helper, and what is less than that here, because
    /// handing it over and waiting for it would gain nothing.
    pub(super) async fn spill_some(&mut self) -> Result<(), SpillError> {
        if self.shared.refill(0) >= 2 * BATCH && self.spill_many().await? {
            return Ok(());
        }
        let prepared = self.prepare(self.spool.mark(), 0);
        let taken = prepared.taken;
        let appended = self.spool.keep(prepared, &|| self.shared.books())?;
        self.settle(appended, taken);
        Ok(())
    }

    /// Writes full batches while there are any and nobody asks for anything else, and says whether
    /// there was one.
    async fn spill_many(&mut self) -> Result<bool, SpillError> {
        let lent = match self.spool.lend() {
            Ok(lent) => lent,
            Err(error) => {
                // A process that may open no more files can still write to the one it has.
                tracing::debug!(%error, "batches are written and synced one by one");
                return Ok(false);
            }
        };
        self.helper.give(Job::Begin(lent)).await?;
        let mut ends = self.spool.mark();
        let (mut given, mut skip) = (0, 0);
        let (mut is_open, mut has_begun) = (true, false);
        let mut failed = None;
        loop {
            while is_open && given < AHEAD && self.shared.refill(skip) >= BATCH {
                let prepared = self.prepare(ends, skip);
                if prepared.is_capped() {
                    // What no cap leaves room for may have to wait in front of what follows.
                    self.spool.recycle(prepared);
                    is_open = false;
                    break;
                }
                ends = prepared.ends;
                has_begun = true;
                if let Err(error) = self.spool.write(&prepared) {
                    failed = Some((prepared, Outcome::Refused(error)));
                    is_open = false;
                    break;
                }
                skip += prepared.taken;
                given += 1;
                self.helper.give(Job::Sync(prepared)).await?;
            }
            if given == 0 {
                break;
            }
            for (prepared, outcome) in self.helper.tried().await? {
                given -= 1;
                match outcome {
                    Outcome::Kept => {
                        skip -= prepared.taken;
                        let written = self.spool.note(prepared);
                        self.settle(Append::Written(written), 0);
                    }
                    Outcome::Skipped => drop(self.spool.recycle(prepared)),
                    Outcome::Refused(_) | Outcome::Unsynced => {
                        is_open = false;
                        // One that the disk refused since comes after this one, and counts for
                        // nothing now.
                        if let Some((later, _)) = failed.replace((prepared, outcome)) {
                            self.spool.recycle(later);
                        }
                    }
                }
            }
            // Whoever asks for something gets their turn.
            is_open &= self.commands.is_empty();
        }
        let lent = self.helper.end().await?;
        self.spool.take_back(lent);
        if let Some((prepared, outcome)) = failed {
            let taken = prepared.taken;
            let shared = Arc::clone(&self.shared);
            let appended = self.spool.complete(prepared, outcome, &|| shared.books())?;
            self.settle(appended, taken);
        }
        Ok(has_begun)
    }

    /// Makes lines of the events behind the first `skip`, to be written behind `mark`.
    fn prepare(&mut self, mark: Mark, skip: usize) -> Prepared {
        if self.shared.config.on_full == OnFull::Block && !self.shared.is_sending() {
            // They were to wait for room, and nobody can wait any longer.
            self.spool.lift_caps();
        }
        let hand = self.shared.hand();
        let encoder = &mut self.encoder;
        let mut encode = |index: usize, buffer: &mut Vec<u8>| {
            let queued = hand.get(skip + index);
            encoder.encode_open(&queued.event, queued.id, queued.timestamp_ms, buffer);
            queued.id
        };
        let count = hand.len().saturating_sub(skip).min(BATCH);
        self.spool.prepare(mark, count, &mut encode)
    }

    /// Settles the first events of the hand: those that were written, or the `taken` that were
    /// refused.
    fn settle(&mut self, appended: Append, taken: usize) {
        self.last_sync = self.shared.clock.elapsed();
        let settled = match appended {
            Append::Written(written) => {
                let has_any = !written.ids.is_empty();
                let settled = self.shared.settle_written(written, self.spool.bytes());
                self.is_dirty |= has_any && settled != Settled::TooLate;
                settled
            }
            Append::Refused(error) => {
                tracing::error!(%error, events = taken, "the disk refused a spill");
                self.shared.settle_refused(taken)
            }
        };
        if settled == Settled::Waiting {
            self.blocked_until = Some(self.last_sync.saturating_add(PAUSE));
        }
    }
}
