//! Handlers that register while others settle, and a registry that has gone back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_queue::model::{CallFault, QueueModel};
use tidegate_queue::port::{QueueStatus, QueueStore};
use tidegate_queue::{
    Delivery, Dispatcher, DispatcherOptions, Handled, NewEvent, Queue, QueueEvent, Tx,
};
use tidegate_sim::Sim;
use tidegate_store::Store;
use tidegate_store::sqlx;

use crate::stores::{OnServer, runtime, sqlite, with_postgres, world};

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Placed {
    n: u64,
}

impl QueueEvent for Placed {
    const TYPE: &'static str = "placed";
}

fn dispatcher(queue: &Queue, calls: &Arc<AtomicU32>, env: &Env) -> Dispatcher {
    let options = DispatcherOptions {
        poll_delay: Duration::from_millis(20),
        stop_timeout: Duration::from_secs(1),
        ..DispatcherOptions::default()
    };
    let calls = Arc::clone(calls);
    let act = move |_: Delivery<Placed>| {
        calls.fetch_add(1, Ordering::Relaxed);
        async { Handled::Success }
    };
    let builder = Dispatcher::builder(queue.clone()).options(options);
    builder.register_fn("one", act).unwrap().build(env)
}

async fn execute(tx: &mut Tx, sql: &'static str) {
    if let Some(connection) = tx.postgres() {
        sqlx::raw_sql(sql).execute(connection).await.unwrap();
    } else if let Some(connection) = tx.sqlite() {
        sqlx::raw_sql(sql).execute(connection).await.unwrap();
    }
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    for _ in 0..6_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

/// A database that comes back with less than it had, under a dispatcher that runs.
async fn goes_back(store: &Store) {
    let env = Env::system();
    let queue = Queue::open(store.clone(), &env).await.unwrap();
    let others = ["two", "three"].map(|id| (Placed::TYPE.to_owned(), id.to_owned()));
    for other in &others {
        let other = std::slice::from_ref(other);
        queue.store().register(other).await.unwrap();
        queue
            .store()
            .unregister(&other[0].0, &other[0].1)
            .await
            .unwrap();
    }
    let calls = Arc::new(AtomicU32::new(0));
    let running = dispatcher(&queue, &calls, &env);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let task = tokio::spawn(running.run(async move {
        stopped.await.ok();
    }));
    let is_registered = async || {
        let registry = queue.store().registry().await.unwrap();
        registry.of(Placed::TYPE).eq(["one"])
    };
    until("it registers", is_registered).await;
    // It has read the registry again once it handles events.
    queue.publish(&Placed { n: 0 }).await.unwrap();
    let stats = async || queue.store().stats().await.unwrap();
    until("it handles", async || stats().await.finalized == 1).await;
    let mut tx = queue.begin().await.unwrap();
    execute(&mut tx, "DELETE FROM event_handler").await;
    execute(&mut tx, "UPDATE tidegate_queue SET registry = 1").await;
    tx.commit().await.unwrap();
    queue.publish(&Placed { n: 1 }).await.unwrap();
    until("it is finalized", async || stats().await.finalized == 2).await;
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert!(is_registered().await, "its row was gone too");
    stop.send(()).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), task).await;
    assert_eq!(ended.unwrap().unwrap().finalized, 2);
}

#[test]
fn a_registry_that_has_gone_back_holds_nothing_up_on_sqlite() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        goes_back(&sqlite(&dir).await).await;
    });
}

