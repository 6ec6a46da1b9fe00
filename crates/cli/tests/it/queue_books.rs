//! `tidegate audit` and `tidegate where` over the tables of a queue.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tidegate_core::EventId;
use tidegate_core::env::Env;
use tidegate_queue::port::{
    ClaimedEvent, Disposition, HandlerResult, HandlerState, Lane, Settlement, Transition,
};
use tidegate_queue::{NewEvent, Queue};
use tidegate_store::sqlx::{self, AssertSqlSafe};
use tidegate_store::{Store, StoreOptions, StoreTx};
use tokio::runtime::Runtime;

use crate::command::{Ran, run_in};

/// A queue, and the commands that are run on it.
pub(crate) struct Tables {
    runtime: Runtime,
    store: Store,
    queue: Queue,
    url: String,
}

impl Tables {
    fn open(options: &StoreOptions, url: String) -> Self {
        let runtime = Runtime::new().unwrap();
        let env = Env::system();
        let (store, queue) = runtime.block_on(async {
            let store = Store::open(options, &env).await.unwrap();
            let queue = Queue::open(store.clone(), &env).await.unwrap();
            (store, queue.named("tester"))
        });
        Self {
            runtime,
            store,
            queue,
            url,
        }
    }

    pub(crate) fn on_sqlite(dir: &Path) -> Self {
        let url = format!("sqlite://{}", dir.join("queue.db").display());
        Self::open(&StoreOptions::new(&url), url)
    }

    fn publish(&self, count: usize) -> Vec<EventId> {
        let ids: Vec<EventId> = (0..count).map(|_| self.queue.ids().mint()).collect();
        let event = |id: &EventId| NewEvent::raw(*id, "OrderPlaced", "{}").unwrap();
        let events: Vec<NewEvent> = ids.iter().map(event).collect();
        let published = self.queue.publish_all(&events);
        self.runtime.block_on(published).unwrap();
        ids
    }

    fn claim(&self, limit: u32) -> Vec<ClaimedEvent> {
        let claimed = self.queue.poll_batch(limit);
        self.runtime.block_on(claimed).unwrap()
    }

    fn settle(&self, event: &ClaimedEvent, to: Disposition, states: Vec<HandlerState>) {
        let settlement = Settlement {
            registry: None,
            transitions: vec![Transition {
                claim: event.claim.clone(),
                key: event.key.clone(),
                to,
                states,
            }],
            finished: Vec::new(),
        };
        let settled = self.queue.store().settle(&settlement);
        assert!(self.runtime.block_on(settled).unwrap().is_empty());
    }

    /// Says that nothing is left of these batches.
    fn end_batches(&self, events: &[ClaimedEvent]) {
        let settlement = Settlement {
            registry: None,
            transitions: Vec::new(),
            finished: events.iter().map(|event| event.claim.lease).collect(),
        };
        let settled = self.queue.store().settle(&settlement);
        self.runtime.block_on(settled).unwrap();
    }

    fn complete(&self, event: &ClaimedEvent) {
        let to = Disposition::Finalize {
            errors: Vec::new(),
            handlers: Some("bill,ship".to_owned()),
        };
        self.settle(event, to, Vec::new());
    }

    fn fail(&self, event: &ClaimedEvent, message: &str) {
        let errors = vec![said(HandlerResult::UnrecoverableError, Some(message))];
        let to = Disposition::Finalize {
            errors: errors.clone(),
            handlers: None,
        };
        self.settle(event, to, errors);
    }

    fn retry(&self, event: &ClaimedEvent, message: &str) {
        let to = Disposition::Retry {
            after: Duration::from_secs(600),
            lane: Lane::new("OrderPlaced", ["bill"]),
        };
        let said = said(HandlerResult::TransientError, Some(message));
        self.settle(event, to, vec![said]);
    }

    /// Changes a table itself.
    fn define(&self, sql: &'static str) {
        self.runtime.block_on(async {
            let mut tx = self.store.begin().await.unwrap();
            let connection = tx.sqlite().unwrap();
            sqlx::raw_sql(sql).execute(connection).await.unwrap();
            tx.commit().await.unwrap();
        });
    }

    pub(crate) fn execute(&self, sql: String) {
        self.runtime.block_on(async {
            let mut tx = self.store.begin().await.unwrap();
            let query = sqlx::raw_sql(AssertSqlSafe(sql));
            let changed = match &mut tx {
                StoreTx::Postgres(tx) => query
                    .execute(tx.connection())
                    .await
                    .unwrap()
                    .rows_affected(),
                StoreTx::Sqlite(tx) => query
                    .execute(tx.connection())
                    .await
                    .unwrap()
                    .rows_affected(),
            };
            assert_eq!(changed, 1);
            tx.commit().await.unwrap();
        });
    }

