//! Bugs that tests plant on purpose, to see that the simulation catches them.
//!
//! Without the feature `planted-bugs` none can be planted.

/// A bug that would lose or double records.
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "only tests name it, by the feature")
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedStageBug {
    /// An epoch that is taken back leaves its state behind.
    StateAheadOfEpoch,
    /// Offsets are committed before the outputs are.
    OffsetsBeforeOutputs,
    /// A frame of the changelog is left out.
    SkippedFrame,
    /// The changelog is cut at a base that no commit names yet.
    BaseCutTooEarly,
    /// A timer leaves its entry behind.
    TimerFiredTwice,
    /// A stage whose partition has another owner writes all the same.
    Zombie,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedStageBug>> = const { std::cell::Cell::new(None) };
}

/// Whether this bug is planted on this thread.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is(bug: PlantedStageBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this bug is planted: never.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is(_: PlantedStageBug) -> bool {
    false
}

/// Plants a bug on this thread from now on, or none any more.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<PlantedStageBug>) {
    PLANTED.set(bug);
}
