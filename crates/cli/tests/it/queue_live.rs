//! `tidegate queue` and `tidegate projection` beside an application that has handlers.
//!
//! The application is the library in this process; the commands are processes of their own, as its
//! operators use them.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_core::env::Env;
use tidegate_core::{Code, EventId, Failure};
use tidegate_queue::{
    Context, Dispatcher, DispatcherOptions, Handled, Projection, Projector, ProjectorOptions,
    Queue, RawEvent, Target, Tx,
};
use tidegate_store::sqlx::{self, AssertSqlSafe};
use tidegate_store::{Store, StoreOptions};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::command::run_in;

/// A queue at this address, and a directory whose configuration names it.
pub(crate) struct Application {
    pub(crate) runtime: Runtime,
    pub(crate) queue: Queue,
    pub(crate) dir: tempfile::TempDir,
}

impl Application {
    pub(crate) fn open(url: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let beside = format!("sqlite://{}", dir.path().join("orders.db").display());
        let url = url.map_or(beside, str::to_owned);
        let text = format!("store: {{url: \"{url}\"}}\n");
        std::fs::write(dir.path().join("tidegate.yaml"), text).unwrap();
        let runtime = Runtime::new().unwrap();
        let env = Env::system();
        let queue = runtime.block_on(async {
            let store = Store::open(&StoreOptions::new(url), &env).await.unwrap();
            Queue::open(store, &env).await.unwrap().named("application")
        });
        Self {
            runtime,
            queue,
            dir,
        }
    }

