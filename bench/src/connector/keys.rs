//! Keys beside each other: 10 ms of waiting per record, 1,000 in flight, one partition.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate_connector::{ConcurrencyMode, ConsumedRecord};
use tidegate_core::Mutex;
use tidegate_log::Record;

use super::{Bench, options, print, value};
use crate::program::Why;

const KEYS: usize = 1_000;
const IN_FLIGHT: usize = 1_000;
const WORK: Duration = Duration::from_millis(10);
const UNIFORM: usize = 400_000;
const ZIPF: usize = 10_000;

/// One run over a topic.
struct KeyRun {
    /// Records per second over all of it, and over the middle half.
    whole: f64,
    middle: f64,
    /// The mean time inside the handler, in seconds.
    work: f64,
}

fn run(bench: &Bench, count: usize, key: impl Fn(usize) -> usize) -> Result<KeyRun, Why> {
    let topic = bench.topic("keys", 1)?;
    let record = |number| {
        let key = format!("key-{:012}", key(number));
        (Record::new(value(number, 200)).key(key), 0)
    };
    bench.fill(&topic, count, record)?;
    let mut options = options(&topic)?;
    options.concurrency_mode = ConcurrencyMode::Key;
    options.max_in_flight = IN_FLIGHT;
    let done = Arc::new(AtomicUsize::new(0));
    let worked = Arc::new(AtomicU64::new(0));
    let times: Arc<Mutex<Vec<(usize, Instant)>>> = Arc::default();
    let handler = {
        let (done, worked, times) = (Arc::clone(&done), Arc::clone(&worked), Arc::clone(&times));
        move |_: Arc<ConsumedRecord>| {
            let (done, worked) = (Arc::clone(&done), Arc::clone(&worked));
            let times = Arc::clone(&times);
            async move {
                let began = Instant::now();
                tokio::time::sleep(WORK).await;
                let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                worked.fetch_add(took, Ordering::Relaxed);
                let now = done.fetch_add(1, Ordering::Relaxed) + 1;
                if now == 1 || now == count / 4 || now == count * 3 / 4 || now == count {
                    times.lock().push((now, Instant::now()));
                }
                Ok(())
            }
        }
    };
    let bound = bench.bound(options, handler)?;
    bench.runtime.block_on(async {
        bound
            .until(|| done.load(Ordering::Relaxed) >= count)
            .await?;
        bound.stop().await
    })?;
    let mut times = times.lock().clone();
    times.sort_unstable();
    let [first, quarter, three, last] = times.as_slice() else {
        return Err(format!("{} times were noted", times.len()));
    };
    let rate = |from: &(usize, Instant), to: &(usize, Instant)| {
        (to.0 - from.0) as f64 / to.1.duration_since(from.1).as_secs_f64()
    };
    Ok(KeyRun {
        whole: rate(first, last),
        middle: rate(quarter, three),
        work: worked.load(Ordering::Relaxed) as f64 / 1e9 / count as f64,
    })
}

/// Numbers that look random and are the same in each run.
fn scrambled(number: usize) -> u64 {
    let mut mixed = (number as u64).wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

pub(super) fn uniform(bench: &mut Bench) -> Result<(), Why> {
    eprintln!("keys, uniform");
    let found = run(bench, UNIFORM, |number| scrambled(number) as usize % KEYS)?;
    eprintln!("  {:.2} ms inside the handler", found.work * 1e3);
    bench.rates.insert("connector/keys-uniform", found.middle);
    let reach = IN_FLIGHT as f64 / found.work;
    let is = "in flight by the time inside the handler; at least 0.8";
    print(
        "connector/keys-uniform",
        found.middle,
        reach,
        is,
        "records/s",
    );
    Ok(())
}

pub(super) fn zipf(bench: &mut Bench) -> Result<(), Why> {
    eprintln!("keys, Zipf");
    let mut sums = Vec::with_capacity(KEYS);
    let mut sum = 0.0;
    for rank in 1..=KEYS {
        sum += 1.0 / rank as f64;
        sums.push(sum);
    }
    let key = |number| {
        let point = scrambled(number) as f64 / u64::MAX as f64 * sum;
        sums.partition_point(|below| *below < point).min(KEYS - 1)
    };
    let hottest = (0..ZIPF).filter(|number| key(*number) == 0).count();
    let found = run(bench, ZIPF, key)?;
    eprintln!("  {:.2} ms inside the handler", found.work * 1e3);
    bench.rates.insert("connector/keys-zipf", found.whole);
    let share = hottest as f64 / ZIPF as f64;
    let reach = 1.0 / (share * found.work);
    let is = "the hottest key alone; at least 0.95";
    print("connector/keys-zipf", found.whole, reach, is, "records/s");
    Ok(())
}
