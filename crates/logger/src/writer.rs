//! The thread that owns the spill directory.

mod keep;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{Place, postings};
use tokio::sync::{mpsc, oneshot};

use crate::event::{Encoder, Event};
use crate::hub::{Hub, Lost};
use crate::loss::reason;
use crate::spill::{Rejection, ReplayBatch, SpillError, Spool, settle_corrupt};
use crate::state::{Phase, Queued};
use crate::task::Alive;

pub(crate) use keep::{Helper, help};

/// Events that are written at a time.
pub(crate) const BATCH: usize = 1_000;
/// Time between two syncs that nobody waits for.
const PACE: Duration = Duration::from_millis(50);
/// How often the books are written while events are spilled.
const BOOKS: Duration = Duration::from_secs(1);
/// How often books and cursor are written while events are replayed; what was settled since is
/// sent again after a crash, under the same ids.
const CURSOR: Duration = Duration::from_millis(100);
/// How long a disk that refused a write is left alone, where nothing may be dropped.
const PAUSE: Duration = Duration::from_secs(1);

/// What the writer is asked to do.
pub(crate) enum Command {
    /// Read lines to send; an empty batch when nothing waits.
    Read {
        max: usize,
        reply: oneshot::Sender<ReplayBatch>,
    },
    /// The first so many lines of the batch are settled; these of them were rejected.
    Settle {
        batch: ReplayBatch,
        count: usize,
        rejected: Vec<Rejection>,
        reply: oneshot::Sender<ReplayBatch>,
    },
    /// Keep these for good.
    SetAside {
        rejected: Vec<Aside>,
        reply: oneshot::Sender<bool>,
    },
}

/// An event that the API refused for good and that waits to be set aside.
pub(crate) struct Aside {
    /// Under which it waits.
    pub(crate) number: u64,
    pub(crate) rejection: Rejection,
}

/// Asks the writer.
#[derive(Clone)]
pub(crate) struct WriterHandle(pub(crate) mpsc::Sender<Command>);

impl WriterHandle {
    /// Lines to send; none when the writer has ended.
    pub(crate) async fn read(&self, max: usize) -> Option<ReplayBatch> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Command::Read { max, reply }).await.ok()?;
        answer.await.ok()
    }

    /// Settles the first so many lines and gives the rest back; none when the writer has ended.
    pub(crate) async fn settle(
        &self,
        batch: ReplayBatch,
        count: usize,
        rejected: Vec<Rejection>,
    ) -> Option<ReplayBatch> {
        let (reply, answer) = oneshot::channel();
        self.0
            .send(Command::Settle {
                batch,
                count,
                rejected,
                reply,
            })
            .await
            .ok()?;
        answer.await.ok()
    }

    /// Whether these are kept for good; then they are posted and reported.
    pub(crate) async fn set_aside(&self, rejected: Vec<Aside>) -> bool {
        let (reply, answer) = oneshot::channel();
        let sent = self.0.send(Command::SetAside { rejected, reply }).await;
        sent.is_ok() && answer.await.unwrap_or(false)
    }
}

/// The owner of the spill directory.
pub(crate) struct Writer {
    pub(crate) shared: Arc<Hub>,
    pub(crate) spool: Spool,
    pub(crate) commands: mpsc::Receiver<Command>,
    /// When something was last synced, and when the books were last written.
    pub(crate) last_sync: Duration,
    pub(crate) last_books: Duration,
    /// Whether the books have changed since they were written.
    pub(crate) is_dirty: bool,
    /// Until when the active file is known to have no room, or the disk to refuse.
    pub(crate) blocked_until: Option<Duration>,
    /// Whether anybody is left who may ask for something.
    pub(crate) is_asked: bool,
    /// Whether it has said its last word.
    pub(crate) has_ended: bool,
    pub(crate) helper: Helper,
    pub(crate) encoder: Encoder,
    pub(crate) _alive: Arc<Alive>,
}

impl Writer {
    /// Writes until the logger drains and nobody asks any more.
    pub(crate) async fn run(mut self) {
        let worked = self.work().await;
        self.has_ended = true;
        if let Err(error) = worked {
            self.give_up(&error);
        }
    }