    /// Ends its use: the file alone is the whole database.
    pub(crate) fn close(self) {
        self.runtime.block_on(self.store.close()).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut all = arguments.to_vec();
        all.extend(["--store", &self.url]);
        run_in(Path::new("/"), &all)
    }

    pub(crate) fn audit(&self) -> Ran {
        self.run(&["audit", "-o", "json"])
    }

    /// The audit of the queue, which must find nothing missing.
    fn sound(&self) -> Value {
        let ran = self.audit();
        assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
        let audit = ran.json();
        assert_eq!(audit["unaccounted"], 0);
        audit["components"][0].clone()
    }

    fn whereabouts(&self, id: EventId) -> Value {
        let ran = self.run(&["where", &id.to_string(), "-o", "json"]);
        assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
        ran.json()
    }
}

fn said(result: HandlerResult, error: Option<&str>) -> HandlerState {
    HandlerState {
        handler: "bill".to_owned(),
        result,
        attempts: 1,
        error: error.map(str::to_owned),
    }
}

/// Twelve events in a queue: six are done, two wait for a retry, the others wait for their turn.
pub(crate) fn settled(tables: &Tables) {
    tables.publish(12);
    let claimed: Vec<ClaimedEvent> = (0..8).flat_map(|_| tables.claim(1)).collect();
    for event in &claimed[..5] {
        tables.complete(event);
    }
    tables.fail(&claimed[5], "no address");
    tables.retry(&claimed[6], "busy");
    tables.retry(&claimed[7], "busy");
    tables.end_batches(&claimed);
    tables.sound();
}

/// Books and tables agree wherever events are, while somebody has the database open.
fn every_event_in_the_tables_is_shown(tables: &Tables) {
    let nothing = tables.sound();
    assert_eq!(nothing["books"]["accepted"], 0);
    tables.publish(6);
    let claimed = tables.claim(4);
    tables.complete(&claimed[0]);
    tables.fail(&claimed[1], "no address");
    tables.retry(&claimed[2], "busy");
    let found = tables.sound();
    assert_eq!(
        (&found["name"], &found["kind"]),
        (&"queue".into(), &"queue".into())
    );
    for side in ["books", "recount"] {
        let account = &found[side];
        for (place, count) in [
            ("accepted", 6),
            ("queued", 2),
            ("in_flight", 1),
            ("retrying", 1),
            ("delivered", 1),
            ("dead_lettered", 1),
        ] {
            assert_eq!(account[place], count, "{side} {place}: {found}");
        }
        assert_eq!(account["lost"]["total"], 0);
    }
    assert_eq!(found["removed"]["accepted"], 0);
    assert_eq!(found["unverifiable"], 0);
    // The work of an operator and of clean-up is in the books as well.
    let store = tables.queue.store();
    let (failed, retried) = (claimed[1].claim.id, claimed[2].claim.id);
    tables.runtime.block_on(async {
        store.redrive(failed).await.unwrap();
        store.cancel(retried).await.unwrap();
        store.sequence(100).await.unwrap();
    });
    let found = tables.sound();
    assert_eq!(found["recount"]["dead_lettered"], 1, "{found}");
    assert_eq!(found["recount"]["queued"], 3, "{found}");
    tables.runtime.block_on(async {
        // Until both are so old.
        let mut cleaned = 0;
        while cleaned < 2 {
            let more = store.clean(Some(Duration::from_millis(1))).await.unwrap();
            cleaned += more.events;
        }
        assert_eq!(cleaned, 2);
    });
    let found = tables.sound();
    assert_eq!(found["books"]["accepted"], 6);
    assert_eq!(found["recount"]["accepted"], 4);
    assert_eq!(found["removed"]["delivered"], 1);
    assert_eq!(found["removed"]["dead_lettered"], 1);
    let shown = tables.run(&["audit"]);
    assert_eq!(shown.code, Some(0));
    assert!(
        shown.stdout.contains("every event is accounted for"),
        "{}",
        shown.stdout
    );
}

