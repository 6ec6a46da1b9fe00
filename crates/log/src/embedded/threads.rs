//! The threads of a log: what each waits for.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{GroupName, Offset, Topic};
use tokio::sync::{mpsc, oneshot};

use super::audit::{self, Audited};
use super::change::Change;
use super::files;
use super::hub::{Hub, Refusing};
use super::keeper::Keeper;
use super::open::Locks;
use super::pending::Pending;
use super::reader::Reader;
use super::telemetry;
use super::writer::Writer;
use crate::error::LogError;
use crate::port::{Batch, Read};
use crate::record::TopicPartition;
use crate::topic::TopicConfig;

/// Bytes of writes that are gathered for one sync.
const BATCH: usize = 4 * 1024 * 1024;
/// Journal files that may wait for a checkpoint; then writes wait as well.
const MAX_JOURNALS: u64 = 4;
/// Fresh bytes may grow to so many times the cache before writes wait for the keeper.
const MAX_FRESH: u64 = 4;
/// How often retention and compaction look around, and how long a disk without room is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// What somebody is told in the end.
pub(super) type Answer<T> = oneshot::Sender<Result<T, LogError>>;

/// What the writer is asked to do, in its order.
pub(super) enum Order {
    Write {
        pending: Pending,
        since: Duration,
        answer: Answer<Vec<i64>>,
    },
    CreateTopic {
        topic: Topic,
        config: TopicConfig,
        answer: Answer<()>,
    },
    Register {
        group: GroupName,
        topics: Vec<u32>,
        answer: Answer<()>,
    },
    Skip {
        group: GroupName,
        partitions: Vec<(u32, u32)>,
        answer: Answer<()>,
    },
    Forget {
        group: GroupName,
        answer: Answer<()>,
    },
}

/// A removal that the keeper wants journaled; whether it was.
pub(super) struct Removal {
    change: Change,
    answer: Answer<bool>,
}

/// What the keeper is asked to do.
pub(super) enum Chore {
    DeleteBefore {
        at: TopicPartition,
        offset: Offset,
        answer: Answer<Offset>,
    },
    Checkpoint {
        answer: Answer<()>,
    },
    /// Do all that is due, and a checkpoint.
    Tidy {
        answer: Answer<()>,
    },
}

/// What a reader is asked to do.
pub(super) enum Question {
    Read {
        read: Read,
        answer: Answer<Batch>,
    },
    OffsetAt {
        at: TopicPartition,
        timestamp_ms: u64,
        answer: Answer<Offset>,
    },
}

/// Writes until nobody is left who could ask, then until the keeper has ended.
pub(super) async fn run_writer(
    mut writer: Writer,
    mut orders: mpsc::UnboundedReceiver<Order>,
    mut removals: mpsc::Receiver<Removal>,
    drained: oneshot::Sender<()>,
) {
    let mut drained = Some(drained);
    let hub = Arc::clone(&writer.hub);
    loop {
        let may_write = drained.is_some() && may_write(&hub, &writer);
        tokio::select! {
            biased;
            removal = removals.recv() => match removal {
                Some(Removal { change, answer }) => {
                    answer.send(writer.remove(change)).ok();
                }
                None => return,
            },
            order = orders.recv(), if may_write => match order {
                Some(order) => {
                    if !hub.config.group_commit_delay.is_zero() {
                        hub.clock.sleep(hub.config.group_commit_delay).await;
                    }
                    obey(&mut writer, order, &mut orders);
                }
                None => {
                    // Nobody listens when the keeper has ended by a panic.
                    drained.take().map(|drained| drained.send(()));
                }
            },
            () = hub.writer_bell.notified(), if drained.is_some() && !may_write => {}
        }
    }
}

/// Whether the keeper is not too far behind. Without room on the disk it stays behind, and writes are
/// let through to be refused.
fn may_write(hub: &Hub, writer: &Writer) -> bool {
    let fresh = hub.state().fresh_bytes;
    let status = hub.status();
    let behind = writer.place().file.saturating_sub(status.checkpoint.file);
    let is_behind =
        behind >= MAX_JOURNALS || fresh > hub.config.cache_size.saturating_mul(MAX_FRESH);
    let refusing = [Refusing::Full, Refusing::Owed, Refusing::Stopped];
    !is_behind || refusing.iter().any(|reason| status.is(*reason))
}

