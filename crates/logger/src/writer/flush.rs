//! Writes and syncs batches.
//!
//! An event stays in the spill buffer until it is synced. While many wait, one batch is synced by the
//! sync thread, and the next one is made and written here at the same time.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{BATCH, REFUSED_PAUSE, SpillWriter};
use crate::config::OnFull;
use crate::spill::{AppendPosition, AppendResult, Prepared, SpillError, SyncHandle, WriteOutcome};
use crate::spilling::SpillOutcome;

/// Batches that are with the sync thread at a time. Some are synced, and the next ones wait, so that
/// the disk never waits for us to wake up.
const MAX_AHEAD: usize = 6;
/// Batches after which we are woken, while more wait: being woken for each of them would cost the
/// disk more time than it saves us.
const REPORT_EVERY: usize = 3;

/// A request to the sync thread.
enum SyncJob {
    Begin(SyncHandle),
    /// The batch is written.
    Sync(Prepared),
    End,
}

/// An answer of the sync thread.
enum SyncReply {
    Tried(Vec<Tried>),
    Ended(SyncHandle),
}

/// A batch, and how keeping it went.
type Tried = (Prepared, WriteOutcome);

/// A handle on the sync thread.
pub(crate) struct SyncThread {
    jobs: mpsc::Sender<SyncJob>,
    done: mpsc::Receiver<SyncReply>,
}

/// A handle on the sync thread, and the future that the thread runs.
pub(crate) fn sync_thread() -> (SyncThread, impl Future<Output = ()> + Send) {
    let (jobs, given) = mpsc::channel(MAX_AHEAD);
    let (back, done) = mpsc::channel(MAX_AHEAD);
    (SyncThread { jobs, done }, sync_batches(given, back))
}

/// Syncs after each batch; after one that failed, none until the next `Begin`.
async fn sync_batches(mut jobs: mpsc::Receiver<SyncJob>, back: mpsc::Sender<SyncReply>) {
    let mut file: Option<SyncHandle> = None;
    let mut has_failed = false;
    while let Some(mut job) = jobs.recv().await {
        let mut tried = Vec::new();
        loop {
            match job {
                SyncJob::Begin(handle) => {
                    file = Some(handle);
                    has_failed = false;
                }
                SyncJob::Sync(prepared) => {
                    let outcome = match &mut file {
                        Some(handle) if !has_failed => handle.sync(),
                        Some(_) | None => WriteOutcome::Skipped,
                    };
                    has_failed = !matches!(outcome, WriteOutcome::Durable);
                    tried.push((prepared, outcome));
                }
                // Sent when all outcomes were reported.
                SyncJob::End => {
                    let Some(handle) = file.take() else { return };
                    if back.send(SyncReply::Ended(handle)).await.is_err() {
                        return;
                    }
                }
            }
            if tried.len() >= REPORT_EVERY {
                break;
            }
            let Ok(next) = jobs.try_recv() else { break };
            job = next;
        }
        if !tried.is_empty() && back.send(SyncReply::Tried(tried)).await.is_err() {
            return;
        }
    }
}

impl SyncThread {
    async fn send(&self, job: SyncJob) -> Result<(), SpillError> {
        self.jobs.send(job).await.map_err(|_| Self::gone())
    }

    /// Waits for the outcome of the oldest batch, and of those that were tried since.
    async fn tried(&mut self) -> Result<Vec<Tried>, SpillError> {
        match self.done.recv().await {
            Some(SyncReply::Tried(tried)) => Ok(tried),
            Some(SyncReply::Ended(_)) | None => Err(Self::gone()),
        }
    }

    /// Takes the file back.
    async fn end(&mut self) -> Result<SyncHandle, SpillError> {
        self.send(SyncJob::End).await?;
        match self.done.recv().await {
            Some(SyncReply::Ended(handle)) => Ok(handle),
            Some(SyncReply::Tried(..)) | None => Err(Self::gone()),
        }
    }

    pub(super) fn gone() -> SpillError {
        SpillError::Disk {
            doing: "write",
            path: crate::spill::ACTIVE.into(),
            source: std::io::Error::other("the spill thread has ended"),
        }
    }
}

impl SpillWriter {
    /// Writes what waits: full batches with the sync thread, and fewer events here, because
    /// handing them over and waiting for them would gain nothing.
    pub(super) async fn spill_waiting(&mut self) -> Result<(), SpillError> {
        if self.engine.refill(0) >= 2 * BATCH && self.spill_many().await? {
            return Ok(());
        }
        let prepared = self.prepare(self.spool.append_position(), 0);
        let taken = prepared.written.taken;
        let appended = self
            .spool
            .write_and_sync(prepared, &|| self.engine.books())?;
        self.finish_batch(appended, taken);
        Ok(())
    }

