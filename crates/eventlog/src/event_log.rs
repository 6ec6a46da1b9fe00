//! The event log as the API sees it.

mod reads;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_core::books::{Account, Audited, Books};
use tidegate_core::env::{Clock, Env};
use tidegate_core::{EventId, EventIds, EventLocation};
use tidegate_store::Store;

use crate::catalog::{CorrelationLink, NewProcess, ProcessDefinition};
use crate::component::location;
use crate::event::{InvalidEvent, PostOrigin, PostedEvent};
use crate::ingest::{BatchAnswer, IncomingEvent, IngestQueue, PostAnswer, PostOutcome};
use crate::limit::LOGGER_NAME;
use crate::rate::RateLimiter;
use crate::sql;
use crate::telemetry::{self, EventLogLimit};
use crate::{EventLogError, EventLogOptions};

/// How long the store may take to say that it is there.
const READY_WITHIN: Duration = Duration::from_secs(3);

/// A log of business events in a database. Cloning gives another handle on the same one.
#[derive(Debug, Clone)]
pub struct EventLog {
    store: Store,
    options: Arc<EventLogOptions>,
    ids: EventIds,
    clock: Arc<dyn Clock>,
    queue: IngestQueue,
    rate: Option<Arc<RateLimiter>>,
}

/// The envelope of a batch.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BatchEnvelope<'a> {
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
    batch_id: Option<String>,
}

