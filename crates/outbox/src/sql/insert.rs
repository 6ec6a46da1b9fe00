//! Adding events, in a transaction of ours or of the caller's.

use std::sync::Arc;

use tidegate_core::books::{Place, postings};
use tidegate_core::env::{Clock, Env};
use tidegate_core::{EventId, EventIds};
use tidegate_store::StoreError;
use tidegate_store::posting::{self, Columns};
use tidegate_store::sql::SqlConnection;
use tidegate_store::sqlx::types::Uuid;
use tidegate_store::sqlx::{self, AssertSqlSafe, PgConnection, SqliteConnection};

use crate::{NewOutboxEvent, OutboxError, OutboxOptions};

const DOING: &str = "add events to the outbox";

/// Adds events on connections of yours, with ids of their own and their posting.
///
/// ```no_run
/// # async fn add(connection: &mut tidegate_store::sqlx::PgConnection) -> Result<(), tidegate_outbox::OutboxError> {
/// use tidegate_core::env::Env;
/// use tidegate_outbox::{NewOutboxEvent, OutboxOptions, sql::Inserter};
/// let inserter = Inserter::new(&OutboxOptions::default(), &Env::system())?;
/// let event = NewOutboxEvent::new("loan-7", "LoanApproved", "{}").topic("loan-events");
/// inserter.insert_on_postgres(connection, &[event]).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Inserter {
    ids: EventIds,
    clock: Arc<dyn Clock>,
    component: String,
    table: String,
    postgres: Arc<str>,
    sqlite: Arc<str>,
}

impl Inserter {
    /// The inserter for the table of these options.
    ///
    /// # Errors
    /// The options cannot be used.
    pub fn new(options: &OutboxOptions, env: &Env) -> Result<Self, OutboxError> {
        options.check()?;
        let table = &options.table;
        let postgres = format!(
            "WITH own AS MATERIALIZED (SELECT set_config('tidegate.outbox_posted', $8, true)),
             posted AS (
                 INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
                 SELECT $9, p.bucket, NULL, 'queued', p.count, p.id_sum
                 FROM unnest($10::text[], $11::int8[], $12::uuid[]) p(bucket, count, id_sum))
             INSERT INTO {table} (event_id, aggregate_type, aggregate_id, type, topic, payload, headers)
             SELECT e.event_id, e.aggregate_type, e.aggregate_id, e.type, e.topic, e.payload, e.headers::jsonb
             FROM own, unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
                 WITH ORDINALITY e(event_id, aggregate_type, aggregate_id, type, topic, payload, headers, n)
             ORDER BY e.n"
        );
        let sqlite = format!(
            "INSERT INTO {table} (event_id, aggregate_type, aggregate_id, type, topic, payload, headers,
                 created_at, locked_by) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'tidegate.outbox_posted')"
        );
        Ok(Self {
            ids: EventIds::new(Arc::clone(&env.clock), env.entropy.fork("outbox-ids")),
            clock: Arc::clone(&env.clock),
            component: options.component(),
            table: options.table.clone(),
            postgres: postgres.into(),
            sqlite: sqlite.into(),
        })
    }

    /// The clock of its ids.
    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    /// Adds events on a connection: in the transaction that it is in, or at once, all or none.
    ///
    /// # Errors
    /// The database refused; the transaction is then yours to take back.
    pub async fn insert_on_postgres(
        &self,
        connection: &mut PgConnection,
        events: &[NewOutboxEvent],
    ) -> Result<Vec<EventId>, OutboxError> {
        let added = self.on_postgres(connection, events).await;
        Ok(added.map_err(|error| StoreError::of(DOING, error))?)
    }

    /// The same on SQLite, where it is several statements and needs a transaction.
    ///
    /// # Errors
    /// The database refused; the transaction is then yours to take back.
    pub async fn insert_on_sqlite(
        &self,
        connection: &mut SqliteConnection,
        events: &[NewOutboxEvent],
    ) -> Result<Vec<EventId>, OutboxError> {
        let added = self.on_sqlite(connection, events).await;
        Ok(added.map_err(|error| StoreError::of(DOING, error))?)
    }

    pub(super) async fn on_postgres(
        &self,
        connection: &mut PgConnection,
        events: &[NewOutboxEvent],
    ) -> Result<Vec<EventId>, sqlx::Error> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<EventId> = events.iter().map(|_| self.ids.mint()).collect();
        let posted = Columns::of(&postings(ids.iter().copied(), None, Some(Place::Queued)));
        let texts =
            |of: fn(&NewOutboxEvent) -> Option<&str>| events.iter().map(of).collect::<Vec<_>>();
        let uuids = ids.iter().map(|id| Uuid::from_u128(id.as_u128()));
        let headers = events.iter().map(NewOutboxEvent::headers_text);
        sqlx::query(AssertSqlSafe(Arc::clone(&self.postgres)))
            .bind(uuids.collect::<Vec<_>>())
            .bind(texts(|event| event.aggregate_type.as_deref()))
            .bind(texts(|event| Some(&event.aggregate_id)))
            .bind(texts(|event| Some(&event.type_name)))
            .bind(texts(|event| event.topic.as_deref()))
            .bind(texts(|event| event.payload.as_deref()))
            .bind(headers.collect::<Vec<_>>())
            .bind(&self.table)
            .bind(&self.component)
            .bind(posted.buckets)
            .bind(posted.counts)
            .bind(posted.sums)
            .execute(connection)
            .await?;
        Ok(ids)
    }

    pub(super) async fn on_sqlite(
        &self,
        connection: &mut SqliteConnection,
        events: &[NewOutboxEvent],
    ) -> Result<Vec<EventId>, sqlx::Error> {
        let now = i64::try_from(self.clock.now_ms()).unwrap_or(i64::MAX);
        let mut ids = Vec::with_capacity(events.len());
        for event in events {
            let id = self.ids.mint();
            let insert = connection.execute(
                AssertSqlSafe(Arc::clone(&self.sqlite)),
                &[
                    &id,
                    &event.aggregate_type,
                    &event.aggregate_id,
                    &event.type_name,
                    &event.topic,
                    &event.payload,
                    &event.headers_text(),
                    &now,
                ],
            );
            insert.await?;
            ids.push(id);
        }
        let posted = postings(ids.iter().copied(), None, Some(Place::Queued));
        posting::write_sqlite(connection, &self.component, &posted).await?;
        Ok(ids)
    }
}
