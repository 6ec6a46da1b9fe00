//! The client's thread: polls always, hands over what comes, and carries out what is wanted.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message as _};
use tidegate_core::env::{Clock, Spawn};
use tidegate_core::{Offset, Topic};

use crate::error::LogError;
use crate::kafka::catalog::{BrokerQuery, watermarks};
use crate::kafka::client_context::KafkaClientContext;
use crate::kafka::convert::{self, RecordConverter, UnreadableRecord};
use crate::kafka::failure::{self, Meaning};
use crate::kafka::read::KafkaReaders;
use crate::kafka::{KafkaConfig, KafkaInner, telemetry};
use crate::port::{Join, Read};
use crate::record::{StoredRecord, TopicPartition};

use super::member::GroupMember;
use super::rebalance::Rebalancer;
use super::session_cell::SessionCell;
use super::session_state::{ConsumerCommands, SessionEnd};
use super::stall::{StallAction, StallDetector};
use super::transactional_producer::SharedProducer;

/// How long one look at the client lasts when nothing comes: also how long a seek or a release waits.
const POLL: Duration = Duration::from_millis(20);
/// Records that are handed over at once, at least and at most: as many as somebody takes at once,
/// because each handing over wakes whoever polls.
const RUN: (usize, usize) = (512, 4_096);
/// Bytes after which a run ends, because what is handed over may go beyond the limits of the state.
const RUN_BYTES: usize = 1024 * 1024;
/// How long sending the client somewhere may take.
const SEEK: Duration = Duration::from_secs(5);
/// How long a look at the range of a partition may take.
const RANGE_CHECK: Duration = Duration::from_secs(1);
/// How long others may keep the client of a session that is over.
const LEAVE: Duration = Duration::from_secs(5);

/// The client's thread.
pub(super) struct PollThread {
    member: Arc<GroupMember>,
    cell: Arc<SessionCell>,
    clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
    config: KafkaConfig,
    readers: Arc<KafkaReaders>,
    /// Asks beside the member's own client, which answers only between two fetches.
    asker: Arc<BaseConsumer<KafkaClientContext>>,
    moves: Rebalancer,
    converter: RecordConverter,
    run: usize,
    /// Whether all records are of one topic, so that nobody needs to look at their topics.
    has_one_topic: bool,
    /// When ranges are to be looked at, because the client fell out of one.
    range_check: Option<Duration>,
    /// The gauge of what is ready, shown once a second.
    group: String,
    shown: Duration,
    /// Errors that were told, each once.
    told: BTreeSet<i32>,
    watching: Option<mpsc::Receiver<(TopicPartition, Offset, bool)>>,
    stalls: StallDetector,
}

impl PollThread {
    pub(super) fn new(
        inner: &Arc<KafkaInner>,
        member: Arc<GroupMember>,
        cell: &Arc<SessionCell>,
        (join, writer): (Join, SharedProducer),
    ) -> Self {
        let run = join.max_poll_records.clamp(RUN.0, RUN.1);
        let has_one_topic = join.all_topics().count() == 1;
        let group = join.group.to_string();
        let of = (Arc::clone(&member), Arc::clone(cell));
        let moves = Rebalancer::new(inner, of, join, writer);
        Self {
            member,
            cell: Arc::clone(cell),
            clock: Arc::clone(&inner.clock),
            spawn: Arc::clone(&inner.spawn),
            config: inner.config.clone(),
            readers: Arc::clone(&inner.readers),
            asker: inner.asker(),
            moves,
            converter: RecordConverter::default(),
            run,
            has_one_topic,
            range_check: None,
            group,
            shown: Duration::ZERO,
            told: BTreeSet::new(),
            watching: None,
            stalls: StallDetector::default(),
        }
    }

    /// Runs until the session is over, then leaves the group.
    pub(super) fn run(mut self) {
        while !self.cell.has_ended() {
            self.moves.step();
            let now = self.clock.elapsed();
            self.show(now);
            let (orders, wakes) = self.cell.orders(now);
            let hold = orders.hold;
            self.carry_out(orders);
            if hold {
                self.cell.wait_since(wakes, POLL);
                continue;
            }
            self.take();
            self.check_ranges();
            self.watch();
        }
        self.leave();
    }

