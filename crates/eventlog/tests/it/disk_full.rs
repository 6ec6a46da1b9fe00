//! A database that has no room for more.

use serde_json::json;
use tidegate_core::env::Env;
use tidegate_core::{Classify, Component, FailureClass, HealthStatus};
use tidegate_eventlog::{EventLog, EventLogComponent, PageRequest, PostOrigin};

use crate::databases::{batch, event, id, run};

/// A statement that takes the room away, and one that gives it back.
struct Room {
    take: &'static str,
    give: &'static str,
}

mod sqlite {
    use super::*;

    #[test]
    fn a06_a_full_disk_stores_nothing_half_and_posts_work_once_there_is_room() {
        // As many pages as there are: the file does not grow any more.
        let room = Room {
            take: "PRAGMA max_page_count = 1",
            give: "PRAGMA max_page_count = 1000000",
        };
        crate::databases::on_sqlite(|log| full(log, room));
    }
}

mod needs_postgres {
    use super::*;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a06_a_full_disk_stores_nothing_half_and_posts_work_once_there_is_room() {
        // The error of the server itself, from the last write of a commit.
        let room = Room {
            take: "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN RAISE 'No space left on device' USING ERRCODE = 'disk_full'; END $$;
                CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON tidegate_posting
                    FOR EACH ROW EXECUTE FUNCTION no_room()",
            give: "DROP TRIGGER no_room ON tidegate_posting",
        };
        crate::databases::on_postgres(|log| full(log, room));
    }
}

async fn full(log: EventLog, room: Room) {
    let lot = |from: u128| {
        let events: Vec<String> = (from..from + 200)
            .map(|n| {
                let details = format!("{n} {}", "long ".repeat(400));
                event(json!({ "_id": id(n).to_string(), "details": details }))
            })
            .collect();
        batch(&events, None)
    };
    let post = |from| {
        let (log, json) = (log.clone(), lot(from));
        async move { log.post_batch(&json, PostOrigin::default()).await }
    };
    let component = EventLogComponent::new(log.clone(), &Env::system());
    post(0).await.unwrap();
    assert_eq!(component.health().await.status, HealthStatus::Up);
    run(log.store(), room.take.to_owned()).await;
    let refused = post(200).await.unwrap_err();
    assert_eq!(refused.class(), FailureClass::System, "{refused:?}");
    assert_eq!(component.health().await.status, HealthStatus::Degraded);
    let page = PageRequest::default();
    let found = log.correlation("a1b2c3d4".to_owned(), &page).await.unwrap();
    assert_eq!(found.page.total_count, 200);
    let audited = log.audit().await.unwrap();
    assert_eq!((audited.unaccounted, audited.books.delivered), (0, 200));
    run(log.store(), room.give.to_owned()).await;
    let answer = post(200).await.unwrap();
    assert_eq!((answer.total_inserted, answer.errors.len()), (200, 0));
    assert_eq!(component.health().await.status, HealthStatus::Up);
    assert_eq!(log.audit().await.unwrap().books.delivered, 400);
}
