//! The questions about events.

use tidegate_logger::StepStatus;

use super::EventLog;
use crate::EventLogError;
use crate::page::{EventPage, PageRequest, PageSizes};
use crate::query::{AccountQuery, LookupQuery, TextQuery, TimeWindow, TraceQuery, status};
use crate::sql::{self, Conditions, EventListing, ListOrder, TraceListing};
use crate::summary::{
    AccountSummary, BatchEvents, BatchSummary, CorrelationEvents, DashboardStats, TraceEvents,
    TracePage,
};

impl EventLog {
    /// A page of the events of a batch, in the order in which they were stored.
    ///
    /// # Errors
    /// The request is invalid, or the store is away.
    pub async fn batch(
        &self,
        batch_id: String,
        event_status: Option<&str>,
        page: &PageRequest,
    ) -> Result<BatchEvents, EventLogError> {
        let outcome = event_status.map(status).transpose()?;
        let shown = Conditions::of("batch_id", &batch_id).and_outcome(outcome);
        let paging = page.check(PageSizes::Short)?;
        let listing = EventListing::new(shown, ListOrder::Number, paging)?;
        sql::batch_events(&self.store, batch_id, listing).await
    }

    /// How far the processes of a batch have come.
    ///
    /// # Errors
    /// The store is away.
    pub async fn batch_summary(&self, batch_id: String) -> Result<BatchSummary, EventLogError> {
        sql::batch_summary(&self.store, batch_id).await
    }

    /// A page of the events of an account, the newest first.
    ///
    /// # Errors
    /// The request is invalid, or the store is away.
    pub async fn account_events(
        &self,
        account_id: &str,
        query: &AccountQuery,
    ) -> Result<EventPage, EventLogError> {
        let outcome = query.event_status.as_deref().map(status).transpose()?;
        let subject = match query.include_linked {
            true => Conditions::default().and_linked(account_id),
            false => Conditions::of("account_id", account_id),
        };
        let shown = subject
            .and_is("process_name", query.process_name.as_deref())
            .and_outcome(outcome)
            .and_within(query.window);
        let paging = query.page.check(PageSizes::Short)?;
        let listing = EventListing::new(shown, ListOrder::Newest, paging)?;
        sql::list_events(&self.store, listing).await
    }

    /// The life of an account.
    ///
    /// # Errors
    /// The account has no event, or the store is away.
    pub async fn account_summary(
        &self,
        account_id: String,
    ) -> Result<AccountSummary, EventLogError> {
        let summary = sql::account_summary(&self.store, account_id.clone()).await?;
        summary.ok_or(EventLogError::NotFound {
            what: "account",
            name: account_id,
        })
    }

    /// A page of the events of a correlation, by their sequence and time.
    ///
    /// # Errors
    /// The request is invalid, or the store is away.
    pub async fn correlation(
        &self,
        correlation_id: String,
        page: &PageRequest,
    ) -> Result<CorrelationEvents, EventLogError> {
        let shown = Conditions::of("correlation_id", &correlation_id);
        let paging = page.check(PageSizes::Long)?;
        let listing = EventListing::new(shown, ListOrder::Sequence, paging)?;
        sql::correlation_events(&self.store, correlation_id, listing).await
    }

    /// A page of the events of a trace, the oldest first.
    ///
    /// # Errors
    /// The request is invalid, or the store is away.
    pub async fn trace(
        &self,
        trace_id: String,
        page: &PageRequest,
    ) -> Result<TraceEvents, EventLogError> {
        let shown = Conditions::of("trace_id", &trace_id);
        let paging = page.check(PageSizes::Long)?;
        let listing = EventListing::new(shown, ListOrder::Oldest, paging)?;
        sql::trace_events(&self.store, trace_id, listing).await
    }

    /// A page of the events of an account or a process, the newest first.
    ///
    /// # Errors
    /// The request is invalid, or the store is away.
    pub async fn lookup(&self, query: &LookupQuery) -> Result<EventPage, EventLogError> {
        query.check()?;
        let outcome = query.event_status.as_deref().map(status).transpose()?;
        let shown = Conditions::default()
            .and_is("account_id", query.account_id.as_deref())
            .and_is("process_name", query.process_name.as_deref())
            .and_outcome(outcome)
            .and_within(query.window);
        let paging = query.page.check(PageSizes::Short)?;
        let listing = EventListing::new(shown, ListOrder::Newest, paging)?;
        sql::list_events(&self.store, listing).await
    }

    /// A page of the events whose details have all words of a query, the newest first.
    ///
    /// # Errors
    /// The request is invalid, or the store is away.
    pub async fn search(&self, query: &TextQuery) -> Result<EventPage, EventLogError> {
        let words = query.check()?;
        let shown = Conditions::default()
            .and_is("account_id", query.account_id.as_deref())
            .and_is("process_name", query.process_name.as_deref())
            .and_within(query.window)
            .and_words(self.store.dialect(), &words);
        let paging = query.page.check(PageSizes::Text)?;
        let listing = EventListing::new(shown, ListOrder::Newest, paging)?;
        sql::list_events(&self.store, listing).await
    }

    /// A page of traces, the newest first.
    ///
    /// # Errors
    /// The request is invalid, or the store is away.
    pub async fn traces(&self, query: &TraceQuery) -> Result<TracePage, EventLogError> {
        let statuses: Vec<StepStatus> = match query.event_status.as_deref() {
            Some(list) => list
                .split(',')
                .map(|word| status(word.trim()))
                .collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        let events = Conditions::default()
            .and_is("trace_id", query.trace_id.as_deref())
            .and_is("correlation_id", query.correlation_id.as_deref())
            .and_is("account_id", query.account_id.as_deref())
            .and_is("process_name", query.process_name.as_deref())
            .and_within(query.window);
        let paging = query.page.check(PageSizes::Short)?;
        let listing = TraceListing::new(events, statuses, query.has_errors, paging)?;
        sql::list_traces(&self.store, listing).await
    }

    /// The numbers of the dashboard, of events within a window.
    ///
    /// # Errors
    /// The store is away.
    pub async fn stats(&self, window: TimeWindow) -> Result<DashboardStats, EventLogError> {
        let events = Conditions::default().and_within(window);
        sql::dashboard_stats(&self.store, events).await
    }
}
