//! The thread that owns the spill directory.

mod flush;
mod spill_buffer;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{Place, postings};
use tidegate_core::error_chain;
use tokio::sync::{mpsc, oneshot};

use crate::engine::Engine;
use crate::event::{Encoder, Event};
use crate::loss::reason;
use crate::spill::{Rejection, ReplayBatch, SpillError, Spool, post_corrupt_lines};
use crate::state::LoggerPhase;
use crate::task::ShutdownGuard;

pub(crate) use flush::{SyncThread, sync_thread};
pub(crate) use spill_buffer::SpillBuffer;

/// Events that are written at a time.
pub(crate) const BATCH: usize = 1_000;
/// Time between two syncs that nobody waits for.
const SYNC_INTERVAL: Duration = Duration::from_millis(50);
/// How often the books are written while events are spilled.
const BOOKS_INTERVAL: Duration = Duration::from_secs(1);
/// How often books and cursor are written while events are replayed; what was replayed since is
/// sent again after a crash, under the same ids.
const CURSOR_INTERVAL: Duration = Duration::from_millis(100);
/// How long a disk that refused a write is left alone, where nothing may be dropped.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// A request to the writer.
pub(crate) type SpillCommand = Box<dyn FnOnce(&mut SpillWriter) -> Result<(), SpillError> + Send>;

/// Asks the writer.
#[derive(Clone)]
pub(crate) struct WriterHandle(pub(crate) mpsc::Sender<SpillCommand>);

impl WriterHandle {
    /// The answer to a command; none when the writer has ended.
    async fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut SpillWriter) -> Result<T, SpillError> + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        let command: SpillCommand = Box::new(move |writer| {
            // A replayer that went away will ask again, or a new process will.
            reply.send(command(writer)?).ok();
            Ok(())
        });
        self.0.send(command).await.ok()?;
        answer.await.ok()
    }

    /// Lines to send, an empty batch when nothing waits; none when the writer has ended.
    pub(crate) async fn read(&self, max: usize) -> Option<ReplayBatch> {
        self.ask(move |writer| writer.read(max)).await
    }

    /// Marks the first so many lines as replayed, of which these were rejected, and gives the rest
    /// back; none when the writer has ended.
    pub(crate) async fn mark_replayed(
        &self,
        mut batch: ReplayBatch,
        count: usize,
        rejected: Vec<Rejection>,
    ) -> Option<ReplayBatch> {
        self.ask(move |writer| {
            writer.mark_replayed(&mut batch, count, &rejected)?;
            Ok(batch)
        })
        .await
    }

    /// Whether these are kept for good; then they are posted and reported. The numbers are their keys
    /// in `pending_rejects`.
    pub(crate) async fn set_aside(&self, numbers: Vec<u64>, rejected: Vec<Rejection>) -> bool {
        let kept = self.ask(move |writer| writer.set_aside(&numbers, &rejected));
        kept.await.unwrap_or(false)
    }
}

/// The owner of the spill directory.
pub(crate) struct SpillWriter {
    pub(crate) engine: Arc<Engine>,
    pub(crate) spool: Spool,
    pub(crate) commands: mpsc::Receiver<SpillCommand>,
    /// When something was last synced, and when the books were last written.
    pub(crate) last_sync: Duration,
    pub(crate) last_books: Duration,
    /// Whether the books have changed since they were written.
    pub(crate) is_dirty: bool,
    /// Until when the active file is known to have no room, or the disk to refuse.
    pub(crate) blocked_until: Option<Duration>,
    /// Whether any `WriterHandle` is left.
    pub(crate) has_clients: bool,
    /// Whether `run` has ended by itself.
    pub(crate) has_ended: bool,
    pub(crate) sync_thread: SyncThread,
    pub(crate) encoder: Encoder,
    pub(crate) _shutdown_guard: Arc<ShutdownGuard>,
}

