//! Rules of projections.

use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_core::{Code, Failure};
use tidegate_store::sqlx;
use tokio::sync::oneshot;

use super::World;
use super::dispatchers::{Calls, Running, placed, quick};
use crate::port::LogEvent;
use crate::{
    Delivery, Dispatcher, Handled, Projection, Projector, ProjectorOptions, QueueError, Rebuild,
    Target, Tx,
};

pub(super) const TABLE: &str = "seen";

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::transient(Code::from_static("test.sql"), error.to_string())
}

pub(super) async fn create(tx: &mut Tx, target: Target) -> Result<(), Failure> {
    let table = target.table(TABLE);
    let sql = format!("CREATE TABLE IF NOT EXISTS {table} (n integer PRIMARY KEY, times integer)");
    let sql = sqlx::AssertSqlSafe(sql);
    if let Some(connection) = tx.postgres() {
        sqlx::raw_sql(sql)
            .execute(connection)
            .await
            .map_err(failure)?;
    } else if let Some(connection) = tx.sqlite() {
        sqlx::raw_sql(sql)
            .execute(connection)
            .await
            .map_err(failure)?;
    }
    Ok(())
}

pub(super) async fn add(tx: &mut Tx, target: Target, n: u32) -> Result<(), Failure> {
    let table = target.table(TABLE);
    let sql = format!(
        "INSERT INTO {table} AS t (n, times) VALUES ({n}, 1)
         ON CONFLICT (n) DO UPDATE SET times = t.times + 1"
    );
    let sql = sqlx::AssertSqlSafe(sql);
    if let Some(connection) = tx.postgres() {
        sqlx::raw_sql(sql)
            .execute(connection)
            .await
            .map_err(failure)?;
    } else if let Some(connection) = tx.sqlite() {
        sqlx::raw_sql(sql)
            .execute(connection)
            .await
            .map_err(failure)?;
    } else if let Some(tx) = tx.model() {
        let times = tx
            .get(&table, &n.to_string())
            .and_then(|t| t.parse::<u32>().ok());
        tx.put(&table, &n.to_string(), (times.unwrap_or(0) + 1).to_string());
    }
    Ok(())
}

/// How often an event was applied, as a reader sees it.
pub(super) async fn times(world: &World, n: u32) -> u32 {
    let mut tx = world.store.begin().await.unwrap();
    let sql = format!("SELECT times FROM {TABLE} WHERE n = {n}");
    let sql = sqlx::AssertSqlSafe(sql);
    let found: Option<i32> = if let Some(connection) = tx.postgres() {
        sqlx::query_scalar(sql)
            .fetch_optional(connection)
            .await
            .unwrap()
    } else if let Some(connection) = tx.sqlite() {
        sqlx::query_scalar(sql)
            .fetch_optional(connection)
            .await
            .unwrap()
    } else {
        let tx = tx.model().unwrap();
        tx.get(TABLE, &n.to_string())
            .and_then(|times| times.parse().ok())
    };
    tx.rollback().await.unwrap();
    u32::try_from(found.unwrap_or(0)).unwrap()
}

fn number(event: &LogEvent) -> u32 {
    let placed: super::dispatchers::Placed = serde_json::from_str(&event.payload).unwrap();
    placed.n
}

/// A projection that counts events, and fails on the first look at number 13.
fn counting(calls: &Calls) -> Projection {
    let calls = calls.clone();
    Projection::builder("counting")
        .table(TABLE)
        .batch_size(7)
        .create(|tx, target| Box::pin(create(tx, target)))
        .apply(move |tx, target, events| {
            let calls = calls.clone();
            Box::pin(async move {
                for event in events {
                    let n = number(event);
                    add(tx, target, n).await?;
                    if n == 13 && calls.add("projection", n) == 1 {
                        return Err(failure("not at first sight"));
                    }
                }
                Ok(())
            })
        })
        .build()
        .unwrap()
}

pub(super) fn projector(world: &World, calls: &Calls) -> Projector {
    projector_in(world, calls, &world.env)
}

/// The same with an environment of its own.
pub(super) fn projector_in(world: &World, calls: &Calls, env: &Env) -> Projector {
    let options = ProjectorOptions {
        poll_delay: Duration::from_millis(5),
        ..ProjectorOptions::default()
    };
    let queue = world.queue();
    Projector::new(&queue, vec![counting(calls)], options, env)
}

/// A projector that runs.
pub(super) struct Projecting {
    stop: oneshot::Sender<()>,
    done: oneshot::Receiver<()>,
}

impl Projecting {
    /// Starts a projector.
    fn start(world: &World, projector: Projector) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, done) = oneshot::channel();
        let run = async move {
            projector.run(async { drop(stopped.await) }).await;
            tell.send(()).ok();
        };
        drop(world.env.spawn.spawn("projector", Box::pin(run)));
        Self { stop, done }
    }

    /// Stops it and waits for its end: nothing of it is at the store afterwards.
    pub(super) async fn stop(self) {
        self.stop.send(()).ok();
        self.done.await.unwrap();
    }
}