    async fn work(&mut self) -> Result<(), SpillError> {
        let shared = Arc::clone(&self.shared);
        loop {
            let bell = shared.writer_bell.notified();
            let now = shared.clock.elapsed();
            let (depth, is_urgent, phase, is_canceled) = {
                let hand = shared.hand();
                let state = shared.state();
                let depth = state.spill_depth();
                let is_awaited = state.awaited + hand.awaited + state.flushing > 0;
                let is_urgent = depth >= BATCH || is_awaited || state.phase > Phase::Running;
                (depth, is_urgent, state.phase, state.is_canceled)
            };
            // Whoever stops does not wait for room any more.
            let is_blocked =
                phase < Phase::Draining && self.blocked_until.is_some_and(|until| now < until);
            let is_due = is_urgent || now >= self.last_sync.saturating_add(PACE);
            if depth > 0 && is_due && !is_blocked && self.commands.is_empty() {
                self.spill_some().await?;
                continue;
            }
            // Of a logger that was dropped, the others end when they come to it.
            let is_last = phase == Phase::Stopped || (is_canceled && !self.is_asked);
            if is_last && depth == 0 {
                return self.spool.close(&shared.books());
            }
            if self.is_dirty && now >= self.last_books.saturating_add(BOOKS) {
                self.write_books()?;
            }
            let nap = if depth > 0 { PACE } else { BOOKS };
            tokio::select! {
                biased;
                command = self.commands.recv(), if self.is_asked => match command {
                    Some(command) => self.obey(command)?,
                    None => self.is_asked = false,
                },
                () = bell => {}
                () = shared.clock.sleep(nap) => {}
            }
        }
    }

    fn obey(&mut self, command: Command) -> Result<(), SpillError> {
        match command {
            Command::Read { max, reply } => {
                // Whoever stops sends nothing more, so the files stay as they are.
                let is_stopping = self.shared.state().phase > Phase::Running;
                let batch = if is_stopping {
                    ReplayBatch::default()
                } else {
                    self.read(max)?
                };
                // A replayer that went away will ask again, or a new process will.
                reply.send(batch).ok();
            }
            Command::Settle {
                mut batch,
                count,
                rejected,
                reply,
            } => {
                self.settle_replayed(&mut batch, count, &rejected)?;
                reply.send(batch).ok();
            }
            Command::SetAside { rejected, reply } => {
                let is_kept = self.set_aside(rejected)?;
                reply.send(is_kept).ok();
            }
        }
        Ok(())
    }

    /// Keeps what the API refused for good, and says whether the disk had room for it.
    fn set_aside(&mut self, rejected: Vec<Aside>) -> Result<bool, SpillError> {
        let now_ms = self.shared.clock.now_ms();
        let (numbers, rejections): (Vec<u64>, Vec<Rejection>) = rejected
            .into_iter()
            .map(|aside| (aside.number, aside.rejection))
            .unzip();
        match self.spool.set_aside(&rejections, now_ms) {
            Err(error) if error.is_full() => {
                tracing::error!(%error, "a rejected event cannot be set aside");
                return Ok(false);
            }
            kept => kept?,
        }
        // Posted here, so that no books are written in between. Those that are not there any more
        // were reported as lost when the logger stopped: the disk has answered too late.
        let events = {
            let mut state = self.shared.state();
            let events = state.take_aside(&numbers);
            let ids = events.iter().map(|queued| queued.id);
            state.post(ids, Place::InFlight, Place::DeadLettered);
            events
        };
        self.is_dirty = true;
        for mut queued in events {
            queued.tell(Err(reason::REJECTED));
            self.shared.report(Lost {
                queued: Some(queued),
                reason: reason::REJECTED,
            });
        }
        Ok(true)
    }

    /// Lines to send. A snapshot that is read to its end and settled is removed, and the next one
    /// is begun.
    fn read(&mut self, max: usize) -> Result<ReplayBatch, SpillError> {
        /// A request of this many bytes is well below what an API takes.
        const MAX_BYTES: usize = 512 * 1024;
        loop {
            let books = self.shared.books();
            let batch = match self.spool.read_replay(max, MAX_BYTES, &books) {
                // A line that cannot be read needs room to be set aside; it can wait for that.
                Err(error) if error.is_full() => {
                    tracing::warn!(%error, "replay waits for room on the disk");
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
                    self.shared.state().backlog = 0;
                }
                return Ok(batch);
            }
            match self.spool.finish_replay(&self.shared.books()) {
                Err(error) if error.is_full() => {
                    tracing::warn!(%error, "replay waits for room on the disk");
                    self.is_dirty = true;
                    if self.spool.is_replaying() {
                        return Ok(batch);
                    }
                }
                finished => finished?,
            }
            self.note_bytes();
            self.last_books = self.shared.clock.elapsed();
            self.blocked_until = None;
            self.shared.ring_room();
        }
    }

