//! A port that is closed and opened again.

use std::net::TcpStream;
use std::sync::Arc;

use tidegate_logger::{Api, HttpApi};
use tidegate_testkit::{Fault, StubApi};

use super::{LIMIT, client, event, events, start, words};

#[tokio::test]
async fn a_closed_port_refuses_and_serves_again_once_it_is_open() {
    let stub = StubApi::start().unwrap();
    let api = client(&stub);
    assert_eq!(words(&api.send(&[event(1)]).await), ["stored"]);
    let address = stub.address();
    for round in 2..5 {
        stub.down();
        stub.down();
        assert!(TcpStream::connect(address).is_err());
        // The first request may still find the connection of the one before it, and lose it.
        let first = words(&api.send(&events(1)).await);
        assert!(first[0].starts_with("failed connection."), "{first:?}");
        for batch in [events(1), events(2)] {
            let words = words(&api.send(&batch).await);
            assert_eq!(words, ["failed connection.refused"], "{round}");
        }
        stub.up().unwrap();
        stub.up().unwrap();
        assert_eq!(words(&api.send(&[event(round)]).await), ["stored"]);
    }
    assert_eq!(stub.address(), address);
    assert_eq!(stub.count(), 4);
}

#[tokio::test]
async fn going_down_breaks_what_is_under_way() {
    let stub = Arc::new(StubApi::start().unwrap());
    stub.fail_next(Fault::Hang);
    let api = client(&stub);
    let sending = tokio::spawn(async move { words(&api.send(&events(2)).await) });
    stub.wait_until(|stub| stub.requests() == 1, LIMIT).await;
    stub.down();
    assert_eq!(sending.await.unwrap(), ["failed connection.lost"]);
}

#[test]
fn a_test_without_a_runtime_can_wait_too() {
    let stub = Arc::new(StubApi::start().unwrap());
    let url = stub.url();
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async { words(&start(HttpApi::builder(url)).send(&events(5)).await) })
    });
    stub.wait_until_blocking(|stub| stub.count() == 5, LIMIT);
    assert_eq!(other.join().unwrap(), vec!["stored"; 5]);
}
