//! Finding events.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use tidegate_eventlog::{
    AccountQuery, AccountSummary, BatchEvents, BatchSummary, CorrelationEvents, DashboardStats,
    EventPage, LookupQuery, PageRequest, StoredEvent, TextQuery, TimeWindow, TraceEvents,
    TracePage, TraceQuery,
};
use utoipa::{IntoParams, ToSchema};

use super::EventLogApi;
use super::posts::json_text;
use super::problem::EventLogProblem;
use super::schema::{
    AccountSummarySchema, BatchEventsSchema, BatchSummarySchema, CorrelationEventsSchema,
    CursorSchema, DashboardStatsSchema, EventPageSchema, EventStatusSchema, FoundEventsSchema,
    MomentSchema, StatusListSchema, TraceEventsSchema, TracePageSchema,
};
use crate::parameters::{PathParameters, QueryParameters};

type Api = State<Arc<EventLogApi>>;
type Answer<T> = Result<Json<T>, EventLogProblem>;

/// A page of a batch.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct BatchParams {
    /// The number of the page, from 1.
    #[param(minimum = 1, maximum = 1_000_000)]
    page: Option<u32>,
    /// Events of a page, at most 100.
    #[param(minimum = 1, maximum = 100)]
    page_size: Option<u32>,
    /// The `nextAfter` of the page before, instead of `page`.
    #[param(value_type = Option<CursorSchema>, inline)]
    after: Option<String>,
    /// Only events with this status.
    #[param(value_type = Option<EventStatusSchema>, inline)]
    event_status: Option<String>,
}

