//! The thread that owns the spill directory.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{LossReason, Place, postings};
use tidegate_core::breaker::BreakerState;
use tokio::sync::{mpsc, oneshot};

use crate::config::OnFull;
use crate::event::Event;
use crate::hub::{Hub, Lost};
use crate::loss::reason;
use crate::spill::{Append, Rejection, ReplayBatch, SpillError, Spool, settle_corrupt};
use crate::state::{Phase, Queued, Waiter};

/// Events that are written at a time.
pub(crate) const BATCH: usize = 1_000;
/// Events that are taken from the queue under one lock.
const HELPING: usize = 100;
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
        rejections: Vec<Rejection>,
        reply: oneshot::Sender<bool>,
    },
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

    /// Whether these are kept for good.
    pub(crate) async fn set_aside(&self, rejections: Vec<Rejection>) -> bool {
        let (reply, answer) = oneshot::channel();
        let sent = self.0.send(Command::SetAside { rejections, reply }).await;
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
}

impl Writer {
    /// Writes until the logger drains and nobody asks any more.
    pub(crate) async fn run(mut self) {
        if let Err(error) = self.work().await {
            self.give_up(&error);
        }
    }

    async fn work(&mut self) -> Result<(), SpillError> {
        let shared = Arc::clone(&self.shared);
        loop {
            let bell = shared.writer_bell.notified();
            let now = shared.clock.elapsed();
            let (depth, is_urgent, phase) = {
                let state = shared.state();
                let is_urgent = state.spill.len() >= BATCH
                    || state.phase > Phase::Running
                    || state
                        .spill
                        .iter()
                        .take(BATCH)
                        .any(|queued| queued.waiter.is_some());
                (state.spill.len(), is_urgent, state.phase)
            };
            let is_blocked = self.blocked_until.is_some_and(|until| now < until);
            let is_due = is_urgent || now >= self.last_sync.saturating_add(PACE);
            if depth > 0 && is_due && !is_blocked {
                self.spill_some()?;
                continue;
            }
            if phase == Phase::Stopped && depth == 0 {
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

    /// Writes one batch from the front of the spill queue.
    fn spill_some(&mut self) -> Result<(), SpillError> {
        let shared = Arc::clone(&self.shared);
        let (batch, waiters) = {
            let mut batch: Vec<Queued> = Vec::with_capacity(BATCH);
            // In small helpings: whoever logs waits for this lock.
            while batch.len() < BATCH {
                let mut state = shared.state();
                let count = state.spill.len().min(HELPING).min(BATCH - batch.len());
                if count == 0 {
                    break;
                }
                batch.extend(state.spill.drain(..count));
                state.spilling += count;
            }
            let mut state = shared.state();
            let waiters: Vec<_> = batch
                .iter_mut()
                .map(|queued| queued.waiter.take())
                .collect();
            // Should the disk never answer, whoever stops the logger finds the events here.
            let batch = Arc::new(batch);
            state.writing = Some(Arc::clone(&batch));
            (batch, waiters)
        };
        let defaults = &shared.config.defaults;
        let mut encode = |index: usize, buffer: &mut Vec<u8>| {
            let queued = &batch[index];
            queued
                .event
                .encode_open(queued.id, queued.timestamp_ms, defaults, buffer);
            queued.id
        };
        let appended = self
            .spool
            .append(batch.len(), &mut encode, &|| shared.books());
        self.last_sync = shared.clock.elapsed();
        let Some(mut batch) = self.take_back(batch, waiters) else {
            // The disk answered too late: they were reported as lost, and may arrive all the same.
            return appended.map(|_| ());
        };
        match appended {
            Ok(Append::Written { taken, refused }) => {
                let rest = batch.split_off(taken);
                self.put_back(rest);
                self.settle_written(batch, refused);
                Ok(())
            }
            Ok(Append::Refused(error)) => {
                tracing::error!(%error, events = batch.len(), "the disk refused a spill");
                self.refused(batch);
                Ok(())
            }
            Err(error) => {
                // What was in our hands is lost with the directory, and reported.
                self.fail(&error);
                shared.state().spilling -= batch.len();
                shared.lose(batch, Place::InFlight, reason::SPILLOVER_WRITE_ERROR);
                Err(error)
            }
        }
    }

    /// Takes a batch back out of the state; none if it was given up there.
    fn take_back(
        &self,
        batch: Arc<Vec<Queued>>,
        waiters: Vec<Option<Waiter>>,
    ) -> Option<Vec<Queued>> {
        self.shared.state().writing.take()?;
        // The state's copy is gone, so ours is the only one.
        let mut batch = Arc::into_inner(batch)?;
        for (queued, waiter) in batch.iter_mut().zip(waiters) {
            queued.waiter = waiter;
        }
        Some(batch)
    }

    /// Events go back to where they wait, in their order: in front of the spill, or on their way to
    /// the API if that may be asked again and only the disk refuses.
    fn put_back(&mut self, events: Vec<Queued>) {
        let mut state = self.shared.state();
        state.spilling -= events.len();
        let is_api_well = state.breaker.state() != BreakerState::Open;
        let is_refused = self.blocked_until.is_some();
        for queued in events.into_iter().rev() {
            if is_refused && is_api_well {
                state.queue.push_front(queued);
            } else {
                state.spill.push_front(queued);
            }
        }
        drop(state);
        self.shared.sender_bell.notify_one();
        self.shared.ring_room();
    }

    fn settle_written(&mut self, batch: Vec<Queued>, refused: Vec<(usize, LossReason)>) {
        let shared = Arc::clone(&self.shared);
        let (written, over) = apart(batch, refused);
        let moved = postings(
            written.iter().map(|q| q.id),
            Some(Place::InFlight),
            Some(Place::Spilled),
        );
        {
            let mut state = shared.state();
            moved.iter().for_each(|posting| state.books().post(posting));
            state.counters.spilled += written.len() as u64;
            state.backlog += written.len() as u64;
            state.spilling -= written.len();
        }
        shared.progress.notify_waiters();
        self.is_dirty |= !written.is_empty();
        let is_waited_for = written.iter().any(|queued| queued.waiter.is_some());
        for mut queued in written {
            queued.tell(Ok(()));
        }
        if is_waited_for || shared.state().phase > Phase::Running {
            shared.replay_bell.notify_one();
        }
        if over.is_empty() {
            shared.ring_room();
            return;
        }
        if shared.config.on_full == OnFull::Block && shared.is_sending() {
            // Replay makes room; until then nothing is taken.
            self.blocked_until = Some(shared.clock.elapsed().saturating_add(PAUSE));
            self.put_back(over.into_iter().map(|(queued, _)| queued).collect());
            shared.replay_bell.notify_one();
            return;
        }
        for (queued, reason) in over {
            shared.state().spilling -= 1;
            shared.lose(vec![queued], Place::InFlight, reason);
        }
        shared.ring_room();
    }

    fn refused(&mut self, batch: Vec<Queued>) {
        let shared = Arc::clone(&self.shared);
        if shared.config.on_full == OnFull::Block && shared.is_sending() {
            self.blocked_until = Some(shared.clock.elapsed().saturating_add(PAUSE));
            self.put_back(batch);
            return;
        }
        shared.state().spilling -= batch.len();
        shared.lose(batch, Place::InFlight, reason::SPILLOVER_WRITE_ERROR);
        shared.ring_room();
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
            Command::SetAside { rejections, reply } => {
                let now_ms = self.shared.clock.now_ms();
                match self.spool.set_aside(&rejections, now_ms) {
                    Err(error) if error.is_full() => {
                        tracing::error!(%error, "a rejected event cannot be set aside");
                        reply.send(false).ok();
                        return Ok(());
                    }
                    kept => kept?,
                }
                // Posted here, so that no books are written in between.
                let ids = rejections.iter().map(|rejection| rejection.id);
                let mut state = self.shared.state();
                state.post(ids, Place::InFlight, Place::DeadLettered);
                drop(state);
                self.is_dirty = true;
                reply.send(true).ok();
            }
        }
        Ok(())
    }

    /// Lines to send. A snapshot that is read to its end and settled is removed, and the next one
    /// is begun.
    fn read(&mut self, max: usize) -> Result<ReplayBatch, SpillError> {
        /// A request of this many bytes is well below what an API takes.
        const MAX_BYTES: usize = 512 * 1024;
        loop {
            let books = self.shared.books();
            let batch = match self.spool.read_replay(max, MAX_BYTES, &books) {
                // Reading on needs a little room, for the cursor; it can wait for that.
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
            self.spool.finish_replay(&self.shared.books())?;
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
            state.backlog = state.backlog.saturating_sub(count as u64);
            for (ids, to) in [(delivered, Place::Delivered), (aside, Place::DeadLettered)] {
                for posting in postings(ids, Some(Place::Spilled), Some(to)) {
                    state.books().post(&posting);
                }
            }
        }
        self.spool.settle_replay(batch, count);
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

    fn write_books(&mut self) -> Result<(), SpillError> {
        self.last_books = self.shared.clock.elapsed();
        self.is_dirty = false;
        self.spool.write_books(&self.shared.books())
    }

    fn fail(&self, error: &SpillError) {
        let mut why = error.to_string();
        if let Some(source) = std::error::Error::source(error) {
            why.push_str(&format!(": {source}"));
        }
        tracing::error!(error = %why, "the spill directory is given up");
        self.shared.state().spill_failure = Some(why);
    }

    /// The directory is given up: what waits for it is lost and reported. What is in it stays for
    /// the next process.
    fn give_up(&mut self, error: &SpillError) {
        self.fail(error);
        loop {
            let waiting: Vec<Queued> = self.shared.state().spill.drain(..).collect();
            if waiting.is_empty() {
                break;
            }
            self.shared
                .lose(waiting, Place::InFlight, reason::SPILLOVER_WRITE_ERROR);
        }
        self.shared.ring_all();
    }
}

/// Tells the events that were written from those that were refused.
fn apart(
    batch: Vec<Queued>,
    refused: Vec<(usize, LossReason)>,
) -> (Vec<Queued>, Vec<(Queued, LossReason)>) {
    if refused.is_empty() {
        return (batch, Vec::new());
    }
    let mut refused = refused.into_iter().peekable();
    let (mut written, mut over) = (Vec::new(), Vec::new());
    for (index, queued) in batch.into_iter().enumerate() {
        match refused.next_if(|(at, _)| *at == index) {
            Some((_, reason)) => over.push((queued, reason)),
            None => written.push(queued),
        }
    }
    (written, over)
}
