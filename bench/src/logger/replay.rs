//! How fast a backlog is sent to an API that is two milliseconds away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::EventId;
use tidegate_core::env::system::SystemClock;
use tidegate_logger::{Api, HttpApi, Payload};
use tidegate_testkit::{Fault, StubApi};

use super::{Scratch, apis, config, fill, start, wait_for};
use crate::measure::Measurement;

const EVENTS: u64 = 200_000;
const ROUND_TRIP: Duration = Duration::from_millis(2);

pub(super) fn run() {
    let reference = one_by_one();
    let print = |bench, ours| {
        Measurement {
            bench,
            ours,
            reference,
            reference_is: "one request of 2 ms per event, the documented pattern",
            unit: "events/s",
        }
        .print();
    };
    let away: Arc<dyn Api> = Arc::new(apis::After(ROUND_TRIP));
    print("logger/replay-2ms", replay_rate(EVENTS, away));
    print(
        "logger/replay-at-once",
        replay_rate(EVENTS, Arc::new(apis::Instantly)),
    );
    let stub = StubApi::start().expect("the stub starts");
    stub.fail_always(Fault::Delay(ROUND_TRIP));
    let http = HttpApi::builder(stub.url()).build(Arc::new(SystemClock::new()));
    let http = Arc::new(http.expect("the client starts"));
    print("logger/replay-2ms-http", replay_rate(EVENTS / 2, http));
}

/// From the opening of the directory to the last answer.
fn replay_rate(count: u64, api: Arc<dyn Api>) -> f64 {
    let scratch = Scratch::new("replay");
    fill(scratch.path(), count);
    let began = Instant::now();
    let logger = start(config().spillover_path(scratch.path()), api);
    wait_for(|| logger.account().spilled == 0);
    let took = began.elapsed();
    let account = logger.shutdown().account;
    assert_eq!(u64::try_from(account.delivered), Ok(count));
    count as f64 / took.as_secs_f64()
}

fn one_by_one() -> f64 {
    const CALLS: u32 = 300;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    let event = [Payload {
        id: EventId::from_u128(1),
        json: Vec::from(*b"{}").into(),
    }];
    runtime.block_on(async {
        let began = Instant::now();
        for _ in 0..CALLS {
            drop(apis::After(ROUND_TRIP).send(&event).await);
        }
        f64::from(CALLS) / began.elapsed().as_secs_f64()
    })
}
