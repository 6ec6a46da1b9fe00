//! Rebalances, carried out one after the other without holding up the client's thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tidegate_core::Topic;
use tidegate_core::env::{Clock, Spawn};

use crate::error::LogError;
use crate::kafka::catalog::BrokerQuery;
use crate::kafka::client_context::KafkaClientContext;
use crate::kafka::{KafkaConfig, KafkaInner, convert};
use crate::port::{Fence, Join};
use crate::record::TopicPartition;

use super::member::{GroupMember, RebalanceRequest};
use super::session_cell::SessionCell;
use super::session_state::{PartitionStart, SessionEnd};
use super::start_offsets::{self, LookupGuard, StartOffset};
use super::transactional_producer::SharedProducer;

/// How long one look at where to begin may take before what has happened since is considered.
const LOOK: Duration = Duration::from_secs(5);

/// Longer than what the group wants stays unheard.
const ABRUPT: Duration = Duration::from_secs(2);

/// Carries out what the group wants.
pub(super) struct Rebalancer {
    member: Arc<GroupMember>,
    cell: Arc<SessionCell>,
    clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
    config: KafkaConfig,
    join: Join,
    fences: Arc<AtomicU64>,
    asker: Arc<BaseConsumer<KafkaClientContext>>,
    writer: SharedProducer,
    /// Whether the producer was announced: then nobody waits for it while it writes.
    is_announced: Arc<AtomicBool>,
    now: Option<RebalanceStep>,
    /// Until then what the group wants back is taken away at once.
    abrupt_until: Duration,
}

/// A look at where to begin that is on its way.
struct StartLookup {
    wanted: TopicPartitionList,
    looking: mpsc::Receiver<Looked>,
    wanting: Arc<LookupGuard>,
}

type Looked = Result<Vec<StartOffset>, LogError>;

enum RebalanceStep {
    /// Where to begin is being looked up.
    Assigning(StartLookup),
    /// Partitions are to be let go by whoever works on them.
    Revoking {
        wanted: TopicPartitionList,
        until: Duration,
    },
    /// Nobody works on them; commits that are on their way are waited for.
    LettingGo {
        wanted: TopicPartitionList,
        until: Duration,
    },
}

impl Rebalancer {
    pub(super) fn new(
        inner: &Arc<KafkaInner>,
        (member, cell): (Arc<GroupMember>, Arc<SessionCell>),
        join: Join,
        writer: SharedProducer,
    ) -> Self {
        Self {
            member,
            cell,
            clock: Arc::clone(&inner.clock),
            spawn: Arc::clone(&inner.spawn),
            config: inner.config.clone(),
            join,
            fences: Arc::clone(&inner.fences),
            asker: inner.asker(),
            writer,
            is_announced: Arc::default(),
            now: None,
            abrupt_until: Duration::ZERO,
        }
    }

    /// Takes partitions anew, at these places. A client that fell out of a partition's range cannot be
    /// sent back into it otherwise. Returns whether it was done.
    pub(super) fn take_anew(&mut self, places: &TopicPartitionList) -> bool {
        let consumer = &self.member.consumer;
        if self.now.is_some() || consumer.context().has_requests() {
            return false;
        }
        // The group may want partitions back at this very moment. The client would take this as the
        // answer and go on without waiting for their work. Whatever it wants next is taken at once.
        self.abrupt_until = self.clock.elapsed() + ABRUPT;
        let taken = consumer
            .incremental_unassign(places)
            .and_then(|()| consumer.incremental_assign(places));
        if let Err(error) = &taken {
            tracing::warn!("could not assign partitions again: {error}");
        }
        taken.is_ok()
    }

    /// One step. Never blocks.
    pub(super) fn step(&mut self) {
        self.now = match self.now.take() {
            None => match self.member.consumer.context().next_request() {
                None => None,
                Some(RebalanceRequest::Assign(wanted)) => Some(self.look_up(wanted)),
                Some(RebalanceRequest::Revoke(wanted)) => Some(self.revoke(wanted)),
            },
            Some(RebalanceStep::Assigning(lookup)) => self.assign(lookup),
            Some(RebalanceStep::Revoking { wanted, until }) => {
                Some(self.await_release(wanted, until))
            }
            Some(RebalanceStep::LettingGo { wanted, until }) => self.let_go(wanted, until),
        };
    }

