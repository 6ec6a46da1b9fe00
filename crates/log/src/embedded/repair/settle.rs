//! Decides what of the difference between books and records is lost, and what is not.
//!
//! Damage takes postings with it as well as records, so that the books may lack what became of an event
//! that is where it should be. What is told of such events is used first; of the rest as much is lost
//! as the damage held. Any other difference is not ours to explain.

use std::collections::BTreeMap;

use tidegate_core::books::{Bucket, Tally};

/// Sums of ids by bucket.
pub(super) type Sums = BTreeMap<Bucket, Tally>;

/// What decides how the books of a topic, or of a group on it, are brought in line.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// What the books have as queued and the records do not.
    pub(super) missing: Sums,
    /// What damaged segments held and cannot be read any more.
    pub(super) harmed: Sums,
    /// What was passed with commits of which the postings are lost.
    pub(super) passed: Sums,
    /// Whether groups of the journal were lost.
    pub(super) is_journal_damaged: bool,
    /// At most so many events are gone whose posting is lost, or was never made.
    pub(super) gone: i64,
    /// The buckets that such events may be in; all where none are named.
    pub(super) gone_from: Option<Sums>,
    /// Of lost offsets: how many had been removed by the time.
    pub(super) removed: BTreeMap<Bucket, i64>,
}

/// How books are brought in line. No bucket of offsets is among them twice.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    /// Events of which later postings tell what the records would have: their minutes have them too
    /// little, and the buckets of lost offsets as many too much.
    pub(super) known: Vec<(Bucket, Tally)>,
    /// What is lost.
    pub(super) lost: Vec<(Bucket, Tally)>,
    /// What was passed, and nobody can say what became of it.
    pub(super) passed: Vec<(Bucket, Tally)>,
    /// What is gone as it should be, and only its posting is lost.
    pub(super) gone: Vec<(Bucket, Tally)>,
}

/// Whether a bucket is of offsets that were lost with a part of the journal.
pub(super) fn is_hole(bucket: &Bucket) -> bool {
    matches!(bucket, Bucket::Offsets { .. })
}

/// Decides what of the missing events is lost.
pub(super) fn settle(facts: &Facts) -> Settled {
    let mut settling = Settling {
        facts,
        settled: Settled::default(),
        known: 0,
        gone: facts.gone,
    };
    let missing = facts.missing.iter().filter(|(_, tally)| !tally.is_zero());
    let (holes, minutes): (Vec<_>, Vec<_>) = missing.partition(|(bucket, _)| is_hole(bucket));
    let held: i64 = holes.iter().map(|(_, tally)| tally.count.max(0)).sum();
    for (bucket, tally) in minutes {
        match tally.count {
            ..0 => settling.too_few(*bucket, *tally, held),
            0 => settling.exchanged(*bucket, *tally),
            1.. => settling.too_many(*bucket, *tally),
        }
    }
    settling.holes(&holes);
    settling.settled
}

struct Settling<'a> {
    facts: &'a Facts,
    settled: Settled,
    /// How many events of lost offsets are known.
    known: i64,
    /// How many more may be gone without a posting.
    gone: i64,
}

