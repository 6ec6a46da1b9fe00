//! The log of a running process, asked over HTTP: reading and appending, and nothing that needs a
//! session.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::Audit;
use tidegate_core::{EventId, GroupName, Offset, Partition, Topic};
use tidegate_log::{
    Append, Batch, Call, Committed, Join, Log, LogError, PartitionDescription, Position, Read,
    Session, TopicConfig, TopicDescription, TopicPartition,
};
use tidegate_server::log::{
    Located, NewRecord, NewRecords, PlacedRecords, ReadRecords, TopicNames, TopicShown,
};

use crate::ask::{AskError, Target};

/// How long counting a whole log, or searching it, may take.
const COUNTING: Duration = Duration::from_secs(600);
/// The longest wait for a record that is asked of the process at once.
const WAIT: Duration = Duration::from_secs(2);
/// Records of one request, so that its answer stays small.
const RECORDS: usize = 1_000;

/// The log of a running process.
#[derive(Debug, Clone)]
pub(crate) struct RemoteLog {
    target: Target,
    cluster: String,
}

impl RemoteLog {
    /// Finds out whether the process answers for a log.
    pub(crate) async fn connect(target: Target) -> Result<Self, LogError> {
        let names: Result<TopicNames, _> = target.get("/tidegate/log").await;
        let names = names.map_err(|error| failed(&target, "to look at the log", None, error))?;
        Ok(Self {
            target,
            cluster: names.cluster,
        })
    }

    /// Has the process count its log.
    pub(crate) async fn audit(&self) -> Result<Audit, LogError> {
        let audit = self.target.get_within("/tidegate/audit", COUNTING).await;
        audit.map_err(|error| self.failed("the audit", None, error))
    }

    /// Has the process search its log.
    pub(crate) async fn find(&self, id: EventId) -> Result<Option<Located>, LogError> {
        let path = format!("/tidegate/where/{id}");
        match self.target.get_within(&path, COUNTING).await {
            Ok(located) => Ok(Some(located)),
            Err(AskError::Refused { code, .. }) if code == "where.unknown" => Ok(None),
            Err(error) => Err(self.failed("the search", None, error)),
        }
    }

    fn failed(
        &self,
        doing: &'static str,
        at: Option<&TopicPartition>,
        error: AskError,
    ) -> LogError {
        failed(&self.target, doing, at, error)
    }

    async fn describe_topic(&self, topic: &Topic) -> Result<TopicDescription, LogError> {
        let at = TopicPartition::new(topic.clone(), 0);
        let shown: Result<TopicShown, _> = self.target.get(&format!("/tidegate/log/{topic}")).await;
        let shown = shown.map_err(|error| self.failed("to describe", Some(&at), error))?;
        let partitions = shown.partitions.iter().map(|found| PartitionDescription {
            partition: Partition(found.partition),
            start: Offset(found.start),
            end: Offset(found.end),
        });
        Ok(TopicDescription {
            topic: topic.clone(),
            config: TopicConfig {
                partitions: u32::try_from(shown.partitions.len()).unwrap_or(u32::MAX),
                retention: shown.retention_ms.map(Duration::from_millis),
                retention_bytes: shown.retention_bytes,
                compact: shown.compact,
                max_record_size: shown.max_record_size,
            },
            partitions: partitions.collect(),
        })
    }

    /// Appends records of one topic, which is how the command sends them.
    async fn append_all(&self, records: Vec<Append>) -> Result<Vec<Position>, LogError> {
        let Some(topic) = records.first().map(|append| append.topic.clone()) else {
            return Ok(Vec::new());
        };
        let at = TopicPartition::new(topic.clone(), 0);
        let new = NewRecords {
            records: records.iter().map(NewRecord::of).collect(),
        };
        let path = format!("/tidegate/log/{topic}");
        let placed: Result<PlacedRecords, _> = self.target.post(&path, &new).await;
        let placed = placed.map_err(|error| self.failed("an append", Some(&at), error))?;
        let positions = placed.records.iter().map(|placed| Position {
            at: TopicPartition::new(topic.clone(), placed.partition),
            offset: Offset(placed.offset),
        });
        Ok(positions.collect())
    }

    async fn ask(&self, at: &TopicPartition, query: &str) -> Result<ReadRecords, LogError> {
        let path = format!("/tidegate/log/{}/{}?{query}", at.topic, at.partition);
        let read = self.target.get(&path).await;
        read.map_err(|error| self.failed("to read", Some(at), error))
    }

