//! Follows the numbers of the lines, and the sums of their ids.

use tidegate_core::EventId;

use super::SpillFinding;
use super::walk::WalkedLine;

/// The numbers of the lines of one file.
#[derive(Default)]
pub(super) struct Chain {
    /// With growing numbers.
    steps: Vec<Step>,
    /// Lines with a number that is not above those before it.
    strays: Vec<Step>,
    /// Lines since the last step that cannot be read.
    unreadable: u64,
}

/// A stretch of a file: what matters of its lines for the sequence.
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
    /// Lines before it that cannot be read, which may be some that the numbers miss.
    unreadable: u64,
}

impl Step {
    fn first(&self) -> u64 {
        (self.seq + 1).saturating_sub(self.count)
    }
}

impl Chain {
    pub(super) fn add(&mut self, walked: &WalkedLine<'_>) {
        let Some(line) = &walked.line else {
            self.unreadable += 1;
            return;
        };
        let Some(seq) = line.seq else {
            return;
        };
        let step = Step {
            line: walked.raw.number,
            seq,
            ids: line.id.as_u128(),
            sum: line.sum,
            count: 1,
            unreadable: 0,
        };
        match self.steps.last_mut() {
            Some(last) if seq <= last.seq => self.strays.push(step),
            // Lines in a row are one step, so a file takes one step per batch.
            Some(last) if last.sum.is_none() && seq == last.seq + 1 && self.unreadable == 0 => {
                last.seq = seq;
                last.ids = last.ids.wrapping_add(step.ids);
                last.sum = step.sum;
                last.count += 1;
            }
            Some(_) | None => self.steps.push(Step {
                unreadable: std::mem::take(&mut self.unreadable),
                ..step
            }),
        }
    }

    /// Puts lines that are out of their order back into it, leaves out those that are there twice, and
    /// says both.
    pub(super) fn put_in_order(&mut self, file: &str, findings: &mut Vec<SpillFinding>) {
        for stray in std::mem::take(&mut self.strays) {
            let at = self.steps.partition_point(|step| step.seq < stray.seq);
            let is_there = |step: &Step| step.first() <= stray.seq;
            let is_repeated = self.steps.get(at).is_some_and(is_there);
            let (seq, line) = (stray.seq, Some(stray.line));
            findings.push(match is_repeated {
                true => {
                    let message = format!("line number {seq} is there twice");
                    SpillFinding::problem("sequence.repeated", file, line, message)
                }
                false => {
                    let message =
                        format!("line number {seq} is not in its place; none is missing for it");
                    SpillFinding::problem("sequence.order", file, line, message)
                }
            });
            if !is_repeated {
                self.steps.insert(at, stray);
            }
        }
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
            self.unreadable += step.unreadable;
            self.is_blurred |= step.unreadable > 0;
            let first = step.first();
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
        self.unreadable += chain.unreadable;
        self.is_blurred |= chain.unreadable > 0;
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