/// One row deleted by hand, from wherever: exit code 4, and the event's id.
fn a_deleted_row_is_named(tables: &Tables) {
    tables.publish(5);
    let claimed: Vec<ClaimedEvent> = (0..3).flat_map(|_| tables.claim(1)).collect();
    tables.complete(&claimed[0]);
    tables.retry(&claimed[1], "busy");
    tables.end_batches(&claimed[..2]);
    let named = |id: EventId, place: &str, count: u64| {
        let ran = tables.audit();
        assert_eq!(ran.code, Some(4), "{} {}", ran.stdout, ran.stderr);
        let audit = ran.json();
        assert_eq!(audit["unaccounted"], count, "{audit}");
        let missing = audit["components"][0]["missing"].as_array().unwrap();
        let mut missing = missing.iter();
        let found = missing.find(|one| one["id"] == id.to_string());
        assert_eq!(
            found.map(|one| &one["place"]),
            Some(&place.into()),
            "{audit}"
        );
        let shown = tables.run(&["audit"]);
        assert_eq!(shown.code, Some(4));
        let line = format!("event {id} is missing");
        assert!(shown.stdout.contains(&line), "{}", shown.stdout);
    };
    let delete =
        |table: &str, id: i64| tables.execute(format!("DELETE FROM {table} WHERE id = {id}"));
    let event = |n: usize| (claimed[n].claim.id, claimed[n].claim.event_id);
    let (number, id) = event(0);
    delete("tidegate_log", number);
    named(id, "delivered", 1);
    let (number, id) = event(1);
    delete("tidegate_event_row", number);
    named(id, "retrying", 2);
    let (number, id) = event(2);
    delete("tidegate_event", number);
    named(id, "queued", 3);
    // It is not anywhere, and is not said to be.
    let ran = tables.run(&["where", &id.to_string(), "-o", "json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert_eq!(ran.json()["error"]["code"], "where.unknown");
}

/// An event that a batch still lists comes back when its log row is gone: it is in the wrong place, and
/// said to be.
fn an_event_that_came_back_is_named(tables: &Tables) {
    tables.publish(2);
    let claimed = tables.claim(2);
    tables.complete(&claimed[0]);
    let (number, id) = (claimed[0].claim.id, claimed[0].claim.event_id);
    tables.execute(format!("DELETE FROM tidegate_log WHERE id = {number}"));
    let shown = tables.run(&["audit"]);
    // It is there, and nobody has lost it.
    assert_eq!(shown.code, Some(3), "{}", shown.stderr);
    for words in ["is missing (delivered", "is one too many (queued"] {
        let line = format!("event {id} {words}");
        assert!(shown.stdout.contains(&line), "{}", shown.stdout);
    }
}

/// An event is told wherever it is, with who handles it and what its handlers said.
fn an_event_is_told_wherever_it_is(tables: &Tables) {
    let ids = tables.publish(5);
    let waiting = tables.whereabouts(ids[4]);
    assert_eq!(
        (&waiting["place"], &waiting["component"]),
        (&"queued".into(), &"queue".into())
    );
    assert_eq!(waiting["attempts"], 0);
    let claimed = tables.claim(4);
    tables.complete(&claimed[0]);
    tables.fail(&claimed[1], "no address");
    tables.retry(&claimed[2], "busy");
    let done = tables.whereabouts(ids[0]);
    assert_eq!(
        (&done["place"], &done["attempts"]),
        (&"delivered".into(), &1.into())
    );
    let step = &done["history"][0];
    assert_eq!(
        (&step["status"], &step["type"]),
        (&"COMPLETED".into(), &"OrderPlaced".into())
    );
    let handlers: Vec<&str> = step["handlers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|state| state["handler"].as_str().unwrap())
        .collect();
    assert_eq!(handlers, ["bill", "ship"]);
    let dead = tables.whereabouts(ids[1]);
    assert_eq!(dead["place"], "dead_lettered");
    let state = &dead["history"][0]["handlers"][0];
    assert_eq!(state["result"], "UNRECOVERABLE_ERROR");
    assert_eq!(state["error"], "no address");
    let retried = tables.whereabouts(ids[2]);
    assert_eq!(retried["place"], "retrying");
    assert!(
        retried["history"][0]["next_attempt_at"].is_string(),
        "{retried}"
    );
    let held = tables.whereabouts(ids[3]);
    assert_eq!(held["place"], "in_flight");
    assert_eq!(held["history"][0]["locked_by"], "tester");
    assert!(held["history"][0]["locked_until"].is_string(), "{held}");
    let keys: Vec<&String> = held.as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 6, "the keys of the contract: {keys:?}");
    for (id, words) in [
        (ids[3], "locked by tester, locked until"),
        (ids[2], "next attempt at"),
        (
            ids[1],
            "handlers: attempts 1, error no address, handler bill, result UNRECOVERABLE_ERROR",
        ),
    ] {
        let ran = tables.run(&["where", &id.to_string()]);
        assert!(ran.stdout.contains(words), "{}", ran.stdout);
    }
}

/// Audits beside a queue that is worked on find nothing missing.
fn an_audit_beside_the_work_misses_nothing(tables: &Tables) {
    let queue = tables.queue.clone();
    let working = tables.runtime.spawn(async move {
        loop {
            let event = |_| NewEvent::raw(queue.ids().mint(), "a", "{}").unwrap();
            let events: Vec<NewEvent> = (0..20).map(event).collect();
            queue.publish_all(&events).await.unwrap();
            for event in queue.poll_batch(15).await.unwrap() {
                queue.finalize(&event, Vec::new()).await.unwrap();
            }
        }
    });
    let mut accepted = Vec::new();
    while accepted.len() < 5 || accepted.first() == accepted.last() {
        let found = tables.sound();
        accepted.push(found["books"]["accepted"].as_i64().unwrap());
        assert!(accepted.len() < 200, "nobody works");
    }
    working.abort();
    assert!(accepted.is_sorted(), "{accepted:?}");
}

#[test]
fn on_sqlite_what_is_in_the_tables_is_all_there() {
    let dir = tempfile::tempdir().unwrap();
    every_event_in_the_tables_is_shown(&Tables::on_sqlite(dir.path()));
}

#[test]
fn on_sqlite_a_deleted_row_is_named() {
    let dir = tempfile::tempdir().unwrap();
    a_deleted_row_is_named(&Tables::on_sqlite(dir.path()));
}

#[test]
fn on_sqlite_an_event_that_came_back_is_named() {
    let dir = tempfile::tempdir().unwrap();
    an_event_that_came_back_is_named(&Tables::on_sqlite(dir.path()));
}

#[test]
fn on_sqlite_an_event_is_told_wherever_it_is() {
    let dir = tempfile::tempdir().unwrap();
    an_event_is_told_wherever_it_is(&Tables::on_sqlite(dir.path()));
}

#[test]
fn on_sqlite_an_audit_beside_the_work_misses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    an_audit_beside_the_work_misses_nothing(&Tables::on_sqlite(dir.path()));
}

/// By hand, an event that waits is put into the log as well.
fn an_event_in_two_tables_is_found(tables: &Tables) {
    settled(tables);
    tables.execute(
        "INSERT INTO tidegate_log SELECT (SELECT max(id) FROM tidegate_event), batch, ordinal, \
         attempts, handlers, is_failed, errors FROM tidegate_log \
         WHERE id = (SELECT min(id) FROM tidegate_log)"
            .to_owned(),
    );
    let ran = tables.audit();
    assert_eq!(ran.code, Some(3), "{} {}", ran.stdout, ran.stderr);
    let finding = &ran.json()["components"][0]["findings"][0];
    assert_eq!(finding["code"], "queue.twice", "{finding}");
    assert!(finding["id"].is_string());
}

#[test]
fn on_sqlite_an_event_in_two_tables_is_found() {
    let dir = tempfile::tempdir().unwrap();
    an_event_in_two_tables_is_found(&Tables::on_sqlite(dir.path()));
}

#[test]
fn a_damaged_database_is_called_so_and_never_said_to_have_lost_nothing() {
    let damages: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| bytes[..64].fill(0xff),
        |bytes| *bytes = b"no database".repeat(1000),
        Vec::clear,
    ];
    for damage in damages {
        let dir = tempfile::tempdir().unwrap();
        let tables = Tables::on_sqlite(dir.path());
        settled(&tables);
        tables.close();
        let file = dir.path().join("queue.db");
        let mut bytes = std::fs::read(&file).unwrap();
        damage(&mut bytes);
        std::fs::write(&file, bytes).unwrap();
        for beside in ["queue.db-wal", "queue.db-shm"] {
            std::fs::remove_file(dir.path().join(beside)).ok();
        }
        let ran = run_in(
            dir.path(),
            &["audit", "-o", "json", "--store", "sqlite://queue.db"],
        );
        assert_eq!(ran.code, Some(4), "{} {}", ran.stdout, ran.stderr);
        assert_eq!(
            ran.json()["error"]["code"],
            "store.damaged",
            "{}",
            ran.stdout
        );
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(
            !said.contains("nothing that was acknowledged is lost"),
            "{said}"
        );
        assert!(!said.contains("run `tidegate queue migrate`"), "{said}");
    }
}

