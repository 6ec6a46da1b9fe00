//! The handlers.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tidegate_client::wire::{
    AppendedRecord, AppendedRecords, NewRecords, ReadRecord, ReadRecords, TopicInfo, TopicNames,
};
use tidegate_core::{Offset, Topic};
use tidegate_log::{LogError, Read, TopicPartition};
use utoipa::IntoParams;

use super::LogApi;
use crate::parameters::{PathParameters, QueryParameters};
use crate::{ApiProblem, ProblemCode};

type Api = State<Arc<LogApi>>;

/// Records of one answer, unless more or fewer are asked for, and at most.
const USUAL_RECORDS: usize = 500;
const MOST_RECORDS: usize = 10_000;
/// About how many bytes one answer holds.
const MOST_BYTES: usize = 1024 * 1024;
/// The longest a request may wait for a record.
const MOST_WAIT_MS: u64 = 10_000;

/// The topics of the log.
#[utoipa::path(get, path = "/tidegate/log", tag = "log", responses(
    (status = 200, description = "The names of all topics.", body = TopicNames),
    (status = 503, description = "The log does not answer.", body = ApiProblem),
))]
pub(super) async fn list_topics(State(api): Api) -> Result<Json<TopicNames>, ApiProblem> {
    let topics = api.log.topics().await?;
    Ok(Json(TopicNames {
        cluster: api.log.cluster().to_owned(),
        topics: topics
            .iter()
            .map(|topic| topic.as_str().to_owned())
            .collect(),
    }))
}

/// How a topic is set up, and what it holds.
#[utoipa::path(get, path = "/tidegate/log/{topic}", tag = "log",
    params(("topic" = String, Path, description = "The topic.", pattern = "^[A-Za-z0-9._-]{1,249}$", example = "orders")),
    responses(
        (status = 200, description = "The topic.", body = TopicInfo),
        (status = 404, description = "There is no such topic.", body = ApiProblem),
        (status = 503, description = "The log does not answer.", body = ApiProblem),
))]
pub(super) async fn describe_topic(
    State(api): Api,
    PathParameters(topic): PathParameters<String>,
) -> Result<Json<TopicInfo>, ApiProblem> {
    let topic = named(topic)?;
    Ok(Json(api.log.describe(&topic).await?.into()))
}

/// Adds records to a topic, and answers when they are durable.
///
/// After a failure any of them may be there; those that are carry the ids they were given, or were
/// given here. With an `Idempotency-Key` a repeated request gets the first answer and adds nothing.
#[utoipa::path(post, path = "/tidegate/log/{topic}", tag = "log",
    params(
        ("topic" = String, Path, description = "The topic.", pattern = "^[A-Za-z0-9._-]{1,249}$", example = "orders"),
        ("Idempotency-Key" = Option<String>, Header, description = "The name of this request, for repeats."),
    ),
    request_body = NewRecords,
    responses(
        (status = 200, description = "Where the records lie.", body = AppendedRecords),
        (status = 400, description = "The topic, a record or the key is invalid, or no database is there for keys.", body = ApiProblem),
        (status = 404, description = "There is no such topic or partition.", body = ApiProblem),
        (status = 409, description = "The key was used for another request.", body = ApiProblem),
        (status = 413, description = "A record is larger than the topic takes.", body = ApiProblem),
        (status = 503, description = "The log or the database does not answer, or the first request with the key has not.", body = ApiProblem),
        (status = 507, description = "The log is full.", body = ApiProblem),
))]
pub(super) async fn append_records(
    State(api): Api,
    PathParameters(topic): PathParameters<String>,
    Json(new): Json<NewRecords>,
) -> Result<Json<AppendedRecords>, ApiProblem> {
    let topic = named(topic)?;
    // Nothing is added, so nothing else would say it.
    if new.records.is_empty() {
        api.log.describe(&topic).await?;
    }
    let mut ids = Vec::with_capacity(new.records.len());
    let mut appends = Vec::with_capacity(new.records.len());
    for (index, record) in new.records.into_iter().enumerate() {
        let id = record.id.unwrap_or_else(|| api.ids.mint());
        let append = record.into_append(topic.clone(), id).map_err(|why| {
            ApiProblem::new(ProblemCode::BadRequest, format!("record {index}: {why}"))
        })?;
        ids.push(id);
        appends.push(append);
    }
    let positions = api.log.append(appends).await?;
    let placed = ids
        .into_iter()
        .zip(positions)
        .map(|(id, position)| AppendedRecord {
            id,
            partition: position.at.partition.0,
            offset: position.offset.0,
        });
    Ok(Json(AppendedRecords {
        records: placed.collect(),
    }))
}

