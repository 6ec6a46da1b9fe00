//! Schemas of the JSON that the event log reads and writes. They are never built: they say in the OpenAPI
//! document what the types of the same names, without `Schema`, look like on the wire.

#![expect(dead_code, reason = "only the derived schemas are used")]

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// An event. Further properties are kept and returned unchanged.
#[derive(ToSchema)]
#[schema(as = Event, rename_all = "camelCase", example = json!({
    "applicationId": "pet-resort-api", "correlationId": "a1b2c3d4", "processName": "CreateBooking",
    "processStatus": "PROCESS_START", "step": "BookingCreated", "details": "Booking BK-1 created",
    "targetSystem": "PET_RESORT", "originatingSystem": "PET_RESORT",
    "timestamp": "2026-06-01T10:15:30.123Z", "userId": "system",
    "_id": "0197a9c2-5c00-7abc-8def-0123456789ab"
}))]
pub(super) struct EventSchema {
    #[schema(min_length = 1, max_length = 200)]
    application_id: String,
    #[schema(min_length = 1, max_length = 200)]
    correlation_id: String,
    #[schema(min_length = 1, max_length = 510)]
    process_name: String,
    process_status: ProcessStatusSchema,
    #[schema(min_length = 1, max_length = 200)]
    target_system: String,
    #[schema(min_length = 1, max_length = 200)]
    originating_system: String,
    #[schema(min_length = 1)]
    details: String,
    #[schema(format = "date-time")]
    timestamp: String,
    /// Absent for ERROR.
    #[schema(max_length = 510)]
    step: Option<String>,
    #[schema(max_length = 200)]
    user_id: Option<String>,
    #[schema(pattern = "^[0-9a-f]{32}$")]
    trace_id: Option<String>,
    #[schema(pattern = "^[0-9a-f]{16}$")]
    span_id: Option<String>,
    #[schema(pattern = "^[0-9a-f]{16}$")]
    parent_span_id: Option<String>,
    #[schema(max_length = 64)]
    account_id: Option<String>,
    identifiers: Option<BTreeMap<String, Value>>,
    metadata: Option<BTreeMap<String, Value>>,
    #[schema(min_length = 1, max_length = 2048)]
    result: Option<String>,
    #[schema(minimum = 0)]
    execution_time_ms: Option<i64>,
    #[schema(max_length = 100)]
    error_code: Option<String>,
    #[schema(max_length = 2048)]
    error_message: Option<String>,
    #[schema(min_length = 1, max_length = 128)]
    idempotency_key: Option<String>,
    event_status: Option<EventStatusSchema>,
    #[schema(minimum = 0)]
    step_sequence: Option<i64>,
    #[schema(max_length = 200)]
    batch_id: Option<String>,
    span_links: Option<Vec<String>>,
    #[schema(max_length = 510)]
    endpoint: Option<String>,
    /// GET, POST, PUT, PATCH, DELETE, HEAD or OPTIONS.
    http_method: Option<String>,
    #[schema(minimum = 100, maximum = 599)]
    http_status_code: Option<u16>,
    request_payload: Option<Value>,
    response_payload: Option<Value>,
    /// The id of the event.
    #[schema(rename = "_id", format = "uuid")]
    id: Option<String>,
}

/// The kind of an event.
#[derive(Serialize, ToSchema)]
#[schema(as = ProcessStatus, rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum ProcessStatusSchema {
    ProcessStart,
    Step,
    ProcessEnd,
    Error,
}

/// How an event went.
#[derive(Serialize, ToSchema)]
#[schema(as = EventStatus, rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum EventStatusSchema {
    Success,
    Failure,
    InProgress,
    Skipped,
    Warning,
}

/// Statuses, separated by commas.
#[derive(ToSchema)]
#[schema(as = EventStatusList, example = "FAILURE,WARNING",
    pattern = "^(SUCCESS|FAILURE|IN_PROGRESS|SKIPPED|WARNING)(,(SUCCESS|FAILURE|IN_PROGRESS|SKIPPED|WARNING))*$")]
pub(super) struct StatusListSchema(String);

/// A time with an offset, or a day in UTC.
#[derive(ToSchema)]
#[schema(as = Moment, example = "2026-06-01T10:15:30Z",
    pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2}))?$")]
pub(super) struct MomentSchema(String);

