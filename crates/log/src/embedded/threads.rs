//! The threads of a log: what each waits for.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Offset;
use tokio::sync::{mpsc, oneshot};

use super::audit::{self, DirectoryAudit};
use super::change::LogChange;
use super::context::{EmbeddedContext, RefusalReason};
use super::files;
use super::maintenance::Maintenance;
use super::open::Locks;
use super::pending::PendingWrite;
use super::reader::SegmentReader;
use super::telemetry;
use super::writer::JournalWriter;
use crate::error::LogError;
use crate::record::TopicPartition;

/// Bytes of writes that are gathered for one sync.
const BATCH: usize = 4 * 1024 * 1024;
/// Journal files that may wait for a checkpoint; then writes wait as well.
const MAX_JOURNALS: u64 = 4;
/// Unflushed bytes may grow to so many times the cache before writes wait for the maintenance thread.
const MAX_UNFLUSHED: u64 = 4;
/// How long no commit comes before an empty group is written behind the last one.
const QUIET: Duration = Duration::from_secs(1);
/// How often retention and compaction look around, and how long a disk without room is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// Where the result of a command goes.
pub(super) type ReplySender<T> = oneshot::Sender<Result<T, LogError>>;

/// A call that a thread makes on the value that it owns; the call sends its own answer.
pub(super) type ThreadCall<T> = Box<dyn FnOnce(&mut T) + Send>;

/// A call, and where its answer arrives.
pub(super) fn call<T, R: Send + 'static>(
    act: impl FnOnce(&mut T) -> Result<R, LogError> + Send + 'static,
) -> (ThreadCall<T>, oneshot::Receiver<Result<R, LogError>>) {
    let (answer, done) = oneshot::channel();
    let call = move |owner: &mut T| {
        // A caller that does not wait any more finds out by reading.
        answer.send(act(owner)).ok();
    };
    (Box::new(call), done)
}

/// A command to the writer; they are done in their order.
pub(super) enum WriterCommand {
    Write {
        pending: PendingWrite,
        since: Duration,
        answer: ReplySender<Vec<i64>>,
    },
    Call(ThreadCall<JournalWriter>),
}

/// A removal that the maintenance thread wants journaled; whether it was.
pub(super) struct Removal {
    change: LogChange,
    answer: ReplySender<bool>,
}

/// A command to the maintenance thread, and where its result goes.
pub(super) type MaintenanceCommand = (MaintenanceTask, ReplySender<()>);

/// Something that the maintenance thread does when asked.
pub(super) enum MaintenanceTask {
    DeleteBefore(TopicPartition, Offset),
    Checkpoint,
    /// Do all that is due, and a checkpoint.
    Tidy,
}

/// Writes until nobody is left who could ask, then until the maintenance thread has ended.
pub(super) async fn run_writer(
    mut writer: JournalWriter,
    mut writer_commands: mpsc::UnboundedReceiver<WriterCommand>,
    mut removals: mpsc::Receiver<Removal>,
    drained: oneshot::Sender<()>,
) {
    let mut drained = Some(drained);
    let context = Arc::clone(&writer.context);
    loop {
        let may_write = drained.is_some() && may_write(&context, &writer);
        tokio::select! {
            biased;
            removal = removals.recv() => match removal {
                Some(Removal { change, answer }) => {
                    answer.send(writer.remove(change)).ok();
                }
                None => return,
            },
            command = writer_commands.recv(), if may_write => match command {
                Some(command) => {
                    if !context.config.group_commit_delay.is_zero() {
                        context.clock.sleep(context.config.group_commit_delay).await;
                    }
                    handle_writer(&mut writer, command, &mut writer_commands);
                }
                None => {
                    writer.prove_last_commit();
                    // Nobody listens when the maintenance thread has ended by a panic.
                    drained.take().map(|drained| drained.send(()));
                }
            },
            () = context.wake_writer.notified(), if drained.is_some() && !may_write => {}
            () = quiet(&context), if drained.is_some() && writer.is_unproven() => {
                writer.prove_last_commit();
            }
        }
    }
}

/// Completes once nothing was asked for a while. Under load it is never polled, and sets no timer.
async fn quiet(context: &EmbeddedContext) {
    context.clock.sleep(QUIET).await;
}

/// Whether the maintenance thread is not too far behind. Without room on the disk it stays behind, and writes are
/// let through to be refused.
fn may_write(context: &EmbeddedContext, writer: &JournalWriter) -> bool {
    let unflushed = context.state().unflushed_bytes;
    let status = context.status();
    let behind = writer.place().file.saturating_sub(status.checkpoint.file);
    let is_behind = behind >= MAX_JOURNALS
        || unflushed > context.config.cache_size.saturating_mul(MAX_UNFLUSHED);
    let reasons = [
        RefusalReason::Full,
        RefusalReason::RecoveryPending,
        RefusalReason::Stopped,
    ];
    !is_behind || reasons.iter().any(|reason| status.is(*reason))
}

