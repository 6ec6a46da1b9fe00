//! Swaps beside somebody who reads what is to be replaced.

mod needs_postgres {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tidegate_core::{Code, Failure};
    use tidegate_queue::conformance::{LONG, completed};
    use tidegate_queue::{Projection, Projector, ProjectorOptions, Queue, Target, Tx};
    use tidegate_store::sqlx;
    use tokio::sync::oneshot;

    use crate::stores::{OnServer, until_waited_for, with_postgres};

    const EVENTS: u32 = 20;

    async fn execute(tx: &mut Tx, sql: String) -> Result<(), Failure> {
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
        let done = sql.execute(tx.postgres().unwrap()).await;
        let failed = |error: sqlx::Error| {
            Failure::transient(Code::from_static("test.sql"), error.to_string())
        };
        done.map(drop).map_err(failed)
    }

    /// A projection of every event, which counts what is applied to its rebuild.
    fn projector(server: &OnServer, rebuilt: &Arc<AtomicU32>) -> (Queue, Projector) {
        let rebuilt = Arc::clone(rebuilt);
        let projection = Projection::builder("p")
            .table("seen")
            .batch_size(2)
            .create(|tx, target| {
                let table = target.table("seen");
                let sql = format!("CREATE TABLE IF NOT EXISTS {table} (id bigint)");
                Box::pin(execute(tx, sql))
            })
            .apply(move |tx, target, events| {
                let rebuilt = Arc::clone(&rebuilt);
                Box::pin(async move {
                    for event in events {
                        if target == Target::Rebuild {
                            rebuilt.fetch_add(1, Ordering::Relaxed);
                        }
                        let table = target.table("seen");
                        let sql = format!("INSERT INTO {table} VALUES ({})", event.id);
                        execute(tx, sql).await?;
                    }
                    Ok(())
                })
            })
            .build()
            .unwrap();
        let options = ProjectorOptions {
            poll_delay: Duration::from_millis(20),
            lease: LONG,
            ..ProjectorOptions::default()
        };
        let world = &server.world;
        let queue = Queue::on(Arc::clone(&world.store), &world.env);
        let projector = Projector::new(&queue, vec![projection], options, &world.env);
        (queue, projector)
    }

    async fn run_until(projector: Projector, is_over: impl Future<Output = ()>) {
        let (stop, stopped) = oneshot::channel::<()>();
        let stopping = async {
            is_over.await;
            stop.send(()).ok();
        };
        tokio::join!(projector.run(async { drop(stopped.await) }), stopping);
    }

    async fn wait_for_the_reader(server: &OnServer, is_by_hand: bool) {
        let world = &server.world;
        world.publish("a", EVENTS as usize).await;
        let claimed = world.claim(EVENTS, LONG).await;
        world.settle(&claimed, &completed()).await;
        let rebuilt = Arc::new(AtomicU32::new(0));
        let (queue, first) = projector(server, &rebuilt);
        let built =
            world.until(async || world.store.projection("p").await.unwrap() == i64::from(EVENTS));
        run_until(first, built).await;
        world.wait(Duration::from_millis(5)).await;
        let mut reader = world.store.begin().await.unwrap();
        execute(&mut reader, "SELECT count(*) FROM seen".to_owned())
            .await
            .unwrap();
        let reading = async {
            until_waited_for(&server.store, &mut reader, 1).await;
            // Others who read do not wait behind the swap for long: it gives up, and sooner than its store.
            let mut another = world.store.begin().await.unwrap();
            let read = execute(&mut another, "SELECT count(*) FROM seen".to_owned());
            let read = tokio::time::timeout(Duration::from_secs(20), read).await;
            read.expect("the swap stands in the way").unwrap();
            another.rollback().await.unwrap();
            // It tries again, with what it has built.
            until_waited_for(&server.store, &mut reader, 1).await;
            assert_eq!(queue.rebuilds("p").await.unwrap(), 0);
            reader.rollback().await.unwrap();
            world
                .until(async || queue.rebuilds("p").await.unwrap() == 1)
                .await;
        };
        let (_, second) = projector(server, &rebuilt);
        if is_by_hand {
            let (done, ()) = tokio::join!(second.rebuild("p"), reading);
            done.unwrap();
        } else {
            queue.request_rebuild("p").await.unwrap();
            run_until(second, reading).await;
        }
        assert_eq!(rebuilt.load(Ordering::Relaxed), EVENTS, "it was built once");
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_rebuild_that_waits_for_a_reader_is_not_built_again() {
        with_postgres(async |server: &OnServer| wait_for_the_reader(server, false).await);
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_rebuild_by_hand_waits_for_a_reader() {
        with_postgres(async |server: &OnServer| wait_for_the_reader(server, true).await);
    }
}
