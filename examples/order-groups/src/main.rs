//! Runs two consumers on an embedded log.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use order_groups::{consume, produce};
use tidegate_core::EventIds;
use tidegate_core::env::Env;
use tidegate_log::embedded::TopicBooks;
use tidegate_log::{EmbeddedConfig, EmbeddedLog, Log};
use tokio::sync::watch;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows what it does")]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "./data/orders".to_owned());
    let env = Env::system();
    let log = EmbeddedLog::open(&env, EmbeddedConfig::new(dir))?;
    let ids = EventIds::new(env.clock.clone(), env.entropy.fork("ids"));
    produce(&log, &ids, 1_000).await?;

    let shared: Arc<dyn Log> = Arc::new(log.clone());
    let (stop, stopped) = watch::channel(false);
    let first = tokio::spawn(consume(Arc::clone(&shared), stopped.clone()));
    let second = tokio::spawn(consume(shared, stopped));
    while !is_all_handled(&log.storage().books()) {
        env.clock.sleep(Duration::from_millis(10)).await;
    }
    stop.send(true)?;
    println!(
        "first handled {}, second handled {}",
        first.await??,
        second.await??
    );

    for kept in log.storage().books() {
        if let Some(group) = &kept.group {
            let account = kept.books.account();
            println!(
                "{group}@{}: accepted {}, queued {}, delivered {}",
                kept.topic, account.accepted, account.queued, account.delivered
            );
        }
    }
    let unaccounted: u64 = log
        .storage()
        .audit()
        .await?
        .iter()
        .map(|found| found.unaccounted())
        .sum();
    match unaccounted {
        0 => println!("every event is accounted for"),
        count => println!("{count} events are NOT accounted for"),
    }
    log.close().await;
    Ok(())
}

/// Whether the group has begun and nothing waits for it. Both are told by one look at the books.
fn is_all_handled(books: &[TopicBooks]) -> bool {
    let mut groups = books.iter().filter(|kept| kept.group.is_some()).peekable();
    groups.peek().is_some() && groups.all(|kept| kept.books.account().queued == 0)
}
