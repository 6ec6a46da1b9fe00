//! The example does what its README says.

use orders::run::run;

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