/// Does one command, and the writes that wait behind it along with it.
fn handle_writer(
    writer: &mut JournalWriter,
    first: WriterCommand,
    writer_commands: &mut mpsc::UnboundedReceiver<WriterCommand>,
) {
    let (mut batch, mut answers, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut next = Some(first);
    while let Some(WriterCommand::Write {
        pending,
        since,
        answer,
    }) = next
    {
        bytes += pending.bytes.len();
        batch.push(pending);
        answers.push((since, answer));
        next = match bytes < BATCH {
            true => writer_commands.try_recv().ok(),
            false => None,
        };
    }
    if !batch.is_empty() {
        write(writer, batch, answers, bytes);
    }
    if let Some(WriterCommand::Call(call)) = next {
        call(writer);
    }
}

fn write(
    writer: &mut JournalWriter,
    batch: Vec<PendingWrite>,
    answers: Vec<(Duration, ReplySender<Vec<i64>>)>,
    bytes: usize,
) {
    let results = writer.commit(batch);
    let context = &writer.context;
    {
        let mut status = context.status();
        status.queued = status.queued.saturating_sub(bytes as u64);
        telemetry::queued(status.queued);
    }
    let now = context.now();
    for ((since, answer), result) in answers.into_iter().zip(results) {
        telemetry::appended(now.saturating_sub(since));
        // A caller that does not wait any more finds out by reading.
        answer.send(result).ok();
    }
}

/// Keeps the directory until the writer has nothing left to do, then leaves a last checkpoint.
pub(super) async fn run_maintenance(
    maintenance: Maintenance,
    mut commands: mpsc::Receiver<MaintenanceCommand>,
    removals: mpsc::Sender<Removal>,
    mut drained: oneshot::Receiver<()>,
    lock: Locks,
) {
    let context = Arc::clone(&maintenance.context);
    let mut thread = MaintenanceThread {
        maintenance,
        removals,
    };
    let mut is_asked = true;
    loop {
        if !context.status().is(RefusalReason::Stopped) {
            let done = thread.maintain().await;
            note_disk_space(&context, done);
        }
        tokio::select! {
            biased;
            command = commands.recv(), if is_asked => match command {
                Some(command) => thread.handle(command).await,
                None => is_asked = false,
            },
            _ = &mut drained => break,
            () = context.wake_maintenance.notified() => {}
            () = context.clock.sleep(PAUSE) => {}
        }
    }
    if !context.status().is(RefusalReason::Stopped) {
        let done = thread.maintenance.checkpoint();
        thread.maintenance.write_open_indexes();
        note_disk_space(&context, done);
    }
    drop(lock);
}

/// Takes note of whether the disk had room; anything worse stops the log.
fn note_disk_space(context: &EmbeddedContext, done: Result<(), LogError>) {
    if context.status().is(RefusalReason::Stopped) {
        return;
    }
    let full = match done {
        Ok(()) => None,
        Err(error) if files::is_full(&error) => Some(error.to_string()),
        // The writer is gone, and so are its callers.
        Err(LogError::Closed) => return,
        Err(error) => {
            context.stop(&error);
            return;
        }
    };
    let mut status = context.status();
    if status.is(RefusalReason::Full) != full.is_some() {
        match &full {
            Some(why) => tracing::error!(%why, "no space left for the log; appends are refused"),
            None => tracing::info!("the log has space again"),
        }
    }
    status.set(RefusalReason::Full, full);
    drop(status);
    context.wake_writer.notify_one();
}

/// The maintenance thread: its work, and the channel to the writer, which journals removals.
struct MaintenanceThread {
    maintenance: Maintenance,
    removals: mpsc::Sender<Removal>,
}

impl MaintenanceThread {
    /// Does what is due, and on a disk without room what makes some. The result of the start comes first: until
    /// it is saved nothing more can be taken out, and only files go whose removal is in the journal already.
    async fn maintain(&mut self) -> Result<(), LogError> {
        let context = Arc::clone(&self.maintenance.context);
        if context.status().is(RefusalReason::RecoveryPending) {
            self.maintenance.remove_now();
            self.checkpoint()?;
        }
        let reasons = [RefusalReason::Full, RefusalReason::Unwritten];
        let is_refused = reasons.iter().any(|reason| context.status().is(*reason));
        if is_refused {
            self.make_room().await?;
        }
        match self.do_due_work().await {
            Err(error) if files::is_full(&error) && !is_refused => self.make_room().await?,
            done => done?,
        }
        self.maintenance.check_journal()
    }

    /// Makes room on a disk that has none. Removals come first: they need only what the journal has
    /// kept for them. Everything else needs room itself.
    async fn make_room(&mut self) -> Result<(), LogError> {
        let removed = self.apply_retention(true).await;
        self.maintenance.remove_now();
        self.checkpoint().and(removed)
    }

    /// Writes a checkpoint, and gives up for it what is only kept for later.
    fn checkpoint(&mut self) -> Result<(), LogError> {
        match self.maintenance.checkpoint() {
            Err(error) if files::is_full(&error) => {
                self.maintenance.give_up_files();
                self.maintenance.checkpoint()
            }
            done => done,
        }
    }

    /// Has everything removed that is past its retention.
    async fn apply_retention(&mut self, is_full: bool) -> Result<(), LogError> {
        while let Some(change) = self.maintenance.retention(is_full)? {
            if !self.remove(change).await? {
                break;
            }
        }
        Ok(())
    }

    /// Does what is due. Retention goes first: removed records need not be written anywhere else.
    async fn do_due_work(&mut self) -> Result<(), LogError> {
        let context = Arc::clone(&self.maintenance.context);
        let is_cache_full = || context.state().unflushed_bytes > context.config.cache_size;
        self.apply_retention(false).await?;
        if is_cache_full() {
            self.maintenance.fill(false)?;
            // Many partitions with little each take as much memory as one with much.
            if is_cache_full() {
                self.maintenance.fill(true)?;
            }
        }
        if self.maintenance.is_checkpoint_due() {
            self.maintenance.checkpoint()?;
        }
        self.maintenance.make_spare()?;
        // By now more of it is in segments.
        self.apply_retention(false).await?;
        if let Some(change) = self.maintenance.compaction()? {
            self.remove(change).await?;
        }
        let is_garbage = !context.state().garbage.is_empty();
        if is_garbage && context.status().pins == 0 {
            // Files go once a manifest does not speak of them any more.
            self.maintenance.checkpoint()?;
        }
        Ok(())
    }

    /// Has a removal journaled; false if it is not right any more.
    async fn remove(&mut self, change: LogChange) -> Result<bool, LogError> {
        let (answer, done) = oneshot::channel();
        match self.removals.send(Removal { change, answer }).await {
            Ok(()) => done.await.unwrap_or(Err(LogError::Closed)),
            Err(_) => Err(LogError::Closed),
        }
    }

    /// A disk that fails at a command stops the log as at any other time; a full one does not.
    async fn handle(&mut self, (task, answer): MaintenanceCommand) {
        let done = self.run(task).await;
        if let Err(error) = &done
            && matches!(error, LogError::Disk { .. })
            && !files::is_full(error)
        {
            self.maintenance.context.stop(error);
        }
        answer.send(done).ok();
    }

    async fn run(&mut self, task: MaintenanceTask) -> Result<(), LogError> {
        match task {
            MaintenanceTask::DeleteBefore(at, offset) => {
                self.maintenance.context.check_running()?;
                // A group that registers meanwhile makes the first try stale; then less goes.
                while let Some(change) = self.maintenance.delete_before(&at, offset.0)? {
                    if self.remove(change).await? {
                        break;
                    }
                }
                Ok(())
            }
            MaintenanceTask::Checkpoint => self.checkpoint(),
            MaintenanceTask::Tidy => {
                self.maintenance.context.check_running()?;
                self.maintain().await?;
                self.maintenance.checkpoint()
            }
        }
    }
}

/// Reads until nobody asks any more.
pub(super) async fn run_reader(
    mut reader: SegmentReader,
    mut calls: mpsc::Receiver<ThreadCall<SegmentReader>>,
) {
    while let Some(call) = calls.recv().await {
        call(&mut reader);
    }
}

/// Counts the log whenever somebody asks. That takes as long as reading everything, so it is nobody
/// else's thread.
pub(super) async fn run_auditor(
    context: Arc<EmbeddedContext>,
    mut audits: mpsc::Receiver<ReplySender<DirectoryAudit>>,
) {
    while let Some(answer) = audits.recv().await {
        let is_closed = context.status().is_closed;
        // Nobody waits for it any more, or nobody is to wait for it.
        let counted = match is_closed {
            true => Err(LogError::Closed),
            false if answer.is_closed() => continue,
            false => audit::live(&context),
        };
        if let Ok(audit) = &counted {
            let mut audited = audit.topics.iter();
            if let Some(found) = audited.find(|found| found.unaccounted() > 0) {
                let events = found.unaccounted();
                context.note_damage(&format!(
                    "an audit of `{}` misses {events} events",
                    found.topic
                ));
            }
            if let Some(finding) = audit.findings.first() {
                context.note_damage(&finding.message);
            }
        }
        answer.send(counted).ok();
    }
}