/// The place behind which a page begins: the `nextAfter` of the page before.
#[derive(ToSchema)]
#[schema(as = PageCursor, example = "1780308930123000.5", pattern = "^-?[0-9]{1,19}(\\.-?[0-9]{1,19}){0,2}$")]
pub(super) struct CursorSchema(String);

/// Many events.
#[derive(ToSchema)]
#[schema(as = EventBatch, rename_all = "camelCase", example = json!({
    "batchId": "nightly-7",
    "events": [{
        "applicationId": "pet-resort-api", "correlationId": "a1b2c3d4",
        "processName": "CreateBooking", "processStatus": "PROCESS_START", "step": "BookingCreated",
        "details": "Booking BK-1 created", "targetSystem": "PET_RESORT",
        "originatingSystem": "PET_RESORT", "timestamp": "2026-06-01T10:15:30.123Z"
    }]
}))]
pub(super) struct EventBatchSchema {
    /// The events. Each is judged for itself, so that any JSON may stand here.
    #[schema(min_items = 1, value_type = Vec<EventSchema>)]
    events: Vec<Value>,
    /// The batch, for events without their own.
    #[schema(max_length = 200)]
    batch_id: Option<String>,
}

/// The answer to a single post.
#[derive(ToSchema)]
#[schema(as = PostAnswer, rename_all = "camelCase", example = json!({
    "success": true, "executionIds": ["0197a9c2-5c00-7abc-8def-0123456789ab"],
    "correlationId": "a1b2c3d4"
}))]
pub(super) struct PostAnswerSchema {
    success: bool,
    execution_ids: Vec<String>,
    correlation_id: String,
}

/// The answer to a batch.
#[derive(ToSchema)]
#[schema(as = BatchAnswer, rename_all = "camelCase", example = json!({
    "success": false, "totalReceived": 2, "totalInserted": 1, "totalDuplicates": 0,
    "executionIds": ["0197a9c2-5c00-7abc-8def-0123456789ab"], "correlationIds": ["a1b2c3d4"],
    "batchId": "nightly-7", "errors": [{"index": 1, "error": "missing processStatus",
        "code": "event.invalid", "class": "Permanent"}]
}))]
pub(super) struct BatchAnswerSchema {
    success: bool,
    total_received: usize,
    total_inserted: usize,
    total_duplicates: usize,
    execution_ids: Vec<String>,
    correlation_ids: Vec<String>,
    batch_id: Option<String>,
    errors: Vec<BatchProblemSchema>,
}

/// An event of a batch that was refused.
#[derive(ToSchema)]
#[schema(as = BatchProblem, example = json!({"index": 1, "error": "missing processStatus", "code": "event.invalid", "class": "Permanent"}))]
pub(super) struct BatchProblemSchema {
    index: usize,
    error: String,
    code: String,
    class: String,
}

/// An event with the fields of the server.
#[derive(Serialize, ToSchema)]
#[schema(as = StoredEvent, rename_all = "camelCase", example = json!({
    "eventLogId": 1, "executionId": "0197a9c2-5c00-7abc-8def-0123456789ab",
    "eventId": "0197a9c2-5c00-7abc-8def-0123456789ab", "createdAt": "2026-06-01T10:15:30.200Z",
    "isDeleted": false, "applicationId": "pet-resort-api", "correlationId": "a1b2c3d4",
    "processName": "CreateBooking", "processStatus": "PROCESS_START", "eventStatus": "IN_PROGRESS",
    "details": "Booking BK-1 created", "timestamp": "2026-06-01T10:15:30.123Z"
}))]
pub(super) struct StoredEventSchema {
    event_log_id: i64,
    execution_id: String,
    event_id: String,
    #[schema(format = "date-time")]
    created_at: String,
    is_deleted: bool,
    application_id: String,
    correlation_id: String,
    process_name: String,
    process_status: ProcessStatusSchema,
    event_status: EventStatusSchema,
    details: String,
    timestamp: String,
}

/// A page of events.
#[derive(Serialize, ToSchema)]
#[schema(as = EventPage, rename_all = "camelCase", example = json!({
    "events": [], "totalCount": 0, "page": 1, "pageSize": 50, "hasMore": false
}))]
pub(super) struct EventPageSchema {
    events: Vec<StoredEventSchema>,
    total_count: i64,
    page: u32,
    page_size: u32,
    has_more: bool,
    /// The `after` of the next page.
    next_after: Option<String>,
}

