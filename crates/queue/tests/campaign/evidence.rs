//! Watches the tables from inside the database, and reads afterwards what happened.

use tidegate_core::EventId;
use tidegate_store::sqlx::{self, AssertSqlSafe, Row};
use tidegate_store::{Postgres, Store};

use crate::publisher::Obligations;
use crate::verdict::{End, Evidence, LeaseOn, Logged, Said, Token};

/// Tables of the application, and triggers that write down who had which claim and who finalized
/// what. Both happen under the lock of the lease, so that the numbers are in the order of what
/// happened.
const WATCH: &str = "
    CREATE TABLE orders (event_id uuid NOT NULL);
    CREATE TABLE effect (at bigserial, event_id uuid NOT NULL, key text);
    CREATE TABLE seen (position bigint NOT NULL, id bigint NOT NULL);
    CREATE SEQUENCE watch;
    CREATE TABLE watched_token (at bigint, batch bigint, event bigint, token bigint, owner text,
        ids bigint[]);
    CREATE TABLE watched_end (at bigint, id bigint, process text);
    CREATE FUNCTION watch_batch() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO watched_token VALUES
            (nextval('watch'), NEW.id, NULL, NEW.token, NEW.locked_by, NEW.ids);
        RETURN NULL;
    END $$;
    CREATE FUNCTION watch_row() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO watched_token VALUES
            (nextval('watch'), NULL, NEW.id, NEW.token, NEW.locked_by, ARRAY[NEW.id]);
        RETURN NULL;
    END $$;
    CREATE FUNCTION watch_end() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO watched_end VALUES
            (nextval('watch'), NEW.id, current_setting('tidegate.process'));
        RETURN NULL;
    END $$;
    CREATE TRIGGER watch_claim AFTER INSERT ON tidegate_batch
        FOR EACH ROW EXECUTE FUNCTION watch_batch();
    CREATE TRIGGER watch_token AFTER UPDATE ON tidegate_batch
        FOR EACH ROW WHEN (NEW.token <> OLD.token) EXECUTE FUNCTION watch_batch();
    CREATE TRIGGER watch_claim AFTER INSERT ON tidegate_event_row
        FOR EACH ROW EXECUTE FUNCTION watch_row();
    CREATE TRIGGER watch_token AFTER UPDATE ON tidegate_event_row
        FOR EACH ROW WHEN (NEW.token <> OLD.token) EXECUTE FUNCTION watch_row();
    CREATE TRIGGER watch_end AFTER INSERT ON tidegate_log
        FOR EACH ROW EXECUTE FUNCTION watch_end();";

fn server(store: &Store) -> &Postgres {
    match store {
        Store::Postgres(postgres) => postgres,
        Store::Sqlite(_) => panic!("it is PostgreSQL"),
    }
}

/// Begins to watch a queue whose tables are there and empty.
pub(crate) async fn watch(store: &Store) {
    run(store, WATCH.to_owned()).await;
}

/// Runs statements.
pub(crate) async fn run(store: &Store, sql: String) {
    let ran = server(store).run("run a script", move |connection| {
        Box::pin(async move { sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await })
    });
    ran.await.unwrap();
}

/// Reads all rows of a query.
async fn rows<T: Send + 'static>(
    store: &Store,
    sql: &'static str,
    of: impl Fn(&sqlx::postgres::PgRow) -> T + Send + 'static,
) -> Vec<T> {
    let read = server(store).run("read what happened", move |connection| {
        Box::pin(async move {
            let rows = sqlx::query(sql).fetch_all(connection).await?;
            Ok(rows.iter().map(of).collect())
        })
    });
    read.await.unwrap()
}

/// The events that are not finalized, with what is known about them; for a test that waits in vain.
pub(crate) async fn unfinished(store: &Store) -> Vec<String> {
    let sql = "SELECT concat_ws(' ', q.id, q.key, q.status, q.locked_by, q.locked_until, r.lane,
            r.due_at, now()) FROM event_queue q LEFT JOIN tidegate_event_row r USING (id)
        ORDER BY q.id LIMIT 40";
    rows(store, sql, |row| row.get::<String, _>(0)).await
}

/// How many events are finalized and how many of them the read model has passed.
pub(crate) async fn progress(store: &Store) -> (i64, i64, i64) {
    let sql = "SELECT (SELECT count(*) FROM tidegate_event), (SELECT count(*) FROM tidegate_log),
        coalesce((SELECT position FROM event_projection WHERE name = 'seen'), 0)";
    let found = rows(store, sql, |row| (row.get(0), row.get(1), row.get(2)));
    found.await[0]
}

fn event_id(row: &sqlx::postgres::PgRow, column: usize) -> EventId {
    let id: sqlx::types::Uuid = row.get(column);
    EventId::from_u128(id.as_u128())
}

/// Everything that is known, when all is over.
pub(crate) async fn gather(
    store: &Store,
    obligations: &Obligations,
    lines: &[(String, String)],
) -> Evidence {
    let mut evidence = Evidence {
        attempted: obligations.attempted.clone(),
        promised: obligations.promised.clone(),
        taken_back: obligations.taken_back.clone(),
        ..Evidence::default()
    };
    for (_, line) in lines {
        hear(&mut evidence, line);
    }
    let log = "SELECT id, event_id, type, (payload->>'n')::int8, status, position FROM event_log";
    evidence.log = rows(store, log, |row| Logged {
        id: row.get(0),
        event_id: event_id(row, 1),
        is_placed: row.get::<&str, _>(2) == "placed",
        n: u64::try_from(row.get::<i64, _>(3)).unwrap(),
        is_failed: row.get::<&str, _>(4) != "COMPLETED",
        position: row.get(5),
    })
    .await;
    let effects = "SELECT event_id, key FROM effect ORDER BY at";
    evidence.effects = rows(store, effects, |row| (event_id(row, 0), row.get(1))).await;
    let seen = "SELECT position, id FROM seen";
    evidence.seen = rows(store, seen, |row| (row.get(0), row.get(1))).await;
    let tokens = "SELECT at, batch, event, token, owner, ids FROM watched_token";
    evidence.tokens = rows(store, tokens, |row| Token {
        at: row.get(0),
        on: match (row.get(1), row.get(2)) {
            (Some(batch), None) => LeaseOn::Batch(batch),
            (None, Some(event)) => LeaseOn::Row(event),
            other => panic!("a lease on {other:?}"),
        },
        token: row.get(3),
        owner: row.get(4),
        ids: row.get(5),
    })
    .await;
    let ends = "SELECT at, id, process FROM watched_end";
    evidence.ends = rows(store, ends, |row| End {
        at: row.get(0),
        id: row.get(1),
        process: row.get(2),
    })
    .await;
    evidence
}

/// Adds what a child said.
fn hear(evidence: &mut Evidence, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["open"] | ["stale", _] => {}
        ["handled", handler, id] => {
            let key = (handler.to_owned(), id.parse().unwrap());
            *evidence.handled.entry(key).or_default() += 1;
        }
        ["ended", id, kind, lease, token] => evidence.said.push(Said {
            id: id.parse().unwrap(),
            on: match kind {
                "batch" => LeaseOn::Batch(lease.parse().unwrap()),
                _ => LeaseOn::Row(lease.parse().unwrap()),
            },
            token: token.parse().unwrap(),
        }),
        _ => panic!("what is `{line}`?"),
    }
}
