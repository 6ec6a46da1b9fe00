//! The ladder of tiers: where a record goes when its attempts in memory are used up.
//!
//! A tier gives a record back to itself until its deliveries are used up, each with its delay. Then comes
//! the next tier, and after the last one the dead letters.

use tidegate_core::TierIndex;

/// The deliveries that each tier may make, the first tier first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ladder(pub(crate) Vec<u32>);

/// A place on the ladder: a delivery within a tier, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rung {
    pub(crate) tier: TierIndex,
    pub(crate) delivery: u32,
}

impl Rung {
    /// The main topic: there is one delivery, with its attempts in memory.
    pub(crate) const MAIN: Self = Self {
        tier: TierIndex(0),
        delivery: 1,
    };
}

impl Ladder {
    fn deliveries(&self, tier: TierIndex) -> Option<u32> {
        let index = usize::try_from(tier.0.checked_sub(1)?).ok()?;
        self.0.get(index).copied()
    }

    /// The rung after this one; none if it was the last.
    pub(crate) fn after(&self, rung: Rung) -> Option<Rung> {
        let Rung { tier, delivery } = rung;
        match self.deliveries(tier) {
            Some(limit) if delivery < limit => Some(Rung {
                tier,
                delivery: delivery + 1,
            }),
            Some(_) | None => self.enter(TierIndex(tier.0.saturating_add(1))),
        }
    }

    /// The first delivery of a tier, if there is one that leads forward from `rung`; else the rung after it.
    pub(crate) fn skip_to(&self, rung: Rung, target: TierIndex) -> Option<Rung> {
        match target > rung.tier {
            true => self.enter(target).or_else(|| self.after(rung)),
            false => self.after(rung),
        }
    }

    fn enter(&self, tier: TierIndex) -> Option<Rung> {
        let exists = self.deliveries(tier).is_some();
        exists.then_some(Rung { tier, delivery: 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rung(tier: u32, delivery: u32) -> Rung {
        Rung {
            tier: TierIndex(tier),
            delivery,
        }
    }

    #[test]
    fn c20_the_default_ladder_has_thirty_attempts_over_eighteen_minutes() {
        let ladder = Ladder(vec![3, 3, 3]);
        let delays = [0, 10, 60, 300];
        let (mut attempts, mut seconds) = (0, 0);
        let mut next = Some(Rung::MAIN);
        let mut seen = Vec::new();
        while let Some(rung) = next {
            attempts += 3;
            seconds += delays[rung.tier.0 as usize];
            seen.push((rung.tier.0, rung.delivery));
            next = ladder.after(rung);
        }
        assert_eq!((attempts, seconds), (30, 1_110));
        let expect = [
            (0, 1),
            (1, 1),
            (1, 2),
            (1, 3),
            (2, 1),
            (2, 2),
            (2, 3),
            (3, 1),
            (3, 2),
            (3, 3),
        ];
        assert_eq!(seen, expect);
    }

    #[test]
    fn c25_a_skip_leads_forward_only() {
        let ladder = Ladder(vec![3, 1, 2]);
        let check = |from, target, expect| {
            assert_eq!(
                ladder.skip_to(from, TierIndex(target)),
                expect,
                "{from:?} {target}"
            );
        };
        check(Rung::MAIN, 2, Some(rung(2, 1)));
        check(rung(1, 1), 3, Some(rung(3, 1)));
        check(rung(2, 1), 2, Some(rung(3, 1)));
        check(rung(3, 1), 2, Some(rung(3, 2)));
        check(rung(3, 2), 1, None);
        check(Rung::MAIN, 9, Some(rung(1, 1)));
        check(Rung::MAIN, 0, Some(rung(1, 1)));
        assert_eq!(Ladder::default().after(Rung::MAIN), None);
    }
}
