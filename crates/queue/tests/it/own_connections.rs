//! Publishing on a connection that is the caller's own, with its transaction or without.

mod needs_postgres {
    use tidegate_queue::conformance::{LONG, World};
    use tidegate_queue::{NewEvent, sql};
    use tidegate_store::sqlx::{self, Connection, PgConnection};

    use crate::stores::{OnServer, with_postgres};

    /// So many that a transaction of ours takes them by `COPY`.
    const MANY: usize = 2_500;

    async fn connect(server: &OnServer) -> PgConnection {
        let url = std::env::var("DATABASE_URL").expect("DATABASE_URL names the server");
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let path = format!("SET search_path = {}", server.schema);
        execute(&mut connection, path).await;
        connection
    }

    async fn execute(connection: &mut PgConnection, sql: String) {
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
        sql.execute(connection).await.unwrap();
    }

    fn events(world: &World) -> Vec<NewEvent> {
        (0..MANY).map(|_| world.event("a")).collect()
    }

    /// Claims all there is, and gives their numbers in order.
    async fn claimed(world: &World) -> Vec<i64> {
        let mut numbers = Vec::new();
        loop {
            let events = world.claim(1_000, LONG).await;
            if events.is_empty() {
                numbers.sort_unstable();
                return numbers;
            }
            numbers.extend(events.iter().map(|event| event.claim.id));
        }
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn many_events_need_no_transaction_around_them() {
        with_postgres(async |server: &OnServer| {
            let world = &server.world;
            let mut connection = connect(server).await;
            let events = events(world);
            let ids = sql::publish_on_postgres(&mut connection, &events).await;
            world.audit().await;
            assert_eq!(world.store.account().await.unwrap().accepted, 2_500);
            assert_eq!(claimed(world).await, ids.unwrap());
            world.audit().await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn q08_many_events_come_with_the_transaction_whoever_began_it() {
        with_postgres(async |server: &OnServer| {
            let world = &server.world;
            let mut connection = connect(server).await;
            let mut published = Vec::new();
            for is_kept in [true, false] {
                let mut tx = connection.begin().await.unwrap();
                let ids = sql::publish_on_postgres(&mut tx, &events(world)).await;
                if is_kept {
                    tx.commit().await.unwrap();
                    published.extend(ids.unwrap());
                } else {
                    tx.rollback().await.unwrap();
                }
                execute(&mut connection, "BEGIN".to_owned()).await;
                let ids = sql::publish_on_postgres(&mut connection, &events(world)).await;
                if is_kept {
                    execute(&mut connection, "COMMIT".to_owned()).await;
                    published.extend(ids.unwrap());
                } else {
                    execute(&mut connection, "ROLLBACK".to_owned()).await;
                }
            }
            world.audit().await;
            assert_eq!(claimed(world).await, published);
            world.audit().await;
        });
    }
}
