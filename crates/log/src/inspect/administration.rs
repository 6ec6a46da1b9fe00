//! The port of operators, for an open log.

use tidegate_core::{GroupName, Topic};

use super::{OpenLog, OwnedGroup};
use crate::admin::{
    AdminMode, GroupDescription, GroupPartition, GroupSeek, GroupTopic, LogAdmin, PartitionSeek,
    RemovedGroup, RemovedTopic, TopicRemoval,
};
use crate::embedded::EmbeddedLog;
use crate::error::LogError;
use crate::group_snapshot::GroupSnapshot;
use crate::port::{Log, LogFuture};

impl LogAdmin for OpenLog {
    fn describe_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, GroupDescription> {
        Box::pin(async move {
            match self {
                Self::Embedded { log, .. } => describe(log, group).await,
                #[cfg(feature = "kafka")]
                Self::Kafka { log, .. } => log.describe_group(group).await,
            }
        })
    }

    fn seek_group(&self, seek: GroupSeek) -> LogFuture<'_, Vec<PartitionSeek>> {
        Box::pin(async move {
            self.must_not_own(&seek.group)?;
            match self {
                Self::Embedded { log, .. } => {
                    let _unjoined = log.unjoined(|name, _| *name == seek.group).await?;
                    log.storage().seek_group(seek).await
                }
                #[cfg(feature = "kafka")]
                Self::Kafka { log, .. } => log.seek_group(seek).await,
            }
        })
    }

    fn remove_group<'a>(
        &'a self,
        group: &'a GroupName,
        mode: AdminMode,
    ) -> LogFuture<'a, RemovedGroup> {
        Box::pin(async move {
            self.must_not_own(group)?;
            match self {
                Self::Embedded { log, .. } => {
                    let _unjoined = log.unjoined(|name, _| name == group).await?;
                    log.storage().remove_group(group, mode).await
                }
                #[cfg(feature = "kafka")]
                Self::Kafka { log, .. } => log.remove_group(group, mode).await,
            }
        })
    }

    fn remove_topic(&self, removal: TopicRemoval) -> LogFuture<'_, RemovedTopic> {
        Box::pin(async move {
            let topic = &removal.topic;
            if let Some(owner) = self.owned().iter().find(|owned| uses(owned, topic)) {
                return Err(owned_by(format!("topic `{topic}`"), owner));
            }
            match self {
                Self::Embedded { log, .. } => {
                    let is_read = |_: &GroupName, partitions: &[crate::TopicPartition]| {
                        partitions.iter().any(|at| at.topic == *topic)
                    };
                    let _unjoined = log.unjoined(is_read).await?;
                    log.storage().remove_topic(removal.clone()).await
                }
                #[cfg(feature = "kafka")]
                Self::Kafka { log, .. } => log.remove_topic(removal).await,
            }
        })
    }
}

impl OpenLog {
    fn owned(&self) -> &[OwnedGroup] {
        match self {
            Self::Embedded { owned, .. } => owned,
            #[cfg(feature = "kafka")]
            Self::Kafka { scope, .. } => &scope.owned,
        }
    }

    fn must_not_own(&self, group: &GroupName) -> Result<(), LogError> {
        let is_its = |owned: &&OwnedGroup| {
            let tiers = owned.tiers.iter().map(|(_, reader)| reader);
            let mut all = tiers.chain([&owned.group]).chain(&owned.dead_letter_reader);
            all.any(|name| name == group)
        };
        match self.owned().iter().find(is_its) {
            Some(owner) => Err(owned_by(format!("group `{group}`"), owner)),
            None => Ok(()),
        }
    }
}

/// Whether a binding or a stage reads or writes a topic.
fn uses(owned: &OwnedGroup, topic: &Topic) -> bool {
    let tiers = owned.tiers.iter().map(|(tier, _)| tier);
    let mut all = tiers.chain([&owned.topic]).chain(&owned.dead_letters);
    all.any(|name| name == topic)
}

fn owned_by(what: String, owner: &OwnedGroup) -> LogError {
    LogError::InUse {
        what,
        why: format!(
            "the binding or stage `{}` of the configuration has it",
            owner.name()
        ),
    }
}

async fn describe(log: &EmbeddedLog, group: &GroupName) -> Result<GroupDescription, LogError> {
    let books = log.storage().books().into_iter();
    let asked = books.filter(|kept| kept.group.as_ref() == Some(group));
    let asked: Vec<_> = asked.map(|kept| (group.clone(), kept.topic)).collect();
    if asked.is_empty() && !log.groups().await?.contains(group) {
        return Err(LogError::UnknownGroup {
            group: group.clone(),
        });
    }
    let snapshots = log.group_books(&asked).await?;
    let there = snapshots
        .into_iter()
        .filter(|one| !one.partitions.is_empty());
    Ok(GroupDescription {
        group: group.clone(),
        members: log.member_count(group) as u64,
        topics: there.map(|one| shown(&one)).collect(),
    })
}

/// A group on a topic, by the books of the log.
fn shown(snapshot: &GroupSnapshot) -> GroupTopic {
    let partitions = snapshot.partitions.iter().map(|found| GroupPartition {
        at: found.at.clone(),
        start: found.start,
        end: found.end,
        next: found.next,
    });
    GroupTopic {
        topic: snapshot.topic.clone(),
        account: snapshot.books.account(),
        partitions: partitions.collect(),
    }
}