    async fn read_batch(&self, read: Read) -> Result<Batch, LogError> {
        let wait = read.wait.min(WAIT).as_millis();
        let max = read.max_records.min(RECORDS);
        let query = format!("from={}&max={max}&wait_ms={wait}", read.from);
        let answer = self.ask(&read.at, &query).await?;
        let stored = answer
            .records
            .into_iter()
            .map(|record| record.into_stored());
        let records = stored.collect::<Result<Vec<_>, String>>();
        Ok(Batch {
            records: records.map_err(|why| LogError::Refused {
                doing: "to read",
                why,
            })?,
            at: read.at,
            next: Offset(answer.next),
        })
    }
}

/// What the answer of a process, or the lack of one, is in terms of a log.
fn failed(
    target: &Target,
    doing: &'static str,
    at: Option<&TopicPartition>,
    error: AskError,
) -> LogError {
    let (code, message, details) = match error {
        AskError::Unreachable { source, .. } => {
            let why = match doing {
                // The request may have got through.
                "an append" if !source.is_connect() => {
                    return LogError::Unknown {
                        doing,
                        why: format!("{}: {source}", target.shown()),
                    };
                }
                _ => chain(&source),
            };
            return LogError::Away {
                servers: target.shown(),
                why,
            };
        }
        AskError::Refused {
            code,
            message,
            details,
            ..
        } => (code, message, details),
    };
    let number = |name: &str| details[name].as_i64().map(Offset);
    match (code.as_str(), at) {
        ("log.unknown-topic", Some(at)) => LogError::UnknownTopic {
            topic: at.topic.clone(),
        },
        ("log.out-of-range", Some(at)) => LogError::OutOfRange {
            at: at.clone(),
            asked: number("asked").unwrap_or(Offset(-1)),
            start: number("start").unwrap_or(Offset(0)),
            end: number("end").unwrap_or(Offset(0)),
        },
        ("log.damaged", Some(at)) => LogError::Damaged {
            at: at.clone(),
            from: number("from").unwrap_or(Offset(0)),
            to: number("to").unwrap_or(Offset(0)),
        },
        ("log.unknown" | "http.timeout", _) => LogError::Unknown {
            doing,
            why: message,
        },
        _ => LogError::Refused {
            doing,
            why: message,
        },
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut beneath = error.source();
    while let Some(source) = beneath {
        text.push_str(&format!(": {source}"));
        beneath = source.source();
    }
    text
}

/// What only a process that has the log open can do.
fn not_here<T>(doing: &'static str) -> Result<T, LogError> {
    Err(LogError::Refused {
        doing,
        why: "the process that has the log open does not do that for others".to_owned(),
    })
}

impl Log for RemoteLog {
    fn cluster(&self) -> &str {
        &self.cluster
    }

    fn create_topic<'a>(&'a self, _: &'a Topic, _: TopicConfig) -> Call<'a, ()> {
        Box::pin(async { not_here("to make a topic") })
    }

    fn topics(&self) -> Call<'_, Vec<Topic>> {
        Box::pin(async {
            let names: Result<TopicNames, _> = self.target.get("/tidegate/log").await;
            let names = names.map_err(|error| self.failed("to list topics", None, error))?;
            let topics = names
                .topics
                .into_iter()
                .filter_map(|name| Topic::new(name).ok());
            Ok(topics.collect())
        })
    }

    fn describe<'a>(&'a self, topic: &'a Topic) -> Call<'a, TopicDescription> {
        Box::pin(self.describe_topic(topic))
    }

    fn append(&self, records: Vec<Append>) -> Call<'_, Vec<Position>> {
        Box::pin(self.append_all(records))
    }

    fn read(&self, read: Read) -> Call<'_, Batch> {
        Box::pin(self.read_batch(read))
    }

    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> Call<'a, Offset> {
        Box::pin(async move {
            let answer = self.ask(at, &format!("from=@{timestamp_ms}&max=0")).await?;
            Ok(Offset(answer.next))
        })
    }

    fn delete_before<'a>(&'a self, _: &'a TopicPartition, _: Offset) -> Call<'a, Offset> {
        Box::pin(async { not_here("to delete records") })
    }

    fn committed<'a>(
        &'a self,
        _: &'a GroupName,
        _: &'a [TopicPartition],
    ) -> Call<'a, Vec<Option<Committed>>> {
        Box::pin(async { not_here("to read committed offsets") })
    }

    fn groups(&self) -> Call<'_, Vec<GroupName>> {
        Box::pin(async { not_here("to list groups") })
    }

    fn forget_group<'a>(&'a self, _: &'a GroupName) -> Call<'a, ()> {
        Box::pin(async { not_here("to forget a group") })
    }

    fn join(&self, _: Join) -> Call<'_, Arc<dyn Session>> {
        Box::pin(async { not_here("to join a group") })
    }
}
