//! The example does what its page says.

#[tokio::test]
async fn good_orders_are_shipped_and_the_others_are_dead_letters() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(shipping::ship(dir.path()).await.unwrap(), (28, 2));
}
