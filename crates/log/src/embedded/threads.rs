//! The threads of a log: what each waits for.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{GroupName, Offset, Topic};
use tokio::sync::{mpsc, oneshot};

use super::audit::{self, TopicAudit};
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
use crate::port::{Batch, Read};
use crate::record::TopicPartition;
use crate::topic::TopicConfig;

/// Bytes of writes that are gathered for one sync.
const BATCH: usize = 4 * 1024 * 1024;
/// Journal files that may wait for a checkpoint; then writes wait as well.
const MAX_JOURNALS: u64 = 4;
/// Unflushed bytes may grow to so many times the cache before writes wait for the maintenance thread.
const MAX_UNFLUSHED: u64 = 4;
/// How often retention and compaction look around, and how long a disk without room is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// Where the result of a command goes.
pub(super) type ReplySender<T> = oneshot::Sender<Result<T, LogError>>;

/// A command to the writer; they are done in their order.
pub(super) enum WriterCommand {
    Write {
        pending: PendingWrite,
        since: Duration,
        answer: ReplySender<Vec<i64>>,
    },
    CreateTopic {
        topic: Topic,
        config: TopicConfig,
        answer: ReplySender<()>,
    },
    Register {
        group: GroupName,
        topics: Vec<u32>,
        answer: ReplySender<()>,
    },
    Skip {
        group: GroupName,
        partitions: Vec<(u32, u32)>,
        answer: ReplySender<()>,
    },
    Forget {
        group: GroupName,
        answer: ReplySender<()>,
    },
}

/// A removal that the maintenance thread wants journaled; whether it was.
pub(super) struct Removal {
    change: LogChange,
    answer: ReplySender<bool>,
}

/// A command to the maintenance thread.
pub(super) enum MaintenanceCommand {
    DeleteBefore {
        at: TopicPartition,
        offset: Offset,
        answer: ReplySender<Offset>,
    },
    Checkpoint {
        answer: ReplySender<()>,
    },
    /// Do all that is due, and a checkpoint.
    Tidy {
        answer: ReplySender<()>,
    },
}

