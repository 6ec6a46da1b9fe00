//! A binding on the embedded log, beside a bare loop on the port.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tidegate_connector::AckMode;
use tidegate_core::env::Env;
use tidegate_core::{GroupName, Mutex, Offset, Topic};
use tidegate_log::{
    Commit, EmbeddedConfig, EmbeddedLog, Join, Log, OffsetCommit, Record, SessionEvent, TopicConfig,
};

use super::{
    PARTITIONS, POLL_RECORDS, bound, fill, fresh, options, partition, print, runtime, told, value,
};
use crate::measure::median;
use crate::program::Why;

pub(super) const NAME: &str = "connector/embedded";
const RECORDS: usize = 400_000;
const ROUNDS: usize = 3;

pub(super) fn run() -> Result<(), Why> {
    eprintln!("the embedded log");
    let program = std::env::current_exe().map_err(told)?;
    let scratch = program.with_file_name("bench-connector");
    // Files of an earlier run that was stopped half-way.
    drop(std::fs::remove_dir_all(&scratch));
    let measured = runtime()?.block_on(rates(&scratch));
    drop(std::fs::remove_dir_all(&scratch));
    let (ours, bare) = measured?;
    let is = "a bare loop on the port with the same commits; at least 0.8";
    print(NAME, ours, bare, is, "records/s");
    Ok(())
}

async fn rates(scratch: &Path) -> Result<(f64, f64), Why> {
    let log = EmbeddedLog::open(&Env::system(), EmbeddedConfig::new(scratch)).map_err(told)?;
    let topic = Topic::new("measured").map_err(told)?;
    let made = log.create_topic(&topic, TopicConfig::new(PARTITIONS)).await;
    made.map_err(told)?;
    let record = |number| (Record::new(value(number, 200)), partition(number));
    fill(&log, &topic, RECORDS, record).await?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let rate = by_binding(&log, &topic).await?;
        let reference = by_loop(&log, &topic).await?;
        eprintln!("  ours {rate:.0}/s, bare {reference:.0}/s");
        if round > 0 {
            ours.push(rate);
            bare.push(reference);
        }
    }
    log.close().await;
    Ok((median(ours), median(bare)))
}

async fn by_binding(log: &EmbeddedLog, topic: &Topic) -> Result<f64, Why> {
    let mut options = options(topic)?;
    options.ack_mode = AckMode::Manual;
    let count = Arc::new(AtomicUsize::new(0));
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let handler = {
        let (count, times) = (Arc::clone(&count), Arc::clone(&times));
        move |_| {
            let n = count.fetch_add(1, Ordering::Relaxed) + 1;
            if n == 1 || n == RECORDS {
                times.lock().push(Instant::now());
            }
            async { Ok(()) }
        }
    };
    let bound = bound(Arc::new(log.clone()), options, handler).await?;
    bound.until(|| times.lock().len() == 2).await?;
    bound.stop().await?;
    let times = times.lock().clone();
    Ok(RECORDS as f64 / times[1].duration_since(times[0]).as_secs_f64())
}

/// Polls, and commits behind each batch, one commit under way at a time.
async fn by_loop(log: &EmbeddedLog, topic: &Topic) -> Result<f64, Why> {
    let group = GroupName::new(fresh("loop")).map_err(told)?;
    let join = Join {
        max_poll_records: POLL_RECORDS,
        ..Join::new(group, vec![topic.clone()])
    };
    let session = log.join(join).await.map_err(told)?;
    let mut under_way: Option<tokio::task::JoinHandle<Result<(), Why>>> = None;
    let mut waiting: Vec<OffsetCommit> = Vec::new();
    let (mut begin, mut left) = (None, RECORDS);
    while left > 0 {
        let SessionEvent::Records { fence, batch } = session.poll().await.map_err(told)? else {
            continue;
        };
        begin.get_or_insert_with(Instant::now);
        left = left.saturating_sub(batch.records.len());
        waiting.retain(|offset| offset.at != batch.at);
        waiting.push(OffsetCommit {
            at: batch.at,
            fence,
            next: Offset(batch.next.0),
            metadata: String::new(),
            postings: Vec::new(),
        });
        if under_way.as_ref().is_none_or(|task| task.is_finished()) {
            if let Some(done) = under_way.take() {
                done.await.map_err(told)??;
            }
            let (session, offsets) = (Arc::clone(&session), std::mem::take(&mut waiting));
            under_way = Some(tokio::spawn(async move {
                let commit = Commit {
                    appends: Vec::new(),
                    offsets,
                };
                session.commit(commit).await.map(drop).map_err(told)
            }));
        }
    }
    let took = begin.map_or(0.0, |begin: Instant| begin.elapsed().as_secs_f64());
    if let Some(done) = under_way {
        done.await.map_err(told)??;
    }
    session.close().await.map_err(told)?;
    Ok(RECORDS as f64 / took)
}
