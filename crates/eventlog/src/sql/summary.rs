//! Sums over events.

use std::collections::BTreeMap;

use tidegate_logger::{ProcessStatus, StepStatus};
use tidegate_store::sql::{OwnColumns, SqlAccess, SqlConnection};
use tidegate_store::sqlx::AssertSqlSafe;
use tidegate_store::{Store, sqlx};

use super::catalog::link;
use super::listing::{first_events, list};
use super::{
    Conditions, EventListing, ListOrder, OUTCOMES, kind_number, on_either, outcome_number,
};
use crate::EventLogError;
use crate::event::iso_us;
use crate::limit::{LISTED, RECENT_ERRORS, RECENT_EVENTS};
use crate::summary::{
    AccountSummary, BatchEvents, BatchSummary, CorrelationEvents, DashboardStats, TraceEvents,
    success_rate,
};

const SUCCESS: i16 = outcome_number(StepStatus::Success);
const FAILURE: i16 = outcome_number(StepStatus::Failure);
const END: i16 = kind_number(ProcessStatus::ProcessEnd);

/// The numbers that most summaries have.
struct Numbers {
    events: i64,
    correlations: i64,
    success: i64,
    failure: i64,
    first_us: Option<i64>,
    last_us: Option<i64>,
}

async fn numbers<C: SqlConnection>(
    db: &mut C,
    conditions: &Conditions,
) -> Result<Numbers, sqlx::Error> {
    let sql = format!(
        "SELECT count(*), count(DISTINCT correlation_id),
             count(CASE WHEN outcome = {SUCCESS} THEN 1 END),
             count(CASE WHEN outcome = {FAILURE} THEN 1 END), min(at), max(at)
         FROM tidegate_eventlog WHERE true{}",
        conditions.sql()
    );
    let row = db.one_row(AssertSqlSafe(sql), &conditions.values()).await?;
    Ok(Numbers {
        events: row.get(0)?,
        correlations: row.get(1)?,
        success: row.get(2)?,
        failure: row.get(3)?,
        first_us: row.get(4)?,
        last_us: row.get(5)?,
    })
}

/// The systems that events touched, by name.
async fn systems<C: SqlConnection>(
    db: &mut C,
    conditions: &Conditions,
) -> Result<Vec<String>, sqlx::Error> {
    let sql = conditions.sql();
    let sql = format!(
        "SELECT target_system FROM tidegate_eventlog WHERE true{sql}
         UNION SELECT originating_system FROM tidegate_eventlog WHERE true{sql} LIMIT {LISTED}"
    );
    let names = db.fetch_all(AssertSqlSafe(sql), &conditions.values());
    let mut names: Vec<String> = names.await?;
    // The databases sort texts by different rules.
    names.sort_unstable();
    Ok(names)
}

/// The first value of a column that is not null, in the order of time.
async fn first_text<C: SqlConnection>(
    db: &mut C,
    column: &'static str,
    conditions: &Conditions,
) -> Result<Option<String>, sqlx::Error> {
    let sql = format!(
        "SELECT {column} FROM tidegate_eventlog WHERE {column} IS NOT NULL{}
         ORDER BY at, id LIMIT 1",
        conditions.sql()
    );
    db.fetch_optional(AssertSqlSafe(sql), &conditions.values())
        .await
}

/// A page of the events of a batch.
pub(crate) async fn batch_events(
    store: &Store,
    batch_id: String,
    listing: EventListing,
) -> Result<BatchEvents, EventLogError> {
    let events = on_either!(store, SqlAccess::Snapshot, "list a batch",
        db => read_batch(db, batch_id, listing));
    Ok(events?)
}

async fn read_batch<C: SqlConnection>(
    db: &mut C,
    batch_id: String,
    listing: EventListing,
) -> Result<BatchEvents, sqlx::Error> {
    let all = Conditions::of("batch_id", &batch_id);
    let numbers = numbers(db, &all).await?;
    Ok(BatchEvents {
        page: list(db, listing).await?,
        batch_id,
        unique_correlation_ids: numbers.correlations,
        success_count: numbers.success,
        failure_count: numbers.failure,
    })
}