    /// Takes what the client has, without waiting for more than the first.
    fn take(&mut self) {
        let mut runs: Vec<(TopicPartition, Vec<StoredRecord>)> = Vec::new();
        let mut unreadable = None;
        let member = Arc::clone(&self.member);
        let (mut wait, mut bytes) = (POLL, 0);
        for _ in 0..self.run {
            match member.consumer.poll(wait) {
                Some(Ok(message)) => {
                    bytes += message.payload_len() + message.key_len();
                    let copied = put(&mut runs, &message, &mut self.converter, self.has_one_topic);
                    if let Err(error) = copied {
                        unreadable = runs.last().map(|(at, _)| (at.clone(), error.offset));
                        break;
                    }
                }
                Some(Err(error)) => self.failed(&error),
                None => break,
            }
            if bytes >= RUN_BYTES {
                break;
            }
            wait = Duration::ZERO;
        }
        if runs.is_empty() {
            return;
        }
        let now = self.clock.elapsed();
        let useful = self.cell.with(|state| {
            let mut useful = false;
            for (at, records) in runs {
                useful |= state.accept(&at, records, now);
            }
            if let Some((at, offset)) = unreadable {
                let why = LogError::Damaged {
                    at: at.clone(),
                    from: offset,
                    to: Offset(offset.0 + 1),
                };
                state.stop(&at, why);
                useful = true;
            }
            useful
        });
        if useful {
            self.cell.tell();
        }
    }

    /// Tells the client what it is to do. A command that does not succeed is ordered again.
    fn carry_out(&mut self, orders: ConsumerCommands) {
        let now = self.clock.elapsed();
        let consumer = &self.member.consumer;
        if !orders.pause.is_empty() && consumer.pause(&list(orders.pause.iter())).is_ok() {
            self.cell.with(|state| {
                for at in &orders.pause {
                    state.flowing(at, false, now);
                }
            });
            for at in &orders.pause {
                tracing::debug!("paused fetching {at}: its records are not polled");
            }
        }
        if !orders.resume.is_empty() {
            let partitions = list(orders.resume.iter().map(|(at, _)| at));
            // The client would go on behind the last record that it handed over. That is where we are
            // only if nothing was sought meanwhile, so it is told where to go on.
            if consumer.resume(&partitions).is_ok() {
                for (at, offset) in self.seek(&orders.resume) {
                    self.cell.with(|state| {
                        state.flowing(&at, true, now);
                        state.sought(&at, offset, now);
                    });
                }
            }
        }
        // The client would stop for good at a place that is not there, so that is found out before.
        let places: Vec<_> = orders
            .seek
            .into_iter()
            .filter(|(at, offset)| self.is_there(at, *offset))
            .collect();
        if !places.is_empty() {
            for (at, offset) in self.seek(&places) {
                self.cell.with(|state| state.sought(&at, offset, now));
            }
        }
    }

