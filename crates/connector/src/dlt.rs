//! Dead letters for their handler: a group of its own reads them after they were written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{BoxFuture, CatchPanic};
use tidegate_core::{Backoff, DeadLetter, Failure, FailureClass, GroupName, Offset};
use tidegate_log::{
    Batch, Commit, Fence, Join, LogError, OffsetCommit, Session, SessionEvent, TopicPartition,
};

use crate::binding::{BindingContext, LetterHandler};
use crate::consumer::IDLE_COMMIT;
use crate::hop::to_list;

/// Takes a dead letter.
pub(crate) type DltHandlerFn =
    dyn Fn(DltRecord) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync;

/// A dead letter, and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DltRecord {
    /// The partition of the dead letter topic.
    pub at: TopicPartition,
    /// Its offset there.
    pub offset: Offset,
    /// The record with its history.
    pub letter: DeadLetter,
}

/// Calls that a handler refuses for good, or that break it, before a letter is passed by. One whose handler is away
/// waits for it.
const MAX_REFUSALS: u32 = 3;

/// Hands the letters of a binding to their handler, until the binding stops.
pub(crate) async fn watch_letters(
    binding: Arc<BindingContext>,
    group: GroupName,
    handler: LetterHandler,
) {
    let backoff = Backoff::exponential(Duration::from_secs(1), 2.0, Duration::from_secs(60));
    let reading = async {
        let mut failures = 0;
        loop {
            let join = Join::new(group.clone(), vec![binding.dlt_topic.clone()]);
            let ended = match binding.log.join(join).await {
                Ok(session) => read(&binding, &*session, &handler).await,
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                tracing::warn!(binding = binding.options.name, %error, "dead letters are not read");
            }
            binding
                .clock
                .sleep(backoff.wait_without_jitter(failures))
                .await;
            failures += 1;
        }
    };
    tokio::select! {
        biased;
        () = binding.stop.requested() => {}
        () = reading => {}
    }
}

/// The partitions of a session, each with the offset that the log holds for it.
type HeldOffsets = BTreeMap<TopicPartition, (Fence, Option<Offset>)>;

async fn read(
    binding: &BindingContext,
    session: &dyn Session,
    handler: &LetterHandler,
) -> Result<(), LogError> {
    let mut held = HeldOffsets::new();
    let mut idle_at = binding.clock.elapsed() + IDLE_COMMIT;
    loop {
        let wait = idle_at.saturating_sub(binding.clock.elapsed());
        let polled = binding.clock.within(wait, session.poll()).await;
        match polled.transpose()? {
            Some(SessionEvent::Assigned(assigned)) => {
                let all = assigned.into_iter();
                held.extend(all.map(|one| (one.at, (one.fence, one.committed.map(|c| c.next)))));
            }
            Some(SessionEvent::Lost(lost)) => held.retain(|at, _| !lost.contains(at)),
            Some(SessionEvent::Revoking(partitions)) => {
                held.retain(|at, _| !partitions.contains(at));
                session.release(&partitions).await?;
            }
            Some(SessionEvent::Records { fence, batch }) => {
                let (at, next) = (batch.at.clone(), batch.next);
                pass_on(binding, session, handler, fence, batch).await?;
                held.insert(at, (fence, Some(next)));
            }
            // A broker forgets a group that commits nothing.
            None => {
                idle_at = binding.clock.elapsed() + IDLE_COMMIT;
                for (at, (fence, next)) in &held {
                    if let Some(next) = next {
                        commit(session, at.clone(), *fence, *next).await?;
                    }
                }
            }
        }
    }
}

/// Says how far the group is. A partition that is somebody else's by now is told again by them.
async fn commit(
    session: &dyn Session,
    at: TopicPartition,
    fence: Fence,
    next: Offset,
) -> Result<(), LogError> {
    let passed = OffsetCommit {
        at,
        fence,
        next,
        metadata: String::new(),
        postings: Vec::new(),
    };
    let commit = Commit {
        appends: Vec::new(),
        offsets: vec![passed],
    };
    match session.commit(commit).await {
        Ok(_) | Err(LogError::Fenced { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn pass_on(
    binding: &BindingContext,
    session: &dyn Session,
    handler: &LetterHandler,
    fence: Fence,
    batch: Batch,
) -> Result<(), LogError> {
    for stored in batch.records {
        let headers = to_list(&stored.record.headers);
        let (key, value) = (stored.record.key, stored.record.value);
        // A record that is no letter of ours is nobody's business here.
        let Ok(letter) = DeadLetter::from_record(key, value, &headers) else {
            continue;
        };
        if letter
            .group
            .as_ref()
            .is_none_or(|group| *group == binding.options.group)
        {
            let record = DltRecord {
                at: batch.at.clone(),
                offset: stored.offset,
                letter,
            };
            tell(binding, handler, record).await;
        }
    }
    commit(session, batch.at, fence, batch.next).await
}

async fn tell(binding: &BindingContext, handler: &LetterHandler, record: DltRecord) {
    let backoff = Backoff::exponential(Duration::from_secs(1), 2.0, Duration::from_secs(60));
    let (mut attempt, mut refusals) = (0, 0);
    loop {
        let call = CatchPanic((handler.0)(record.clone()));
        let limit = binding.options.handler_timeout;
        let (why, is_away) = match binding.clock.within(limit, call).await {
            Some(Ok(Ok(()))) => return,
            Some(Ok(Err(failure))) => {
                let is_away = failure.class != FailureClass::Permanent;
                (failure.to_string(), is_away)
            }
            Some(Err(panic)) => (panic, false),
            None => ("no answer within `handler-timeout`".to_owned(), false),
        };
        refusals += u32::from(!is_away);
        let event = record.letter.event_id;
        tracing::error!(binding = binding.options.name, %event, attempt, why, "a dead letter was not taken");
        if refusals >= MAX_REFUSALS {
            return;
        }
        let wait = backoff.wait_without_jitter(attempt);
        binding.clock.sleep(wait).await;
        attempt += 1;
    }
}
