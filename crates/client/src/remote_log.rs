//! The log of a running process, asked over HTTP: reading, appending, what operators do, and nothing that
//! needs a session.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Code, GroupName, Offset, Partition, Topic, error_chain};
use tidegate_log::admin::{
    AdminMode, GroupDescription, GroupSeek, PartitionSeek, RemovedGroup, RemovedTopic, TopicRemoval,
};
use tidegate_log::{
    Append, Batch, Committed, GroupSnapshot, Join, Log, LogAdmin, LogError, LogFuture,
    PartitionDescription, Read, RecordPosition, Session, TopicConfig, TopicDescription,
    TopicPartition,
};

use crate::process::{ClientError, ProcessClient};
use crate::wire::{
    AppendedRecords, GroupInfo, GroupNames, MovedPartition, MovedPartitions, NewRecord, NewRecords,
    NewSeek, NewTopic, ReadRecord, ReadRecords, RemovedGroupInfo, RemovedTopicInfo, TopicInfo,
    TopicNames,
};

/// The longest wait for a record that is asked of the process at once.
const WAIT: Duration = Duration::from_secs(2);
/// Records of one request, so that its answer stays small.
const RECORDS: usize = 1_000;

/// The log of a running process.
#[derive(Debug, Clone)]
pub struct RemoteLog {
    target: ProcessClient,
    cluster: String,
}

impl RemoteLog {
    /// Finds out whether the process answers for a log.
    ///
    /// # Errors
    /// The process does not answer, or has no log.
    pub async fn connect(target: ProcessClient) -> Result<Self, LogError> {
        let names: Result<TopicNames, _> = target.get("/tidegate/log").await;
        let names = names.map_err(|error| failed(&target, "to look at the log", None, error))?;
        Ok(Self {
            target,
            cluster: names.cluster,
        })
    }

    async fn describe_topic(&self, topic: &Topic) -> Result<TopicDescription, LogError> {
        let at = TopicPartition::new(topic.clone(), 0);
        let shown: Result<TopicInfo, _> = self.target.get(&format!("/tidegate/log/{topic}")).await;
        let shown = shown.map_err(|error| failed(&self.target, "to describe", Some(&at), error))?;
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
    async fn append_all(&self, records: Vec<Append>) -> Result<Vec<RecordPosition>, LogError> {
        let Some(topic) = records.first().map(|append| append.topic.clone()) else {
            return Ok(Vec::new());
        };
        let at = TopicPartition::new(topic.clone(), 0);
        let new = new_records(&records)?;
        let path = format!("/tidegate/log/{topic}");
        let placed: Result<AppendedRecords, _> = self.target.post(&path, &new).await;
        let placed = placed.map_err(|error| failed(&self.target, "an append", Some(&at), error))?;
        let positions = placed.records.iter().map(|placed| RecordPosition {
            at: TopicPartition::new(topic.clone(), placed.partition),
            offset: Offset(placed.offset),
        });
        Ok(positions.collect())
    }

    async fn ask(&self, at: &TopicPartition, query: &str) -> Result<ReadRecords, LogError> {
        let path = format!("/tidegate/log/{}/{}?{query}", at.topic, at.partition);
        let read = self.target.get(&path).await;
        read.map_err(|error| failed(&self.target, "to read", Some(at), error))
    }

    /// The error of a question about a group.
    fn group_failed(&self, group: &GroupName, error: ClientError) -> LogError {
        if let ClientError::Refused { code, .. } = &error
            && code == "log.unknown-group"
        {
            return LogError::UnknownGroup {
                group: group.clone(),
            };
        }
        failed(&self.target, "to change a group", None, error)
    }

    async fn read_batch(&self, read: Read) -> Result<Batch, LogError> {
        let wait = read.wait.min(WAIT).as_millis();
        let max = read.max_records.min(RECORDS);
        let query = format!("from={}&max={max}&wait_ms={wait}", read.from);
        let answer = self.ask(&read.at, &query).await?;
        let doing = "to read";
        let stored = answer.records.into_iter().map(ReadRecord::into_stored);
        let records = stored.collect::<Result<Vec<_>, String>>();
        Ok(Batch {
            records: records.map_err(|why| LogError::Refused { doing, why })?,
            at: read.at,
            next: Offset(answer.next),
        })
    }
}

/// The answer of a process, or the lack of one, as an error of a log.
fn failed(
    target: &ProcessClient,
    doing: &'static str,
    at: Option<&TopicPartition>,
    error: ClientError,
) -> LogError {
    let (code, message, details) = match error {
        // The request may have got through.
        ClientError::Unreachable { source, .. } if doing == "an append" && !source.is_connect() => {
            return LogError::OutcomeUnknown {
                doing,
                why: format!("{}: {source}", target.shown()),
            };
        }
        ClientError::Unreachable { source, .. } => {
            let why = format!("no answer: {}", error_chain(&source));
            return remote_error(target, "log.unavailable", why);
        }
        ClientError::Refused {
            code,
            message,
            details,
            ..
        } => (code, message, details),
    };
    let number = |name: &str| details[name].as_i64().map(Offset);
    // A few codes of the door stand for many of the log; the cause is the log's own.
    let code = details["cause"].as_str().unwrap_or(&code);
    match (code, at) {
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
        ("log.outcome-unknown" | "http.timeout", _) => LogError::OutcomeUnknown {
            doing,
            why: message,
        },
        (code, _) => remote_error(target, code, message),
    }
}

/// The error of a process, in its own words and under its own code.
fn remote_error(target: &ProcessClient, code: &str, why: String) -> LogError {
    let unnamed = Code::from_static("log.refused");
    LogError::Remote {
        process: target.shown(),
        code: Code::new(code).unwrap_or(unnamed),
        why,
    }
}

/// The error of calls that only the process with the open log can do.
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

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()> {
        Box::pin(async move {
            let at = TopicPartition::new(topic.clone(), 0);
            let path = format!("/tidegate/log/{topic}");
            let made: Result<TopicInfo, _> = self.target.put(&path, &NewTopic::from(&config)).await;
            made.map_err(|error| failed(&self.target, "to make a topic", Some(&at), error))?;
            Ok(())
        })
    }

