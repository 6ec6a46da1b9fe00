//! Poison among good records: two tiers of a second, then the dead letters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_connector::{ConsumedRecord, TierOptions};
use tidegate_core::dead_letter::name;
use tidegate_core::{Code, Failure, Mutex};
use tidegate_log::Record;

use super::{Bench, LIMIT, PARTITIONS, options, partition, print, told, value};
use crate::measure::percentile;
use crate::program::Why;

const RECORDS: usize = 100_000;
/// One of so many is poison.
const POISON_EACH: usize = 20;
/// Delays of the tiers; equal ones are refused.
const DELAYS_MS: [u64; 2] = [1_000, 1_001];

/// The lateness of handlings in tiers, in milliseconds.
#[derive(Default)]
struct Lateness {
    late: Vec<u32>,
    early: u64,
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

impl Lateness {
    fn note(&mut self, record: &ConsumedRecord) {
        let handed = record.headers().get(name::RETRY_TIMESTAMP);
        let handed: Option<u64> = handed
            .and_then(|text| std::str::from_utf8(text).ok())
            .and_then(|text| text.parse().ok());
        let delay = DELAYS_MS.get(record.tier().0 as usize - 1);
        let (Some(handed), Some(delay)) = (handed, delay) else {
            self.early += 1;
            return;
        };
        match now_ms().checked_sub(handed + delay) {
            Some(late) => self.late.push(u32::try_from(late).unwrap_or(u32::MAX)),
            None => self.early += 1,
        }
    }
}

pub(super) fn run(bench: &mut Bench) -> Result<(), Why> {
    eprintln!("100,000 records, 5 % poison");
    let topic = bench.topic("poison", PARTITIONS)?;
    let record = |number: usize| {
        // Not at the same place of every twenty, so that each partition has some.
        let is_poison = number % POISON_EACH == number / POISON_EACH * 7 % POISON_EACH;
        let record = Record::new(value(number, 200)).key(if is_poison { "poison" } else { "good" });
        (record, partition(number))
    };
    bench.fill(&topic, RECORDS, record)?;
    let mut options = options(&topic)?;
    options.retry.tier0.max_attempts = 1;
    options.retry.tiers = DELAYS_MS
        .map(|ms| TierOptions {
            max_attempts: 1,
            ..TierOptions::new(Duration::from_millis(ms))
        })
        .into();
    let lateness = Arc::new(Mutex::new(Lateness::default()));
    let began = Arc::new(Mutex::new(None));
    let (good, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (lateness, began) = (Arc::clone(&lateness), Arc::clone(&began));
        let (good, last) = (Arc::clone(&good), Arc::clone(&last));
        move |record: Arc<ConsumedRecord>| {
            let tier = record.tier().0;
            if tier == 0 {
                began.lock().get_or_insert_with(Instant::now);
            } else {
                lateness.lock().note(&record);
            }
            let is_poison = record.key().is_some_and(|key| key == "poison");
            match (is_poison, tier) {
                (true, 2) => last.fetch_add(1, Ordering::Relaxed),
                (true, _) => 0,
                (false, _) => good.fetch_add(1, Ordering::Relaxed),
            };
            async move {
                match is_poison {
                    true => {
                        let code = Code::from_static("service.poison");
                        Err(Failure::transient(code, "on purpose").into())
                    }
                    false => Ok(()),
                }
            }
        }
    };
    let poison = RECORDS / POISON_EACH;
    let bound = bench.bound(options, handler)?;
    let settled = bench.runtime.block_on(async {
        let all_seen = || {
            let (good, last) = (good.load(Ordering::Relaxed), last.load(Ordering::Relaxed));
            good >= RECORDS - poison && last >= poison
        };
        bound.until(all_seen).await?;
        // By the books, which move in the commit that writes the last letters.
        let asked = Instant::now();
        let books = bound.connector.books();
        let ended = loop {
            let found = Instant::now();
            let accounts = books.accounts().await.map_err(told)?;
            let account = accounts.first().map(|one| &one.account);
            let is_settled = account.is_some_and(|account| {
                account.dead_lettered == poison as i64
                    && account.delivered == (RECORDS - poison) as i64
            });
            if is_settled {
                break found;
            }
            if asked.elapsed() > LIMIT {
                return Err(format!("not settled by the books: {account:?}"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        bound.stop().await?;
        let began = began.lock().ok_or("nothing was handled")?;
        Ok::<f64, Why>(ended.duration_since(began).as_secs_f64())
    })?;
    let lateness = &mut *lateness.lock();
    bench
        .rates
        .insert("connector/poison", RECORDS as f64 / settled);
    print(
        "connector/poison-settled",
        settled,
        6.0,
        "the most it may take",
        "s",
    );
    let is = "none may be early";
    print(
        "connector/poison-early",
        lateness.early as f64,
        1.0,
        is,
        "handlings before their time",
    );
    let p99 = percentile(&mut lateness.late, 0.99);
    let is = "the most it may be";
    print(
        "connector/poison-late p99",
        p99,
        100.0,
        is,
        "ms behind the time of the tier",
    );
    Ok(())
}
