//! `tidegate tail`.

mod from;
mod line;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::Offset;
use tidegate_core::env::{Clock, Env, Task};
use tidegate_log::{
    Batch, Log, LogError, PartitionDescription, Read, StoredRecord, TopicPartition,
};
use tokio::sync::mpsc;

use super::topic::topic;
use crate::args::{Output, TailArgs};
use crate::log;
use crate::report::{ErrorReport, Exit, print_bytes, say};
use crate::signals::Signals;
pub(crate) use from::{From, Moment, parse_from, parse_moment};
use line::line;

/// How long one read waits for a record. A log that is closed meanwhile is noticed after it.
const WAIT: Duration = Duration::from_secs(2);
/// The wait before a log that is away is asked again.
const AWAY: Duration = Duration::from_secs(1);
/// Batches that wait to be printed.
const WAITING: usize = 4;

pub(crate) async fn run(arguments: &TailArgs, output: Output) -> Result<Exit, ErrorReport> {
    let mut signals = Signals::register()?;
    let topic = topic(&arguments.topic)?;
    let env = Env::system();
    let (file, at) = (&arguments.file, &arguments.at);
    let reached = log::reach_to_read(file, at, arguments.direct, &env).await?;
    let tail = Following {
        log: reached.log(),
        clock: Arc::clone(&env.clock),
        arguments,
        output,
    };
    let followed = tokio::select! {
        biased;
        // A user who presses Ctrl-C has seen enough.
        () = signals.next() => Ok(Exit::Ok),
        followed = tail.follow(&topic, &env) => followed,
    };
    drop(tail);
    reached.close().await;
    followed
}

struct Following<'a> {
    log: Arc<dyn Log>,
    clock: Arc<dyn Clock>,
    arguments: &'a TailArgs,
    output: Output,
}

