//! Bugs that tests inject on purpose, to see that they are caught.

/// A bug that would lose or invent records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InjectedBug {
    /// Callers are answered before the sync.
    AnswerBeforeSync,
    /// A checkpoint is written without syncing the segments that it speaks of.
    UnsyncedSegments,
    /// Groups that are read from the journal are not held against their CRC.
    UncheckedTail,
    /// Compaction switches to segments that are not synced.
    UnsyncedSwitch,
    /// A checkpoint claims groups whose records are not in the segments.
    CheckpointAhead,
    /// A journal file that a killed process has named is written to without syncing its name.
    UnsyncedName,
    /// A repair posts whatever is missing as lost, also what no damage explains.
    UnboundedRepair,
}

#[cfg(test)]
thread_local! {
    static INJECTED: std::cell::Cell<Option<InjectedBug>> = const { std::cell::Cell::new(None) };
}

/// Whether this bug is injected; never outside of tests.
#[cfg(test)]
pub(super) fn is(bug: InjectedBug) -> bool {
    INJECTED.get() == Some(bug)
}

#[cfg(not(test))]
pub(super) const fn is(_: InjectedBug) -> bool {
    false
}

/// Injects a bug on this thread from now on, or none any more.
#[cfg(test)]
pub(super) fn inject(bug: Option<InjectedBug>) {
    INJECTED.set(bug);
}
