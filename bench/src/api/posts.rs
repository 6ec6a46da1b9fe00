//! Single posts at a rate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::EventIds;
use tidegate_core::env::Env;
use tidegate_logger::{Api as _, ApiAnswer, EventOutcome, HttpApi, Payload};

use super::ingest::{defaults, event};
use super::line;
use super::serve::ApiProcess;
use crate::measure::percentile;

const RATE: u32 = 500;
const SECONDS: u32 = 20;
/// Of the first of them nothing is told: connections are made.
const WARM_UP: usize = RATE as usize * 2;
/// How long one may take, in milliseconds.
const LIMIT: f64 = 20.0;

pub(super) fn run(database: &str, api: &ApiProcess) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    let mut samples = runtime.block_on(at_a_rate(api.client()));
    let samples = samples.get_mut(WARM_UP..).unwrap_or_default();
    for (name, share, reference_is) in [
        ("p99", 0.99, "the most it may be"),
        ("p50", 0.5, "the most that the p99 may be"),
    ] {
        line(
            &format!("{database}-post-{name}"),
            (percentile(samples, share) / 1_000.0, LIMIT),
            ("ms per single post, at 500/s", reference_is),
            api.cost(),
        );
    }
}

/// Microseconds of each post, from the moment it was due. A slow answer makes no later post later.
async fn at_a_rate(client: Arc<HttpApi>) -> Vec<u32> {
    let env = Env::system();
    let ids = EventIds::new(Arc::clone(&env.clock), env.entropy.fork("ids"));
    let began = Instant::now();
    let mut posts = Vec::new();
    for number in 0..RATE * SECONDS {
        let due = began + Duration::from_secs(1) * number / RATE;
        let mut json = Vec::new();
        let id = ids.mint();
        let one = event(u64::from(number), 1).correlation_id(format!("single-{number}"));
        one.encode(id, env.clock.now_ms(), &defaults(), &mut json);
        let client = Arc::clone(&client);
        tokio::time::sleep(due.saturating_duration_since(Instant::now())).await;
        posts.push(tokio::spawn(async move {
            let payload = [Payload {
                id,
                json: json.into(),
            }];
            let answer = client.send(&payload).await;
            let is_stored = matches!(&answer, ApiAnswer::PerEvent(all)
                if all.as_slice() == [EventOutcome::Stored]);
            assert!(is_stored, "{answer:?}");
            u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX)
        }));
    }
    let mut samples = Vec::new();
    for post in posts {
        samples.push(post.await.expect("a post is answered"));
    }
    samples
}
