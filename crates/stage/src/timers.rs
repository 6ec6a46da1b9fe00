//! Timers of a task. They are not stored: each entry that waits says itself when it is due.
//!
//! In memory a timer is its due time and the hash of its entry's text, 8 bytes in a bucket of times. A start reads the
//! entries and sets their timers. Cancelling is lazy: a timer that finds no entry of its due time does nothing. Timers
//! that are due together fire in the order of their entries. A timer that fired is kept until its epoch is committed; an
//! epoch that is taken back sets it again.

use std::collections::{BTreeMap, VecDeque};

use crate::task_state::TableId;

/// The narrowest and the widest bucket.
const WIDTHS_MS: (i64, i64) = (1_000, 3_600_000);
/// Buckets of the longest wait.
const BUCKETS: u64 = 1_000;

/// The work of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerKind {
    /// An entry has waited long enough, or a window ends.
    Due,
    /// A window takes no more corrections.
    Gone,
    /// A key that was seen is forgotten.
    Forget,
}

/// A timer that fires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Timer {
    pub(crate) kind: TimerKind,
    /// The step.
    pub(crate) step: usize,
    /// The entry by its number.
    pub(crate) entry: u64,
    /// The row of the entry.
    pub(crate) row: Vec<u8>,
}

/// The source of a timer: the entries of a step, in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimerSource {
    pub(crate) step: usize,
    pub(crate) kind: TimerKind,
    pub(crate) table: TableId,
}

/// A timer in its bucket: how far behind its beginning it is due, and the hash of the text of its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    after: u32,
    hash: u32,
}

#[derive(Debug, Default)]
struct Bucket {
    slots: Vec<Slot>,
    /// The soonest is the last one.
    is_sorted: bool,
}

/// The timers of one source by their due times.
#[derive(Debug)]
struct Wheel {
    source: TimerSource,
    width_ms: i64,
    buckets: BTreeMap<i64, Bucket>,
}

impl Wheel {
    fn set(&mut self, due: i64, hash: u32) {
        let bucket = due.div_euclid(self.width_ms);
        let after = u32::try_from(due.rem_euclid(self.width_ms)).unwrap_or(u32::MAX);
        let bucket = self.buckets.entry(bucket).or_default();
        let slot = Slot { after, hash };
        match bucket.is_sorted {
            true => {
                let at = bucket.slots.partition_point(|one| *one > slot);
                bucket.slots.insert(at, slot);
            }
            false => bucket.slots.push(slot),
        }
    }

    fn first_due(&mut self) -> Option<i64> {
        let mut first = self.buckets.first_entry()?;
        let number = *first.key();
        let bucket = first.get_mut();
        if !bucket.is_sorted {
            bucket.slots.sort_unstable_by(|a, b| b.cmp(a));
            bucket.is_sorted = true;
        }
        let soonest = bucket.slots.last()?;
        Some(number * self.width_ms + i64::from(soonest.after))
    }

    /// Takes the timers that are due at the first time of all: the hashes of their entries, each once.
    fn take_first(&mut self) -> Vec<u32> {
        let Some(mut first) = self.buckets.first_entry() else {
            return Vec::new();
        };
        let slots = &mut first.get_mut().slots;
        let mut hashes = Vec::new();
        let Some(due) = slots.last().map(|slot| slot.after) else {
            return hashes;
        };
        while let Some(slot) = slots.pop_if(|slot| slot.after == due) {
            if hashes.last() != Some(&slot.hash) {
                hashes.push(slot.hash);
            }
        }
        if slots.is_empty() {
            first.remove();
        }
        hashes
    }
}

/// A timer that is taken out of its bucket.
#[derive(Debug, Clone, Copy)]
struct Taken {
    wheel: usize,
    due: i64,
    hash: u32,
}

/// The timers of a task.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    wheels: Vec<Wheel>,
    /// When the first one is due, of those that are not ready.
    first_due: Option<i64>,
    /// Those that are due first of all, in the order in which they fire.
    ready: VecDeque<(Timer, Taken)>,
    /// Those that fired in the open epoch, and in epochs on their way.
    fired: Vec<Taken>,
    sealed: VecDeque<Vec<Taken>>,
}

