//! `tidegate group`: the groups of the log, wherever it is.

use std::sync::Arc;

use serde_json::json;
use tidegate_client::wire::{GroupInfo, GroupTopicInfo, MovedPartition, RemovedGroupInfo};
use tidegate_core::env::Env;
use tidegate_core::{GroupName, Offset, Topic};
use tidegate_log::admin::{AdminMode, GroupSeek, PartitionSeek, RemovedGroup};
use tidegate_log::{Log, LogAdmin, TopicPartition};

use super::tail::From as Start;
use super::topic::{listed, topic};
use crate::args::{GroupArgs, GroupSeekArgs, GroupShow, LogTarget, Output};
use crate::confirm::confirm;
use crate::report::{ErrorReport, Exit, say};
use crate::{log, table, watch};

pub(crate) async fn run(arguments: &GroupArgs, output: Output) -> Result<Exit, ErrorReport> {
    match arguments {
        GroupArgs::Ls(target) => list(target, output).await,
        GroupArgs::Show(asked) => watch::repeat(asked.watch, output, || show(asked, output)).await,
        GroupArgs::Seek(asked) => seek(asked, output).await,
        GroupArgs::Forget { name, yes, target } => forget(name, *yes, target, output).await,
    }
}

/// The group of a name on the command line.
fn group(name: &str) -> Result<GroupName, ErrorReport> {
    GroupName::new(name)
        .map_err(|error| ErrorReport::new("usage.group", error.to_string()).with_exit(Exit::Usage))
}

async fn list(target: &LogTarget, output: Output) -> Result<Exit, ErrorReport> {
    let env = Env::system();
    let reached = log::reach_to_read(&target.file, &target.at, false, &env).await?;
    let found = async {
        let (log, admin) = (reached.log(), reached.admin());
        let mut groups = Vec::new();
        for group in log.groups().await? {
            groups.push(GroupInfo::from(admin.describe_group(&group).await?));
        }
        Ok::<_, ErrorReport>(groups)
    };
    let found = found.await;
    reached.close().await;
    let groups = found?;
    output.print(&json!({ "groups": groups }), || {
        let row = |one: &GroupInfo| {
            let topics: Vec<&str> = one.topics.iter().map(|read| read.topic.as_str()).collect();
            let lag: u64 = one.topics.iter().map(lag).sum();
            let members = one.members.to_string();
            vec![
                one.group.clone(),
                members,
                lag.to_string(),
                topics.join(", "),
            ]
        };
        match groups.is_empty() {
            true => "no groups".to_owned(),
            false => table::grid(
                &["group", "members", "behind", "topics"],
                groups.iter().map(row).collect(),
            ),
        }
    })?;
    Ok(Exit::Ok)
}

/// How many offsets a group has still to read of a topic.
fn lag(read: &GroupTopicInfo) -> u64 {
    read.partitions.iter().map(|one| one.lag).sum()
}

async fn show(asked: &GroupShow, output: Output) -> Result<Exit, ErrorReport> {
    let group = group(&asked.name)?;
    let (env, target) = (Env::system(), &asked.target);
    let reached = log::reach_to_read(&target.file, &target.at, false, &env).await?;
    let described = reached.admin().describe_group(&group).await;
    reached.close().await;
    let shown = GroupInfo::from(described?);
    output.print(&shown, || text(&shown))?;
    Ok(Exit::Ok)
}

fn text(shown: &GroupInfo) -> String {
    let members = table::counted(shown.members, "member");
    let mut lines = vec![format!("{}: {members}", shown.group)];
    if shown.topics.is_empty() {
        lines.push("it reads no topic".to_owned());
        return lines.join("\n");
    }
    let rows = shown.topics.iter().flat_map(|read| {
        read.partitions.iter().map(|one| {
            let numbers = [one.start, one.next, one.end].map(|offset| offset.to_string());
            let lag = one.lag.to_string();
            let mut row = vec![read.topic.clone(), one.partition.to_string()];
            row.extend(numbers);
            row.push(lag);
            row
        })
    });
    let header = ["topic", "partition", "start", "next", "end", "behind"];
    lines.push(table::grid(&header, rows.collect()));
    for read in &shown.topics {
        let places = read.account.places();
        let places = places.iter().filter(|(_, count)| *count != 0);
        let places: Vec<String> = places
            .map(|(name, count)| format!("{count} {}", name.replace('_', " ")))
            .collect();
        let places = match places.is_empty() {
            true => "nothing".to_owned(),
            false => places.join(", "),
        };
        lines.push(format!("{}: {places}", read.topic));
    }
    lines.join("\n")
}

