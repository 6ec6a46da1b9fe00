//! `tidegate topic`: the topics of the log, wherever it is.

use serde::Serialize;
use serde_json::json;
use tidegate_client::wire::RemovedTopicInfo;
use tidegate_core::Topic;
use tidegate_core::env::Env;
use tidegate_log::admin::{AdminMode, RemovedTopic, TopicRemoval};
use tidegate_log::{LogError, TopicConfig, TopicDescription};

use super::group::{ask, unconfirmed};
use crate::args::{LogTarget, Output, RetentionArg, TopicArgs, TopicCreate};
use crate::report::{ErrorReport, Exit, say};
use crate::{log, settings, table};

/// A topic, for programs.
#[derive(Debug, Serialize)]
struct ShownTopic {
    name: String,
    /// Offsets that are there; on Kafka the ends of transactions are among them.
    records: i64,
    partitions: Vec<ShownPartition>,
}

#[derive(Debug, Serialize)]
struct ShownPartition {
    partition: i32,
    start: i64,
    end: i64,
}

impl From<TopicDescription> for ShownTopic {
    fn from(described: TopicDescription) -> Self {
        let partitions = described
            .partitions
            .into_iter()
            .map(|found| ShownPartition {
                partition: found.partition.0,
                start: found.start.0,
                end: found.end.0,
            });
        let partitions: Vec<_> = partitions.collect();
        Self {
            name: described.topic.to_string(),
            records: partitions.iter().map(|one| one.end - one.start).sum(),
            partitions,
        }
    }
}

pub(crate) async fn run(arguments: &TopicArgs, output: Output) -> Result<Exit, ErrorReport> {
    match arguments {
        TopicArgs::Ls(target) => {
            let listed = described(target, None).await?;
            output.print(&json!({ "topics": listed }), || topics(&listed))?;
        }
        TopicArgs::Show { name, target } => {
            for one in described(target, Some(topic(name)?)).await? {
                output.print(&one, || partitions(&one))?;
            }
        }
        TopicArgs::Create(asked) => create(asked, output).await?,
        TopicArgs::Rm {
            name,
            force,
            yes,
            target,
        } => remove(topic(name)?, (*force, *yes), target, output).await?,
    }
    Ok(Exit::Ok)
}

/// The topic of a name on the command line.
pub(super) fn topic(name: &str) -> Result<Topic, ErrorReport> {
    Topic::new(name)
        .map_err(|error| ErrorReport::new("usage.topic", error.to_string()).with_exit(Exit::Usage))
}

/// One topic, or all of them.
async fn described(
    target: &LogTarget,
    wanted: Option<Topic>,
) -> Result<Vec<ShownTopic>, ErrorReport> {
    let env = Env::system();
    let reached = log::reach_to_read(&target.file, &target.at, false, &env).await?;
    let listed = async {
        let log = reached.log();
        let wanted = match wanted {
            None => log.topics().await?,
            Some(topic) => vec![topic],
        };
        let mut listed = Vec::new();
        for topic in wanted {
            listed.push(ShownTopic::from(log.describe(&topic).await?));
        }
        Ok::<_, ErrorReport>(listed)
    };
    let listed = listed.await;
    reached.close().await;
    listed
}

async fn create(asked: &TopicCreate, output: Output) -> Result<(), ErrorReport> {
    let topic = topic(&asked.name)?;
    let (env, target) = (Env::system(), &asked.target);
    let settings = config_of(&topic, asked)?;
    let reached = log::reach(&target.file, &target.at, None, &env).await?;
    let made = async {
        let log = reached.log();
        match log.describe(&topic).await {
            Err(LogError::UnknownTopic { .. }) => {}
            Ok(_) => return Err(exists(&topic)),
            Err(error) => return Err(error.into()),
        }
        log.create_topic(&topic, settings).await?;
        Ok::<_, ErrorReport>(ShownTopic::from(log.describe(&topic).await?))
    };
    let made = made.await;
    reached.close().await;
    let made = made?;
    output.print(&made, || {
        let partitions = table::counted(made.partitions.len() as u64, "partition");
        format!("`{topic}` is made, with {partitions}")
    })
}