/// How far the processes of a batch have come.
pub(crate) async fn batch_summary(
    store: &Store,
    batch_id: String,
) -> Result<BatchSummary, EventLogError> {
    let summary = on_either!(store, SqlAccess::Snapshot, "sum up a batch",
        db => sum_up_batch(db, batch_id));
    Ok(summary?)
}

async fn sum_up_batch<C: SqlConnection>(
    db: &mut C,
    batch_id: String,
) -> Result<BatchSummary, sqlx::Error> {
    let all = Conditions::of("batch_id", &batch_id);
    let numbers = numbers(db, &all).await?;
    let sql = format!(
        "SELECT count(CASE WHEN ended_well = 1 THEN 1 END),
             count(CASE WHEN ended_well = 0 AND failed = 1 THEN 1 END)
         FROM (SELECT max(CASE WHEN kind = {END} AND outcome = {SUCCESS} THEN 1 ELSE 0 END)
                   AS ended_well,
               max(CASE WHEN outcome = {FAILURE} THEN 1 ELSE 0 END) AS failed
             FROM tidegate_eventlog WHERE true{} GROUP BY correlation_id) c",
        all.sql()
    );
    let (completed, failed): (i64, i64) = db.fetch_one(AssertSqlSafe(sql), &all.values()).await?;
    let sql = format!(
        "SELECT correlation_id FROM tidegate_eventlog WHERE true{}
         GROUP BY correlation_id ORDER BY min(id) LIMIT {LISTED}",
        all.sql()
    );
    let correlation_ids = db.fetch_all(AssertSqlSafe(sql), &all.values()).await?;
    let total = numbers.correlations;
    Ok(BatchSummary {
        batch_id,
        total_processes: total,
        completed,
        failed,
        in_progress: (total - completed - failed).max(0),
        correlation_ids,
        started_at: numbers.first_us.and_then(iso_us),
        last_event_at: numbers.last_us.and_then(iso_us),
    })
}

/// The life of an account; none without events.
pub(crate) async fn account_summary(
    store: &Store,
    account_id: String,
) -> Result<Option<AccountSummary>, EventLogError> {
    let summary = on_either!(store, SqlAccess::Snapshot, "sum up an account",
        db => sum_up_account(db, account_id));
    Ok(summary?)
}

async fn sum_up_account<C: SqlConnection>(
    db: &mut C,
    account_id: String,
) -> Result<Option<AccountSummary>, sqlx::Error> {
    let all = Conditions::of("account_id", &account_id);
    let numbers = numbers(db, &all).await?;
    if numbers.events == 0 {
        return Ok(None);
    }
    let failed = all.clone().and_outcome(Some(StepStatus::Failure));
    let newest = ListOrder::Newest;
    Ok(Some(AccountSummary {
        account_id,
        total_events: numbers.events,
        total_processes: numbers.correlations,
        success_count: numbers.success,
        failure_count: numbers.failure,
        first_event_at: numbers.first_us.and_then(iso_us),
        last_event_at: numbers.last_us.and_then(iso_us),
        systems_involved: systems(db, &all).await?,
        recent_events: first_events(db, &all, newest, RECENT_EVENTS).await?,
        recent_errors: first_events(db, &failed, newest, RECENT_ERRORS).await?,
    }))
}

/// A page of the events of a correlation.
pub(crate) async fn correlation_events(
    store: &Store,
    correlation_id: String,
    listing: EventListing,
) -> Result<CorrelationEvents, EventLogError> {
    let events = on_either!(store, SqlAccess::Snapshot, "list a correlation",
        db => read_correlation(db, correlation_id, listing));
    Ok(events?)
}

async fn read_correlation<C: SqlConnection>(
    db: &mut C,
    correlation_id: String,
    listing: EventListing,
) -> Result<CorrelationEvents, sqlx::Error> {
    let linked = link(db, &correlation_id).await?;
    let is_linked = linked.is_some();
    let account_id = match linked {
        Some(linked) => Some(linked.account_id),
        None => {
            let all = Conditions::of("correlation_id", &correlation_id);
            first_text(db, "account_id", &all).await?
        }
    };
    Ok(CorrelationEvents {
        page: list(db, listing).await?,
        correlation_id,
        account_id,
        is_linked,
    })
}