    fn topics(&self) -> LogFuture<'_, Vec<Topic>> {
        Box::pin(async {
            let names: Result<TopicNames, _> = self.target.get("/tidegate/log").await;
            let names =
                names.map_err(|error| failed(&self.target, "to list topics", None, error))?;
            let topics = names
                .topics
                .into_iter()
                .filter_map(|name| Topic::new(name).ok());
            Ok(topics.collect())
        })
    }

    fn describe<'a>(&'a self, topic: &'a Topic) -> LogFuture<'a, TopicDescription> {
        Box::pin(self.describe_topic(topic))
    }

    fn append(&self, records: Vec<Append>) -> LogFuture<'_, Vec<RecordPosition>> {
        Box::pin(self.append_all(records))
    }

    fn read(&self, read: Read) -> LogFuture<'_, Batch> {
        Box::pin(self.read_batch(read))
    }

    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> LogFuture<'a, Offset> {
        Box::pin(async move {
            let answer = self.ask(at, &format!("from=@{timestamp_ms}&max=0")).await?;
            Ok(Offset(answer.next))
        })
    }

    fn delete_before<'a>(&'a self, _: &'a TopicPartition, _: Offset) -> LogFuture<'a, Offset> {
        Box::pin(async { not_here("to delete records") })
    }

    fn committed<'a>(
        &'a self,
        _: &'a GroupName,
        _: &'a [TopicPartition],
    ) -> LogFuture<'a, Vec<Option<Committed>>> {
        Box::pin(async { not_here("to read committed offsets") })
    }

    fn group_books<'a>(&'a self, _: &'a [(GroupName, Topic)]) -> LogFuture<'a, Vec<GroupSnapshot>> {
        Box::pin(async { not_here("to tell the books of groups") })
    }

    fn groups(&self) -> LogFuture<'_, Vec<GroupName>> {
        Box::pin(async {
            let names: Result<GroupNames, _> = self.target.get("/tidegate/groups").await;
            let names =
                names.map_err(|error| failed(&self.target, "to list groups", None, error))?;
            let groups = names.groups.into_iter();
            Ok(groups
                .filter_map(|name| GroupName::new(name).ok())
                .collect())
        })
    }

    fn forget_group<'a>(&'a self, _: &'a GroupName) -> LogFuture<'a, ()> {
        Box::pin(async { not_here("to forget a group") })
    }

    fn join(&self, _: Join) -> LogFuture<'_, Arc<dyn Session>> {
        Box::pin(async { not_here("to join a group") })
    }
}

impl LogAdmin for RemoteLog {
    fn describe_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, GroupDescription> {
        Box::pin(async move {
            let path = format!("/tidegate/groups/{group}");
            let shown: Result<GroupInfo, _> = self.target.get(&path).await;
            let shown = shown.map_err(|error| self.group_failed(group, error))?;
            Ok(shown.into_described(group))
        })
    }