/// The events of a batch, in the order in which they were stored.
#[utoipa::path(get, path = "/v1/events/batch/{batchId}", tag = "eventlog",
    params(("batchId" = String, Path, description = "The batch."), BatchParams),
    responses(
        (status = 200, description = "A page of events.", body = BatchEventsSchema),
        (status = 400, description = "The request is invalid.", body = EventLogProblem),
        (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn batch(
    State(api): Api,
    PathParameters(batch_id): PathParameters<String>,
    QueryParameters(asked): QueryParameters<BatchParams>,
) -> Answer<BatchEvents> {
    let page = page(asked.page, asked.page_size, asked.after);
    let status = asked.event_status.as_deref();
    Ok(Json(api.log.batch(batch_id, status, &page).await?))
}

/// How far the processes of a batch have come.
#[utoipa::path(get, path = "/v1/events/batch/{batchId}/summary", tag = "eventlog",
    params(("batchId" = String, Path, description = "The batch.")),
    responses(
        (status = 200, description = "The summary.", body = BatchSummarySchema),
        (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn batch_summary(
    State(api): Api,
    PathParameters(batch_id): PathParameters<String>,
) -> Answer<BatchSummary> {
    Ok(Json(api.log.batch_summary(batch_id).await?))
}

/// A page of an account.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AccountParams {
    /// The first moment: a time with an offset, or a day.
    #[param(value_type = Option<MomentSchema>, inline)]
    start_date: Option<String>,
    /// The last moment.
    #[param(value_type = Option<MomentSchema>, inline)]
    end_date: Option<String>,
    /// Only events of this process.
    process_name: Option<String>,
    /// Only events with this status.
    #[param(value_type = Option<EventStatusSchema>, inline)]
    event_status: Option<String>,
    /// Also the events of correlations that are linked to the account.
    include_linked: Option<bool>,
    /// The number of the page, from 1.
    #[param(minimum = 1, maximum = 1_000_000)]
    page: Option<u32>,
    /// Events of a page, at most 100.
    #[param(minimum = 1, maximum = 100)]
    page_size: Option<u32>,
    /// The `nextAfter` of the page before, instead of `page`.
    #[param(value_type = Option<CursorSchema>, inline)]
    after: Option<String>,
}

/// The events of an account, the newest first.
#[utoipa::path(get, path = "/v1/events/account/{accountId}", tag = "eventlog",
    params(("accountId" = String, Path, description = "The account."), AccountParams),
    responses(
        (status = 200, description = "A page of events.", body = EventPageSchema),
        (status = 400, description = "The request is invalid.", body = EventLogProblem),
        (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn account(
    State(api): Api,
    PathParameters(account_id): PathParameters<String>,
    QueryParameters(asked): QueryParameters<AccountParams>,
) -> Answer<EventPage> {
    let query = AccountQuery {
        window: window(asked.start_date.as_deref(), asked.end_date.as_deref())?,
        process_name: asked.process_name,
        event_status: asked.event_status,
        include_linked: asked.include_linked.unwrap_or(false),
        page: page(asked.page, asked.page_size, asked.after),
    };
    Ok(Json(api.log.account_events(&account_id, &query).await?))
}

/// The life of an account.
#[utoipa::path(get, path = "/v1/events/account/{accountId}/summary", tag = "eventlog",
    params(("accountId" = String, Path, description = "The account.")),
    responses(
        (status = 200, description = "The summary.", body = AccountSummarySchema),
        (status = 404, description = "The account has no event.", body = EventLogProblem),
        (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn account_summary(
    State(api): Api,
    PathParameters(account_id): PathParameters<String>,
) -> Answer<AccountSummary> {
    Ok(Json(api.log.account_summary(account_id).await?))
}

/// A page of a correlation or a trace.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LongPageParams {
    /// The number of the page, from 1.
    #[param(minimum = 1, maximum = 1_000_000)]
    page: Option<u32>,
    /// Events of a page, at most 500.
    #[param(minimum = 1, maximum = 500)]
    page_size: Option<u32>,
    /// The `nextAfter` of the page before, instead of `page`.
    #[param(value_type = Option<CursorSchema>, inline)]
    after: Option<String>,
}

/// The events of a correlation, by the sequence of their steps and by time.
#[utoipa::path(get, path = "/v1/events/correlation/{id}", tag = "eventlog",
    params(("id" = String, Path, description = "The correlation."), LongPageParams),
    responses(
        (status = 200, description = "A page of events.", body = CorrelationEventsSchema),
        (status = 400, description = "The request is invalid.", body = EventLogProblem),
        (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn correlation(
    State(api): Api,
    PathParameters(id): PathParameters<String>,
    QueryParameters(asked): QueryParameters<LongPageParams>,
) -> Answer<CorrelationEvents> {
    let page = page(asked.page, asked.page_size, asked.after);
    Ok(Json(api.log.correlation(id, &page).await?))
}

/// The events of a trace, the oldest first.
#[utoipa::path(get, path = "/v1/events/trace/{traceId}", tag = "eventlog",
    params(("traceId" = String, Path, description = "The trace."), LongPageParams),
    responses(
        (status = 200, description = "A page of events.", body = TraceEventsSchema),
        (status = 400, description = "The request is invalid.", body = EventLogProblem),
        (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn trace(
    State(api): Api,
    PathParameters(trace_id): PathParameters<String>,
    QueryParameters(asked): QueryParameters<LongPageParams>,
) -> Answer<TraceEvents> {
    let page = page(asked.page, asked.page_size, asked.after);
    Ok(Json(api.log.trace(trace_id, &page).await?))
}

/// Which events to look up.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"accountId": "ACC-1", "eventStatus": "FAILURE"}))]
pub(super) struct LookupBody {
    /// Of this account; this or `processName` is needed.
    account_id: Option<String>,
    /// Of this process.
    process_name: Option<String>,
    /// With this status.
    #[schema(value_type = Option<EventStatusSchema>)]
    event_status: Option<String>,
    /// The first moment; with `endDate` or not at all.
    #[schema(value_type = Option<MomentSchema>)]
    start_date: Option<String>,
    /// The last moment, at most 30 days later.
    #[schema(value_type = Option<MomentSchema>)]
    end_date: Option<String>,
    /// The number of the page, from 1.
    #[schema(minimum = 1, maximum = 1_000_000)]
    page: Option<u32>,
    /// Events of a page, at most 100.
    #[schema(minimum = 1, maximum = 100)]
    page_size: Option<u32>,
    /// The `nextAfter` of the page before, instead of `page`.
    #[schema(value_type = Option<CursorSchema>)]
    after: Option<String>,
}

/// The events of an account or a process, the newest first.
#[utoipa::path(post, path = "/v1/events/lookup", tag = "eventlog", request_body = LookupBody,
    responses(
        (status = 200, description = "A page of events.", body = EventPageSchema),
        (status = 400, description = "The request is invalid.", body = EventLogProblem),
        (status = 415, description = "The body is not JSON.", body = EventLogProblem),
        (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn lookup(State(api): Api, headers: HeaderMap, body: Bytes) -> Answer<EventPage> {
    let asked: LookupBody = read(&headers, &body)?;
    let query = LookupQuery {
        account_id: asked.account_id,
        process_name: asked.process_name,
        event_status: asked.event_status,
        window: window(asked.start_date.as_deref(), asked.end_date.as_deref())?,
        page: page(asked.page, asked.page_size, asked.after),
    };
    Ok(Json(api.log.lookup(&query).await?))
}

/// The words to search for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"query": "booking BK-1", "processName": "CreateBooking"}))]
pub(super) struct TextBody {
    /// Words; each must begin a word of the details.
    query: String,
    /// Of this account; this or `processName` is needed.
    account_id: Option<String>,
    /// Of this process.
    process_name: Option<String>,
    /// The first moment; with `endDate` or not at all.
    #[schema(value_type = Option<MomentSchema>)]
    start_date: Option<String>,
    /// The last moment, at most 30 days later.
    #[schema(value_type = Option<MomentSchema>)]
    end_date: Option<String>,
    /// The number of the page, from 1.
    #[schema(minimum = 1, maximum = 1_000_000)]
    page: Option<u32>,
    /// Events of a page, at most 50.
    #[schema(minimum = 1, maximum = 50)]
    page_size: Option<u32>,
    /// The `nextAfter` of the page before, instead of `page`.
    #[schema(value_type = Option<CursorSchema>)]
    after: Option<String>,
}

/// A page of a text search.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FoundEvents {
    events: Vec<StoredEvent>,
    total_count: i64,
    page: u32,
    page_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_after: Option<String>,
}

/// The events whose details have all words of a query, the newest first.
#[utoipa::path(post, path = "/v1/events/search/text", tag = "eventlog", request_body = TextBody,
    responses(
        (status = 200, description = "A page of events.", body = FoundEventsSchema),
        (status = 400, description = "The request is invalid.", body = EventLogProblem),
        (status = 415, description = "The body is not JSON.", body = EventLogProblem),
        (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn search(
    State(api): Api,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<FoundEvents> {
    let asked: TextBody = read(&headers, &body)?;
    let query = TextQuery {
        query: asked.query,
        account_id: asked.account_id,
        process_name: asked.process_name,
        window: window(asked.start_date.as_deref(), asked.end_date.as_deref())?,
        page: page(asked.page, asked.page_size, asked.after),
    };
    let found = api.log.search(&query).await?;
    Ok(Json(FoundEvents {
        events: found.events,
        total_count: found.total_count,
        page: found.page,
        page_size: found.page_size,
        next_after: found.next_after.map(|cursor| cursor.to_string()),
    }))
}

/// Which traces to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TraceParams {
    /// With an event from this moment on.
    #[param(value_type = Option<MomentSchema>, inline)]
    start_date: Option<String>,
    /// With an event up to this moment.
    #[param(value_type = Option<MomentSchema>, inline)]
    end_date: Option<String>,
    /// With an event of this process.
    process_name: Option<String>,
    /// With one of these as their latest status, separated by commas.
    #[param(value_type = Option<StatusListSchema>, inline)]
    event_status: Option<String>,
    /// With an event of this account.
    account_id: Option<String>,
    /// This trace.
    trace_id: Option<String>,
    /// With an event of this correlation.
    correlation_id: Option<String>,
    /// With failed events, or without.
    has_errors: Option<bool>,
    /// The number of the page, from 1.
    #[param(minimum = 1, maximum = 1_000_000)]
    page: Option<u32>,
    /// Traces of a page, at most 100.
    #[param(minimum = 1, maximum = 100)]
    page_size: Option<u32>,
    /// The `nextAfter` of the page before, instead of `page`.
    #[param(value_type = Option<CursorSchema>, inline)]
    after: Option<String>,
}

/// The traces, the newest first.
#[utoipa::path(get, path = "/v1/traces", tag = "eventlog", params(TraceParams), responses(
    (status = 200, description = "A page of traces.", body = TracePageSchema),
    (status = 400, description = "The request is invalid.", body = EventLogProblem),
    (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn traces(
    State(api): Api,
    QueryParameters(asked): QueryParameters<TraceParams>,
) -> Answer<TracePage> {
    let query = TraceQuery {
        window: window(asked.start_date.as_deref(), asked.end_date.as_deref())?,
        process_name: asked.process_name,
        account_id: asked.account_id,
        trace_id: asked.trace_id,
        correlation_id: asked.correlation_id,
        event_status: asked.event_status,
        has_errors: asked.has_errors,
        page: page(asked.page, asked.page_size, asked.after),
    };
    Ok(Json(api.log.traces(&query).await?))
}

/// The events that the dashboard counts.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatsParams {
    /// From this moment on.
    #[param(value_type = Option<MomentSchema>, inline)]
    start_date: Option<String>,
    /// Up to this moment.
    #[param(value_type = Option<MomentSchema>, inline)]
    end_date: Option<String>,
}

/// The numbers of the dashboard.
#[utoipa::path(get, path = "/v1/dashboard/stats", tag = "eventlog", params(StatsParams),
    responses(
        (status = 200, description = "The numbers.", body = DashboardStatsSchema),
        (status = 400, description = "The request is invalid.", body = EventLogProblem),
        (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn stats(
    State(api): Api,
    QueryParameters(asked): QueryParameters<StatsParams>,
) -> Answer<DashboardStats> {
    let window = window(asked.start_date.as_deref(), asked.end_date.as_deref())?;
    Ok(Json(api.log.stats(window).await?))
}

fn page(page: Option<u32>, page_size: Option<u32>, after: Option<String>) -> PageRequest {
    PageRequest {
        page,
        page_size,
        after,
    }
}

fn window(start: Option<&str>, end: Option<&str>) -> Result<TimeWindow, EventLogProblem> {
    Ok(TimeWindow::read(start, end)?)
}

/// Reads a JSON body.
pub(super) fn read<T: serde::de::DeserializeOwned>(
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<T, EventLogProblem> {
    let json = json_text(headers, body)?;
    serde_json::from_str(json).map_err(|error| EventLogProblem::unreadable(&error))
}