    /// Answers the client, which does not close before it has its answer: what is being done, and what
    /// nobody has begun yet.
    pub(super) fn give_up(&mut self) {
        while let Some(doing) = self.now.take().or_else(|| self.unbegun()) {
            let answer = match doing {
                RebalanceStep::Assigning(lookup) => {
                    // A commit on its way ends with the membership, under which it is made.
                    lookup.wanting.give_up();
                    self.assign_at_end(lookup.wanted)
                }
                RebalanceStep::Revoking { wanted, .. }
                | RebalanceStep::LettingGo { wanted, .. } => {
                    self.member.consumer.incremental_unassign(&wanted)
                }
            };
            if let Err(error) = answer {
                tracing::debug!("leaving a group failed: {error}");
            }
        }
    }

    /// The next request of the group, as a step that only has to be answered.
    fn unbegun(&self) -> Option<RebalanceStep> {
        let next = self.member.consumer.context().next_request()?;
        Some(match next {
            RebalanceRequest::Assign(wanted) => RebalanceStep::Assigning(StartLookup {
                wanted,
                looking: mpsc::channel().1,
                wanting: Arc::new(LookupGuard::new()),
            }),
            RebalanceRequest::Revoke(wanted) => RebalanceStep::LettingGo {
                wanted,
                until: Duration::ZERO,
            },
        })
    }

    fn look_up(&self, wanted: TopicPartitionList) -> RebalanceStep {
        let (tell, looking) = mpsc::channel();
        let member = Arc::clone(&self.member);
        let query = BrokerQuery::new(&self.clock, &self.config, LOOK);
        let (partitions, start) = (partitions_of(&wanted), self.join.start);
        let asker = Arc::clone(&self.asker);
        let wanting = Arc::new(LookupGuard::new());
        let wants = Arc::clone(&wanting);
        let is_announced = Arc::clone(&self.is_announced);
        let (writer, until) = (Arc::clone(&self.writer), self.clock.elapsed() + LOOK);
        let task = async move {
            let start = (start, &*wants);
            // Before offsets are read: the broker does not tell those of a transaction that is open.
            let announced = match is_announced.load(Ordering::Acquire) {
                true => Ok(()),
                false => writer.lock().announce(until),
            };
            is_announced.store(announced.is_ok(), Ordering::Release);
            drop(writer);
            let looked = announced
                .and_then(|()| start_offsets::look_up(&member, &asker, &query, &partitions, start));
            // The client is let go first: whoever hears of this may be about to end it.
            drop(member);
            tell.send(looked).ok();
        };
        drop(self.spawn.spawn_thread("kafka-start", Box::pin(task)));
        RebalanceStep::Assigning(StartLookup {
            wanted,
            looking,
            wanting,
        })
    }

    fn assign(&mut self, lookup: StartLookup) -> Option<RebalanceStep> {
        // The group wants something else already. It goes on only after an answer, and nothing has
        // been handed out of these.
        if self.member.consumer.context().has_requests() {
            if !lookup.wanting.give_up() {
                // Somebody else would be set back by what is being committed.
                return Some(RebalanceStep::Assigning(lookup));
            }
            if let Err(error) = self.assign_at_end(lookup.wanted) {
                self.fail(&format!("could not take partitions: {error}"));
            }
            return None;
        }
        match lookup.looking.try_recv() {
            Ok(Ok(starts)) => {
                self.begin(starts);
                None
            }
            // The number of partitions of one of them was changed; joining again says which.
            Ok(Err(error @ LogError::UnknownTopic { .. }))
                if !self.join.co_partitioned.is_empty() =>
            {
                self.fail(&format!("partitions cannot be read together: {error}"));
                Some(RebalanceStep::Assigning(lookup))
            }
            Ok(Err(error)) => {
                tracing::warn!("could not fetch start offsets; retrying: {error}");
                Some(self.look_up(lookup.wanted))
            }
            Err(TryRecvError::Empty) => Some(RebalanceStep::Assigning(lookup)),
            Err(TryRecvError::Disconnected) => Some(self.look_up(lookup.wanted)),
        }
    }