/// Does one order, and the writes that wait behind it along with it.
fn obey(writer: &mut Writer, first: Order, orders: &mut mpsc::UnboundedReceiver<Order>) {
    let mut next = Some(first);
    while let Some(order) = next.take() {
        let mut batch = Vec::new();
        let mut answers = Vec::new();
        let mut bytes = 0;
        let mut order = Some(order);
        while let Some(Order::Write {
            pending,
            since,
            answer,
        }) = order
        {
            bytes += pending.bytes.len();
            batch.push(pending);
            answers.push((since, answer));
            order = None;
            if bytes < BATCH {
                order = orders.try_recv().ok();
            }
        }
        if !batch.is_empty() {
            write(writer, batch, answers, bytes);
        }
        match order {
            Some(Order::Write { .. }) | None => {}
            Some(Order::CreateTopic {
                topic,
                config,
                answer,
            }) => {
                answer.send(writer.create_topic(&topic, config)).ok();
            }
            Some(Order::Register {
                group,
                topics,
                answer,
            }) => {
                answer.send(register(writer, group, topics)).ok();
            }
            Some(Order::Skip {
                group,
                partitions,
                answer,
            }) => {
                answer.send(writer.skip(&group, &partitions)).ok();
            }
            Some(Order::Forget { group, answer }) => {
                let is_there = writer.hub.state().groups.contains_key(&group);
                let done = match is_there {
                    true => writer.change(&[Change::Forget { group }]),
                    false => Ok(()),
                };
                answer.send(done).ok();
            }
        }
    }
}

fn write(
    writer: &mut Writer,
    batch: Vec<Pending>,
    answers: Vec<(Duration, Answer<Vec<i64>>)>,
    bytes: usize,
) {
    let results = writer.commit(batch);
    let hub = &writer.hub;
    {
        let mut status = hub.status();
        status.queued = status.queued.saturating_sub(bytes as u64);
        telemetry::queued(status.queued);
    }
    let now = hub.now();
    for ((since, answer), result) in answers.into_iter().zip(results) {
        telemetry::appended(now.saturating_sub(since));
        // Whoever does not wait any more finds out by reading.
        answer.send(result).ok();
    }
}

fn register(writer: &mut Writer, group: GroupName, topics: Vec<u32>) -> Result<(), LogError> {
    let is_there = {
        let state = writer.hub.state();
        let known = state.groups.get(&group);
        known.is_some_and(|known| topics.iter().all(|topic| known.contains_key(topic)))
    };
    match is_there {
        true => Ok(()),
        false => writer.change(&[Change::Register { group, topics }]),
    }
}

/// Keeps the directory until the writer has nothing left to do, then leaves a last checkpoint.
pub(super) async fn run_keeper(
    mut keeper: Keeper,
    mut chores: mpsc::Receiver<Chore>,
    removals: mpsc::Sender<Removal>,
    mut drained: oneshot::Receiver<()>,
    lock: Locks,
) {
    let hub = Arc::clone(&keeper.hub);
    let mut is_asked = true;
    loop {
        if !hub.status().is(Refusing::Stopped) {
            let done = look_around(&mut keeper, &removals).await;
            settle(&hub, done);
        }
        tokio::select! {
            biased;
            chore = chores.recv(), if is_asked => match chore {
                Some(chore) => do_chore(&mut keeper, chore, &removals).await,
                None => is_asked = false,
            },
            _ = &mut drained => break,
            () = hub.keeper_bell.notified() => {}
            () = hub.clock.sleep(PAUSE) => {}
        }
    }
    if !hub.status().is(Refusing::Stopped) {
        let done = keeper.checkpoint();
        keeper.write_open_indexes();
        settle(&hub, done);
    }
    drop(lock);
}

/// Takes note of whether the disk had room; anything worse stops the log.
fn settle(hub: &Hub, done: Result<(), LogError>) {
    if hub.status().is(Refusing::Stopped) {
        return;
    }
    let full = match done {
        Ok(()) => None,
        Err(error) if files::is_full(&error) => Some(error.to_string()),
        // The writer is gone, and so is whoever could be told.
        Err(LogError::Closed) => return,
        Err(error) => {
            hub.stop(&error);
            return;
        }
    };
    let mut status = hub.status();
    if status.is(Refusing::Full) != full.is_some() {
        match &full {
            Some(why) => tracing::error!(%why, "the log has no room; appends are refused"),
            None => tracing::info!("the log has room again"),
        }
    }
    status.set(Refusing::Full, full);
    drop(status);
    hub.writer_bell.notify_one();
}

/// Does what is due, and on a disk without room what makes some. What the start found comes first: until it
/// is written down nothing more can be taken out, and only files go whose removal is in the journal already.
async fn look_around(
    keeper: &mut Keeper,
    removals: &mpsc::Sender<Removal>,
) -> Result<(), LogError> {
    let is_owed = keeper.hub.status().is(Refusing::Owed);
    if is_owed {
        keeper.remove_now();
        checkpoint(keeper)?;
    }
    let is_refused = {
        let status = keeper.hub.status();
        status.is(Refusing::Full) || status.is(Refusing::Unwritten)
    };
    if is_refused {
        make_room(keeper, removals).await?;
    }
    match tend(keeper, removals).await {
        Err(error) if files::is_full(&error) && !is_refused => {
            make_room(keeper, removals).await?;
        }
        done => done?,
    }
    keeper.check_journal()
}

/// Makes room on a disk that has none. Removals come first: they need only what the journal has
/// kept for them. Everything else needs room itself.
async fn make_room(keeper: &mut Keeper, removals: &mpsc::Sender<Removal>) -> Result<(), LogError> {
    let removed = apply_retention(keeper, removals, true).await;
    keeper.remove_now();
    checkpoint(keeper).and(removed)
}

