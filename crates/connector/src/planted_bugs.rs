//! Bugs that tests plant on purpose, to see that the rules and the simulation catch them.
//!
//! Without the feature `planted-bugs` none can be planted.

/// A bug that would lose, double or reorder records.
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "only tests name it, by the feature")
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// Offsets are committed as soon as records are handed out.
    CommitBeforeHandling,
    /// The committed offset is that behind the next record.
    OffsetOffByOne,
    /// The committed offset is that behind the last settled record, whatever is open below it.
    CommitPastGap,
    /// Hand-offs of a partition that was lost are written all the same.
    FlushAfterRevoke,
    /// A record goes to the tier behind the one that it belongs to.
    TierOffByOne,
    /// A tier is read without waiting for the time of its records.
    EarlyTier,
    /// A timer that goes off wakes nobody.
    LostWakeUp,
    /// A breaker that goes on takes every reason of a pause away.
    ResumesForAll,
    /// A record that is given up on is settled without a dead letter.
    SwallowedLetter,
    /// Marks in the text of a commit are believed without their checksum.
    ForeignMarks,
    /// A tombstone becomes an empty value on its way to a tier.
    EmptiedTombstone,
    /// A hand-off to a topic that is missing counts as done.
    MissingTopicPassed,
    /// Hand-offs are written before their commit, so that those of a zombie are there as well.
    ZombieCommit,
    /// The offset of a parked record is committed before its row is there.
    ParkAfterCommit,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// Whether this bug is planted on this thread.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this bug is planted: never.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is(_: PlantedBug) -> bool {
    false
}

/// Plants a bug on this thread from now on, or none any more.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
}