    pub(crate) fn ok(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        let ran = run_in(self.dir.path(), &all);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.stderr);
        ran.json()
    }

    /// Waits for a fact.
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let limit = Instant::now() + Duration::from_secs(60);
        while !is_so(self) {
            assert!(Instant::now() < limit, "never: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The state of an event, as an operator sees it.
    fn status(&self, number: &str) -> String {
        let shown = self.ok(&["queue", "show", number]);
        shown["status"].as_str().unwrap().to_owned()
    }

    /// Runs handlers of type `A` until the sender is dropped: `good` succeeds, and `bad` fails as
    /// the payload says.
    fn dispatch(&self) -> watch::Sender<bool> {
        let (stop, mut stopped) = watch::channel(false);
        let mut options = DispatcherOptions {
            poll_delay: Duration::from_millis(20),
            ..DispatcherOptions::default()
        };
        let backoff = tidegate_core::Backoff::steps([Duration::from_secs(600)]);
        options.policy.retry.backoff = backoff;
        let dispatcher = Dispatcher::builder(self.queue.clone())
            .options(options)
            .register_raw("good", "A", |_, _| Box::pin(async { Handled::Success }))
            .unwrap()
            .register_raw("bad", "A", |raw, context| Box::pin(bad(raw, context)))
            .unwrap()
            .build(&Env::system());
        self.runtime.spawn(dispatcher.run(async move {
            stopped.wait_for(|stop| *stop).await.ok();
        }));
        stop
    }
}

/// Fails at the first call for each event, as its payload says. An event that was given back is called
/// as if for the first time, so the handler itself remembers.
async fn bad(raw: &RawEvent<'_>, _: &mut Context) -> Handled {
    static CALLED: Mutex<BTreeSet<EventId>> = Mutex::new(BTreeSet::new());
    let is_first = CALLED.lock().unwrap().insert(raw.event_id());
    let code = Code::from_static("stock.empty");
    match (raw.payload(), is_first) {
        (r#""never""#, true) => Failure::permanent(code, "there is none").into(),
        (r#""later""#, true) => Failure::transient(code, "none today").into(),
        _ => Handled::Success,
    }
}

fn answer(shown: &Value, handler: &str) -> Value {
    let answers = shown["handlers"].as_array().unwrap();
    let found = answers.iter().find(|one| one["handler"] == handler);
    found.unwrap_or_else(|| panic!("{shown}")).clone()
}

pub(crate) fn an_operator_mends_what_failed(app: &Application) {
    app.ok(&["queue", "publish", "A", r#""never""#]);
    app.ok(&["queue", "publish", "A", r#""later""#]);
    let shown = app.ok(&["queue", "show", "1"]);
    assert_eq!(shown["handlers"], json!([]));
    let stop = app.dispatch();
    app.until("one fails, one waits", |app| {
        let waiting = app.ok(&["queue", "show", "2"]);
        let is_waiting = waiting["attempts"] == 1 && waiting["locked_by"].is_null();
        app.status("1") == "COMPLETED_WITH_ERRORS" && is_waiting
    });
    let handlers = app.ok(&["queue", "handlers"]);
    assert_eq!(handlers["handlers"].as_array().unwrap().len(), 2);
    let shown = app.ok(&["queue", "show", "1"]);
    assert_eq!(shown["status"], "COMPLETED_WITH_ERRORS");
    let bad = answer(&shown, "bad");
    assert_eq!(bad["result"], "UNRECOVERABLE_ERROR");
    assert!(
        bad["error"].as_str().unwrap().contains("there is none"),
        "{bad}"
    );
    assert_eq!(answer(&shown, "good")["result"], "SUCCESS");
    let shown = app.ok(&["queue", "show", "2"]);
    assert_eq!(answer(&shown, "bad")["result"], "TRANSIENT_ERROR");
    assert!(shown["next_attempt_at"].is_string(), "{shown}");
    // Its next attempt would come in ten minutes.
    assert_eq!(app.ok(&["queue", "retry", "1", "2"])["done"], json!([1, 2]));
    app.until("both are completed", |app| {
        let listed = app.ok(&["queue", "ls", "--status", "completed"]);
        listed["events"].as_array().unwrap().len() == 2
    });
    drop(stop);
}

pub(crate) fn a_handler_that_is_gone_is_unregistered(app: &Application) {
    let gone = [("A".to_owned(), "gone".to_owned())];
    let registering = app.queue.store().register(&gone);
    app.runtime.block_on(registering).unwrap();
    app.ok(&["queue", "publish", "A", "1"]);
    let stop = app.dispatch();
    app.until("it waits for the one that is gone", |app| {
        let shown = app.ok(&["queue", "show", "1"]);
        shown["attempts"] == 1 && shown["locked_by"].is_null()
    });
    let shown = app.ok(&["queue", "show", "1"]);
    assert_eq!(answer(&shown, "gone")["result"], Value::Null, "{shown}");
    let unregister = ["queue", "unregister", "A", "gone"];
    let ran = run_in(app.dir.path(), &unregister);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains("error[unregister.unconfirmed]"),
        "{}",
        ran.stderr
    );
    app.ok(&[&unregister[..], &["--yes"]].concat());
    app.until("it is completed", |app| app.status("1") == "COMPLETED");
    let ran = run_in(app.dir.path(), &[&unregister[..], &["--yes"]].concat());
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("error[queue.unknown-handler]"),
        "{}",
        ran.stderr
    );
    drop(stop);
}

async fn execute(tx: &mut Tx, sql: String) -> Result<(), Failure> {
    let failed =
        |error: sqlx::Error| Failure::transient(Code::from_static("test.sql"), error.to_string());
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    match tx.postgres() {
        Some(connection) => sql.execute(connection).await.map(drop).map_err(failed),
        None => sql
            .execute(tx.sqlite().unwrap())
            .await
            .map(drop)
            .map_err(failed),
    }
}

fn seen() -> Projection {
    Projection::builder("seen")
        .table("seen")
        .create(|tx, target: Target| {
            let sql = format!(
                "CREATE TABLE IF NOT EXISTS {} (n bigint)",
                target.table("seen")
            );
            Box::pin(execute(tx, sql))
        })
        .apply(|tx, target, events| {
            Box::pin(async move {
                for event in events {
                    let (table, n) = (target.table("seen"), event.id);
                    execute(tx, format!("INSERT INTO {table} VALUES ({n})")).await?;
                }
                Ok(())
            })
        })
        .build()
        .unwrap()
}

impl Application {
    fn project(&self) -> watch::Sender<bool> {
        let (stop, mut stopped) = watch::channel(false);
        let options = ProjectorOptions {
            poll_delay: Duration::from_millis(20),
            ..ProjectorOptions::default()
        };
        let projector = Projector::new(&self.queue, vec![seen()], options, &Env::system());
        self.runtime.spawn(projector.run(async move {
            stopped.wait_for(|stop| *stop).await.ok();
        }));
        stop
    }

    fn rows(&self) -> i64 {
        let sql = "SELECT count(*) FROM seen";
        self.runtime.block_on(async {
            let mut tx = self.queue.begin().await.unwrap();
            let count = match tx.postgres() {
                Some(connection) => sqlx::query_scalar(sql).fetch_one(connection).await,
                None => {
                    sqlx::query_scalar(sql)
                        .fetch_one(tx.sqlite().unwrap())
                        .await
                }
            };
            tx.rollback().await.unwrap();
            count.unwrap()
        })
    }
}

pub(crate) fn a_rebuild_is_asked_for_and_done_by_the_application(app: &Application) {
    assert_eq!(app.ok(&["projection", "ls"]), json!({ "projections": [] }));
    for n in ["1", "2", "3"] {
        app.ok(&["queue", "publish", "A", n]);
    }
    let (dispatching, projecting) = (app.dispatch(), app.project());
    let is_at = |app: &Application, position: i64| {
        let listed = app.ok(&["projection", "ls"]);
        listed["projections"][0]["position"] == position
    };
    app.until("it has read all", |app| is_at(app, 3));
    let listed = app.ok(&["projection", "ls"]);
    let state = json!({ "name": "seen", "position": 3, "lag": 0, "rebuild": null });
    assert_eq!(listed["projections"], json!([state]));
    app.runtime.block_on(async {
        let mut tx = app.queue.begin().await.unwrap();
        execute(&mut tx, "DELETE FROM seen".to_owned())
            .await
            .unwrap();
        tx.commit().await.unwrap();
    });
    assert_eq!(app.rows(), 0);
    let rebuilt = app.ok(&["projection", "rebuild", "seen"]);
    assert_eq!(rebuilt["state"], "rebuilt");
    assert_eq!(app.rows(), 3);
    projecting.send(true).unwrap();
    // Nobody runs it now: the request stays, and is said to.
    app.until("the application gave its turn back", |app| {
        let store = app.queue.store();
        let turn = store.acquire_leadership("projection.seen", "tester", Duration::ZERO);
        app.runtime.block_on(turn).unwrap().is_some()
    });
    let late = ["projection", "rebuild", "seen", "--timeout", "300ms"];
    let ran = run_in(app.dir.path(), &late);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(
        ran.stderr.contains("error[projection.unserved]"),
        "{}",
        ran.stderr
    );
    let requested = json!({ "state": "requested" });
    let rebuild =
        |app: &Application| app.ok(&["projection", "ls"])["projections"][0]["rebuild"].clone();
    assert_eq!(rebuild(app), requested);
    app.ok(&["projection", "rebuild", "seen", "--withdraw"]);
    assert_eq!(rebuild(app), Value::Null);
    // A waiting command reports that nothing was rebuilt when somebody takes the request back.
    let waiting = {
        let dir = app.dir.path().to_owned();
        std::thread::spawn(move || run_in(&dir, &["projection", "rebuild", "seen"]))
    };
    app.until("it is asked for", |app| rebuild(app) == requested);
    app.ok(&["projection", "rebuild", "seen", "--withdraw"]);
    let ran = waiting.join().unwrap();
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(
        ran.stderr.contains("error[projection.withdrawn]"),
        "{}",
        ran.stderr
    );
    let asked = app.ok(&["projection", "rebuild", "seen", "--no-wait"]);
    assert_eq!(asked["state"], "requested");
    let projecting = app.project();
    app.until("the next one to run it serves the request", |app| {
        rebuild(app).is_null()
    });
    assert_eq!(app.rows(), 3);
    projecting.send(true).unwrap();
    dispatching.send(true).unwrap();
    let ran = run_in(app.dir.path(), &["projection", "rebuild", "other"]);
    assert!(
        ran.stderr.contains("error[projection.unknown]"),
        "{}",
        ran.stderr
    );
    let ran = run_in(app.dir.path(), &["projection", "forget", "seen"]);
    assert!(
        ran.stderr.contains("error[forget.unconfirmed]"),
        "{}",
        ran.stderr
    );
}

pub(crate) fn a_rebuild_after_retention_is_done_only_when_it_is_asked_for_as_it_is(
    app: &Application,
) {
    for n in ["1", "2", "3"] {
        app.ok(&["queue", "publish", "A", n]);
    }
    let (dispatching, projecting) = (app.dispatch(), app.project());
    let is_at = |app: &Application, position: i64| {
        app.ok(&["projection", "ls"])["projections"][0]["position"] == position
    };
    app.until("it has read all", |app| is_at(app, 3));
    app.until("retention took all of it", |app| {
        let store = app.queue.store();
        let cleaned = app.runtime.block_on(store.clean(Some(Duration::ZERO)));
        cleaned.unwrap();
        app.ok(&["queue", "ls", "--status", "completed"])["events"] == json!([])
    });
    app.ok(&["queue", "publish", "A", "4"]);
    app.until("it has read the next one", |app| is_at(app, 4));
    assert_eq!(app.rows(), 4);
    let ran = run_in(app.dir.path(), &["projection", "rebuild", "seen"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(
        ran.stderr.contains("error[projection.removed]") && ran.stderr.contains("--partial"),
        "{}",
        ran.stderr
    );
    assert_eq!(app.rows(), 4, "readers see what they saw");
    let rebuilt = app.ok(&["projection", "rebuild", "seen", "--partial"]);
    assert_eq!(rebuilt["state"], "rebuilt");
    assert_eq!(app.rows(), 1, "only what is left");
    drop((dispatching, projecting));
}

pub(crate) fn a_forgotten_projection_is_not_listed(app: &Application) {
    app.ok(&["queue", "publish", "A", "1"]);
    let (dispatching, projecting) = (app.dispatch(), app.project());
    app.until("it has read all", |app| {
        app.ok(&["projection", "ls"])["projections"][0]["position"] == 1
    });
    projecting.send(true).unwrap();
    app.until("the application gave its turn back", |app| {
        let store = app.queue.store();
        let turn = store.acquire_leadership("projection.seen", "tester", Duration::ZERO);
        app.runtime.block_on(turn).unwrap().is_some()
    });
    app.ok(&["projection", "forget", "seen", "--yes"]);
    assert_eq!(app.ok(&["projection", "ls"]), json!({ "projections": [] }));
    drop(dispatching);
}

/// One test per rule, on SQLite.
macro_rules! on_sqlite {
    ($($rule:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[test]
            fn $rule() {
                super::$rule(&super::Application::open(None));
            })*
        }
    };
}

on_sqlite!(
    an_operator_mends_what_failed,
    a_handler_that_is_gone_is_unregistered,
    a_rebuild_is_asked_for_and_done_by_the_application,
    a_rebuild_after_retention_is_done_only_when_it_is_asked_for_as_it_is,
    a_forgotten_projection_is_not_listed,
);

pub(crate) mod needs_postgres {
    use super::*;

    /// A schema of its own, named in the address that the commands get.
    pub(crate) fn with(rule: impl FnOnce(&str)) {
        with_at(&std::env::var("DATABASE_URL").unwrap(), rule);
    }

    /// The same as the user of this address.
    pub(crate) fn with_at(server: &str, rule: impl FnOnce(&str)) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let schema = format!("cliq_{}_{}", std::process::id(), now.unwrap().as_nanos());
        let runtime = Runtime::new().unwrap();
        let admin = |sql: String| {
            runtime.block_on(async {
                let options = StoreOptions::new(server);
                let store = Store::open(&options, &Env::system()).await.unwrap();
                let mut tx = Tx::from(store.begin().await.unwrap());
                execute(&mut tx, sql).await.unwrap();
                tx.commit().await.unwrap();
            });
        };
        admin(format!("CREATE SCHEMA {schema}"));
        rule(&format!("{server}?options=-csearch_path%3D{schema}"));
        admin(format!("DROP SCHEMA {schema} CASCADE"));
    }

    macro_rules! on_postgres {
        ($($rule:ident),* $(,)?) => {
            $(#[test]
            #[ignore = "needs PostgreSQL"]
            fn $rule() {
                with(|url| super::$rule(&Application::open(Some(url))));
            })*
        };
    }

    on_postgres!(
        an_operator_mends_what_failed,
        a_handler_that_is_gone_is_unregistered,
        a_rebuild_is_asked_for_and_done_by_the_application,
        a_rebuild_after_retention_is_done_only_when_it_is_asked_for_as_it_is,
        a_forgotten_projection_is_not_listed,
    );

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn the_commands_are_the_same_on_postgresql() {
        with(|url| {
            let dir = tempfile::tempdir().unwrap();
            let run = |arguments: &[&str]| {
                let mut all = arguments.to_vec();
                all.extend(["--store", url, "-o", "json"]);
                run_in(dir.path(), &all)
            };
            let ran = run(&["queue", "ls"]);
            assert_eq!(ran.code, Some(1));
            assert_eq!(
                ran.json()["error"]["code"],
                "store.schema",
                "{}",
                ran.stderr
            );
            assert_eq!(run(&["queue", "migrate"]).json()["ran"], 3);
            assert_eq!(run(&["queue", "migrate"]).json()["ran"], 0);
            let published = run(&["queue", "publish", "A", "{\"n\": 1}", "--key", "k"]).json();
            let id = published["event_id"].as_str().unwrap();
            let shown = run(&["queue", "show", id]).json();
            assert_eq!(
                (&shown["payload"], &shown["key"], &shown["status"]),
                (&json!({ "n": 1 }), &json!("k"), &json!("PENDING"))
            );
            assert_eq!(run(&["queue", "cancel", id]).json()["done"], json!([1]));
            assert_eq!(run(&["queue", "retry", "--all"]).json()["done"], json!([1]));
            assert_eq!(run(&["queue", "stats"]).json()["pending"], 1);
        });
    }
}