fn exists(topic: &Topic) -> ErrorReport {
    ErrorReport::new(
        "topic.exists",
        format!("`{topic}` is there already, and was not changed"),
    )
    .with_hint("its settings follow `log.topics` of the configuration at the next start")
}

/// The settings of a new topic: as asked, else as the configuration has them for all topics.
fn config_of(topic: &Topic, asked: &TopicCreate) -> Result<TopicConfig, ErrorReport> {
    let config = settings::quietly(&asked.target.file)?;
    // Dead letters stay, and so does the last record of a key.
    let name = topic.as_str();
    let stays = asked.compact || name.ends_with(".DLT") || name.ends_with("-dlq");
    let usual = config.duration("log.embedded.retention").filter(|_| !stays);
    let usual_size = config.size("log.embedded.retention-size");
    let max_record_size = config.size("log.embedded.max-record-size");
    Ok(TopicConfig {
        partitions: asked.partitions,
        retention: asked.retention.map_or(usual, RetentionArg::limit),
        retention_bytes: asked.retention_size.map_or(usual_size, RetentionArg::limit),
        compact: asked.compact,
        max_record_size: asked
            .max_record_size
            .or(max_record_size)
            .unwrap_or(TopicConfig::MAX_RECORD_SIZE),
    })
}

async fn remove(
    topic: Topic,
    (is_forced, yes): (bool, bool),
    target: &LogTarget,
    output: Output,
) -> Result<(), ErrorReport> {
    let env = Env::system();
    let removal = |mode| TopicRemoval {
        topic: topic.clone(),
        is_forced,
        mode,
    };
    let reached = log::reach_existing(&target.file, &target.at, &env).await?;
    let removed = async {
        let admin = reached.admin();
        let trial = admin.remove_topic(removal(AdminMode::Trial)).await?;
        let what = removal_text(&trial);
        ask(
            &what,
            yes,
            ErrorReport::new("topic.unconfirmed", unconfirmed(&what)),
        )?;
        Ok::<_, ErrorReport>(admin.remove_topic(removal(AdminMode::Apply)).await?)
    };
    let removed = removed.await;
    reached.close().await;
    let removed = removed?;
    let text = removal_text(&removed);
    let is_configured = settings::quietly(&target.file)?
        .names("log.topics")
        .contains(&topic.as_str());
    if is_configured {
        say(&format!(
            "`{topic}` is in `log.topics` of the configuration: the next start makes it again"
        ));
    }
    let shown = RemovedTopicInfo::from(removed);
    let document = json!({ "removed": topic, "records": shown.records, "unread": shown.unread });
    output.print(&document, || text)
}

fn removal_text(removed: &RemovedTopic) -> String {
    let records = table::counted(removed.records, "record");
    let text = format!("`{}` is removed, with {records}", removed.topic);
    match listed(&removed.unread) {
        None => text,
        Some(unread) => format!("{text}; not read yet (lost:topic_removed): {unread}"),
    }
}

/// The records that are not read yet, by group or topic; none where there are none.
pub(super) fn listed<N: std::fmt::Display>(unread: &[(N, u64)]) -> Option<String> {
    let each = unread.iter().filter(|(_, count)| *count > 0);
    let each =
        each.map(|(name, count)| format!("{} by `{name}`", table::counted(*count, "record")));
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| each.join(", "))
}

fn topics(listed: &[ShownTopic]) -> String {
    let row = |one: &ShownTopic| {
        vec![
            one.name.clone(),
            one.partitions.len().to_string(),
            one.records.to_string(),
        ]
    };
    table::grid(
        &["topic", "partitions", "records"],
        listed.iter().map(row).collect(),
    )
}

fn partitions(one: &ShownTopic) -> String {
    let row = |found: &ShownPartition| {
        [
            found.partition.into(),
            found.start,
            found.end,
            found.end - found.start,
        ]
        .map(|number: i64| number.to_string())
        .to_vec()
    };
    let rows = one.partitions.iter().map(row).collect();
    table::grid(&["partition", "start", "end", "records"], rows)
}