impl Timers {
    /// Forgets everything. From now on there are timers of these sources, each with its longest wait.
    pub(crate) fn begin(&mut self, sources: impl Iterator<Item = (TimerSource, u64)>) {
        let wheels = sources.map(|(source, wait_ms)| {
            let width = i64::try_from(wait_ms / BUCKETS).unwrap_or(i64::MAX);
            Wheel {
                source,
                width_ms: width.clamp(WIDTHS_MS.0, WIDTHS_MS.1),
                buckets: BTreeMap::new(),
            }
        });
        *self = Self {
            wheels: wheels.collect(),
            ..Self::default()
        };
    }

    /// The sources of timers.
    pub(crate) fn sources(&self) -> Vec<TimerSource> {
        self.wheels.iter().map(|wheel| wheel.source).collect()
    }

    /// Sets a timer for an entry whose text has this hash.
    pub(crate) fn set(&mut self, step: usize, kind: TimerKind, due: i64, hash: u32) {
        let is_of = |wheel: &Wheel| wheel.source.step == step && wheel.source.kind == kind;
        if let Some(wheel) = self.wheels.iter().position(is_of) {
            self.put(Taken { wheel, due, hash });
        }
    }

    fn put(&mut self, timer: Taken) {
        let Taken { wheel, due, hash } = timer;
        self.wheels[wheel].set(due, hash);
        self.first_due = Some(self.first_due.map_or(due, |first| first.min(due)));
    }

    /// When the next one is due.
    pub(crate) fn first_due(&self) -> Option<i64> {
        let ready = self.ready.front().map(|(_, taken)| taken.due);
        ready.into_iter().chain(self.first_due).min()
    }

    /// The next timer, if it is due by then. `entries` gives the timers of a source whose entries have this hash and
    /// this due time.
    ///
    /// # Errors
    /// Those of `entries`.
    pub(crate) fn next<E>(
        &mut self,
        until: i64,
        entries: impl Fn(TimerSource, u32, i64) -> Result<Vec<Timer>, E>,
    ) -> Result<Option<(i64, Timer)>, E> {
        loop {
            if let Some((_, taken)) = self.ready.front() {
                let due = taken.due;
                if self.first_due.is_some_and(|first| first < due) {
                    // One that was set meanwhile comes before them.
                    self.put_back();
                    continue;
                }
                if due > until {
                    return Ok(None);
                }
                let next = self.ready.pop_front();
                return Ok(next.map(|(timer, taken)| {
                    self.fired.push(taken);
                    (due, timer)
                }));
            }
            let Some(due) = self.first_due.filter(|due| *due <= until) else {
                return Ok(None);
            };
            let mut ready = Vec::new();
            for wheel in 0..self.wheels.len() {
                if self.wheels[wheel].first_due() != Some(due) {
                    continue;
                }
                let source = self.wheels[wheel].source;
                for hash in self.wheels[wheel].take_first() {
                    let taken = Taken { wheel, due, hash };
                    let found = entries(source, hash, due)?;
                    if found.is_empty() {
                        // Its entry may have left in an epoch that is taken back.
                        self.fired.push(taken);
                    }
                    ready.extend(found.into_iter().map(|timer| (timer, taken)));
                }
            }
            ready.sort_by_key(|(timer, _)| (timer.entry, timer.kind));
            self.ready = ready.into();
            let firsts = self.wheels.iter_mut().filter_map(Wheel::first_due);
            self.first_due = firsts.min();
        }
    }

    /// Those that are ready wait again.
    fn put_back(&mut self) {
        for (_, taken) in std::mem::take(&mut self.ready) {
            self.put(taken);
        }
    }

    /// The open epoch is on its way.
    pub(crate) fn sealed(&mut self) {
        self.sealed.push_back(std::mem::take(&mut self.fired));
    }

    /// The epoch that is on its way the longest is committed: what fired in it never comes back.
    pub(crate) fn committed(&mut self) {
        self.sealed.pop_front();
    }