/// A page of the events of a trace.
pub(crate) async fn trace_events(
    store: &Store,
    trace_id: String,
    listing: EventListing,
) -> Result<TraceEvents, EventLogError> {
    let events = on_either!(store, SqlAccess::Snapshot, "list a trace",
        db => read_trace(db, trace_id, listing));
    Ok(events?)
}

async fn read_trace<C: SqlConnection>(
    db: &mut C,
    trace_id: String,
    listing: EventListing,
) -> Result<TraceEvents, sqlx::Error> {
    let all = Conditions::of("trace_id", &trace_id);
    let numbers = numbers(db, &all).await?;
    let sql = format!(
        "SELECT CAST(outcome AS bigint), count(*) FROM tidegate_eventlog WHERE true{}
         GROUP BY outcome",
        all.sql()
    );
    let counts = db.fetch_all(AssertSqlSafe(sql), &all.values()).await?;
    Ok(TraceEvents {
        page: list(db, listing).await?,
        systems_involved: systems(db, &all).await?,
        total_duration_ms: duration_ms(numbers.first_us, numbers.last_us),
        status_counts: by_outcome(counts),
        process_name: first_text(db, "process_name", &all).await?,
        account_id: first_text(db, "account_id", &all).await?,
        start_time: numbers.first_us.and_then(iso_us),
        end_time: numbers.last_us.and_then(iso_us),
        trace_id,
    })
}

fn by_outcome(counts: Vec<(i64, i64)>) -> BTreeMap<&'static str, i64> {
    let named = counts.into_iter().filter_map(|(number, count)| {
        let is_it = |one: &StepStatus| i64::from(outcome_number(*one)) == number;
        let outcome = OUTCOMES.into_iter().find(is_it)?;
        Some((outcome.as_str(), count))
    });
    named.collect()
}

/// From the first event to the last.
pub(super) fn duration_ms(first_us: Option<i64>, last_us: Option<i64>) -> i64 {
    match (first_us, last_us) {
        (Some(first), Some(last)) => last.saturating_sub(first) / 1_000,
        (Some(_) | None, _) => 0,
    }
}

/// The numbers of the dashboard.
pub(crate) async fn dashboard_stats(
    store: &Store,
    conditions: Conditions,
) -> Result<DashboardStats, EventLogError> {
    let stats = on_either!(store, SqlAccess::Snapshot, "count for the dashboard",
        db => count_all(db, conditions));
    Ok(stats?)
}

async fn count_all<C: SqlConnection>(
    db: &mut C,
    conditions: Conditions,
) -> Result<DashboardStats, sqlx::Error> {
    let sql = conditions.sql();
    // Each of these reads one index alone. One statement for all of them would go through the rows themselves.
    let count = |what: String| AssertSqlSafe(format!("SELECT count(*) FROM {what}"));
    let events = count(format!("tidegate_eventlog WHERE true{sql}"));
    let accounts = count(format!(
        "(SELECT DISTINCT account_id FROM tidegate_eventlog WHERE account_id IS NOT NULL{sql}) a"
    ));
    let traces = AssertSqlSafe(format!(
        "SELECT count(*), count(CASE WHEN failed = 1 THEN 1 END)
         FROM (SELECT max(CASE WHEN outcome = {FAILURE} THEN 1 ELSE 0 END) AS failed
             FROM tidegate_eventlog WHERE trace_id IS NOT NULL{sql} GROUP BY trace_id) t"
    ));
    let (traces, failed) = db.fetch_one(traces, &conditions.values()).await?;
    Ok(DashboardStats {
        total_events: db.fetch_one(events, &conditions.values()).await?,
        total_traces: traces,
        total_accounts: db.fetch_one(accounts, &conditions.values()).await?,
        success_rate: success_rate(traces, failed),
        system_names: systems(db, &conditions).await?,
    })
}