impl SpillWriter {
    /// Writes until the logger has stopped.
    pub(crate) async fn run(mut self) {
        let worked = self.work().await;
        self.has_ended = true;
        if let Err(error) = worked {
            self.give_up(&error);
        }
    }

    async fn work(&mut self) -> Result<(), SpillError> {
        let engine = Arc::clone(&self.engine);
        loop {
            let notified = engine.writer_wake.notified();
            let now = engine.clock.elapsed();
            let (depth, is_urgent, phase, is_canceled) = {
                let buffer = engine.spill_buffer();
                let state = engine.state();
                let depth = state.spill_depth();
                let is_awaited = state.awaited + buffer.awaited + state.flushing > 0;
                let is_urgent = depth >= BATCH || is_awaited || state.phase > LoggerPhase::Running;
                (depth, is_urgent, state.phase, state.is_canceled)
            };
            // A stop does not wait for room any more.
            let is_blocked = phase < LoggerPhase::Draining
                && self.blocked_until.is_some_and(|until| now < until);
            let is_due = is_urgent || now >= self.last_sync.saturating_add(SYNC_INTERVAL);
            if depth > 0 && is_due && !is_blocked && self.commands.is_empty() {
                self.spill_waiting().await?;
                continue;
            }
            // Of a logger that was dropped, the others end when they come to it.
            let is_last = phase == LoggerPhase::Stopped || (is_canceled && !self.has_clients);
            if is_last && depth == 0 {
                return self.spool.close(&engine.books());
            }
            if self.is_dirty && now >= self.last_books.saturating_add(BOOKS_INTERVAL) {
                self.write_books()?;
            }
            let nap = if depth > 0 {
                SYNC_INTERVAL
            } else {
                BOOKS_INTERVAL
            };
            tokio::select! {
                biased;
                command = self.commands.recv(), if self.has_clients => match command {
                    Some(command) => command(self)?,
                    None => self.has_clients = false,
                },
                () = notified => {}
                () = engine.clock.sleep(nap) => {}
            }
        }
    }

    /// Keeps what the API refused for good, and says whether the disk had room for it.
    fn set_aside(&mut self, numbers: &[u64], rejected: &[Rejection]) -> Result<bool, SpillError> {
        match self.spool.set_aside(rejected, self.engine.clock.now_ms()) {
            Err(error) if error.is_full() => {
                tracing::error!(%error, "no room to set a rejected event aside");
                return Ok(false);
            }
            kept => kept?,
        }
        // Posted here, so that no books are written in between. Those that are not there any more
        // were reported as lost when the logger stopped: the disk has answered too late.
        let events = {
            let mut state = self.engine.state();
            let events = state.take_pending_rejects(numbers);
            let ids = events.iter().map(|queued| queued.id);
            state.post(ids, Place::InFlight, Place::DeadLettered);
            events
        };
        self.is_dirty = true;
        for mut queued in events {
            queued.notify_waiter(Err(reason::REJECTED));
            let (id, event) = (Some(queued.id), Some(queued.event));
            self.engine.report(id, event, reason::REJECTED);
        }
        Ok(true)
    }

    /// Lines to send. A snapshot that is replayed to its end is removed, and the next one
    /// is begun.
    fn read(&mut self, max: usize) -> Result<ReplayBatch, SpillError> {
        /// A request of this many bytes is well below what an API takes.
        const MAX_BYTES: usize = 512 * 1024;
        // A stop sends nothing more, so the files stay as they are.
        if self.engine.state().phase > LoggerPhase::Running {
            return Ok(ReplayBatch::default());
        }
        loop {
            let books = self.engine.books();
            let batch = match self.spool.read_replay(max, MAX_BYTES, &books) {
                // A line that cannot be read needs room to be set aside; it can wait for that.
                Err(error) if error.is_full() => {
                    tracing::warn!(%error, "disk full; replay waits for room");
                    return Ok(ReplayBatch::default());
                }
                read => read?,
            };
            self.post_corrupt()?;
            if !batch.lines.is_empty() {
                return Ok(batch);
            }
            if !self.spool.is_replaying() {
                if self.spool.is_empty() {
                    self.engine.state().backlog = 0;
                }
                return Ok(batch);
            }
            match self.spool.finish_replay(&self.engine.books()) {
                Err(error) if error.is_full() => {
                    tracing::warn!(%error, "disk full; replay waits for room");
                    self.is_dirty = true;
                    if self.spool.is_replaying() {
                        return Ok(batch);
                    }
                }
                finished => finished?,
            }
            self.note_bytes();
            self.last_books = self.engine.clock.elapsed();
            self.blocked_until = None;
            self.engine.wake_room();
        }
    }