/// A page of a text search.
#[derive(ToSchema)]
#[schema(as = FoundEvents, rename_all = "camelCase", example = json!({"events": [], "totalCount": 0, "page": 1, "pageSize": 50}))]
pub(super) struct FoundEventsSchema {
    events: Vec<StoredEventSchema>,
    total_count: i64,
    page: u32,
    page_size: u32,
    next_after: Option<String>,
}

/// A page of a batch.
#[derive(Serialize, ToSchema)]
#[schema(as = BatchEvents, rename_all = "camelCase", example = json!({
    "batchId": "nightly-7", "events": [], "totalCount": 0, "page": 1, "pageSize": 50, "hasMore": false,
    "uniqueCorrelationIds": 0, "successCount": 0, "failureCount": 0
}))]
pub(super) struct BatchEventsSchema {
    batch_id: String,
    #[serde(flatten)]
    page: EventPageSchema,
    unique_correlation_ids: i64,
    success_count: i64,
    failure_count: i64,
}

/// How far the processes of a batch have come.
#[derive(ToSchema)]
#[schema(as = BatchSummary, rename_all = "camelCase", example = json!({
    "batchId": "nightly-7", "totalProcesses": 3, "completed": 2, "failed": 0, "inProgress": 1,
    "correlationIds": ["a1b2c3d4"], "startedAt": "2026-06-01T10:15:30.123Z",
    "lastEventAt": "2026-06-01T10:16:02.500Z"
}))]
pub(super) struct BatchSummarySchema {
    batch_id: String,
    total_processes: i64,
    completed: i64,
    failed: i64,
    in_progress: i64,
    correlation_ids: Vec<String>,
    started_at: Option<String>,
    last_event_at: Option<String>,
}

/// The life of an account.
#[derive(ToSchema)]
#[schema(as = AccountSummary, rename_all = "camelCase", example = json!({
    "accountId": "ACC-1", "totalEvents": 5, "totalProcesses": 1, "successCount": 5,
    "failureCount": 0, "firstEventAt": "2026-06-01T10:15:30.123Z",
    "lastEventAt": "2026-06-01T10:16:02.500Z", "systemsInvolved": ["PET_RESORT"],
    "recentEvents": [], "recentErrors": []
}))]
pub(super) struct AccountSummarySchema {
    account_id: String,
    total_events: i64,
    total_processes: i64,
    success_count: i64,
    failure_count: i64,
    first_event_at: Option<String>,
    last_event_at: Option<String>,
    systems_involved: Vec<String>,
    recent_events: Vec<StoredEventSchema>,
    recent_errors: Vec<StoredEventSchema>,
}

/// A page of a correlation.
#[derive(Serialize, ToSchema)]
#[schema(as = CorrelationEvents, rename_all = "camelCase", example = json!({
    "correlationId": "a1b2c3d4", "accountId": "ACC-1", "isLinked": true,
    "events": [], "totalCount": 0, "page": 1, "pageSize": 50, "hasMore": false
}))]
pub(super) struct CorrelationEventsSchema {
    correlation_id: String,
    account_id: Option<String>,
    is_linked: bool,
    #[serde(flatten)]
    page: EventPageSchema,
}

/// A page of a trace.
#[derive(Serialize, ToSchema)]
#[schema(as = TraceEvents, rename_all = "camelCase", example = json!({
    "traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "events": [], "totalCount": 0, "page": 1, "pageSize": 50, "hasMore": false,
    "systemsInvolved": ["PET_RESORT"], "totalDurationMs": 32377, "statusCounts": {"SUCCESS": 5},
    "processName": "CreateBooking", "startTime": "2026-06-01T10:15:30.123Z",
    "endTime": "2026-06-01T10:16:02.500Z"
}))]
pub(super) struct TraceEventsSchema {
    trace_id: String,
    #[serde(flatten)]
    page: EventPageSchema,
    systems_involved: Vec<String>,
    total_duration_ms: i64,
    /// The number of events with each status.
    status_counts: BTreeMap<String, i64>,
    process_name: Option<String>,
    account_id: Option<String>,
    start_time: Option<String>,
    end_time: Option<String>,
}