    /// Lines that cannot be read are set aside by now: the books follow, and each is reported.
    fn post_corrupt(&mut self) -> Result<(), SpillError> {
        let Some(readable) = self.spool.readable_beside_corrupt()? else {
            return Ok(());
        };
        let count = settle_corrupt(self.shared.state().books(), &readable);
        let corrupt = u64::try_from(count).unwrap_or(0);
        self.shared.state().counters.corrupt += corrupt;
        for _ in 0..count {
            self.shared.report(Lost {
                queued: None,
                reason: reason::SPILLOVER_CORRUPT,
            });
        }
        self.write_books()
    }

    fn settle_replayed(
        &mut self,
        batch: &mut ReplayBatch,
        count: usize,
        rejected: &[Rejection],
    ) -> Result<(), SpillError> {
        let now = self.shared.clock.elapsed();
        if !rejected.is_empty() {
            match self.spool.set_aside(rejected, self.shared.clock.now_ms()) {
                // What cannot be kept is not settled either: it is asked about again later.
                Err(error) if error.is_full() => return Ok(()),
                kept => kept?,
            }
        }
        {
            let mut state = self.shared.state();
            let is_rejected = |id| rejected.iter().any(|rejection| rejection.id == id);
            let delivered: Vec<_> = batch.ids(count).filter(|id| !is_rejected(*id)).collect();
            let aside: Vec<_> = batch.ids(count).filter(|id| is_rejected(*id)).collect();
            state.counters.replayed += delivered.len() as u64;
            state.counters.rejected += aside.len() as u64;
            state.backlog = state.backlog.saturating_sub(count as u64);
            for (ids, to) in [(delivered, Place::Delivered), (aside, Place::DeadLettered)] {
                for posting in postings(ids, Some(Place::Spilled), Some(to)) {
                    state.books().post(&posting);
                }
            }
        }
        self.spool.settle_replay(batch, count);
        self.note_bytes();
        batch.drop_first(count);
        for rejection in rejected {
            self.report_rejected(rejection);
        }
        self.is_dirty = true;
        if !rejected.is_empty() || now >= self.last_books.saturating_add(CURSOR) {
            self.write_books()?;
        }
        self.shared.progress.notify_waiters();
        Ok(())
    }

    fn report_rejected(&self, rejection: &Rejection) {
        let event = Event::decode(&rejection.json).map(|decoded| decoded.event);
        let queued = Queued {
            event: event.unwrap_or_default(),
            id: rejection.id,
            timestamp_ms: 0,
            attempts: rejection.attempts,
            number: 0,
            waiter: None,
        };
        self.shared.report(Lost {
            queued: Some(queued),
            reason: reason::REJECTED,
        });
    }

    /// Writes the books down. A disk without room for them is asked again later.
    fn write_books(&mut self) -> Result<(), SpillError> {
        self.last_books = self.shared.clock.elapsed();
        self.is_dirty = !self.spool.try_write_books(&self.shared.books())?;
        Ok(())
    }

    fn note_bytes(&self) {
        self.shared.state().backlog_bytes = self.spool.bytes();
    }

    /// The directory is given up: what waits for it is lost and reported. What is in it stays for
    /// the next process.
    fn give_up(&mut self, error: &SpillError) {
        let mut why = error.to_string();
        if let Some(source) = std::error::Error::source(error) {
            why.push_str(&format!(": {source}"));
        }
        tracing::error!(error = %why, "the spill directory is given up");
        self.shared.give_spill_up(why);
    }
}

impl Drop for Writer {
    /// A writer that was aborted, or has panicked, says so: what waits for it is reported.
    fn drop(&mut self) {
        if !self.has_ended {
            self.give_up(&Helper::gone());
        }
    }
}