/// Writes a checkpoint, and gives up for it what is only kept for later.
fn checkpoint(keeper: &mut Keeper) -> Result<(), LogError> {
    match keeper.checkpoint() {
        Err(error) if files::is_full(&error) => {
            keeper.give_up_files();
            keeper.checkpoint()
        }
        done => done,
    }
}

/// Has everything removed that is past its retention.
async fn apply_retention(
    keeper: &mut Keeper,
    removals: &mpsc::Sender<Removal>,
    is_full: bool,
) -> Result<(), LogError> {
    while let Some(change) = keeper.retention(is_full)? {
        if !remove(removals, change).await? {
            break;
        }
    }
    Ok(())
}

/// Does what is due. What may go goes first: it needs not be written anywhere else.
async fn tend(keeper: &mut Keeper, removals: &mpsc::Sender<Removal>) -> Result<(), LogError> {
    apply_retention(keeper, removals, false).await?;
    let fresh = keeper.hub.state().fresh_bytes;
    if fresh > keeper.hub.config.cache_size {
        keeper.fill(false)?;
        // Many partitions with little each take as much memory as one with much.
        let left = keeper.hub.state().fresh_bytes;
        if left > keeper.hub.config.cache_size {
            keeper.fill(true)?;
        }
    }
    if keeper.is_checkpoint_due() {
        keeper.checkpoint()?;
    }
    keeper.make_spare()?;
    // By now more of it is in segments.
    apply_retention(keeper, removals, false).await?;
    if let Some(change) = keeper.compaction()? {
        remove(removals, change).await?;
    }
    let is_garbage = !keeper.hub.state().garbage.is_empty();
    if is_garbage && keeper.hub.status().pins == 0 {
        // Files go once a manifest does not speak of them any more.
        keeper.checkpoint()?;
    }
    Ok(())
}

/// Has a removal journaled; false if it is not right any more.
async fn remove(removals: &mpsc::Sender<Removal>, change: Change) -> Result<bool, LogError> {
    let (answer, done) = oneshot::channel();
    let sent = removals.send(Removal { change, answer }).await;
    match sent {
        Ok(()) => done.await.unwrap_or(Err(LogError::Closed)),
        Err(_) => Err(LogError::Closed),
    }
}

async fn do_chore(keeper: &mut Keeper, chore: Chore, removals: &mpsc::Sender<Removal>) {
    match chore {
        Chore::DeleteBefore { at, offset, answer } => {
            let done = delete_before(keeper, &at, offset, removals).await;
            stop_if_broken(&keeper.hub, done.as_ref().err());
            answer.send(done).ok();
        }
        Chore::Checkpoint { answer } => {
            let done = checkpoint(keeper);
            stop_if_broken(&keeper.hub, done.as_ref().err());
            answer.send(done).ok();
        }
        Chore::Tidy { answer } => {
            let done = match keeper.hub.check_running() {
                Ok(()) => look_around(keeper, removals).await,
                Err(stopped) => Err(stopped),
            };
            let done = done.and_then(|()| keeper.checkpoint());
            stop_if_broken(&keeper.hub, done.as_ref().err());
            answer.send(done).ok();
        }
    }
}

/// A disk that fails at a chore stops the log as at any other time; a full one does not.
fn stop_if_broken(hub: &Hub, error: Option<&LogError>) {
    if let Some(error) = error
        && matches!(error, LogError::Disk { .. })
        && !files::is_full(error)
    {
        hub.stop(error);
    }
}

async fn delete_before(
    keeper: &mut Keeper,
    at: &TopicPartition,
    offset: Offset,
    removals: &mpsc::Sender<Removal>,
) -> Result<Offset, LogError> {
    keeper.hub.check_running()?;
    // A group that registers meanwhile makes the first try stale; then less goes.
    while let Some(change) = keeper.delete_before(at, offset.0)? {
        if remove(removals, change).await? {
            break;
        }
    }
    let state = keeper.hub.state();
    let found = state.find(at).and_then(|(t, p)| state.partition(t, p));
    match found {
        Some(partition) => Ok(Offset(partition.start)),
        None => Err(super::reader::unknown(&state, at)),
    }
}

/// Reads until nobody asks any more.
pub(super) async fn run_reader(mut reader: Reader, mut questions: mpsc::Receiver<Question>) {
    while let Some(question) = questions.recv().await {
        match question {
            Question::Read { read, answer } => {
                answer.send(reader.read(&read)).ok();
            }
            Question::OffsetAt {
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
pub(super) async fn run_auditor(hub: Arc<Hub>, mut audits: mpsc::Receiver<Answer<Vec<Audited>>>) {
    while let Some(answer) = audits.recv().await {
        let is_closed = hub.status().is_closed;
        // Nobody waits for it any more, or nobody is to wait for it.
        let counted = match is_closed {
            true => Err(LogError::Closed),
            false if answer.is_closed() => continue,
            false => audit::live(&hub),
        };
        answer.send(counted).ok();
    }
}
