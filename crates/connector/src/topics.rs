//! The topics of a binding: tiers and dead letters are made where they are missing.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::{TierIndex, Topic};
use tidegate_log::{Log, LogError, TopicConfig, TopicDescription};

use crate::error::ConnectorError;
use crate::options::{BindingOptions, DltVerify};

/// Room that tiers and dead letters have for the history of a record, beyond what the topic takes.
const HISTORY_ROOM: u64 = 64 * 1024;

/// The findings about the topics of a binding.
#[derive(Debug, Default)]
pub(crate) struct FoundTopics {
    /// The largest record of each.
    pub(crate) limits: BTreeMap<Topic, u64>,
    /// Something that does not keep the binding from working.
    pub(crate) warning: Option<String>,
}

/// Describes the topics of a binding, and makes those that are missing.
///
/// # Errors
/// The main topic does not exist, or one of the others is not set up as it must be.
pub(crate) async fn prepare(
    log: &dyn Log,
    options: &BindingOptions,
) -> Result<FoundTopics, ConnectorError> {
    let binding = &options.name;
    let failed = |source| ConnectorError::Log {
        binding: binding.clone(),
        source,
    };
    let main = log.describe(&options.topic).await.map_err(failed)?;
    let partitions = main.config.partitions;
    let mut found = FoundTopics::default();
    if options.concurrency > partitions {
        let consumers = options.concurrency;
        let text = format!(
            "`concurrency` is {consumers}, and topic `{}` has {partitions} partitions: the others stay idle",
            options.topic
        );
        tracing::warn!(binding, text);
        found.warning = Some(text);
    }
    for tier in options.tier_indexes() {
        let topic = options.tier_topic(tier)?;
        let there = match describe(log, &topic).await.map_err(failed)? {
            Some(there) => there.config,
            None => {
                let config = tier_config(&main.config, options.delay(tier));
                log.create_topic(&topic, config.clone())
                    .await
                    .map_err(failed)?;
                config
            }
        };
        check(options, &topic, &main.config, &there, Some(tier))?;
        found.limits.insert(topic, there.max_record_size);
    }
    let topic = options.dlt_topic()?;
    let limit = match (
        describe(log, &topic).await.map_err(failed)?,
        options.dlt.verify,
    ) {
        (Some(there), _) => {
            check(options, &topic, &main.config, &there.config, None)?;
            there.config.max_record_size
        }
        (None, DltVerify::Create) => {
            let config = TopicConfig {
                retention: None,
                ..tier_config(&main.config, Duration::ZERO)
            };
            let limit = config.max_record_size;
            log.create_topic(&topic, config).await.map_err(failed)?;
            limit
        }
        (None, DltVerify::Warn) => {
            let text = format!("dead letter topic `{topic}` does not exist");
            tracing::warn!(binding, text);
            found.warning = Some(text);
            u64::MAX
        }
        (None, DltVerify::Fail) => {
            let binding = binding.clone();
            return Err(ConnectorError::DltMissing { binding, topic });
        }
    };
    found.limits.insert(topic, limit);
    Ok(found)
}

async fn describe(log: &dyn Log, topic: &Topic) -> Result<Option<TopicDescription>, LogError> {
    match log.describe(topic).await {
        Ok(there) => Ok(Some(there)),
        Err(LogError::UnknownTopic { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A tier keeps its records as long as the main topic does, and its delay: a pause may outlast any delay.
fn tier_config(main: &TopicConfig, delay: Duration) -> TopicConfig {
    TopicConfig {
        partitions: main.partitions,
        retention: main.retention.map(|kept| kept.saturating_add(delay)),
        retention_bytes: None,
        compact: false,
        max_record_size: main.max_record_size.saturating_add(HISTORY_ROOM),
    }
}

/// Refuses a topic in which records would move to another partition, or be gone before their time.
fn check(
    options: &BindingOptions,
    topic: &Topic,
    main: &TopicConfig,
    there: &TopicConfig,
    tier: Option<TierIndex>,
) -> Result<(), ConnectorError> {
    let mismatch = |why: String| {
        let (binding, topic) = (options.name.clone(), topic.clone());
        Err(ConnectorError::TopicMismatch {
            binding,
            topic,
            why,
        })
    };
    if there.partitions != main.partitions {
        return mismatch(format!(
            "it has {} partitions, and `{}` has {}",
            there.partitions, options.topic, main.partitions
        ));
    }
    let is_short = match (there.retention, main.retention) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(there), Some(main)) => there < main,
    };
    if tier.is_some() && is_short {
        let shown = |kept: Option<Duration>| match kept {
            Some(kept) => format!("for {} s", kept.as_secs()),
            None => "for ever".to_owned(),
        };
        return mismatch(format!(
            "it keeps records {}, and `{}` keeps them {}",
            shown(there.retention),
            options.topic,
            shown(main.retention)
        ));
    }
    Ok(())
}