pub(super) fn start(world: &World, calls: &Calls) -> Projecting {
    Projecting::start(world, projector(world, calls))
}

pub(super) async fn caught_up(world: &World) {
    let is_caught_up = async || {
        // The end of the log first: what has a position by then is what the lag is measured by.
        let head = world.store.read_log(0, 1).await.unwrap().head;
        let stats = world.store.stats().await.unwrap();
        let is_sequenced = u64::try_from(head).unwrap() >= stats.finalized;
        is_sequenced && stats.lag.get("counting") == Some(&0)
    };
    world.until(is_caught_up).await;
}

fn handling(world: &World, calls: &Calls) -> Running {
    let calls = calls.clone();
    let act = move |event: Delivery<super::dispatchers::Placed>| {
        let n = event.event.n;
        // Some come late, and every tenth fails for good.
        let count = calls.add("handler", n);
        async move {
            match n {
                n if n % 10 == 9 => Handled::UnrecoverableError(Failure::permanent(
                    Code::from_static("test.fatal"),
                    "never",
                )),
                n if n % 4 == 1 && count < 3 => Handled::TransientError(failure("not yet")),
                _ => Handled::Success,
            }
        }
    };
    let builder = Dispatcher::builder(world.queue()).options(quick());
    Running::start(world, builder.register_fn("handler", act).unwrap())
}

pub(super) async fn publish(world: &World, numbers: std::ops::Range<u32>) {
    let queue = world.queue();
    for n in numbers {
        queue.publish(&placed(n)).await.unwrap();
    }
}

fn expected(n: u32) -> u32 {
    u32::from(n % 10 != 9)
}

/// Every completed event is applied exactly once: those that were retried while later ones finished,
/// and those of a batch that failed; two instances never build at once.
pub async fn q18_q20_a_projection_applies_every_event_exactly_once(world: &World) {
    let calls = Calls::default();
    let running = handling(world, &calls);
    let (one, two) = (start(world, &calls), start(world, &calls));
    publish(world, 0..60).await;
    world.finalized(60).await;
    caught_up(world).await;
    for n in 0..60 {
        assert_eq!(times(world, n).await, expected(n), "event {n}");
    }
    one.stop().await;
    two.stop().await;
    running.stop().await;
    world.audit().await;
}

/// An event that is retried until the projection has read all that were published after it is applied
/// all the same, and once.
pub async fn q18_an_event_that_is_retried_while_others_go_by_is_not_passed_over(world: &World) {
    let calls = Calls::default();
    let seen = calls.clone();
    let act = move |event: Delivery<super::dispatchers::Placed>| {
        let is_late = event.event.n == 0 && seen.of("let go", 0) == 0;
        async move {
            if is_late {
                Handled::TransientError(failure("not yet"))
            } else {
                Handled::Success
            }
        }
    };
    let builder = Dispatcher::builder(world.queue()).options(quick());
    let running = Running::start(world, builder.register_fn("handler", act).unwrap());
    let stop = start(world, &calls);
    publish(world, 0..8).await;
    world.finalized(7).await;
    caught_up(world).await;
    assert_eq!(world.store.projection("counting").await.unwrap(), 7);
    assert_eq!(times(world, 0).await, 0);
    calls.add("let go", 0);
    world.finalized(8).await;
    caught_up(world).await;
    for n in 0..8 {
        assert_eq!(times(world, n).await, 1, "event {n}");
    }
    stop.stop().await;
    running.stop().await;
    world.audit().await;
}

/// Retention waits for a projection whose first batch fails, for as long as it does.
pub async fn retention_waits_for_a_projection_that_never_came_far(world: &World) {
    let calls = Calls::default();
    let seen = calls.clone();
    let late = Projection::builder("late")
        .create(|_, _| Box::pin(async { Ok(()) }))
        .apply(move |_, _, events| {
            let seen = seen.clone();
            let count = u32::try_from(events.len()).unwrap();
            Box::pin(async move {
                match seen.of("let go", 0) {
                    0 => Err(failure(format!("not now, {}", seen.add("tried", 0)))),
                    _ => {
                        for _ in 0..count {
                            seen.add("seen", 0);
                        }
                        Ok(())
                    }
                }
            })
        })
        .build()
        .unwrap();
    let options = ProjectorOptions {
        poll_delay: Duration::from_millis(5),
        ..ProjectorOptions::default()
    };
    let projector = Projector::new(&world.queue(), vec![late], options, &world.env);
    let stop = Projecting::start(world, projector);
    world.publish("a", 4).await;
    let claimed = world.claim(4, super::LONG).await;
    world.settle(&claimed, &super::completed()).await;
    world.until(async || calls.of("tried", 0) >= 2).await;
    let removed = world.store.clean(Some(Duration::ZERO)).await.unwrap();
    assert_eq!(removed.events, 0);
    calls.add("let go", 0);
    world.until(async || calls.of("seen", 0) >= 4).await;
    stop.stop().await;
    world.audit().await;
}

