//! Gauges that nobody else keeps: how far groups are behind, and how much lies in tiers and dead letters.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{GroupName, Offset, Partition, TierIndex, Topic};
use tidegate_log::{LogError, TopicPartition};

use crate::binding::BindingContext;
use crate::telemetry;

/// The pause between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Looks again and again, until the binding stops.
pub(crate) async fn watch(binding: Arc<BindingContext>) {
    let looking = async {
        loop {
            // A log that does not answer is told by the consumers.
            look(&binding).await.ok();
            if let Some(store) = &binding.store {
                store.fold(&binding.options.component_name()).await.ok();
            }
            binding.clock.sleep(LOOK_EVERY).await;
        }
    };
    tokio::select! {
        biased;
        () = binding.stop.requested() => {}
        () = looking => {}
    }
}

async fn look(binding: &BindingContext) -> Result<(), LogError> {
    let options = &binding.options;
    for (partition, behind) in behind(binding, &options.topic, &options.group).await? {
        telemetry::lag(&options.name, partition, behind);
    }
    let tiers = options.tier_indexes().zip(&binding.tier_topics);
    let tiers: Vec<(TierIndex, &Topic)> = tiers.collect();
    for (tier, topic) in tiers {
        let Ok(group) = options.tier_group(tier) else {
            continue;
        };
        let waiting = behind(binding, topic, &group).await?;
        let sum = waiting.into_iter().map(|(_, behind)| behind).sum();
        telemetry::tier_depth(&options.name, tier, sum);
    }
    let letters = binding
        .log
        .describe(&binding.dlt_topic)
        .await?
        .partitions
        .into_iter();
    let sum = letters.map(|part| distance(part.start, part.end)).sum();
    telemetry::dlt_depth(&options.name, sum);
    Ok(())
}

/// The records of each partition that a group has not passed. Health is told of them as well.
async fn behind(
    binding: &BindingContext,
    topic: &Topic,
    group: &GroupName,
) -> Result<Vec<(Partition, u64)>, LogError> {
    let there = binding.log.describe(topic).await?.partitions;
    let at: Vec<TopicPartition> = there
        .iter()
        .map(|part| TopicPartition::new(topic.clone(), part.partition.0))
        .collect();
    let committed = binding.log.committed(group, &at).await?;
    let (flows, now) = (binding.gate.flows(), binding.clock.elapsed());
    let mut status = binding.status.lock();
    let all = at
        .into_iter()
        .zip(there)
        .zip(committed)
        .map(|((at, there), held)| {
            let next = held.map_or(there.start, |held| held.next.max(there.start));
            let (partition, records) = (at.partition, distance(next, there.end));
            status.looked(at, next.0, records, flows, now);
            (partition, records)
        });
    Ok(all.collect())
}

fn distance(from: Offset, to: Offset) -> u64 {
    u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0)
}
