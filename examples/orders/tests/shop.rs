//! The example does what its README says.

use orders::run::run;
use tidegate_core::env::Env;
use tidegate_queue::{NewEvent, Queue};
use tidegate_store::{Store, StoreOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_orders_are_placed_handled_and_added_up() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("orders.db").display());
    let summary = run(&url, 10).await.unwrap();
    let total: i64 = summary.totals.iter().map(|(_, cents)| cents).sum();
    assert_eq!(total, 5_500);
    assert_eq!(summary.sent, 10);
    assert_eq!(
        (summary.account.accepted, summary.account.delivered),
        (20, 20)
    );
    assert_eq!(summary.unaccounted, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_without_a_handler_are_named_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("orders.db").display());
    let env = Env::system();
    let store = Store::open(&StoreOptions::new(&url), &env).await.unwrap();
    let queue = Queue::open(store, &env).await.unwrap();
    let foreign = NewEvent::raw(queue.ids().mint(), "Foo", "{}").unwrap();
    queue.publish_all(&[foreign]).await.unwrap();
    let summary = run(&url, 10).await.unwrap();
    assert_eq!(summary.sent, 10);
    let unhandled = summary.unhandled.into_iter();
    assert_eq!(unhandled.collect::<Vec<_>>(), [("Foo".to_owned(), 1)]);
    assert_eq!(
        (summary.account.accepted, summary.account.delivered),
        (21, 20)
    );
    assert_eq!(summary.unaccounted, 0);
}