/// One trace of a list.
#[derive(ToSchema)]
#[schema(as = TraceRow, rename_all = "camelCase", example = json!({
    "traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "eventCount": 5, "hasErrors": false,
    "latestStatus": "SUCCESS", "durationMs": 32377, "processName": "CreateBooking"
}))]
pub(super) struct TraceRowSchema {
    trace_id: String,
    event_count: i64,
    has_errors: bool,
    latest_status: EventStatusSchema,
    duration_ms: i64,
    process_name: Option<String>,
    account_id: Option<String>,
    start_time: Option<String>,
    end_time: Option<String>,
}

/// A page of traces.
#[derive(ToSchema)]
#[schema(as = TracePage, rename_all = "camelCase", example = json!({
    "traces": [], "totalCount": 0, "page": 1, "pageSize": 50, "hasMore": false
}))]
pub(super) struct TracePageSchema {
    traces: Vec<TraceRowSchema>,
    total_count: i64,
    page: u32,
    page_size: u32,
    has_more: bool,
    next_after: Option<String>,
}

/// The numbers of the dashboard.
#[derive(ToSchema)]
#[schema(as = DashboardStats, rename_all = "camelCase", example = json!({
    "totalTraces": 12, "totalAccounts": 3, "totalEvents": 75, "successRate": 91.67,
    "systemNames": ["PET_RESORT"]
}))]
pub(super) struct DashboardStatsSchema {
    total_traces: i64,
    total_accounts: i64,
    total_events: i64,
    success_rate: f64,
    system_names: Vec<String>,
}

/// The account that a correlation belongs to.
#[derive(ToSchema)]
#[schema(as = CorrelationLink, rename_all = "camelCase", example = json!({
    "correlationId": "a1b2c3d4", "accountId": "ACC-1", "cardNumberLast4": "4242"
}))]
pub(super) struct CorrelationLinkSchema {
    #[schema(min_length = 1, max_length = 200)]
    correlation_id: String,
    #[schema(min_length = 1, max_length = 64)]
    account_id: String,
    #[schema(max_length = 200)]
    application_id: Option<String>,
    #[schema(max_length = 200)]
    customer_id: Option<String>,
    #[schema(min_length = 4, max_length = 4)]
    card_number_last4: Option<String>,
    /// Whether retention keeps the events of the correlation.
    #[schema(required = false)]
    retain: bool,
}

/// A process as it is defined.
#[derive(ToSchema)]
#[schema(as = NewProcess, rename_all = "camelCase", example = json!({
    "processName": "CreateBooking", "displayName": "Create a booking",
    "description": "From the request to the confirmed booking", "owningTeam": "bookings",
    "expectedSteps": 4, "slaMs": 2000
}))]
pub(super) struct NewProcessSchema {
    #[schema(min_length = 1, max_length = 510)]
    process_name: String,
    #[schema(min_length = 1, max_length = 510)]
    display_name: String,
    #[schema(min_length = 1, max_length = 2048)]
    description: String,
    #[schema(min_length = 1, max_length = 200)]
    owning_team: String,
    #[schema(minimum = 0)]
    expected_steps: Option<i64>,
    #[schema(minimum = 0)]
    sla_ms: Option<i64>,
    #[schema(required = false)]
    is_active: bool,
    /// Whether retention keeps the events of the process.
    #[schema(required = false)]
    retain: bool,
}

/// A process that is defined.
#[derive(ToSchema)]
#[schema(as = ProcessDefinition, rename_all = "camelCase", example = json!({
    "processId": 1, "processName": "CreateBooking", "displayName": "Create a booking",
    "description": "From the request to the confirmed booking", "owningTeam": "bookings",
    "expectedSteps": 4, "slaMs": 2000, "isActive": true, "retain": false,
    "createdAt": "2026-06-01T10:15:30.123Z"
}))]
pub(super) struct ProcessDefinitionSchema {
    process_id: i64,
    process_name: String,
    display_name: String,
    description: String,
    owning_team: String,
    expected_steps: Option<i64>,
    sla_ms: Option<i64>,
    is_active: bool,
    retain: bool,
    created_at: String,
}

/// The processes that are defined.
#[derive(ToSchema)]
#[schema(as = ProcessList, example = json!({"processes": [{
    "processId": 1, "processName": "CreateBooking", "displayName": "Create a booking",
    "description": "From the request to the confirmed booking", "owningTeam": "bookings",
    "expectedSteps": 4, "slaMs": 2000, "isActive": true, "retain": false,
    "createdAt": "2026-06-01T10:15:30.123Z"
}]}))]
pub(super) struct ProcessListSchema {
    processes: Vec<ProcessDefinitionSchema>,
}