/// The records to read of a partition.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReadQuery {
    /// `earliest`, `latest`, an offset, or `@` and a time in milliseconds since 1970.
    #[serde(default = "earliest")]
    #[param(pattern = "^(earliest|latest|@?[0-9]{1,18})$")]
    from: String,
    /// At most so many records; 0 only says where the partition begins and ends.
    max: Option<usize>,
    /// How long to wait for a record when there is none, in milliseconds.
    wait_ms: Option<u64>,
}

fn earliest() -> String {
    "earliest".to_owned()
}

/// Where to begin.
#[derive(Debug, PartialEq, Eq)]
enum From {
    Earliest,
    Latest,
    Offset(i64),
    Time(u64),
}

fn parse_from(text: &str) -> Option<From> {
    Some(match (text, text.strip_prefix('@')) {
        ("earliest", _) => From::Earliest,
        ("latest", _) => From::Latest,
        (_, Some(ms)) => From::Time(ms.parse().ok()?),
        (offset, None) => From::Offset(offset.parse().ok()?),
    })
}

/// Reads records of one partition, outside of any group.
#[utoipa::path(get, path = "/tidegate/log/{topic}/{partition}", tag = "log",
    params(
        ("topic" = String, Path, description = "The topic.", pattern = "^[A-Za-z0-9._-]{1,249}$", example = "orders"),
        ("partition" = i32, Path, description = "The number of the partition.", minimum = 0),
        ReadQuery,
    ),
    responses(
        (status = 200, description = "Records, and where to go on.", body = ReadRecords),
        (status = 404, description = "There is no such topic or partition.", body = ApiProblem),
        (status = 416, description = "The offset is not there.", body = ApiProblem),
        (status = 503, description = "The log does not answer.", body = ApiProblem),
))]
pub(super) async fn read_records(
    State(api): Api,
    PathParameters((topic, partition)): PathParameters<(String, i32)>,
    QueryParameters(asked): QueryParameters<ReadQuery>,
) -> Result<Json<ReadRecords>, ApiProblem> {
    let from = parse_from(&asked.from).ok_or_else(|| {
        let text = "`from` is `earliest`, `latest`, an offset, or `@` and milliseconds since 1970";
        ApiProblem::new(ProblemCode::BadRequest, text)
    })?;
    let topic = named(topic)?;
    let described = api.log.describe(&topic).await?;
    let at = TopicPartition::new(topic, partition);
    let found = described
        .partitions
        .iter()
        .find(|found| found.partition == at.partition);
    let Some(found) = found else {
        let partitions = described.config.partitions;
        return Err(LogError::UnknownPartition { at, partitions }.into());
    };
    let from = match from {
        From::Earliest => found.start,
        From::Latest => found.end,
        From::Offset(offset) => Offset(offset),
        From::Time(ms) => api.log.offset_at(&at, ms).await?,
    };
    let max_records = asked.max.unwrap_or(USUAL_RECORDS).min(MOST_RECORDS);
    let mut answer = ReadRecords {
        records: Vec::new(),
        next: from.0,
        start: found.start.0,
        end: found.end.0,
    };
    if max_records == 0 {
        return Ok(Json(answer));
    }
    let read = Read {
        max_records,
        max_bytes: MOST_BYTES,
        wait: Duration::from_millis(asked.wait_ms.unwrap_or(0).min(MOST_WAIT_MS)),
        ..Read::new(at.clone(), from)
    };
    let batch = api.log.read(read).await?;
    let cluster = api.log.cluster();
    let records = batch.records.iter();
    answer.records = records
        .map(|stored| ReadRecord::of(stored, cluster, &at))
        .collect();
    answer.next = batch.next.0;
    answer.end = answer.end.max(batch.next.0);
    Ok(Json(answer))
}

