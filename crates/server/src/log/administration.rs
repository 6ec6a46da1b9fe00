//! The handlers of what operators do with topics and groups.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tidegate_client::wire::{
    GroupInfo, GroupNames, MovedPartition, MovedPartitions, NewSeek, NewTopic, RemovedGroupInfo,
    RemovedTopicInfo, TopicInfo, mode,
};
use tidegate_core::GroupName;
use tidegate_log::TopicConfig;
use tidegate_log::admin::TopicRemoval;
use utoipa::IntoParams;

use super::LogApi;
use super::routes::named;
use crate::parameters::{PathParameters, QueryParameters};
use crate::{ApiProblem, ProblemCode};

type Api = State<Arc<LogApi>>;

/// Makes a topic, or changes the settings of one that is there. The number of partitions never changes.
#[utoipa::path(put, path = "/tidegate/log/{topic}", tag = "log",
    params(
        ("topic" = String, Path, description = "The topic.", pattern = "^[A-Za-z0-9._-]{1,249}$", example = "orders"),
        ("Idempotency-Key" = Option<String>, Header, description = "The name of this request, for repeats."),
    ),
    request_body = NewTopic,
    responses(
        (status = 200, description = "The topic.", body = TopicInfo),
        (status = 400, description = "The topic has a name that none can have.", body = ApiProblem),
        (status = 409, description = "The topic has another number of partitions, or cannot be like that; or the key was used for another request.", body = ApiProblem),
        (status = 503, description = "The log does not answer.", body = ApiProblem),
))]
pub(super) async fn create_topic(
    State(api): Api,
    PathParameters(topic): PathParameters<String>,
    Json(new): Json<NewTopic>,
) -> Result<Json<TopicInfo>, ApiProblem> {
    let topic = named(topic)?;
    api.log.create_topic(&topic, TopicConfig::from(new)).await?;
    tracing::info!(%topic, "a topic was made");
    Ok(Json(api.log.describe(&topic).await?.into()))
}

/// How a topic is removed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RemovalQuery {
    /// Whether it goes although groups have still to read some of it.
    #[serde(default)]
    force: bool,
    /// Whether the numbers are only told, and nothing is changed.
    #[serde(default)]
    dry_run: bool,
}

/// Removes a topic with all its records.
///
/// The records that groups had still to read are lost to them (`lost{topic_removed}`). A topic of that name that is made later
/// goes on with its offsets and books.
#[utoipa::path(delete, path = "/tidegate/log/{topic}", tag = "log",
    params(
        ("topic" = String, Path, description = "The topic.", pattern = "^[A-Za-z0-9._-]{1,249}$", example = "orders"),
        ("Idempotency-Key" = Option<String>, Header, description = "The name of this request, for repeats."),
        RemovalQuery,
    ),
    responses(
        (status = 200, description = "How many records it had.", body = RemovedTopicInfo),
        (status = 404, description = "There is no such topic.", body = ApiProblem),
        (status = 409, description = "Groups have still to read some of it, or it is in use; or the key was used for another request.", body = ApiProblem),
        (status = 503, description = "The log does not answer.", body = ApiProblem),
))]
pub(super) async fn remove_topic(
    State(api): Api,
    PathParameters(topic): PathParameters<String>,
    QueryParameters(asked): QueryParameters<RemovalQuery>,
) -> Result<Json<RemovedTopicInfo>, ApiProblem> {
    let topic = named(topic)?;
    let removal = TopicRemoval {
        topic: topic.clone(),
        is_forced: asked.force,
        mode: mode(asked.dry_run),
    };
    let removed = api.admin.remove_topic(removal).await?;
    if !asked.dry_run {
        tracing::info!(%topic, records = removed.records, "a topic was removed");
    }
    Ok(Json(removed.into()))
}

/// The groups of the log.
#[utoipa::path(get, path = "/tidegate/groups", tag = "log", responses(
    (status = 200, description = "The names of all groups.", body = GroupNames),
    (status = 503, description = "The log does not answer.", body = ApiProblem),
))]
pub(super) async fn list_groups(State(api): Api) -> Result<Json<GroupNames>, ApiProblem> {
    let groups = api.log.groups().await?;
    Ok(Json(GroupNames {
        groups: groups.iter().map(ToString::to_string).collect(),
    }))
}