impl EventLog {
    /// The event log in this database; its tables are brought up to date.
    ///
    /// The writer is started on `env`; it ends with the last handle.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn open(
        store: Store,
        options: EventLogOptions,
        env: &Env,
    ) -> Result<Self, EventLogError> {
        sql::migrate(&store).await?;
        Ok(Self::on(store, options, env))
    }

    /// The event log in a database whose tables are up to date.
    #[must_use]
    pub fn on(store: Store, options: EventLogOptions, env: &Env) -> Self {
        Self {
            ids: EventIds::new(Arc::clone(&env.clock), env.entropy.fork("eventlog-ids")),
            clock: Arc::clone(&env.clock),
            queue: IngestQueue::open(store.clone(), env),
            rate: options
                .rate_limit
                .map(|limit| Arc::new(RateLimiter::new(limit))),
            options: Arc::new(options),
            store,
        }
    }

    /// The database beneath.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Its options.
    #[must_use]
    pub fn options(&self) -> &EventLogOptions {
        &self.options
    }

    /// The wall time in milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn now(&self) -> i64 {
        i64::try_from(self.clock.now_ms()).unwrap_or(i64::MAX)
    }

    /// Stores one event.
    ///
    /// Returns once it would survive a power cut. If canceled, it is stored or not. Posting it again gives
    /// the first answer.
    ///
    /// # Errors
    /// The event is invalid, its key belongs to another content, or the store is away.
    pub async fn post_one(
        &self,
        json: &str,
        origin: PostOrigin,
    ) -> Result<PostAnswer, EventLogError> {
        let logger = checked_logger(origin.logger.as_deref())?;
        let event = PostedEvent::read(json, &origin, &self.ids);
        telemetry::invalid(u64::from(event.is_err()));
        let incoming = self.incoming(event?, logger.as_ref());
        self.admit([&incoming])?;
        let (key, correlation_id) = (
            incoming.event.key.clone(),
            incoming.event.correlation_id.clone(),
        );
        let outcomes = self.queue.post(vec![incoming]).await?;
        match outcomes.first() {
            Some(PostOutcome::Stored { execution_id } | PostOutcome::Repeated { execution_id }) => {
                Ok(PostAnswer {
                    success: true,
                    execution_ids: vec![*execution_id],
                    correlation_id,
                })
            }
            Some(PostOutcome::Conflict) | None => Err(EventLogError::Conflict { key }),
        }
    }

    /// Stores the events of a batch, each judged for itself; the good ones in one transaction.
    ///
    /// Returns once they would survive a power cut. If canceled, all good ones are stored or none. Posting
    /// it again gives the same ids.
    ///
    /// # Errors
    /// The envelope is invalid, the batch is too large, or the store is away; nothing is stored then.
    pub async fn post_batch(
        &self,
        json: &str,
        origin: PostOrigin,
    ) -> Result<BatchAnswer, EventLogError> {
        let logger = checked_logger(origin.logger.as_deref())?;
        let envelope: BatchEnvelope<'_> = serde_json::from_str(json).map_err(|error| {
            let path = if error.is_data() { "events" } else { "" };
            EventLogError::request(path, error.to_string())
        })?;
        let limit = self.options.max_batch;
        match envelope.events.len() {
            0 => return Err(EventLogError::request("events", "must not be empty")),
            events if events > limit => {
                telemetry::limit_hit(EventLogLimit::MaxBatch);
                return Err(EventLogError::BatchTooLarge { events, limit });
            }
            _ => {}
        }
        let batch_id = envelope.batch_id.or(origin.batch_id);
        check_batch_id(batch_id.as_deref())?;
        let events: Vec<Result<IncomingEvent, InvalidEvent>> = (0..)
            .zip(&envelope.events)
            .map(|(place, event)| {
                // The answer to a request is remembered after its events are stored. A repeat that comes
                // after a crash between the two must find them.
                let last_key = origin.key.as_ref().map(|key| {
                    let bytes = [key.as_bytes(), b"\n", event.get().as_bytes()].concat();
                    EventId::of_bytes(place, &bytes).to_string()
                });
                let origin = PostOrigin {
                    batch_id: batch_id.clone(),
                    last_key,
                    ..PostOrigin::default()
                };
                let event = PostedEvent::read(event.get(), &origin, &self.ids)?;
                Ok(self.incoming(event, logger.as_ref()))
            })
            .collect();
        self.admit(events.iter().flatten())?;
        let invalid = events.iter().filter(|event| event.is_err()).count();
        telemetry::invalid(u64::try_from(invalid).unwrap_or(u64::MAX));
        let valid = events.iter().flatten().cloned().collect();
        let outcomes = self.queue.post(valid).await?;
        Ok(BatchAnswer::of(&events, &outcomes, batch_id))
    }

    fn incoming(&self, event: PostedEvent, logger: Option<&Arc<str>>) -> IncomingEvent {
        IncomingEvent {
            event: Arc::new(event),
            execution_id: self.ids.mint(),
            logger: logger.cloned(),
        }
    }

    /// Why the last commit of posted events failed, until one succeeds.
    pub(crate) fn commit_failure(&self) -> Option<String> {
        self.queue.failure()
    }

    /// Refuses events of an application that sends too many.
    fn admit<'a>(
        &self,
        events: impl IntoIterator<Item = &'a IncomingEvent>,
    ) -> Result<(), EventLogError> {
        let Some(rate) = &self.rate else {
            return Ok(());
        };
        let mut counts = BTreeMap::<&str, usize>::new();
        for incoming in events {
            *counts.entry(&incoming.event.application_id).or_default() += 1;
        }
        let admitted = rate.admit(&counts, self.clock.elapsed());
        admitted.map_err(|(application, retry_after)| {
            telemetry::limit_hit(EventLogLimit::RateLimit);
            EventLogError::RateLimited {
                application,
                limit: rate.per_second(),
                retry_after,
            }
        })
    }

    /// Links a correlation to an account, or changes its link. Doing it twice changes nothing.
    ///
    /// # Errors
    /// The link is invalid, or the store is away.
    pub async fn link(&self, link: CorrelationLink) -> Result<CorrelationLink, EventLogError> {
        link.check()?;
        sql::upsert_link(&self.store, link.clone(), self.now()).await?;
        Ok(link)
    }

    /// The link of a correlation.
    ///
    /// # Errors
    /// There is none, or the store is away.
    pub async fn find_link(&self, correlation_id: &str) -> Result<CorrelationLink, EventLogError> {
        let found = sql::find_link(&self.store, correlation_id.to_owned()).await?;
        found.ok_or_else(|| EventLogError::NotFound {
            what: "correlation link",
            name: correlation_id.to_owned(),
        })
    }

    /// Defines a process.
    ///
    /// # Errors
    /// The definition is invalid, its name is taken, or the store is away.
    pub async fn define_process(
        &self,
        process: NewProcess,
    ) -> Result<ProcessDefinition, EventLogError> {
        process.check()?;
        let name = process.process_name.clone();
        let made = sql::insert_process(&self.store, process, self.now()).await?;
        made.ok_or(EventLogError::NameTaken { name })
    }

    /// The processes that are defined, by name.
    ///
    /// # Errors
    /// The store is away.
    pub async fn processes(
        &self,
        is_active: Option<bool>,
    ) -> Result<Vec<ProcessDefinition>, EventLogError> {
        sql::list_processes(&self.store, is_active).await
    }

    /// Removes all events, links and processes; for tests of applications. The books keep what went.
    ///
    /// # Errors
    /// The store is away; part of it may be removed.
    pub async fn clear(&self) -> Result<u64, EventLogError> {
        let removed = sql::clear(&self.store).await?;
        telemetry::removed(removed);
        Ok(removed)
    }

    /// Whether the store answers within three seconds.
    pub async fn is_ready(&self) -> bool {
        let ping = self.clock.within(READY_WITHIN, self.store.ping()).await;
        ping.is_some_and(|answer| answer.is_ok())
    }

    /// How many events are where.
    ///
    /// # Errors
    /// The store is away.
    pub async fn account(&self) -> Result<Account, EventLogError> {
        sql::account(&self.store).await
    }

    /// The books of the events of all loggers, with their sums of ids.
    ///
    /// # Errors
    /// The store is away.
    pub async fn books(&self) -> Result<Books, EventLogError> {
        sql::books(&self.store).await
    }

    /// Counts the tables, and compares them with the books.
    ///
    /// # Errors
    /// The store is away.
    pub async fn audit(&self) -> Result<Audited, EventLogError> {
        let recount = sql::recount(&self.store, self.clock.now_ms()).await?;
        Ok(recount.audited())
    }

    /// The loggers that events came from.
    ///
    /// # Errors
    /// The store is away.
    pub async fn loggers(&self) -> Result<Vec<String>, EventLogError> {
        sql::loggers(&self.store).await
    }

    /// The books of the events of one logger, removed ones included; empty for one that sent none.
    ///
    /// # Errors
    /// The store is away.
    pub async fn logger_books(&self, logger: &str) -> Result<Books, EventLogError> {
        sql::logger_books(&self.store, logger.to_owned()).await
    }

    /// Where an event is.
    ///
    /// # Errors
    /// The store is away.
    pub async fn locate(&self, id: EventId) -> Result<Option<EventLocation>, EventLogError> {
        let found = sql::find_event(&self.store, id).await?;
        Ok(found.map(location))
    }
}