    fn begin(&mut self, starts: Vec<StartOffset>) {
        let places = starts
            .iter()
            .map(|start| (&start.begin.at, start.client_at));
        let list = convert::places(places);
        match list.and_then(|list| self.member.consumer.incremental_assign(&list)) {
            Ok(()) => {
                let now = self.clock.elapsed();
                let begins = starts.into_iter().map(|start| start.begin);
                let begins = self.fenced(begins.collect());
                self.cell.with(|state| state.assign(begins, now));
                self.cell.tell();
            }
            Err(error) => self.fail(&format!("could not take partitions: {error}")),
        }
    }

    /// Each partition with its fence, which it shares with those that are read together with it.
    fn fenced(&self, begins: Vec<PartitionStart>) -> Vec<(Fence, PartitionStart)> {
        let fence = || Fence(self.fences.fetch_add(1, Ordering::Relaxed));
        let is_apart = self.join.co_partitioned.is_empty();
        let mut shared = BTreeMap::new();
        let fenced = begins.into_iter().map(|begin| match is_apart {
            true => (fence(), begin),
            false => (
                *shared.entry(begin.at.partition).or_insert_with(fence),
                begin,
            ),
        });
        fenced.collect()
    }

    /// Takes partitions for the client's sake only; nothing of them is handed out.
    fn assign_at_end(&self, mut wanted: TopicPartitionList) -> rdkafka::error::KafkaResult<()> {
        wanted.set_all_offsets(rdkafka::Offset::End)?;
        self.member.consumer.incremental_assign(&wanted)
    }

    fn revoke(&self, wanted: TopicPartitionList) -> RebalanceStep {
        let partitions = partitions_of(&wanted);
        let now = self.clock.elapsed();
        if self.member.consumer.assignment_lost() || now < self.abrupt_until {
            return self.lose(wanted, &partitions, now);
        }
        self.cell.with(|state| state.revoke(&partitions));
        self.cell.tell();
        RebalanceStep::Revoking {
            wanted,
            until: now + self.join.release_timeout,
        }
    }

    fn await_release(&self, wanted: TopicPartitionList, until: Duration) -> RebalanceStep {
        let partitions = partitions_of(&wanted);
        let now = self.clock.elapsed();
        let holds = |at: &TopicPartition| self.cell.with(|state| state.held.contains_key(at));
        let is_released = !partitions.iter().any(holds);
        if is_released || now >= until || self.member.consumer.assignment_lost() {
            return self.lose(wanted, &partitions, now);
        }
        RebalanceStep::Revoking { wanted, until }
    }

    /// Takes away what is still held: from here on commits for them are refused.
    fn lose(
        &self,
        wanted: TopicPartitionList,
        partitions: &[TopicPartition],
        now: Duration,
    ) -> RebalanceStep {
        self.cell.with(|state| state.lose(partitions));
        self.cell.tell();
        RebalanceStep::LettingGo {
            wanted,
            until: now + self.config.request_timeout * 2,
        }
    }

    fn let_go(&mut self, wanted: TopicPartitionList, until: Duration) -> Option<RebalanceStep> {
        let partitions = partitions_of(&wanted);
        if self.cell.with(|state| state.is_committing(&partitions)) {
            if self.clock.elapsed() >= until {
                // The client does not close before it has its answer.
                if let Err(error) = self.member.consumer.incremental_unassign(&wanted) {
                    tracing::debug!("releasing partitions failed: {error}");
                }
                self.fail("a commit did not end in time, and the group has revoked its partition");
                return None;
            }
            return Some(RebalanceStep::LettingGo { wanted, until });
        }
        if let Err(error) = self.member.consumer.incremental_unassign(&wanted) {
            self.fail(&format!("could not release partitions: {error}"));
        }
        None
    }

    fn fail(&self, why: &str) {
        self.cell
            .with(|state| state.finish(SessionEnd::Failed(why.to_owned())));
        self.cell.wake_threads();
    }
}

/// The partitions of a list. A name that is none of ours cannot be in it: we asked for names.
pub(super) fn partitions_of(list: &TopicPartitionList) -> Vec<TopicPartition> {
    let elements = list.elements();
    let ours = elements.iter().filter_map(|element| {
        let topic = Topic::new(element.topic()).ok()?;
        Some(TopicPartition::new(topic, element.partition()))
    });
    ours.collect()
}