    /// Everything that is not committed was taken back, so what fired is due again.
    pub(crate) fn aborted(&mut self) {
        self.put_back();
        let sealed = std::mem::take(&mut self.sealed).into_iter().flatten();
        let fired: Vec<Taken> = sealed.chain(std::mem::take(&mut self.fired)).collect();
        for taken in fired {
            self.put(taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::env::{Entropy, Stream};

    fn source(step: usize, kind: TimerKind) -> TimerSource {
        let table = TableId(2);
        TimerSource { step, kind, table }
    }

    /// An entry of the test: when it is due, and whether it is still there.
    type Entries = BTreeMap<(usize, u64), (i64, bool)>;

    fn timers_of(entries: &Entries, of: TimerSource, hash: u32, due: i64) -> Vec<Timer> {
        let found = entries.iter().filter(|((step, entry), (at, is_there))| {
            *step == of.step && *entry % 8 == u64::from(hash) && *at == due && *is_there
        });
        found
            .map(|((step, entry), _)| Timer {
                kind: of.kind,
                step: *step,
                entry: *entry,
                row: entry.to_be_bytes().to_vec(),
            })
            .collect()
    }

    /// R12: random entries, steps of time, commits and aborts beside a list of all entries. Each fires once, at its
    /// time, in the order of due times and entries.
    #[test]
    fn r12_timers_are_those_of_a_list_of_entries() {
        for seed in 0..300 {
            let mut draws = Stream::new(seed);
            let draws: &mut dyn Entropy = &mut draws;
            let mut timers = Timers::default();
            let waits = [1_000_u64, 40_000_000];
            let sources = [0, 1].map(|step| (source(step, TimerKind::Due), waits[step]));
            timers.begin(sources.into_iter());
            let (mut open, mut now) = (Entries::new(), 0);
            let mut committed = open.clone();
            let mut on_way: VecDeque<Entries> = VecDeque::new();
            for number in 0..200 {
                match draws.below(10) {
                    0..4 => {
                        let step = usize::try_from(draws.below(2)).unwrap();
                        let wait = i64::try_from(draws.below(waits[step] + 1)).unwrap();
                        open.insert((step, number), (now + wait, true));
                        let hash = u32::try_from(number % 8).unwrap();
                        timers.set(step, TimerKind::Due, now + wait, hash);
                    }
                    4 => {
                        // An entry leaves before its time.
                        let left = open.keys().nth(usize::try_from(draws.below(20)).unwrap());
                        if let Some(left) = left.copied() {
                            open.insert(left, (0, false));
                        }
                    }
                    5..8 => {
                        now += i64::try_from(draws.below(3_000_000)).unwrap();
                        let mut left = draws.below(5);
                        while left > 0 {
                            left -= 1;
                            let entries = open.clone();
                            let next = timers.next(now, |of, hash, due| {
                                Ok::<_, ()>(timers_of(&entries, of, hash, due))
                            });
                            let waiting = open.iter().filter(|(_, (_, is_there))| *is_there);
                            let mut due: Vec<_> = waiting
                                .map(|((step, entry), (at, _))| (*at, *entry, *step))
                                .collect();
                            due.sort_unstable();
                            let expected = due.first().filter(|(at, ..)| *at <= now);
                            let found = next.unwrap();
                            let found = found.map(|(due, timer)| (due, timer.entry, timer.step));
                            assert_eq!(found.as_ref(), expected, "seed {seed}");
                            let Some((_, entry, step)) = found else { break };
                            open.insert((step, entry), (0, false));
                        }
                    }
                    8 => {
                        timers.sealed();
                        on_way.push_back(open.clone());
                        if draws.below(2) == 0 {
                            timers.committed();
                            committed = on_way.pop_front().unwrap();
                        }
                    }
                    _ => {
                        timers.aborted();
                        on_way.clear();
                        open = committed.clone();
                    }
                }
            }
        }
    }

    #[test]
    fn a_timer_takes_eight_bytes() {
        assert_eq!(size_of::<Slot>(), 8);
        let mut timers = Timers::default();
        let week = 7 * 86_400_000;
        timers.begin(std::iter::once((source(0, TimerKind::Due), week)));
        let mut draws = Stream::new(1);
        let draws: &mut dyn Entropy = &mut draws;
        for _ in 0..200_000 {
            let due = i64::try_from(draws.below(week)).unwrap();
            timers.set(0, TimerKind::Due, due, 7);
        }
        let buckets = timers.wheels[0].buckets.values();
        let bytes: usize = buckets.map(|bucket| bucket.slots.capacity() * 8 + 64).sum();
        assert!(bytes / 200_000 <= 16, "{bytes}");
    }
}