impl Following<'_> {
    async fn follow(&self, topic: &tidegate_core::Topic, env: &Env) -> Result<Exit, ErrorReport> {
        let described = self.log.describe(topic).await?;
        let partitions = match self.arguments.partition {
            None => described.partitions,
            Some(number) => {
                let found = described.partitions.into_iter();
                let found: Vec<_> = found.filter(|found| found.partition.0 == number).collect();
                if found.is_empty() {
                    return Err(LogError::UnknownPartition {
                        at: TopicPartition::new(topic.clone(), number),
                        partitions: described.config.partitions,
                    }
                    .into());
                }
                found
            }
        };
        let (batches, mut read) = mpsc::channel(WAITING);
        let mut readers = Readers(Vec::new());
        let is_away = Arc::new(AtomicBool::new(false));
        for partition in partitions {
            let at = TopicPartition::new(topic.clone(), partition.partition.0);
            let reader = Reader {
                from: self.begin(&at, partition).await?,
                until: self.arguments.until.map(|_| partition.end),
                log: Arc::clone(&self.log),
                batches: batches.clone(),
                clock: Arc::clone(&self.clock),
                is_away: Arc::clone(&is_away),
                at,
            };
            let task = env.spawn.spawn("tail", Box::pin(reader.run()));
            readers.0.push(task);
        }
        drop(batches);
        let mut left = self.arguments.max.unwrap_or(u64::MAX);
        let mut exit = Exit::Ok;
        while left > 0
            && let Some(batch) = read.recv().await
        {
            let batch = match batch {
                Ok(batch) => batch,
                Err(LogError::OutOfRange { at, start, .. }) => {
                    say(&format!(
                        "{at}: retention removed records; going on at {start}"
                    ));
                    continue;
                }
                Err(error @ LogError::Damaged { .. }) => {
                    say(&error.to_string());
                    exit = Exit::Findings;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let mut text = Vec::new();
            let wanted = batch.records.iter().filter(|stored| self.is_wanted(stored));
            for stored in wanted.take(usize::try_from(left).unwrap_or(usize::MAX)) {
                left -= 1;
                let cluster = self.log.cluster();
                let format = (self.output, self.arguments.format.as_deref());
                line(&mut text, stored, &batch.at, cluster, format)?;
            }
            print_bytes(&text)?;
        }
        Ok(exit)
    }

    /// Whether a record has the key that is asked for.
    fn is_wanted(&self, stored: &StoredRecord) -> bool {
        let key = self.arguments.key.as_ref();
        key.is_none_or(|key| stored.record.key.as_deref() == Some(key.as_bytes()))
    }

    /// The offset at which a partition is begun.
    async fn begin(
        &self,
        at: &TopicPartition,
        partition: PartitionDescription,
    ) -> Result<Offset, ErrorReport> {
        // Up to the end means everything that is there, from the start.
        let usual = match self.arguments.until {
            Some(_) => From::Earliest,
            None => From::Latest,
        };
        if let Some(last) = self.arguments.last {
            let first = partition.end.0.saturating_sub(i64::from(last));
            return Ok(Offset(first).max(partition.start));
        }
        let from = self.arguments.from.clone().unwrap_or(usual);
        let wanted = match from {
            From::Earliest => return Ok(partition.start),
            From::Latest => return Ok(partition.end),
            From::Offset(offset) => Offset(offset),
            From::Time(time) => {
                let ms = time.before(self.clock.now_ms());
                self.log.offset_at(at, ms).await?
            }
        };
        let begun = wanted.clamp(partition.start, partition.end);
        if begun != wanted {
            say(&format!(
                "{at}: offset {wanted} is out of range; the partition begins at {} and ends before {}; starting at {begun}",
                partition.start, partition.end
            ));
        }
        Ok(begun)
    }
}

/// The tasks that read, which end with the command.
struct Readers(Vec<Task>);

impl Drop for Readers {
    fn drop(&mut self) {
        self.0.iter().for_each(Task::abort);
    }
}

/// Whether a log that cannot be asked now may answer later.
fn is_transient(error: &LogError) -> bool {
    matches!(
        error.code().as_str(),
        "log.unavailable" | "process.unreachable"
    )
}

/// Reads one partition.
struct Reader {
    log: Arc<dyn Log>,
    at: TopicPartition,
    from: Offset,
    /// Where to stop; none never does.
    until: Option<Offset>,
    batches: mpsc::Sender<Result<Batch, LogError>>,
    clock: Arc<dyn Clock>,
    /// Whether somebody has said that the log is away.
    is_away: Arc<AtomicBool>,
}

impl Reader {
    async fn run(mut self) {
        while self.until.is_none_or(|until| self.from < until) {
            let wait = match self.until {
                Some(_) => Duration::ZERO,
                None => WAIT,
            };
            let read = Read {
                wait,
                ..Read::new(self.at.clone(), self.from)
            };
            let mut batch = self.log.read(read).await;
            match &mut batch {
                Ok(batch) => {
                    if self.until.is_some() && batch.next <= self.from {
                        return;
                    }
                    self.from = batch.next;
                    let until = self.until.unwrap_or(Offset(i64::MAX));
                    batch.records.retain(|stored| stored.offset < until);
                }
                Err(LogError::OutOfRange { start, .. }) if *start > self.from => {
                    self.from = *start;
                }
                Err(LogError::Damaged { to, .. }) if *to > self.from => self.from = *to,
                // A process that is started again answers at the same address.
                Err(error) if self.until.is_none() && is_transient(error) => {
                    if !self.is_away.swap(true, Ordering::Relaxed) {
                        say(&format!("{error}; waiting for it"));
                    }
                    self.clock.sleep(AWAY).await;
                    continue;
                }
                Err(_) => {
                    self.batches.send(batch).await.ok();
                    return;
                }
            }
            if self.is_away.swap(false, Ordering::Relaxed) {
                say("the log answers again");
            }
            let is_empty = batch.as_ref().is_ok_and(|batch| batch.records.is_empty());
            if !is_empty && self.batches.send(batch).await.is_err() {
                return;
            }
        }
    }
}