/// A request to a reader.
pub(super) enum ReadRequest {
    Read {
        read: Read,
        answer: ReplySender<Batch>,
    },
    OffsetAt {
        at: TopicPartition,
        timestamp_ms: u64,
        answer: ReplySender<Offset>,
    },
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
                    // Nobody listens when the maintenance thread has ended by a panic.
                    drained.take().map(|drained| drained.send(()));
                }
            },
            () = context.wake_writer.notified(), if drained.is_some() && !may_write => {}
        }
    }
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
    let mut next = Some(first);
    while let Some(command) = next.take() {
        let mut batch = Vec::new();
        let mut answers = Vec::new();
        let mut bytes = 0;
        let mut command = Some(command);
        while let Some(WriterCommand::Write {
            pending,
            since,
            answer,
        }) = command
        {
            bytes += pending.bytes.len();
            batch.push(pending);
            answers.push((since, answer));
            command = None;
            if bytes < BATCH {
                command = writer_commands.try_recv().ok();
            }
        }
        if !batch.is_empty() {
            write(writer, batch, answers, bytes);
        }
        match command {
            Some(WriterCommand::Write { .. }) | None => {}
            Some(WriterCommand::CreateTopic {
                topic,
                config,
                answer,
            }) => {
                answer.send(writer.create_topic(&topic, config)).ok();
            }
            Some(WriterCommand::Register {
                group,
                topics,
                answer,
            }) => {
                answer.send(register(writer, group, topics)).ok();
            }
            Some(WriterCommand::Skip {
                group,
                partitions,
                answer,
            }) => {
                answer.send(writer.skip(&group, &partitions)).ok();
            }
            Some(WriterCommand::Forget { group, answer }) => {
                let is_there = writer.context.state().groups.contains_key(&group);
                let done = match is_there {
                    true => writer.change(&[LogChange::Forget { group }]),
                    false => Ok(()),
                };
                answer.send(done).ok();
            }
        }
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

fn register(
    writer: &mut JournalWriter,
    group: GroupName,
    topics: Vec<u32>,
) -> Result<(), LogError> {
    let is_there = {
        let state = writer.context.state();
        let known = state.groups.get(&group);
        known.is_some_and(|known| topics.iter().all(|topic| known.contains_key(topic)))
    };
    match is_there {
        true => Ok(()),
        false => writer.change(&[LogChange::Register { group, topics }]),
    }
}

/// Keeps the directory until the writer has nothing left to do, then leaves a last checkpoint.
pub(super) async fn run_maintenance(
    mut maintenance: Maintenance,
    mut maintenance_commands: mpsc::Receiver<MaintenanceCommand>,
    removals: mpsc::Sender<Removal>,
    mut drained: oneshot::Receiver<()>,
    lock: Locks,
) {
    let context = Arc::clone(&maintenance.context);
    let mut is_asked = true;
    loop {
        if !context.status().is(RefusalReason::Stopped) {
            let done = maintain(&mut maintenance, &removals).await;
            note_disk_space(&context, done);
        }
        tokio::select! {
            biased;
            command = maintenance_commands.recv(), if is_asked => match command {
                Some(command) => handle_maintenance(&mut maintenance, command, &removals).await,
                None => is_asked = false,
            },
            _ = &mut drained => break,
            () = context.wake_maintenance.notified() => {}
            () = context.clock.sleep(PAUSE) => {}
        }
    }
    if !context.status().is(RefusalReason::Stopped) {
        let done = maintenance.checkpoint();
        maintenance.write_open_indexes();
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

/// Does what is due, and on a disk without room what makes some. What the start found comes first: until it
/// is written down nothing more can be taken out, and only files go whose removal is in the journal already.
async fn maintain(
    maintenance: &mut Maintenance,
    removals: &mpsc::Sender<Removal>,
) -> Result<(), LogError> {
    let is_recovery_pending = maintenance
        .context
        .status()
        .is(RefusalReason::RecoveryPending);
    if is_recovery_pending {
        maintenance.remove_now();
        checkpoint(maintenance)?;
    }
    let is_refused = {
        let status = maintenance.context.status();
        status.is(RefusalReason::Full) || status.is(RefusalReason::Unwritten)
    };
    if is_refused {
        make_room(maintenance, removals).await?;
    }
    match do_due_work(maintenance, removals).await {
        Err(error) if files::is_full(&error) && !is_refused => {
            make_room(maintenance, removals).await?;
        }
        done => done?,
    }
    maintenance.check_journal()
}

/// Makes room on a disk that has none. Removals come first: they need only what the journal has
/// kept for them. Everything else needs room itself.
async fn make_room(
    maintenance: &mut Maintenance,
    removals: &mpsc::Sender<Removal>,
) -> Result<(), LogError> {
    let removed = apply_retention(maintenance, removals, true).await;
    maintenance.remove_now();
    checkpoint(maintenance).and(removed)
}

/// Writes a checkpoint, and gives up for it what is only kept for later.
fn checkpoint(maintenance: &mut Maintenance) -> Result<(), LogError> {
    match maintenance.checkpoint() {
        Err(error) if files::is_full(&error) => {
            maintenance.give_up_files();
            maintenance.checkpoint()
        }
        done => done,
    }
}

/// Has everything removed that is past its retention.
async fn apply_retention(
    maintenance: &mut Maintenance,
    removals: &mpsc::Sender<Removal>,
    is_full: bool,
) -> Result<(), LogError> {
    while let Some(change) = maintenance.retention(is_full)? {
        if !remove(removals, change).await? {
            break;
        }
    }
    Ok(())
}

/// Does what is due. What may go goes first: it needs not be written anywhere else.
async fn do_due_work(
    maintenance: &mut Maintenance,
    removals: &mpsc::Sender<Removal>,
) -> Result<(), LogError> {
    apply_retention(maintenance, removals, false).await?;
    let unflushed = maintenance.context.state().unflushed_bytes;
    if unflushed > maintenance.context.config.cache_size {
        maintenance.fill(false)?;
        // Many partitions with little each take as much memory as one with much.
        let left = maintenance.context.state().unflushed_bytes;
        if left > maintenance.context.config.cache_size {
            maintenance.fill(true)?;
        }
    }
    if maintenance.is_checkpoint_due() {
        maintenance.checkpoint()?;
    }
    maintenance.make_spare()?;
    // By now more of it is in segments.
    apply_retention(maintenance, removals, false).await?;
    if let Some(change) = maintenance.compaction()? {
        remove(removals, change).await?;
    }
    let is_garbage = !maintenance.context.state().garbage.is_empty();
    if is_garbage && maintenance.context.status().pins == 0 {
        // Files go once a manifest does not speak of them any more.
        maintenance.checkpoint()?;
    }
    Ok(())
}

/// Has a removal journaled; false if it is not right any more.
async fn remove(removals: &mpsc::Sender<Removal>, change: LogChange) -> Result<bool, LogError> {
    let (answer, done) = oneshot::channel();
    let sent = removals.send(Removal { change, answer }).await;
    match sent {
        Ok(()) => done.await.unwrap_or(Err(LogError::Closed)),
        Err(_) => Err(LogError::Closed),
    }
}

async fn handle_maintenance(
    maintenance: &mut Maintenance,
    command: MaintenanceCommand,
    removals: &mpsc::Sender<Removal>,
) {
    match command {
        MaintenanceCommand::DeleteBefore { at, offset, answer } => {
            let done = delete_before(maintenance, &at, offset, removals).await;
            stop_if_broken(&maintenance.context, done.as_ref().err());
            answer.send(done).ok();
        }
        MaintenanceCommand::Checkpoint { answer } => {
            let done = checkpoint(maintenance);
            stop_if_broken(&maintenance.context, done.as_ref().err());
            answer.send(done).ok();
        }
        MaintenanceCommand::Tidy { answer } => {
            let done = match maintenance.context.check_running() {
                Ok(()) => maintain(maintenance, removals).await,
                Err(stopped) => Err(stopped),
            };
            let done = done.and_then(|()| maintenance.checkpoint());
            stop_if_broken(&maintenance.context, done.as_ref().err());
            answer.send(done).ok();
        }
    }
}

/// A disk that fails at a command stops the log as at any other time; a full one does not.
fn stop_if_broken(context: &EmbeddedContext, error: Option<&LogError>) {
    if let Some(error) = error
        && matches!(error, LogError::Disk { .. })
        && !files::is_full(error)
    {
        context.stop(error);
    }
}

async fn delete_before(
    maintenance: &mut Maintenance,
    at: &TopicPartition,
    offset: Offset,
    removals: &mpsc::Sender<Removal>,
) -> Result<Offset, LogError> {
    maintenance.context.check_running()?;
    // A group that registers meanwhile makes the first try stale; then less goes.
    while let Some(change) = maintenance.delete_before(at, offset.0)? {
        if remove(removals, change).await? {
            break;
        }
    }
    let state = maintenance.context.state();
    let found = state.find(at).and_then(|(t, p)| state.partition(t, p));
    match found {
        Some(partition) => Ok(Offset(partition.start)),
        None => Err(super::reader::unknown(&state, at)),
    }
}

/// Reads until nobody asks any more.
pub(super) async fn run_reader(
    mut reader: SegmentReader,
    mut requests: mpsc::Receiver<ReadRequest>,
) {
    while let Some(request) = requests.recv().await {
        match request {
            ReadRequest::Read { read, answer } => {
                answer.send(reader.read(&read)).ok();
            }
            ReadRequest::OffsetAt {
                at,
                timestamp_ms,
                answer,
            } => {
                answer.send(reader.offset_at(&at, timestamp_ms)).ok();
            }
        }
    }
}

/// Counts the log whenever somebody asks. That takes as long as reading everything, so it is nobody
/// else's thread.
pub(super) async fn run_auditor(
    context: Arc<EmbeddedContext>,
    mut audits: mpsc::Receiver<ReplySender<Vec<TopicAudit>>>,
) {
    while let Some(answer) = audits.recv().await {
        let is_closed = context.status().is_closed;
        // Nobody waits for it any more, or nobody is to wait for it.
        let counted = match is_closed {
            true => Err(LogError::Closed),
            false if answer.is_closed() => continue,
            false => audit::live(&context),
        };
        answer.send(counted).ok();
    }
}