/// How far a group is in each topic that it reads.
#[utoipa::path(get, path = "/tidegate/groups/{group}", tag = "log",
    params(("group" = String, Path, description = "The group.", pattern = "^[A-Za-z0-9._-]{1,249}$", example = "billing")),
    responses(
        (status = 200, description = "The group.", body = GroupInfo),
        (status = 404, description = "There is no such group.", body = ApiProblem),
        (status = 503, description = "The log does not answer.", body = ApiProblem),
))]
pub(super) async fn describe_group(
    State(api): Api,
    PathParameters(group): PathParameters<String>,
) -> Result<Json<GroupInfo>, ApiProblem> {
    let group = group_name(group)?;
    Ok(Json(api.admin.describe_group(&group).await?.into()))
}

/// Has a group without members begin elsewhere.
///
/// Records that it is moved past are lost to it (`lost{skipped}`), and records that it reads again are queued once
/// more.
#[utoipa::path(post, path = "/tidegate/groups/{group}/seek", tag = "log",
    params(
        ("group" = String, Path, description = "The group.", pattern = "^[A-Za-z0-9._-]{1,249}$", example = "billing"),
        ("Idempotency-Key" = Option<String>, Header, description = "The name of this request, for repeats."),
    ),
    request_body = NewSeek,
    responses(
        (status = 200, description = "The partitions in which it was moved.", body = MovedPartitions),
        (status = 400, description = "The group or a topic has a name that none can have.", body = ApiProblem),
        (status = 404, description = "There is no such group, topic or partition.", body = ApiProblem),
        (status = 409, description = "The group has members or is in use; or the key was used for another request.", body = ApiProblem),
        (status = 503, description = "The log does not answer.", body = ApiProblem),
))]
pub(super) async fn seek_group(
    State(api): Api,
    PathParameters(group): PathParameters<String>,
    Json(new): Json<NewSeek>,
) -> Result<Json<MovedPartitions>, ApiProblem> {
    let group = group_name(group)?;
    let dry_run = new.dry_run;
    let seek = new
        .into_seek(group.clone())
        .map_err(|why| ApiProblem::new(ProblemCode::BadRequest, why))?;
    let sought = api.admin.seek_group(seek).await?;
    if !dry_run {
        let records: u64 = sought.iter().map(|one| one.records).sum();
        tracing::info!(%group, partitions = sought.len(), records, "a group was moved");
    }
    Ok(Json(MovedPartitions {
        partitions: sought.iter().map(MovedPartition::from).collect(),
    }))
}

/// How a group is forgotten.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ForgetQuery {
    /// Whether the numbers are only told, and nothing is changed.
    #[serde(default)]
    dry_run: bool,
}

/// Forgets a group without members, with its offsets.
///
/// The records that it had still to read are lost to it (`lost{forgotten}`).
#[utoipa::path(delete, path = "/tidegate/groups/{group}", tag = "log",
    params(
        ("group" = String, Path, description = "The group.", pattern = "^[A-Za-z0-9._-]{1,249}$", example = "billing"),
        ("Idempotency-Key" = Option<String>, Header, description = "The name of this request, for repeats."),
        ForgetQuery,
    ),
    responses(
        (status = 200, description = "How many records it had still to read.", body = RemovedGroupInfo),
        (status = 404, description = "There is no such group.", body = ApiProblem),
        (status = 409, description = "The group has members or is in use; or the key was used for another request.", body = ApiProblem),
        (status = 503, description = "The log does not answer.", body = ApiProblem),
))]
pub(super) async fn forget_group(
    State(api): Api,
    PathParameters(group): PathParameters<String>,
    QueryParameters(asked): QueryParameters<ForgetQuery>,
) -> Result<Json<RemovedGroupInfo>, ApiProblem> {
    let group = group_name(group)?;
    let removed = api.admin.remove_group(&group, mode(asked.dry_run)).await?;
    if !asked.dry_run {
        tracing::info!(%group, "a group was forgotten");
    }
    Ok(Json(removed.into()))
}

fn group_name(group: String) -> Result<GroupName, ApiProblem> {
    GroupName::new(group)
        .map_err(|error| ApiProblem::new(ProblemCode::BadRequest, error.to_string()))
}