impl Settling<'_> {
    /// A posting speaks of events that the books never had: they are among the lost offsets.
    fn too_few(&mut self, bucket: Bucket, tally: Tally, held: i64) {
        if self.known - tally.count <= held {
            self.known -= tally.count;
            self.settled.known.push((bucket, tally));
        }
    }

    /// As many as there should be, but not the same ones: some are missing here, and as many are known
    /// of lost offsets. Which they are the sums do not tell, and how many are lost they do not change.
    fn exchanged(&mut self, bucket: Bucket, tally: Tally) {
        // What was passed may be as many as were posted of lost offsets, and others.
        let is_in = |sums: &Sums| sums.get(&bucket).is_some_and(|held| !held.is_zero());
        if is_in(&self.facts.passed) {
            self.settled.passed.push((bucket, tally));
        } else if is_in(&self.facts.harmed) {
            self.settled.lost.push((bucket, tally));
        } else if self.facts.is_journal_damaged && self.may_be_gone_from(&bucket) {
            self.settled.gone.push((bucket, tally));
        }
    }

    fn too_many(&mut self, bucket: Bucket, tally: Tally) {
        let mut rest = tally;
        for (held, settled) in [
            (&self.facts.passed, &mut self.settled.passed),
            (&self.facts.harmed, &mut self.settled.lost),
        ] {
            let Some(held) = held.get(&bucket).filter(|held| held.count > 0) else {
                continue;
            };
            // Of what was held some may have been settled before.
            let part = if held.count < rest.count { *held } else { rest };
            if part.count > 0 {
                settled.push((bucket, part));
                rest = rest.minus(part);
            }
        }
        if self.may_be_gone_from(&bucket) && rest.count > 0 && rest.count <= self.gone {
            self.gone -= rest.count;
            self.settled.gone.push((bucket, rest));
        }
    }

    fn may_be_gone_from(&self, bucket: &Bucket) -> bool {
        let buckets = self.facts.gone_from.as_ref();
        buckets.is_none_or(|buckets| buckets.get(bucket).is_some_and(|tally| tally.count > 0))
    }

    /// Of the lost offsets those that are known are not lost, first of all where they had been removed
    /// by the time. Neither are others that had been removed.
    fn holes(&mut self, holes: &[(&Bucket, &Tally)]) {
        let mut rests: Vec<(Bucket, i64, i64)> = holes
            .iter()
            .map(|(bucket, tally)| {
                let removed = self.facts.removed.get(bucket).copied().unwrap_or(0);
                (**bucket, tally.count, removed.min(tally.count))
            })
            .collect();
        let mut known = self.known;
        let mut known_of: Sums = BTreeMap::new();
        for is_removed in [true, false] {
            for (bucket, rest, removed) in &mut rests {
                let part = if is_removed { *removed } else { *rest };
                let part = part.min(known).max(0);
                known -= part;
                *rest -= part;
                *removed = (*removed - part).max(0);
                if part > 0 {
                    let sum = known_of.entry(*bucket).or_default();
                    sum.count += part;
                }
            }
        }
        self.settled.known.extend(known_of);
        let tally = |count| Tally { count, id_sum: 0 };
        for (bucket, mut rest, removed) in rests {
            let gone = removed.min(self.gone).max(0);
            if gone > 0 {
                self.gone -= gone;
                rest -= gone;
                self.settled.gone.push((bucket, tally(gone)));
            }
            if rest > 0 {
                self.settled.lost.push((bucket, tally(rest)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Offset, Partition};

    const SEVEN: Bucket = Bucket::Minute(7);

    fn tally(count: i64, id_sum: u128) -> Tally {
        Tally { count, id_sum }
    }

    fn hole(first: i64, last: i64) -> Bucket {
        Bucket::Offsets {
            partition: Partition(0),
            first: Offset(first),
            last: Offset(last),
        }
    }

    fn missing(missing: &[(Bucket, Tally)]) -> Facts {
        Facts {
            missing: missing.iter().copied().collect(),
            ..Facts::default()
        }
    }

    #[test]
    fn what_a_posting_tells_of_lost_offsets_is_known_and_the_rest_of_them_is_lost() {
        let gone = tally(-2, 5_u128.wrapping_neg());
        let settle = |found: &[_]| settle(&missing(found));
        assert_eq!(settle(&[]), Settled::default());
        let holes = [(hole(3, 4), tally(2, 0))];
        let lost = Settled {
            lost: holes.to_vec(),
            ..Settled::default()
        };
        assert_eq!(settle(&holes), lost);
        let known = Settled {
            known: vec![(SEVEN, gone), (hole(3, 4), tally(2, 0))],
            ..Settled::default()
        };
        assert_eq!(settle(&[(SEVEN, gone), (hole(3, 4), tally(2, 0))]), known);
        let both = Settled {
            known: known
                .known
                .iter()
                .map(|(b, t)| match is_hole(b) {
                    true => (hole(3, 5), *t),
                    false => (*b, *t),
                })
                .collect(),
            lost: vec![(hole(3, 5), tally(1, 0))],
            ..Settled::default()
        };
        assert_eq!(settle(&[(SEVEN, gone), (hole(3, 5), tally(3, 0))]), both);
        // More than there are lost offsets nobody explains.
        let unexplained = [(SEVEN, gone), (hole(3, 3), tally(1, 0))];
        assert_eq!(settle(&unexplained).known, []);
    }

    #[test]
    fn a_minute_loses_no_more_than_damage_held_of_it() {
        let sums = |tally| Sums::from([(SEVEN, tally)]);
        for (harmed, lost) in [(0, None), (2, Some(2)), (3, Some(3)), (4, Some(3))] {
            let facts = Facts {
                harmed: sums(tally(harmed, 1)),
                ..missing(&[(SEVEN, tally(3, 9))])
            };
            let found = settle(&facts);
            assert_eq!(found.lost.first().map(|(_, tally)| tally.count), lost);
            assert_eq!((found.gone, found.passed), (vec![], vec![]));
        }
        let facts = Facts {
            passed: sums(tally(1, 4)),
            harmed: sums(tally(5, 70)),
            ..missing(&[(SEVEN, tally(3, 9))])
        };
        let found = settle(&facts);
        assert_eq!(found.passed, [(SEVEN, tally(1, 4))]);
        assert_eq!(found.lost, [(SEVEN, tally(2, 5))]);
    }

    #[test]
    fn what_retention_removed_is_not_lost() {
        // Two of three lost offsets had been removed; a posting tells one of them.
        let facts = Facts {
            is_journal_damaged: true,
            gone: 1,
            removed: BTreeMap::from([(hole(3, 5), 2)]),
            ..missing(&[
                (SEVEN, tally(-1, 5_u128.wrapping_neg())),
                (hole(3, 5), tally(3, 0)),
            ])
        };
        let found = settle(&facts);
        assert_eq!(found.gone, [(hole(3, 5), tally(1, 0))]);
        assert_eq!(found.lost, [(hole(3, 5), tally(1, 0))]);
        // A removal whose posting is lost; but no more than were removed.
        for (gone, is_settled) in [(3, true), (2, false), (0, false)] {
            let facts = Facts {
                gone,
                ..missing(&[(SEVEN, tally(3, 9))])
            };
            assert_eq!(!settle(&facts).gone.is_empty(), is_settled);
        }
    }

    #[test]
    fn what_was_exchanged_within_a_minute_is_settled_where_damage_held_some_of_it() {
        let exchanged = [(SEVEN, tally(0, 9))];
        assert_eq!(settle(&missing(&exchanged)), Settled::default());
        let facts = Facts {
            harmed: Sums::from([(SEVEN, tally(1, 1))]),
            ..missing(&exchanged)
        };
        assert_eq!(settle(&facts).lost, exchanged);
        let facts = Facts {
            passed: Sums::from(exchanged),
            ..missing(&exchanged)
        };
        assert_eq!(settle(&facts).passed, exchanged);
    }
}
