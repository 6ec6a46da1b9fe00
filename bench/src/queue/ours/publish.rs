//! Publishing, in transactions of the queue's own.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;
use tidegate_queue::{NewEvent, Queue};

use super::{TYPE, answer, micros, payload};

/// Events per transaction when nothing but the number of events matters.
const BULK: u32 = 1_000;
/// Events per transaction of a publisher that keeps to a rate.
const SMALL: u32 = 10;

pub(super) async fn all(queue: &Queue, count: u32) {
    let began = micros();
    for first in (0..count).step_by(BULK as usize) {
        let some = events(queue, first, BULK.min(count - first));
        queue.publish_all(&some).await.expect("they are published");
    }
    answer(&json!({"began_us": began, "ended_us": micros()}));
}

/// Keeps to the rate by the clock: a late transaction does not make the next one later.
pub(super) async fn at_a_rate(queue: &Queue, rate: u32, seconds: u32, file: &str) {
    let mut lines = String::new();
    let began = micros();
    for first in (0..rate * seconds).step_by(SMALL as usize) {
        let due = began + u64::from(first) * 1_000_000 / u64::from(rate);
        tokio::time::sleep(Duration::from_micros(due.saturating_sub(micros()))).await;
        let some = events(queue, first, SMALL);
        queue.publish_all(&some).await.expect("they are published");
        let committed = micros();
        for number in first..first + SMALL {
            writeln!(lines, "{number} {committed}").expect("a text takes every line");
        }
    }
    answer(&json!({"began_us": began, "ended_us": micros()}));
    std::fs::write(file, lines).expect("the times are kept");
}

fn events(queue: &Queue, first: u32, count: u32) -> Vec<NewEvent> {
    let event = |number| NewEvent::raw(queue.ids().mint(), TYPE, payload(number));
    let events = (first..first + count).map(event);
    events
        .collect::<Result<_, _>>()
        .expect("the payload is JSON")
}
