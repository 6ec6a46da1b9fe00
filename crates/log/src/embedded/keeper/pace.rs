//! How much of a segment is synced at a time.

use std::time::Duration;

/// How much of a segment is synced at a time, between two syncs of the journal.
///
/// Were everything left for the checkpoint, the journal's own sync would stand behind all of it: for
/// milliseconds in which no commit ends. Where a sync takes long whatever it syncs, little at a time would
/// let the keeper fall behind, and writers wait for it; so there it is more.
#[derive(Debug)]
pub(super) struct Pace {
    bytes: u64,
}

impl Pace {
    const LEAST: u64 = 512 * 1024;
    const MOST: u64 = 16 * 1024 * 1024;
    /// Syncs that take longer are made fewer.
    const LONG: Duration = Duration::from_millis(1);

    pub(super) fn new() -> Self {
        Self { bytes: Self::LEAST }
    }

    /// Whether so many bytes are to be synced now.
    pub(super) fn is_due(&self, bytes: u64) -> bool {
        bytes >= self.bytes
    }

    /// Takes note of how long a sync took.
    pub(super) fn note(&mut self, took: Duration) {
        self.bytes = match took > Self::LONG {
            true => self.bytes * 2,
            false => self.bytes / 2,
        };
        self.bytes = self.bytes.clamp(Self::LEAST, Self::MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_syncs_become_fewer_and_fast_ones_small_again() {
        let mut pace = Pace::new();
        assert!(pace.is_due(Pace::LEAST) && !pace.is_due(Pace::LEAST - 1));
        pace.note(Duration::from_millis(2));
        assert!(!pace.is_due(Pace::LEAST) && pace.is_due(Pace::LEAST * 2));
        (0..60).for_each(|_| pace.note(Duration::from_millis(20)));
        assert!(pace.is_due(Pace::MOST) && !pace.is_due(Pace::MOST - 1));
        (0..60).for_each(|_| pace.note(Duration::from_micros(200)));
        assert!(pace.is_due(Pace::LEAST));
    }
}
