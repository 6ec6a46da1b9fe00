//! The promises of the HTTP client, tested against a stub, and those of the stubs themselves.

#![expect(clippy::unwrap_used, reason = "what fails in a helper fails its test")]

mod faults;
mod oauth;
mod outage;
mod requests;
mod scripted;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_core::EventId;
use tidegate_core::env::system::SystemClock;
use tidegate_core::env::{Clock, Sleep};
use tidegate_logger::{ApiAnswer, EventOutcome, HttpApi, HttpApiBuilder, Payload};
use tidegate_testkit::StubApi;

/// Long enough for a busy machine, short enough for a person.
const LIMIT: Duration = Duration::from_secs(20);

/// The event with this number.
fn event(number: u128) -> Payload {
    event_saying(number, "all is well")
}

fn event_saying(number: u128, details: &str) -> Payload {
    let id = EventId::from_u128(number);
    let json = format!(r#"{{"_id":"{id}","correlationId":"c","details":"{details}"}}"#);
    Payload {
        id,
        json: json.into(),
    }
}

fn events(count: u128) -> Vec<Payload> {
    (1..=count).map(event).collect()
}

fn client(stub: &StubApi) -> HttpApi {
    start(HttpApi::builder(stub.url()))
}

fn start(builder: HttpApiBuilder) -> HttpApi {
    builder.build(Arc::new(SystemClock::new())).unwrap()
}

/// One word for an answer, or one for each event.
fn words(answer: &ApiAnswer) -> Vec<String> {
    match answer {
        ApiAnswer::TooLarge => vec!["split".to_owned()],
        ApiAnswer::Failed(failure) => vec![format!("failed {}", failure.code)],
        ApiAnswer::PerEvent(outcomes) => outcomes
            .iter()
            .map(|outcome| match outcome {
                EventOutcome::Stored => "stored".to_owned(),
                EventOutcome::Rejected { code, .. } => format!("rejected {code}"),
                EventOutcome::Failed { code, .. } => format!("later {code}"),
            })
            .collect(),
    }
}

/// A clock that moves when it is told to.
#[derive(Debug, Default)]
struct HandClock(AtomicU64);

impl HandClock {
    fn advance(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + self.elapsed()
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Box::pin(std::future::pending())
    }
}