#[test]
fn a_database_is_audited_where_it_lies_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let tables = Tables::on_sqlite(dir.path());
    settled(&tables);
    // The process goes on, so some of it is in the journal alone.
    let url = "sqlite://queue.db";
    let names = || {
        let entries = std::fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names
    };
    let before = names();
    let ran = run_in(
        dir.path(),
        &["audit", "-o", "json", "--direct", "--store", url],
    );
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    assert_eq!(ran.json()["components"][0]["books"]["accepted"], 12);
    assert_eq!(names(), before);
}

#[test]
fn the_configured_database_is_audited_with_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tidegate.yaml");
    std::fs::write(&file, "store: {url: \"sqlite://./queue.db\"}\n").unwrap();
    // A database that is not there proves nothing, and looking for it makes no file.
    let ran = run_in(dir.path(), &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(ran.json()["error"]["code"], "store.missing");
    let someone = EventId::from_u128(7).to_string();
    let ran = run_in(dir.path(), &["where", &someone, "-o", "json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(ran.json()["error"]["code"], "store.missing");
    assert!(!dir.path().join("queue.db").try_exists().unwrap());
    let tables = Tables::on_sqlite(dir.path());
    let ids = tables.publish(3);
    drop(tables);
    let ran = run_in(dir.path(), &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.json()["components"][0]["recount"]["queued"], 3);
    let ran = run_in(dir.path(), &["where", &ids[1].to_string(), "-o", "json"]);
    assert_eq!(ran.json()["place"], "queued", "{}", ran.stderr);
    // Nor does one whose tables are not known any more.
    let tables = Tables::on_sqlite(dir.path());
    tables.define("ALTER TABLE tidegate_migration RENAME TO gone");
    let ran = run_in(dir.path(), &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    assert_eq!(ran.json()["error"]["code"], "store.damaged");
    let ran = run_in(dir.path(), &["where", &ids[1].to_string(), "-o", "json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(ran.json()["error"]["code"], "store.damaged");
    tables.define("ALTER TABLE gone RENAME TO tidegate_migration");
    drop(tables);
    // A user who names another kind of thing wants that kind alone.
    let ran = run_in(dir.path(), &["audit", "-o", "json", "--log-dir", "none"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    // One that is named must be there.
    let ran = run_in(
        dir.path(),
        &["audit", "-o", "json", "--store", "sqlite://./no.db"],
    );
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert_eq!(ran.json()["error"]["code"], "store.missing");
    // A database that is away is an answer.
    let away = "postgres://127.0.0.1:1/none";
    let ran = run_in(dir.path(), &["audit", "-o", "json", "--store", away]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert_eq!(ran.json()["error"]["code"], "store.away");
}

/// A schema of its own on PostgreSQL, named in the address that the commands get.
pub(crate) fn with_postgres(rule: impl FnOnce(&Tables)) {
    let server = std::env::var("DATABASE_URL").unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let schema = format!("cli_{}_{}", std::process::id(), now.unwrap().as_nanos());
    let runtime = Runtime::new().unwrap();
    let admin = |sql: String| {
        runtime.block_on(async {
            let options = StoreOptions::new(&server);
            let store = Store::open(&options, &Env::system()).await.unwrap();
            let mut tx = store.begin().await.unwrap();
            let StoreTx::Postgres(connection) = &mut tx else {
                panic!("DATABASE_URL names PostgreSQL");
            };
            let sql = sqlx::raw_sql(AssertSqlSafe(sql));
            sql.execute(connection.connection()).await.unwrap();
            tx.commit().await.unwrap();
        });
    };
    admin(format!("CREATE SCHEMA {schema}"));
    let url = format!("{server}?options=-csearch_path%3D{schema}");
    let tables = Tables::open(&StoreOptions::new(&url), url.clone());
    rule(&tables);
    drop(tables);
    admin(format!("DROP SCHEMA {schema} CASCADE"));
}

mod needs_postgres {
    use super::with_postgres as with;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn every_event_in_the_tables_is_shown() {
        with(super::every_event_in_the_tables_is_shown);
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn an_event_in_two_tables_is_found() {
        with(super::an_event_in_two_tables_is_found);
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_deleted_row_is_named() {
        with(super::a_deleted_row_is_named);
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn an_event_that_came_back_is_named() {
        with(super::an_event_that_came_back_is_named);
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn an_event_is_told_wherever_it_is() {
        with(super::an_event_is_told_wherever_it_is);
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn an_audit_beside_the_work_misses_nothing() {
        with(super::an_audit_beside_the_work_misses_nothing);
    }
}
