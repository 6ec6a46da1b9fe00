//! `tidegate topic`: the topics of the log, wherever it is.

use serde::Serialize;
use serde_json::json;
use tidegate_core::env::Env;
use tidegate_log::TopicDescription;

use super::send::topic;
use crate::args::{Output, TopicArgs};
use crate::log;
use crate::report::{ErrorReport, Exit};
use crate::table;

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
    let env = Env::system();
    let (TopicArgs::Ls { file, at } | TopicArgs::Show { file, at, .. }) = arguments;
    let reached = log::reach_to_read(file, at, false, &env).await?;
    let listed = async {
        let log = reached.log();
        let wanted = match arguments {
            TopicArgs::Ls { .. } => log.topics().await?,
            TopicArgs::Show { name, .. } => vec![topic(name)?],
        };
        let mut listed = Vec::new();
        for topic in wanted {
            listed.push(ShownTopic::from(log.describe(&topic).await?));
        }
        Ok::<_, ErrorReport>(listed)
    };
    let listed = listed.await;
    reached.close().await;
    let listed = listed?;
    match (arguments, listed.first()) {
        (TopicArgs::Show { .. }, Some(one)) => output.print(one, || partitions(one))?,
        (TopicArgs::Show { .. } | TopicArgs::Ls { .. }, _) => {
            output.print(&json!({ "topics": listed }), || topics(&listed))?;
        }
    }
    Ok(Exit::Ok)
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