async fn seek(asked: &GroupSeekArgs, output: Output) -> Result<Exit, ErrorReport> {
    let group = group(&asked.name)?;
    let (env, target) = (Env::system(), &asked.target);
    let reached = log::reach_existing(&target.file, &target.at, &env).await?;
    let sought = async {
        let (log, admin) = (reached.log(), reached.admin());
        let described = admin.describe_group(&group).await?;
        let topics = match &asked.topic {
            Some(name) => vec![topic(name)?],
            None => described
                .topics
                .into_iter()
                .map(|read| read.topic)
                .collect(),
        };
        let mut to = Vec::new();
        for topic in topics {
            to.extend(targets(&*log, &topic, asked, &env).await?);
        }
        let seek = |mode| GroupSeek {
            group: group.clone(),
            to: to.clone(),
            mode,
        };
        let trial = admin.seek_group(seek(AdminMode::Trial)).await?;
        let what = seek_text(&group, &trial);
        if trial.is_empty() {
            return Ok((what, trial));
        }
        let unsaid = ErrorReport::new("seek.unconfirmed", unconfirmed(&what));
        ask(&what, asked.yes, unsaid)?;
        let sought = admin.seek_group(seek(AdminMode::Apply)).await?;
        Ok::<_, ErrorReport>((seek_text(&group, &sought), sought))
    };
    let sought = sought.await;
    reached.close().await;
    let (what, sought) = sought?;
    let partitions: Vec<MovedPartition> = sought.iter().map(MovedPartition::from).collect();
    let document = json!({
        "group": group, "partitions": partitions,
        "skipped": records(&sought, false), "again": records(&sought, true),
    });
    output.print(&document, || match partitions.is_empty() {
        true => what,
        false => {
            let row = |one: &MovedPartition| {
                let mut row = vec![one.topic.clone(), one.partition.to_string()];
                row.extend([
                    one.from.to_string(),
                    one.to.to_string(),
                    one.records.to_string(),
                ]);
                row
            };
            let header = ["topic", "partition", "from", "to", "records"];
            table::grid(&header, partitions.iter().map(row).collect())
        }
    })?;
    Ok(Exit::Ok)
}

/// Where a group goes on in the partitions of a topic that are meant.
async fn targets(
    log: &dyn Log,
    topic: &Topic,
    asked: &GroupSeekArgs,
    env: &Env,
) -> Result<Vec<(TopicPartition, Offset)>, ErrorReport> {
    let described = log.describe(topic).await?;
    let mut targets = Vec::new();
    for found in &described.partitions {
        let at = TopicPartition {
            topic: topic.clone(),
            partition: found.partition,
        };
        if asked
            .partition
            .is_some_and(|wanted| wanted != found.partition.0)
        {
            continue;
        }
        let to = match &asked.to {
            Start::Earliest => found.start,
            Start::Latest => found.end,
            Start::Offset(offset) => Offset(*offset),
            Start::Time(moment) => {
                log.offset_at(&at, moment.before(env.clock.now_ms()))
                    .await?
            }
        };
        targets.push((at, to));
    }
    match (targets.is_empty(), asked.partition) {
        (true, Some(partition)) => Err(tidegate_log::LogError::UnknownPartition {
            at: TopicPartition::new(topic.clone(), partition),
            partitions: described.config.partitions,
        }
        .into()),
        _ => Ok(targets),
    }
}

/// How many records are skipped, or read again.
fn records(sought: &[PartitionSeek], is_back: bool) -> u64 {
    let moved = sought.iter().filter(|one| one.is_back() == is_back);
    moved.map(|one| one.records).sum()
}

fn seek_text(group: &GroupName, sought: &[PartitionSeek]) -> String {
    if sought.is_empty() {
        return format!("`{group}` is there already");
    }
    let (skipped, again) = (records(sought, false), records(sought, true));
    let mut parts = Vec::new();
    if sought.iter().any(|one| !one.is_back()) {
        let skipped = table::counted(skipped, "record");
        parts.push(format!(
            "is moved past {skipped}, which are lost to it (lost:skipped)"
        ));
    }
    if sought.iter().any(PartitionSeek::is_back) {
        parts.push(format!("reads {} again", table::counted(again, "record")));
    }
    format!("`{group}` {}", parts.join(", and "))
}

async fn forget(
    name: &str,
    yes: bool,
    target: &LogTarget,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let group = group(name)?;
    let env = Env::system();
    let reached = log::reach_existing(&target.file, &target.at, &env).await?;
    let forgotten = async {
        let admin: Arc<dyn LogAdmin> = reached.admin();
        let trial = admin.remove_group(&group, AdminMode::Trial).await?;
        let what = forget_text(&trial);
        ask(
            &what,
            yes,
            ErrorReport::new("forget.unconfirmed", unconfirmed(&what)),
        )?;
        let removed = admin.remove_group(&group, AdminMode::Apply).await?;
        Ok::<_, ErrorReport>(removed)
    };
    let forgotten = forgotten.await;
    reached.close().await;
    let removed = forgotten?;
    let text = forget_text(&removed);
    let unread = RemovedGroupInfo::from(removed).unread;
    output.print(&json!({ "forgotten": group, "unread": unread }), || text)?;
    Ok(Exit::Ok)
}

fn forget_text(removed: &RemovedGroup) -> String {
    let group = &removed.group;
    match listed(&removed.unread) {
        None => format!("`{group}` is forgotten; it has read everything"),
        Some(unread) => {
            format!("`{group}` is forgotten, with what it has not read (lost:forgotten): {unread}")
        }
    }
}

/// Says what happens, with its numbers, and goes on only if somebody agrees.
pub(super) fn ask(what: &str, yes: bool, unconfirmed: ErrorReport) -> Result<(), ErrorReport> {
    if yes {
        say(what);
    }
    confirm(what, yes, unconfirmed.with_hint("give `--yes`"))
}

/// The message of a command that nobody confirmed.
pub(super) fn unconfirmed(what: &str) -> String {
    format!("nobody confirmed this, and nothing was changed: {what}")
}
