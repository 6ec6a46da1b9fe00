//! Dead letters for their handler: a group of its own reads them after they were written.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{BoxFuture, CatchPanic};
use tidegate_core::{Backoff, DeadLetter, Failure, FailureClass, GroupName, Offset};
use tidegate_log::{
    Batch, Commit, Fence, Join, LogError, OffsetCommit, Session, SessionEvent, TopicPartition,
};

use crate::binding::{BindingContext, LetterHandler};
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

async fn read(
    binding: &BindingContext,
    session: &dyn Session,
    handler: &LetterHandler,
) -> Result<(), LogError> {
    loop {
        match session.poll().await? {
            SessionEvent::Assigned(_) | SessionEvent::Lost(_) => {}
            SessionEvent::Revoking(partitions) => session.release(&partitions).await?,
            SessionEvent::Records { fence, batch } => {
                pass_on(binding, session, handler, fence, batch).await?;
            }
        }
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
    let passed = OffsetCommit {
        at: batch.at,
        fence,
        next: batch.next,
        metadata: String::new(),
        postings: Vec::new(),
    };
    let commit = Commit {
        appends: Vec::new(),
        offsets: vec![passed],
    };
    match session.commit(commit).await {
        // Somebody else tells them again.
        Ok(_) | Err(LogError::Fenced { .. }) => Ok(()),
        Err(error) => Err(error),
    }
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
