//! Old transactions of others, held for as long as a forgotten session is. On a server of its own: what
//! others do there would wait for them too.

mod needs_postgres {
    use std::time::{Duration, Instant};

    use tidegate_core::env::Env;
    use tidegate_queue::conformance::World;
    use tidegate_queue::conformance::dispatchers::{Running, quick};
    use tidegate_queue::{Dispatcher, DispatcherOptions, Handled, Queue};
    use tidegate_sim::is_long;
    use tidegate_store::{Store, StoreOptions, sqlx};
    use tokio::runtime::Runtime;

    use crate::server::Server;

    const EVERY: Duration = Duration::from_secs(10);

    /// Publishes a burst beside a dispatcher and says how many events per second came to their end.
    async fn burst(world: &World, total: &mut u64) -> u64 {
        let begun = Instant::now();
        let burst = if is_long() { 10_000 } else { 2_000 };
        for _ in 0..burst / 1_000 {
            world.publish("a", 1_000).await;
        }
        *total += burst;
        world.finalized(*total).await;
        (burst as f64 / begun.elapsed().as_secs_f64()) as u64
    }

    async fn ask(world: &World, sql: &'static str) -> i64 {
        let mut asking = world.store.begin().await.unwrap();
        let answer = sqlx::query_scalar(sql);
        let answer = answer.fetch_one(asking.postgres().unwrap()).await.unwrap();
        asking.rollback().await.unwrap();
        answer
    }

    fn median(rates: &[u64]) -> u64 {
        let mut rates = rates.to_vec();
        rates.sort_unstable();
        rates[rates.len() / 2]
    }

    /// Half an hour in a long run. How fast it is is printed here and measured by the bench.
    #[test]
    #[ignore = "needs PostgreSQL"]
    fn q23_transactions_held_for_long_leave_few_dead_rows() {
        let server = Server::start();
        Runtime::new().unwrap().block_on(async {
            let env = Env::system();
            let options = StoreOptions::new(server.url("parent"));
            let store = Store::open(&options, &env).await.unwrap();
            let other = Store::open(&options, &env).await.unwrap();
            let queue = Queue::open(store.clone(), &env).await.unwrap();
            let world = &World::new(std::sync::Arc::clone(queue.store()));
            let options = DispatcherOptions {
                batch_size: 500,
                ..quick()
            };
            let builder = Dispatcher::builder(world.queue()).options(options);
            let builder =
                builder.register_raw("one", "a", |_, _| Box::pin(async { Handled::Success }));
            let running = Running::start(world, builder.unwrap());
            let mut total = 0;
            let mut before = Vec::new();
            for _ in 0..5 {
                before.push(burst(world, &mut total).await);
            }

            let mut reading = other.begin().await.unwrap();
            let snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
                 SET LOCAL idle_in_transaction_session_timeout = 0; SELECT 1";
            let connection = reading.postgres().unwrap();
            sqlx::raw_sql(snapshot).execute(connection).await.unwrap();
            let mut writing = world.store.begin().await.unwrap();
            let patient = "SET LOCAL idle_in_transaction_session_timeout = 0";
            let connection = writing.postgres().unwrap();
            sqlx::raw_sql(patient).execute(connection).await.unwrap();
            let held = world.event("a");
            let late = std::slice::from_ref(&held);
            world.store.publish_in(&mut writing, late).await.unwrap();

            let rounds = if is_long() { 180 } else { 2 };
            let mut beside = Vec::new();
            for _ in 0..rounds {
                let begun = Instant::now();
                beside.push(burst(world, &mut total).await);
                if is_long() {
                    world.wait(EVERY.saturating_sub(begun.elapsed())).await;
                }
            }
            writing.commit().await.unwrap();
            total += 1;
            world.finalized(total).await;
            running.stop().await;
            // A session tells what it did when it ends.
            store.close().await.unwrap();
            let told = "SELECT coalesce(sum(n_tup_ins), 0)::int8 FROM pg_stat_user_tables
                 WHERE schemaname = current_schema() AND relname = 'tidegate_log'";
            world
                .until(async || ask(world, told).await >= total as i64)
                .await;
            let dead = "SELECT coalesce(sum(n_dead_tup), 0)::int8 FROM pg_stat_user_tables
                 WHERE schemaname = current_schema()";
            let dead = ask(world, dead).await;
            println!(
                "{total} events, {dead} dead rows; {}/s before, {}/s in the last rounds",
                median(&before),
                median(&beside[beside.len().saturating_sub(10)..]),
            );
            assert!(dead <= (total / 100) as i64, "{dead} dead rows");
            reading.rollback().await.unwrap();
            world.audit().await;
        });
    }
}