    /// Whether a place can be read; if not, its partition is stopped. When that is unknown, it is asked
    /// again.
    fn is_there(&self, at: &TopicPartition, offset: Offset) -> bool {
        let query = BrokerQuery::new(&self.clock, &self.config, RANGE_CHECK);
        match watermarks(&self.asker, &query, at) {
            Ok((start, end)) if offset < start || offset > end => {
                let why = LogError::OutOfRange {
                    at: at.clone(),
                    asked: offset,
                    start,
                    end,
                };
                self.cell.with(|state| state.stop(at, why));
                self.cell.tell();
                false
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    /// Sends the client to these places. Returns where it has gone.
    fn seek(&mut self, places: &[(TopicPartition, Offset)]) -> Vec<(TopicPartition, Offset)> {
        let list = convert::places(places.iter().map(|(at, offset)| (at, *offset)));
        let sought = list.and_then(|list| self.member.consumer.seek_partitions(list, SEEK));
        let sought = match sought {
            Ok(sought) => sought,
            Err(error) => {
                tracing::warn!("could not seek; retrying: {error}");
                return Vec::new();
            }
        };
        let has_gone = |(at, _): &&(TopicPartition, Offset)| {
            let element = sought.find_partition(at.topic.as_str(), at.partition.0);
            element.is_some_and(|element| element.error().is_ok())
        };
        let (mut gone, stuck): (Vec<_>, Vec<_>) = places.iter().partition(has_gone);
        if !stuck.is_empty()
            && let Ok(list) = convert::places(stuck.iter().map(|(at, offset)| (at, *offset)))
            && self.moves.take_anew(&list)
        {
            gone.extend(stuck);
        }
        gone.into_iter().cloned().collect()
    }

    fn failed(&mut self, error: &KafkaError) {
        if matches!(error, KafkaError::MessageConsumptionFatal(_)) {
            let reports = self.member.consumer.context().context.last();
            self.end(
                if failure::code_of(error) == Some(RDKafkaErrorCode::FencedInstanceId) {
                    SessionEnd::Replaced
                } else {
                    SessionEnd::Failed(reports.unwrap_or_else(|| error.to_string()))
                },
            );
            return;
        }
        let Some(code) = failure::code_of(error) else {
            return;
        };
        if code == RDKafkaErrorCode::AutoOffsetReset {
            self.range_check = Some(self.clock.elapsed());
        } else if failure::meaning(code) == Meaning::Refusal && self.told.insert(code as i32) {
            let reports = self.member.consumer.context().context.refusal();
            let why = LogError::Refused {
                doing: "reading as a member of a group",
                why: reports.map_or_else(|| error.to_string(), |(_, said)| said),
            };
            self.cell.with(|state| state.tell(why));
            self.cell.tell();
        }
    }

    /// Finds the partition whose position is not there any more: the client does not say which.
    fn check_ranges(&mut self) {
        let now = self.clock.elapsed();
        if self.range_check.is_none_or(|when| now < when) {
            return;
        }
        self.range_check = None;
        for (at, position) in self.cell.with(|state| state.positions()) {
            let is_there = self.is_there(&at, position);
            let is_told = self.cell.with(|state| state.is_stopped(&at));
            if !is_there && !is_told {
                self.range_check = Some(now + RANGE_CHECK);
            }
        }
    }

    fn show(&mut self, now: Duration) {
        if now.saturating_sub(self.shown) >= RANGE_CHECK {
            self.shown = now;
            let bytes = self.cell.with(|state| state.ready_bytes());
            telemetry::buffered(&self.group, bytes);
        }
    }

    /// Looks at quiet partitions from outside. A record that lies there and does not come means that
    /// the client is stuck: it seeks again, and ends after a few times.
    fn watch(&mut self) {
        let now = self.clock.elapsed();
        if let Some(watching) = &self.watching {
            match watching.try_recv() {
                Ok((at, from, is_stuck)) => self.looked_after(&at, from, is_stuck),
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => self.watching = None,
            }
            return;
        }
        let limit = self.config.stall_after;
        let quiet = self.cell.with(|state| state.quiet(now, limit));
        if quiet.is_empty() {
            return;
        }
        let (tell, watching) = mpsc::channel();
        let readers = Arc::clone(&self.readers);
        let task = async move {
            for (at, from) in quiet {
                let one = Read {
                    max_records: 1,
                    ..Read::new(at.clone(), from)
                };
                // Whatever keeps us from looking keeps the client from moving too.
                let is_stuck = readers
                    .read(&one)
                    .is_ok_and(|batch| !batch.records.is_empty());
                if tell.send((at, from, is_stuck)).is_err() {
                    return;
                }
            }
        };
        drop(self.spawn.spawn_thread("kafka-watch", Box::pin(task)));
        self.watching = Some(watching);
    }

    fn looked_after(&mut self, at: &TopicPartition, from: Offset, is_stuck: bool) {
        let now = self.clock.elapsed();
        let stands = self
            .cell
            .with(|state| state.positions())
            .contains(&(at.clone(), from));
        match self.stalls.decide(at, from, is_stuck && stands) {
            StallAction::Nothing => self.cell.with(|state| state.touch(at, now)),
            StallAction::SeekAgain => {
                telemetry::stalled();
                tracing::warn!("consumer stalled at {at} offset {from}; seeking again");
                self.cell.with(|state| state.seek_again(at, from));
            }
            StallAction::Stuck => {
                let why = format!("the consumer is stalled at {at} offset {from} (`stall-after`)");
                self.end(SessionEnd::Failed(why));
            }
        }
    }

    fn end(&self, end: SessionEnd) {
        tracing::warn!("a consumer session has ended: {end:?}");
        self.cell.with(|state| state.finish(end));
        self.cell.wake_threads();
    }

    /// Leaves the group. Waiting callers are notified by the member's own end.
    fn leave(mut self) {
        let until = self.clock.elapsed() + LEAVE;
        self.moves.give_up();
        self.member.consumer.context().close();
        // Requests that came in between; from here on the callback answers by itself.
        self.moves.give_up();
        let Self { member, moves, .. } = self;
        drop(moves);
        // The last one that holds the client closes it. That should be this thread, which has nothing
        // else to do; whoever is still busy with a commit does it otherwise.
        while Arc::strong_count(&member) > 1 && self.clock.elapsed() < until {
            self.cell.rest(Duration::from_millis(10));
        }
        drop(member);
    }
}

/// Copies a message out, behind those of its partition.
fn put(
    runs: &mut Vec<(TopicPartition, Vec<StoredRecord>)>,
    message: &BorrowedMessage<'_>,
    converter: &mut RecordConverter,
    has_one_topic: bool,
) -> Result<(), UnreadableRecord> {
    let is_same = |(at, _): &(TopicPartition, Vec<StoredRecord>)| {
        at.partition.0 == message.partition()
            && (has_one_topic || at.topic.as_str() == message.topic())
    };
    if !runs.last().is_some_and(is_same) {
        // A topic that we subscribed to has a name that we can hold.
        let Ok(topic) = Topic::new(message.topic()) else {
            return Ok(());
        };
        runs.push((TopicPartition::new(topic, message.partition()), Vec::new()));
    }
    let stored = converter.out(message)?;
    if let Some((_, records)) = runs.last_mut() {
        records.push(stored);
    }
    Ok(())
}

fn list<'a>(partitions: impl Iterator<Item = &'a TopicPartition>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for at in partitions {
        list.add_partition(at.topic.as_str(), at.partition.0);
    }
    list
}