/// The name of a logger as it may stand in the books.
fn checked_logger(name: Option<&str>) -> Result<Option<Arc<str>>, EventLogError> {
    let Some(name) = name else {
        return Ok(None);
    };
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if name.is_empty() || name.len() > LOGGER_NAME || !name.bytes().all(is_plain) {
        return Err(EventLogError::InvalidLogger {
            // More of a wrong one would only fill the log.
            name: name.chars().take(LOGGER_NAME).collect(),
            limit: LOGGER_NAME,
        });
    }
    Ok(Some(name.into()))
}

fn check_batch_id(batch_id: Option<&str>) -> Result<(), EventLogError> {
    /// As for the field of an event.
    const LIMIT: usize = 200;
    let length = batch_id.map_or(0, |text| text.chars().count());
    if length > LIMIT {
        let message = format!("has {length} characters, and may have at most {LIMIT}");
        return Err(EventLogError::request("batchId", message));
    }
    if batch_id.is_some_and(|text| text.contains('\0')) {
        let message = "must not hold a zero character";
        return Err(EventLogError::request("batchId", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logger_has_a_plain_name() {
        assert_eq!(checked_logger(None).unwrap(), None);
        let name = "019a8f3e-5c00-7abc-8def-0123456789ab";
        assert_eq!(checked_logger(Some(name)).unwrap().as_deref(), Some(name));
        for wrong in ["", "a b", "a:b", "é", &"x".repeat(65)] {
            assert!(checked_logger(Some(wrong)).is_err(), "{wrong:?}");
        }
    }
}
