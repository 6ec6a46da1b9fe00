mod needs_kcat;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::{fresh, variable};

/// Makes a topic of one partition by a CreateTopics request, version 2.
///
/// The broker's own tool would take more than a second for it.
fn create_topic(name: &str) {
    let mut body = Vec::new();
    body.extend(19_i16.to_be_bytes());
    body.extend(2_i16.to_be_bytes());
    body.extend(7_i32.to_be_bytes());
    body.extend((-1_i16).to_be_bytes());
    body.extend(1_i32.to_be_bytes());
    body.extend(
        i16::try_from(name.len())
            .expect("a short name")
            .to_be_bytes(),
    );
    body.extend(name.as_bytes());
    body.extend(1_i32.to_be_bytes());
    body.extend(1_i16.to_be_bytes());
    body.extend(0_i32.to_be_bytes());
    body.extend(0_i32.to_be_bytes());
    body.extend(20_000_i32.to_be_bytes());
    body.push(0);

    let mut stream = TcpStream::connect(variable("KAFKA_BOOTSTRAP")).expect("Kafka listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a timeout can be set");
    let length = i32::try_from(body.len()).expect("a short request");
    stream
        .write_all(&length.to_be_bytes())
        .expect("Kafka reads");
    stream.write_all(&body).expect("Kafka reads");

    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("Kafka answers");
    let mut answer = vec![0; usize::try_from(u32::from_be_bytes(length)).expect("a small answer")];
    stream
        .read_exact(&mut answer)
        .expect("Kafka answers in full");
    // Correlation id, throttle time, count, length of the name, name, error code.
    let at = 4 + 4 + 4 + 2 + name.len();
    let error = i16::from_be_bytes([answer[at], answer[at + 1]]);
    assert_eq!(
        error,
        0,
        "Kafka refused to make {name}: {}",
        String::from_utf8_lossy(&answer)
    );
}

#[test]
#[ignore = "needs kafka"]
fn makes_topics() {
    create_topic(&fresh("made"));
}