    fn seek_group(&self, seek: GroupSeek) -> LogFuture<'_, Vec<PartitionSeek>> {
        Box::pin(async move {
            let path = format!("/tidegate/groups/{}/seek", seek.group);
            let body = NewSeek::of(&seek);
            let moved: Result<MovedPartitions, _> = self.target.post_to_count(&path, &body).await;
            let moved = moved.map_err(|error| self.group_failed(&seek.group, error))?;
            let moved = moved.partitions.into_iter();
            Ok(moved.filter_map(MovedPartition::into_sought).collect())
        })
    }

    fn remove_group<'a>(
        &'a self,
        group: &'a GroupName,
        mode: AdminMode,
    ) -> LogFuture<'a, RemovedGroup> {
        Box::pin(async move {
            let dry_run = mode == AdminMode::Trial;
            let path = format!("/tidegate/groups/{group}?dry_run={dry_run}");
            let removed: Result<RemovedGroupInfo, _> = self.target.delete(&path).await;
            let removed = removed.map_err(|error| self.group_failed(group, error))?;
            Ok(removed.into_removed(group))
        })
    }

    fn remove_topic(&self, removal: TopicRemoval) -> LogFuture<'_, RemovedTopic> {
        Box::pin(async move {
            let TopicRemoval {
                topic,
                is_forced,
                mode,
            } = &removal;
            let dry_run = *mode == AdminMode::Trial;
            let path = format!("/tidegate/log/{topic}?force={is_forced}&dry_run={dry_run}");
            let removed: Result<RemovedTopicInfo, _> = self.target.delete(&path).await;
            let at = TopicPartition::new(topic.clone(), 0);
            let removed = removed
                .map_err(|error| failed(&self.target, "to remove a topic", Some(&at), error))?;
            Ok(removed.into_removed(topic))
        })
    }
}

/// Records as they are sent. Headers that no log can hold are refused here: they would be left out on
/// the way.
fn new_records(records: &[Append]) -> Result<NewRecords, LogError> {
    for append in records {
        if let Err(why) = append.record.headers.check() {
            let topic = append.topic.clone();
            return Err(LogError::HeaderTooLong { topic, why });
        }
    }
    Ok(NewRecords {
        records: records.iter().map(NewRecord::of).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidegate_log::{Headers, Record};

    #[test]
    fn a_header_that_no_log_can_hold_is_not_left_out_on_the_way() {
        let append = |length: usize| {
            let record = Record::new("v").header(&"n".repeat(length), "z");
            Append::new(Topic::new("t").unwrap(), record)
        };
        let longest = Headers::LONGEST_NAME;
        assert!(new_records(&[append(longest)]).is_ok());
        let refused = new_records(&[append(1), append(longest + 1)]).unwrap_err();
        assert_eq!(refused.code().as_str(), "log.header-too-long");
    }

    #[test]
    fn an_offset_that_is_not_there_is_the_one_that_was_asked_for() {
        let target = ProcessClient::new("http://127.0.0.1:9", None);
        let at = TopicPartition::new(Topic::new("t").unwrap(), 0);
        let refused = ClientError::Refused {
            shown: target.shown(),
            status: 416,
            code: "log.out-of-range".to_owned(),
            message: "no".to_owned(),
            details: json!({ "asked": 99, "start": 3, "end": 7 }),
        };
        let error = failed(&target, "to read", Some(&at), refused);
        let expected = LogError::OutOfRange {
            at,
            asked: Offset(99),
            start: Offset(3),
            end: Offset(7),
        };
        assert_eq!(error.to_string(), expected.to_string());
    }

    #[test]
    fn an_answer_of_a_process_keeps_its_code_and_its_words() {
        let target = ProcessClient::new("http://127.0.0.1:9", None);
        let at = TopicPartition::new(Topic::new("t").unwrap(), 0);
        for (code, cause, expected) in [
            ("log.unavailable", Some("log.disk"), "log.disk"),
            ("log.unavailable", Some("log.overloaded"), "log.overloaded"),
            ("log.full", Some("log.full"), "log.full"),
            (
                "log.record-too-large",
                Some("log.record-too-large"),
                "log.record-too-large",
            ),
            ("http.unauthorized", None, "http.unauthorized"),
            ("", None, "log.refused"),
        ] {
            let refused = ClientError::Refused {
                shown: target.shown(),
                status: 503,
                code: code.to_owned(),
                message: "the disk says no".to_owned(),
                details: json!({ "cause": cause }),
            };
            let error = failed(&target, "an append", Some(&at), refused);
            assert_eq!(error.code().as_str(), expected, "{code}");
            let told = error.to_string();
            assert!(told.contains("the disk says no") && told.contains("http://127.0.0.1:9"));
            assert!(!told.contains("broker"), "{told}");
        }
    }
}