pub(super) fn named(topic: String) -> Result<Topic, ApiProblem> {
    Topic::new(topic).map_err(|error| ApiProblem::new(ProblemCode::BadRequest, error.to_string()))
}

/// A failure of the log over HTTP.
impl std::convert::From<LogError> for ApiProblem {
    fn from(error: LogError) -> Self {
        let code = match &error {
            LogError::UnknownTopic { .. } => ProblemCode::LogUnknownTopic,
            LogError::UnknownPartition { .. } => ProblemCode::LogUnknownPartition,
            LogError::RecordTooLarge { .. } | LogError::HeaderTooLong { .. } => {
                ProblemCode::LogRecordTooLarge
            }
            LogError::CommitTooLarge { .. } => ProblemCode::LogCommitTooLarge,
            LogError::OutOfRange { .. } => ProblemCode::LogOutOfRange,
            LogError::Damaged { .. } => ProblemCode::LogDamaged,
            LogError::Full { .. } => ProblemCode::LogFull,
            LogError::OutcomeUnknown { .. } => ProblemCode::LogOutcomeUnknown,
            LogError::UnknownGroup { .. } => ProblemCode::LogUnknownGroup,
            LogError::TopicConfig { .. } => ProblemCode::LogTopicConfig,
            LogError::Unread { .. } => ProblemCode::LogUnread,
            LogError::InUse { .. } => ProblemCode::LogInUse,
            LogError::MetadataTooLong { .. }
            | LogError::MetadataNotAscii { .. }
            | LogError::Overloaded { .. }
            | LogError::Fenced { .. }
            | LogError::OffsetRegressed { .. }
            | LogError::Closed
            | LogError::Unavailable { .. }
            | LogError::Refused { .. }
            | LogError::Forbidden { .. }
            | LogError::RecordRefused { .. }
            | LogError::Locked { .. }
            | LogError::Format { .. }
            | LogError::Disk { .. }
            | LogError::Stopped { .. }
            | LogError::PrecedingCommitFailed { .. }
            | LogError::Login { .. }
            | LogError::Remote { .. } => ProblemCode::LogUnavailable,
        };
        let problem = ApiProblem::new(code, error.to_string()).with("cause", error.code().as_str());
        if let LogError::OutOfRange {
            asked, start, end, ..
        } = &error
        {
            let problem = problem.with("asked", asked.0);
            return problem.with("start", start.0).with("end", end.0);
        }
        if let LogError::Damaged { from, to, .. } = &error {
            return problem.with("from", from.0).with("to", to.0);
        }
        problem
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_that_is_not_there_is_told_with_those_that_are() {
        let told = ApiProblem::from(LogError::OutOfRange {
            at: TopicPartition::new(Topic::new("orders").unwrap(), 0),
            asked: Offset(99),
            start: Offset(3),
            end: Offset(7),
        });
        let told = serde_json::to_value(&told).unwrap();
        for (name, offset) in [("asked", 99), ("start", 3), ("end", 7)] {
            assert_eq!(told["details"][name], offset, "{told}");
        }
    }

    #[test]
    fn a_beginning_is_a_word_an_offset_or_a_time() {
        for (text, expect) in [
            ("earliest", Some(From::Earliest)),
            ("latest", Some(From::Latest)),
            ("12", Some(From::Offset(12))),
            ("@1700000000000", Some(From::Time(1_700_000_000_000))),
            ("", None),
            ("@", None),
            ("yesterday", None),
        ] {
            assert_eq!(parse_from(text), expect, "{text:?}");
        }
    }
}