#[test]
fn claimed_events_are_handled_also_where_the_registry_cannot_be_read() {
    let mut sim = Sim::new(1);
    let (database, node) = (sim.node("database"), sim.node("one"));
    let model = QueueModel::new(database.env().clock);
    let is_away = Arc::new(AtomicBool::new(false));
    let away = Arc::clone(&is_away);
    model.set_faults(move |doing| match doing {
        "registry" if away.load(Ordering::Relaxed) => CallFault::Refuse,
        _ => CallFault::None,
    });
    let env = node.env();
    let queue = Queue::on(Arc::new(model.clone()), &env);
    let calls = Arc::new(AtomicU32::new(0));
    let running = dispatcher(&queue, &calls, &env);
    drop(node.start("dispatcher", async move {
        running.run(std::future::pending()).await;
    }));
    sim.run_for(Duration::from_secs(1));
    is_away.store(true, Ordering::Relaxed);
    let store = model.clone();
    sim.block_on(&database, async move {
        let other = [("other".to_owned(), "one".to_owned())];
        store.register(&other).await.unwrap();
        let event = NewEvent::raw(queue.ids().mint(), Placed::TYPE, r#"{"n":1}"#).unwrap();
        store.publish(&[event]).await.unwrap();
    });
    sim.run_for(Duration::from_secs(1));
    assert_eq!(calls.load(Ordering::Relaxed), 1, "it is not left lying");
    is_away.store(false, Ordering::Relaxed);
    sim.run_for(Duration::from_secs(1));
    let account = model.audit().books.account();
    assert_eq!((account.delivered, calls.load(Ordering::Relaxed)), (1, 1));
}

mod needs_postgres {
    use super::*;
    use tidegate_queue::QueueError;
    use tidegate_queue::conformance::{LONG, SHORT, completed};
    use tidegate_queue::port::{Settlement, Transition};

    use crate::stores::{run, until_waited_for};

    fn handler(id: &str) -> [(String, String); 1] {
        [("a".to_owned(), id.to_owned())]
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_registry_that_has_gone_back_holds_nothing_up_on_postgres() {
        with_postgres(async |server: &OnServer| goes_back(&server.store).await);
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn leases_in_tables_that_have_gone_back_are_taken_over() {
        with_postgres(async |server: &OnServer| {
            let world = &server.world;
            for _ in 0..20 {
                world.publish("a", 1).await;
                let claimed = world.claim(1, LONG).await;
                world.settle(&claimed, &completed()).await;
            }
            // By now no batch is below the one that is open.
            world.publish("a", 1).await;
            assert_eq!(world.claim(1, LONG).await.len(), 1);
            assert!(world.claim(1, LONG).await.is_empty());
            for _ in 0..3 {
                world.store.sequence(100).await.unwrap();
            }
            // As a copy has it that was made when the queue was empty.
            run(
                &server.store,
                "TRUNCATE tidegate_batch, tidegate_log, tidegate_log_batch, tidegate_sequence,
                     tidegate_event, tidegate_posting, tidegate_cursor, tidegate_event_row,
                     tidegate_handler_set RESTART IDENTITY;
                 INSERT INTO tidegate_cursor (position) VALUES (0);
                 UPDATE tidegate_queue SET sequenced_below = 0"
                    .to_owned(),
            )
            .await;
            assert!(world.claim(1, LONG).await.is_empty());
            world.publish("a", 1).await;
            assert_eq!(world.claim(1, SHORT).await.len(), 1);
            world.wait(SHORT * 2).await;
            let again = world.claim(1, LONG).await;
            assert_eq!(again.len(), 1, "its lease ran out");
            world.settle(&again, &completed()).await;
            let shown = world.store.show(again[0].claim.id).await.unwrap().unwrap();
            let handlers: Vec<&str> = shown.states.iter().map(|s| s.handler.as_str()).collect();
            assert_eq!(handlers, ["one"]);
            assert_eq!(world.store.sequence(100).await.unwrap(), 1);
            world.audit().await;
        });
    }

    /// Settles one event that is claimed, in a row of its own or not, while somebody has the lock that it
    /// needs; meanwhile another handler registers.
    async fn overlook(store: &Store, is_row: bool) {
        let world = Arc::new(world(store).await);
        world.store.register(&handler("one")).await.unwrap();
        let id = world.publish("a", 1).await[0];
        let mut claimed = world.claim(1, LONG).await;
        if is_row {
            let retry = tidegate_queue::port::Disposition::Retry {
                after: Duration::ZERO,
                lane: tidegate_queue::conformance::lane(),
            };
            world.settle(&claimed, &retry).await;
            world.wait(Duration::from_millis(5)).await;
            claimed = world.claim(1, LONG).await;
        }
        let version = world.store.registry().await.unwrap().version;
        let mut busy = world.store.begin().await.unwrap();
        execute(&mut busy, "SELECT 1 FROM tidegate_batch FOR SHARE").await;
        execute(&mut busy, "SELECT 1 FROM tidegate_event_row FOR SHARE").await;
        let settlement = Settlement {
            registry: Some(version),
            transitions: vec![Transition {
                claim: claimed[0].claim.clone(),
                key: None,
                to: completed(),
                states: Vec::new(),
            }],
            finished: vec![claimed[0].claim.lease],
        };
        let settling = {
            let (settlement, other) = (settlement.clone(), Arc::clone(&world.store));
            tokio::spawn(async move { other.settle(&settlement).await })
        };
        until_waited_for(store, &mut busy, 1).await;
        assert!(!settling.is_finished());
        world.store.register(&handler("late")).await.unwrap();
        busy.commit().await.unwrap();
        let settled = settling.await.unwrap();
        assert!(
            matches!(settled, Err(QueueError::RegistryChanged)),
            "{settled:?}"
        );
        let shown = world.store.show(id).await.unwrap().unwrap();
        assert_eq!(shown.status, QueueStatus::Processing);
        let version = world.store.registry().await.unwrap().version;
        let again = Settlement {
            registry: Some(version),
            ..settlement
        };
        assert_eq!(world.store.settle(&again).await.unwrap(), [0_i64; 0]);
        world.audit().await;
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_handler_that_registers_while_a_batch_waits_to_be_settled_is_not_overlooked() {
        with_postgres(async |server: &OnServer| {
            overlook(&server.store, false).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_handler_that_registers_while_a_row_waits_to_be_settled_is_not_overlooked() {
        with_postgres(async |server: &OnServer| {
            overlook(&server.store, true).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_registration_waits_for_those_who_settle_without_it() {
        with_postgres(async |server: &OnServer| {
            let world = Arc::new(world(&server.store).await);
            // Somebody has asked for the registry, and has not committed yet.
            let mut settling = world.store.begin().await.unwrap();
            execute(&mut settling, "SELECT tidegate_registry()").await;
            let store = Arc::clone(&world.store);
            let registering = tokio::spawn(async move { store.register(&handler("one")).await });
            until_waited_for(&server.store, &mut settling, 1).await;
            assert!(!registering.is_finished());
            settling.commit().await.unwrap();
            registering.await.unwrap().unwrap();
            // Doing it again changes nothing, and waits for nobody.
            let mut settling = world.store.begin().await.unwrap();
            execute(&mut settling, "SELECT tidegate_registry()").await;
            world.store.register(&handler("one")).await.unwrap();
            settling.commit().await.unwrap();
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_process_that_stands_still_while_it_registers_holds_nobody_up() {
        with_postgres(async |server: &OnServer| {
            let other = crate::stores::world(&server.store).await;
            let new = handler("late");
            let mut registering = other.store.register(&new);
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            // It stands still wherever it waits for the server.
            for _ in 0..1_000 {
                if registering.as_mut().poll(&mut context).is_ready() {
                    let registry = server.world.store.registry().await.unwrap();
                    assert!(registry.of("a").any(|id| id == "late"));
                    return;
                }
                server.world.wait(Duration::from_millis(5)).await;
                let mut tx = server.world.store.begin().await.unwrap();
                // The server may be at work on what it was told; then it is free soon.
                let locks = "SET LOCAL lock_timeout = '20s';
                    SELECT pg_advisory_xact_lock(tidegate_lock('registry'));
                    SELECT 1 FROM tidegate_queue FOR UPDATE";
                execute(&mut tx, locks).await;
                tx.rollback().await.unwrap();
            }
            panic!("it is not registered");
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_registration_that_takes_for_ever_does_not_hold_up_the_stop() {
        with_postgres(async |server: &OnServer| {
            let env = Env::system();
            let queue = Queue::open(server.store.clone(), &env).await.unwrap();
            let calls = Arc::new(AtomicU32::new(0));
            let running = dispatcher(&queue, &calls, &env);
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let task = tokio::spawn(running.run(async move {
                stopped.await.ok();
            }));
            until("it registers", async || {
                let registry = queue.store().registry().await.unwrap();
                registry.of(Placed::TYPE).eq(["one"])
            })
            .await;
            let mut busy = queue.begin().await.unwrap();
            let lock = "SELECT pg_advisory_xact_lock(tidegate_lock('registry'))";
            execute(&mut busy, lock).await;
            queue.publish(&Placed { n: 1 }).await.unwrap();
            until("it is handled", async || calls.load(Ordering::Relaxed) == 1).await;
            stop.send(()).unwrap();
            // Sooner than the store gives up by itself.
            let ended = tokio::time::timeout(Duration::from_secs(25), task).await;
            assert_eq!(ended.unwrap().unwrap().finalized, 0);
            busy.rollback().await.unwrap();
            let recount = queue.store().recount().await.unwrap();
            assert_eq!(recount.missing, []);
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_position_that_is_noted_beside_a_removal_is_not_gone_past() {
        with_postgres(async |server: &OnServer| {
            let world = Arc::new(world(&server.store).await);
            world.publish("a", 3).await;
            let claimed = world.claim(3, LONG).await;
            world.settle(&claimed, &completed()).await;
            world.store.sequence(100).await.unwrap();
            // The position is written and not committed when the removal begins.
            let mut noting = world.store.begin().await.unwrap();
            let note = "SELECT pg_advisory_xact_lock_shared(tidegate_lock('retention'));
                INSERT INTO event_projection (name, position) VALUES ('p', 0)";
            execute(&mut noting, note).await;
            let cleaning = Arc::clone(&world);
            let cleaning =
                tokio::spawn(async move { cleaning.store.clean(Some(Duration::ZERO)).await });
            until_waited_for(&server.store, &mut noting, 1).await;
            noting.commit().await.unwrap();
            assert_eq!(cleaning.await.unwrap().unwrap().events, 0);
            // And the other way round: whoever notes one waits for a removal that has begun.
            let mut removing = world.store.begin().await.unwrap();
            let lock = "SELECT pg_advisory_xact_lock(tidegate_lock('retention'))";
            execute(&mut removing, lock).await;
            let notes = Arc::clone(&world);
            let noting = tokio::spawn(async move { notes.store.note_position("p", "q", 0).await });
            // A process that begins to build a projection notes one too.
            let begins = Arc::clone(&world);
            let beginning = tokio::spawn(async move {
                let leadership = begins.store.acquire_leadership("r", "one", LONG).await;
                let tx = begins.store.begin().await?;
                begins
                    .store
                    .advance(tx, &leadership?.unwrap(), "r", 0, 0)
                    .await
            });
            until_waited_for(&server.store, &mut removing, 2).await;
            assert!(!noting.is_finished() && !beginning.is_finished());
            removing.rollback().await.unwrap();
            assert!(noting.await.unwrap().unwrap());
            assert!(beginning.await.unwrap().unwrap());
        });
    }
}
