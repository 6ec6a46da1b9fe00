//! How the demo of an outage ended.

use std::time::Duration;

use serde::Serialize;
use tidegate_core::books::{Account, ComponentAccount, Ledger};

use super::sample::{OutageCounters, OutageSample};
use crate::table;

/// How a phase ended.
#[derive(Debug, Serialize)]
pub(super) struct OutagePhaseEnd {
    pub(super) name: &'static str,
    pub(super) began_at_ms: u64,
    pub(super) ended_at_ms: u64,
    /// The state of the breaker.
    pub(super) breaker: &'static str,
    /// The counters of the logger that was at work, in the summary of both.
    pub(super) counters: OutageCounters,
    /// The books of that logger, in the summary of the first.
    pub(super) account: Account,
}

/// How a demo of an outage ended.
#[derive(Debug, Serialize)]
pub(crate) struct OutageVerdict {
    pub(super) demo: &'static str,
    pub(super) phases: Vec<OutagePhaseEnd>,
    /// The books of the service's logger.
    pub(super) ledger: Account,
    /// Those of all: both loggers, and the API.
    pub(super) components: Vec<ComponentAccount>,
    /// Whether all of these balance, and a recount of the API agrees.
    pub(super) balanced: bool,
    /// The sums of both loggers.
    pub(super) accepted: i64,
    pub(super) delivered: i64,
    pub(super) on_disk: i64,
    pub(super) lost: i64,
    /// Events that the API has.
    pub(super) stored: i64,
    /// Accepted events that the API does not have.
    pub(super) missing: u64,
    /// Events that the API has too often, or under the id of another one.
    pub(super) doubled: u64,
    /// Events that a recount of the API does not account for.
    pub(super) unaccounted: u64,
    /// Spill files that are left.
    pub(super) files_left: usize,
    /// How often the API was killed.
    pub(super) kills: u32,
    pub(super) duration_ms: u64,
    /// Commands to look at the files with, where they are kept.
    pub(super) try_next: Vec<String>,
    #[serde(skip)]
    pub(super) samples: Vec<OutageSample>,
    /// When each phase began.
    #[serde(skip)]
    pub(super) marks: Vec<(Duration, &'static str)>,
}

/// One of the counters.
type CounterOf = fn(&OutageCounters) -> u64;

impl OutageVerdict {
    /// Whether every accepted event is delivered and stored once, and nothing is left behind.
    pub(crate) fn is_good(&self) -> bool {
        self.balanced
            && self.accepted > 0
            && (self.delivered, self.on_disk, self.lost) == (self.accepted, 0, 0)
            && self.stored == self.accepted
            && self.missing + self.doubled + self.unaccounted == 0
            && self.files_left == 0
    }

    /// The chart of the run.
    pub(crate) fn chart(&self) -> String {
        super::chart::chart(&self.samples, &self.marks)
    }

    /// The summary for people.
    pub(crate) fn text(&self) -> String {
        let ledger = table::ledger(&Ledger::new(self.components.clone()));
        let equation = format!(
            "accepted {} {} delivered {} + on disk {} + lost {}",
            self.accepted,
            if self.accepted == self.delivered + self.on_disk + self.lost {
                "="
            } else {
                "≠"
            },
            self.delivered,
            self.on_disk,
            self.lost
        );
        let asked = format!(
            "the API has {} events: {} missing, {} doubled; spill files left: {}",
            self.stored, self.missing, self.doubled, self.files_left
        );
        let sign = match self.is_good() {
            true => "✓ every accepted event is stored once",
            false => "✗ the events do NOT add up",
        };
        let mut text = format!(
            "\n{}\n\n{ledger}\n\n{equation}\n{asked}\n{sign}",
            self.counters()
        );
        if !self.try_next.is_empty() {
            let commands = self.try_next.join("\n  ");
            text.push_str(&format!("\n\nThe files are kept. Try:\n  {commands}"));
        }
        text
    }

    /// The counters before and after, one column for each phase.
    fn counters(&self) -> String {
        let mut header = vec!["counter"];
        header.extend(self.phases.iter().map(|phase| phase.name));
        let counters: [(&str, CounterOf); 7] = [
            ("events queued", |counters| counters.queued),
            ("events sent", |counters| counters.sent),
            ("events failed", |counters| counters.failed),
            ("events spilled", |counters| counters.spilled),
            ("events replayed", |counters| counters.replayed),
            ("waiting on disk", |counters| counters.spill_pending),
            ("bytes on disk", |counters| counters.spill_bytes),
        ];
        let rows = counters.into_iter().map(|(name, value)| {
            let values = self.phases.iter().map(|phase| value(&phase.counters));
            let mut row = vec![name.to_owned()];
            row.extend(values.map(|value| value.to_string()));
            row
        });
        let mut rows: Vec<Vec<String>> = rows.collect();
        let mut breaker = vec!["breaker".to_owned()];
        breaker.extend(self.phases.iter().map(|phase| phase.breaker.to_owned()));
        rows.push(breaker);
        table::grid(&header, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> OutageVerdict {
        OutageVerdict {
            demo: "outage",
            phases: Vec::new(),
            ledger: Account::default(),
            components: Vec::new(),
            balanced: true,
            accepted: 75,
            delivered: 75,
            on_disk: 0,
            lost: 0,
            stored: 75,
            missing: 0,
            doubled: 0,
            unaccounted: 0,
            files_left: 0,
            kills: 0,
            duration_ms: 1,
            try_next: Vec::new(),
            samples: Vec::new(),
            marks: Vec::new(),
        }
    }

    #[test]
    fn each_number_that_is_wrong_spoils_the_verdict() {
        assert!(good().is_good());
        let spoils: [fn(&mut OutageVerdict); 10] = [
            |verdict| verdict.balanced = false,
            |verdict| verdict.accepted += 1,
            |verdict| verdict.delivered -= 1,
            |verdict| verdict.on_disk += 1,
            |verdict| verdict.lost += 1,
            |verdict| verdict.stored += 1,
            |verdict| verdict.missing += 1,
            |verdict| verdict.doubled += 1,
            |verdict| verdict.unaccounted += 1,
            |verdict| verdict.files_left += 1,
        ];
        for (spoil, number) in spoils.into_iter().zip(0..) {
            let mut verdict = good();
            spoil(&mut verdict);
            assert!(!verdict.is_good(), "number {number}");
            assert!(verdict.text().contains("✗"), "number {number}");
        }
    }
}
