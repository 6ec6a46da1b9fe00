//! Follows the numbers of the lines, and the sums of their ids.

use tidegate_core::EventId;

use super::SpillFinding;
use super::walk::WalkedLine;

/// The numbers of the lines of one file.
#[derive(Default)]
pub(super) struct Chain {
    steps: Vec<Step>,
}

/// A stretch of a file: what matters of its lines for the sequence. One without lines is a line that
/// cannot be read, which may be one that the numbers miss.
#[derive(Default)]
struct Step {
    line: u64,
    seq: u64,
    /// Sum of the ids since the last step, with this one.
    ids: u128,
    /// The running sum that is written here.
    sum: Option<u128>,
    /// How many numbered lines it stands for.
    count: u64,
}

impl Chain {
    pub(super) fn add(&mut self, walked: &WalkedLine<'_>) {
        let Some(line) = &walked.line else {
            return self.steps.push(Step::default());
        };
        let Some(seq) = line.seq else {
            return;
        };
        // Lines in a row are one step, so a file takes one step per batch.
        if let Some(last) = self.steps.last_mut()
            && last.count > 0
            && last.sum.is_none()
            && seq == last.seq + 1
        {
            last.seq = seq;
            last.ids = last.ids.wrapping_add(line.id.as_u128());
            last.sum = line.sum;
            last.count += 1;
            return;
        }
        self.steps.push(Step {
            line: walked.raw.number,
            seq,
            ids: line.id.as_u128(),
            sum: line.sum,
            count: 1,
        });
    }
}

/// Follows the numbers from file to file.
#[derive(Default)]
pub(super) struct Sequence {
    last: Option<u64>,
    /// The last running sum, and the ids since.
    last_sum: Option<u128>,
    ids: u128,
    unreadable: u64,
    /// Since the last sum: lines that are not there, and where that was noticed.
    gap: Option<(u64, String, u64)>,
    is_blurred: bool,
}

impl Sequence {
    /// Whether any line was numbered.
    pub(super) fn has_lines(&self) -> bool {
        self.last.is_some()
    }

    pub(super) fn follow(&mut self, file: &str, chain: &Chain, findings: &mut Vec<SpillFinding>) {
        for step in &chain.steps {
            if step.count == 0 {
                self.unreadable += 1;
                self.is_blurred = true;
                continue;
            }
            let first = (step.seq + 1).saturating_sub(step.count);
            match self.last {
                Some(last) if first <= last => {
                    let message = format!("line number {first} follows number {last}");
                    let line = Some(step.line);
                    findings.push(SpillFinding::problem(
                        "sequence.repeated",
                        file,
                        line,
                        message,
                    ));
                }
                Some(last) => {
                    let missing = (first - last - 1).saturating_sub(self.unreadable);
                    if missing > 0 {
                        self.note_gap(missing, file, step.line);
                    }
                }
                None => {}
            }
            self.last = self.last.max(Some(step.seq));
            self.unreadable = 0;
            self.ids = self.ids.wrapping_add(step.ids);
            if let Some(sum) = step.sum {
                findings.extend(self.close(sum, file, step));
            }
        }
        if let Some(gap) = self.gap.take() {
            findings.push(missing(gap, None));
        }
    }

    fn note_gap(&mut self, count: u64, file: &str, line: u64) {
        match &mut self.gap {
            Some((total, _, _)) => *total += count,
            None => self.gap = Some((count, file.to_owned(), line)),
        }
    }

    /// Compares the ids since the last running sum with this one.
    fn close(&mut self, sum: u128, file: &str, step: &Step) -> Option<SpillFinding> {
        let before = self.last_sum.replace(sum);
        let ids = std::mem::take(&mut self.ids);
        let gap = self.gap.take();
        let is_blurred = std::mem::take(&mut self.is_blurred);
        let rest = before.map(|before| sum.wrapping_sub(before).wrapping_sub(ids));
        match (gap, rest) {
            (Some(gap), Some(rest)) if gap.0 == 1 && !is_blurred => {
                Some(missing(gap, Some(EventId::from_u128(rest))))
            }
            (Some(gap), _) => Some(missing(gap, None)),
            (None, Some(rest)) if rest != 0 && !is_blurred => {
                let message =
                    "the ids up to here do not match the written sum: a line was replaced";
                let line = Some(step.line);
                Some(SpillFinding::problem("sequence.sum", file, line, message))
            }
            (None, _) => None,
        }
    }
}

/// The code of a finding that lines are missing.
pub(super) const GAP: &str = "sequence.gap";
/// One line is missing, and the sums do not tell which.
pub(super) const ONE_MISSING: &str = "one line is missing before this one";

/// One line is missing, and it is known which.
pub(super) fn named(id: EventId) -> String {
    format!("the event {id} is missing before this line")
}

fn missing((count, file, line): (u64, String, u64), id: Option<EventId>) -> SpillFinding {
    let message = match (count, id) {
        (1, Some(id)) => named(id),
        (1, None) => ONE_MISSING.to_owned(),
        (count, _) => format!("{count} lines are missing before this one"),
    };
    SpillFinding::problem(GAP, &file, Some(line), message)
}
