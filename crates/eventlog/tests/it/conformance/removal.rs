//! A post beside a removal by another process. SQLite has one writer, so that there is none.

mod needs_postgres {
    use std::time::Duration;

    use serde_json::json;
    use tidegate_eventlog::{EventLog, PostOrigin};
    use tidegate_store::sqlx::{self, AssertSqlSafe};

    use crate::databases::{event, id, on_postgres};

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_repeat_of_a_row_that_is_being_removed_is_stored_again() {
        on_postgres(a_repeat_waits_for_the_removal);
    }

    async fn a_repeat_waits_for_the_removal(log: EventLog) {
        let json = event(json!({ "_id": id(1).to_string() }));
        let first = log.post_one(&json, PostOrigin::default()).await.unwrap();
        let mut removal = log.store().begin().await.unwrap();
        let connection = removal.postgres().unwrap();
        let sql = format!("DELETE FROM tidegate_eventlog WHERE key = '{}'", id(1));
        let delete = sqlx::raw_sql(AssertSqlSafe(sql));
        delete.execute(&mut *connection).await.unwrap();
        let process = sqlx::query_scalar("SELECT pg_backend_pid()");
        let process: i32 = process.fetch_one(connection).await.unwrap();
        let posting = {
            let log = log.clone();
            tokio::spawn(async move { log.post_one(&json, PostOrigin::default()).await })
        };
        let mut watch = log.store().begin().await.unwrap();
        while !posting.is_finished() {
            // A transaction sees one and the same list of activities for as long as it lasts; locks are those of now.
            let waiting = "SELECT count(*) FROM pg_locks
                WHERE NOT granted AND $1 = ANY (pg_blocking_pids(pid))";
            let waiting = sqlx::query_scalar::<_, i64>(waiting).bind(process);
            if waiting.fetch_one(watch.postgres().unwrap()).await.unwrap() > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        watch.rollback().await.unwrap();
        removal.commit().await.unwrap();
        let again = posting.await.unwrap().unwrap();
        assert_ne!(first.execution_ids, again.execution_ids);
        let stored = log.locate(id(1)).await.unwrap().unwrap();
        let execution = again.execution_ids[0].to_string();
        assert_eq!(stored.details["executionId"], execution);
    }
}