/// A rebuild gives the same view anew, and readers see the old or the new one, whole; the lag ends
/// at zero also behind events with errors.
pub async fn q21_a_rebuild_swaps_the_view_whole(world: &World) {
    let calls = Calls::default();
    calls.add("projection", 13);
    let running = handling(world, &calls);
    let stop = start(world, &calls);
    publish(world, 0..20).await;
    world.finalized(20).await;
    caught_up(world).await;
    stop.stop().await;
    let rebuilder = projector(world, &calls);
    assert!(rebuilder.rebuild("unknown").await.is_err());
    let rebuild = rebuilder.rebuild("counting");
    let look = async {
        for _ in 0..20 {
            for n in 0..20 {
                assert_eq!(times(world, n).await, expected(n), "event {n}");
            }
            world.wait(Duration::from_millis(2)).await;
        }
    };
    let (rebuilt, ()) = tokio::join!(rebuild, look);
    rebuilt.unwrap();
    for n in 0..20 {
        assert_eq!(times(world, n).await, expected(n), "event {n}");
    }
    let names = world.store.projections().await.unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
    publish(world, 20..30).await;
    world.finalized(30).await;
    let stop = start(world, &calls);
    caught_up(world).await;
    for n in 0..30 {
        assert_eq!(times(world, n).await, expected(n), "event {n}");
    }
    stop.stop().await;
    running.stop().await;
}

/// A rebuild never drops in silence what retention has removed from the log.
pub async fn a_rebuild_without_removed_events_is_done_only_when_that_is_asked_for(world: &World) {
    let calls = Calls::default();
    calls.add("projection", 13);
    let running = handling(world, &calls);
    let stop = start(world, &calls);
    publish(world, 0..5).await;
    world.finalized(5).await;
    caught_up(world).await;
    stop.stop().await;
    running.stop().await;
    world.wait(Duration::from_millis(5)).await;
    let cleaned = world.store.clean(Some(Duration::ZERO)).await.unwrap();
    assert!(cleaned.events > 0);
    let refused = world.queue().request_rebuild("counting").await;
    assert!(matches!(refused, Err(QueueError::EventsRemoved { .. })));
    let rebuilder = projector(world, &calls);
    assert!(rebuilder.rebuild("counting").await.is_err());
    assert_eq!(times(world, 0).await, expected(0));
    rebuilder.rebuild_partial("counting").await.unwrap();
    assert_eq!(times(world, 0).await, 0);
}

/// A rebuild that is asked for from outside is done by a projector that runs, once, while the view
/// goes on; one that is taken back is not.
pub async fn q21_a_rebuild_that_is_asked_for_is_done_by_whoever_runs_the_projection(world: &World) {
    let calls = Calls::default();
    calls.add("projection", 13);
    let running = handling(world, &calls);
    let (one, two) = (start(world, &calls), start(world, &calls));
    publish(world, 0..20).await;
    world.finalized(20).await;
    caught_up(world).await;
    let queue = world.queue();
    for unknown in ["unknown", "counting#rebuild"] {
        let refused = queue.request_rebuild(unknown).await;
        assert!(
            matches!(refused, Err(QueueError::UnknownProjection { .. })),
            "{refused:?}"
        );
    }
    // The live table is spoiled; only a rebuild mends it.
    let mut tx = world.store.begin().await.unwrap();
    add(&mut tx, Target::Live, 3).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(times(world, 3).await, 2);
    queue.request_rebuild("counting").await.unwrap();
    queue.request_rebuild("counting").await.unwrap();
    publish(world, 20..30).await;
    rebuilt(world).await;
    world.finalized(30).await;
    caught_up(world).await;
    for n in 0..30 {
        assert_eq!(times(world, n).await, expected(n), "event {n}");
    }
    let names = world.store.projections().await.unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
    one.stop().await;
    two.stop().await;
    running.stop().await;
    // Only the owner of the leadership could serve it.
    while world
        .store
        .acquire_leadership("projection.counting", "tester", super::LONG)
        .await
        .unwrap()
        .is_none()
    {
        world.wait(Duration::from_millis(5)).await;
    }
    queue.request_rebuild("counting").await.unwrap();
    assert_eq!(rebuild(world).await, Some(Rebuild::Requested));
    queue.withdraw_rebuild("counting").await.unwrap();
    assert_eq!(rebuild(world).await, None);
    world.audit().await;
}

async fn rebuild(world: &World) -> Option<Rebuild> {
    let states = world.queue().projections().await.unwrap();
    assert_eq!(states.len(), 1, "{states:?}");
    states[0].rebuild
}

async fn rebuilt(world: &World) {
    world.until(async || rebuild(world).await.is_none()).await;
}