    /// Lines that cannot be read are set aside by now: the books follow, and each is reported.
    fn post_corrupt(&mut self) -> Result<(), SpillError> {
        let Some(readable) = self.spool.readable_beside_corrupt()? else {
            return Ok(());
        };
        let count = post_corrupt_lines(self.engine.state().books(), &readable);
        let corrupt = u64::try_from(count).unwrap_or(0);
        self.engine.state().counters.events_corrupt += corrupt;
        for _ in 0..count {
            self.engine.report(None, None, reason::SPILLOVER_CORRUPT);
        }
        self.write_books()
    }

    fn mark_replayed(
        &mut self,
        batch: &mut ReplayBatch,
        count: usize,
        rejected: &[Rejection],
    ) -> Result<(), SpillError> {
        let now = self.engine.clock.elapsed();
        if !rejected.is_empty() {
            match self.spool.set_aside(rejected, self.engine.clock.now_ms()) {
                // A rejected event that cannot be set aside stays: it is sent again later.
                Err(error) if error.is_full() => return Ok(()),
                kept => kept?,
            }
        }
        {
            let mut state = self.engine.state();
            let is_rejected = |id| rejected.iter().any(|rejection| rejection.payload.id == id);
            let delivered: Vec<_> = batch.ids(count).filter(|id| !is_rejected(*id)).collect();
            let rejects: Vec<_> = batch.ids(count).filter(|id| is_rejected(*id)).collect();
            state.counters.events_replayed += delivered.len() as u64;
            state.counters.events_rejected += rejects.len() as u64;
            state.backlog = state.backlog.saturating_sub(count as u64);
            for (ids, to) in [
                (delivered, Place::Delivered),
                (rejects, Place::DeadLettered),
            ] {
                for posting in postings(ids, Some(Place::Spilled), Some(to)) {
                    state.books().post(&posting);
                }
            }
        }
        self.spool.mark_replayed(batch, count);
        self.note_bytes();
        batch.drop_first(count);
        for Rejection { payload, .. } in rejected {
            let event = Event::decode(&payload.json).map(|decoded| decoded.event);
            let event = Some(event.unwrap_or_default());
            self.engine
                .report(Some(payload.id), event, reason::REJECTED);
        }
        self.is_dirty = true;
        if !rejected.is_empty() || now >= self.last_books.saturating_add(CURSOR_INTERVAL) {
            self.write_books()?;
        }
        self.engine.progress.notify_waiters();
        Ok(())
    }

    /// Writes the books down. A disk without room for them is asked again later.
    fn write_books(&mut self) -> Result<(), SpillError> {
        self.last_books = self.engine.clock.elapsed();
        self.is_dirty = !self.spool.try_write_books(&self.engine.books())?;
        Ok(())
    }

    fn note_bytes(&self) {
        self.engine.state().backlog_bytes = self.spool.bytes();
    }

    /// Gives the directory up: events that wait for it are lost and reported. Its files stay for the
    /// next process.
    fn give_up(&mut self, error: &SpillError) {
        let why = error_chain(error);
        tracing::error!(error = %why, "spill directory given up");
        self.engine.give_up_spill(why);
    }
}

impl Drop for SpillWriter {
    /// If the writer was aborted or has panicked, the events that wait for it are reported.
    fn drop(&mut self) {
        if !self.has_ended {
            self.give_up(&SyncThread::gone());
        }
    }
}