    /// Writes full batches while there are any and nobody asks for anything else, and says whether
    /// there was one.
    async fn spill_many(&mut self) -> Result<bool, SpillError> {
        let handle = match self.spool.open_sync_handle() {
            Ok(handle) => handle,
            Err(error) => {
                // A process that may open no more files can still write to the one it has.
                tracing::debug!(%error, "no second handle; syncing one batch at a time");
                return Ok(false);
            }
        };
        self.sync_thread.send(SyncJob::Begin(handle)).await?;
        let mut ends = self.spool.append_position();
        let (mut given, mut skip) = (0, 0);
        let (mut is_open, mut has_begun) = (true, false);
        let mut failed = None;
        loop {
            while is_open && given < MAX_AHEAD && self.engine.refill(skip) >= BATCH {
                let prepared = self.prepare(ends, skip);
                if prepared.is_capped() {
                    // Events over a cap may have to wait in front of later ones.
                    self.spool.recycle(prepared);
                    is_open = false;
                    break;
                }
                ends = prepared.ends;
                has_begun = true;
                if let Err(error) = self.spool.write(&prepared) {
                    failed = Some((prepared, WriteOutcome::Refused(error)));
                    is_open = false;
                    break;
                }
                skip += prepared.written.taken;
                given += 1;
                self.sync_thread.send(SyncJob::Sync(prepared)).await?;
            }
            if given == 0 {
                break;
            }
            for (prepared, outcome) in self.sync_thread.tried().await? {
                given -= 1;
                match outcome {
                    WriteOutcome::Durable => {
                        skip -= prepared.written.taken;
                        let written = self.spool.note(prepared);
                        self.finish_batch(AppendResult::Written(written), 0);
                    }
                    WriteOutcome::Skipped => drop(self.spool.recycle(prepared)),
                    WriteOutcome::Refused(_) | WriteOutcome::Unsynced => {
                        is_open = false;
                        // One that the disk refused since comes after this one, and counts for
                        // nothing now.
                        if let Some((later, _)) = failed.replace((prepared, outcome)) {
                            self.spool.recycle(later);
                        }
                    }
                }
            }
            // Commands get their turn.
            is_open &= self.commands.is_empty();
        }
        let handle = self.sync_thread.end().await?;
        self.spool.return_sync_handle(handle);
        if let Some((prepared, outcome)) = failed {
            let taken = prepared.written.taken;
            let engine = Arc::clone(&self.engine);
            let appended = self.spool.complete(prepared, outcome, &|| engine.books())?;
            self.finish_batch(appended, taken);
        }
        Ok(has_begun)
    }

    /// Makes lines of the events behind the first `skip`, to be written behind `position`.
    fn prepare(&mut self, position: AppendPosition, skip: usize) -> Prepared {
        if self.engine.config.options.on_full == OnFull::Block && !self.engine.is_sending() {
            // They were to wait for room, and nobody can wait any longer.
            self.spool.lift_caps();
        }
        let buffer = self.engine.spill_buffer();
        let encoder = &mut self.encoder;
        let mut encode = |index: usize, line: &mut Vec<u8>| {
            let queued = buffer.get(skip + index);
            encoder.encode_open(&queued.event, queued.id, queued.timestamp_ms, line);
            queued.id
        };
        let count = buffer.len().saturating_sub(skip).min(BATCH);
        self.spool.prepare(position, count, &mut encode)
    }

    /// Removes the first events of the spill buffer: those that were written, or the `taken` that were
    /// refused.
    fn finish_batch(&mut self, appended: AppendResult, taken: usize) {
        self.last_sync = self.engine.clock.elapsed();
        let outcome = match appended {
            AppendResult::Written(written) => {
                let has_any = !written.ids.is_empty();
                let outcome = self.engine.finish_written(written, self.spool.bytes());
                self.is_dirty |= has_any && outcome != SpillOutcome::TooLate;
                outcome
            }
            AppendResult::Refused(error) => {
                tracing::error!(%error, events = taken, "disk refused a spill write");
                self.engine.finish_refused(taken)
            }
        };
        if outcome == SpillOutcome::Waiting {
            self.blocked_until = Some(self.last_sync.saturating_add(REFUSED_PAUSE));
        }
    }
}
