//! The unsynced changes that survive a crash.

use tidegate_core::env::Stream;

use super::image::{FileChange, apply, below};

/// Which of the changes that were not synced survive a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// None of them.
    Nothing,
    /// All of them.
    Everything,
    /// The first so many, in the order in which they were made, over all files.
    First(usize),
    /// A subset that follows from this seed: each file for itself, writes torn at sector bounds,
    /// names by a prefix per directory.
    Random(u64),
}

/// The sizes at which a write may tear: a sector of old, a sector of today.
const SECTORS: [u64; 2] = [512, 4_096];

pub(super) struct Survival {
    /// Changes below this number survive as they are; used unless random.
    keep_below: u64,
    first: Option<usize>,
    random: Option<Stream>,
}

impl Survival {
    pub(super) fn new(survivors: &Survivors) -> Self {
        let (keep_below, first, random) = match survivors {
            Survivors::Nothing => (0, None, None),
            Survivors::Everything => (u64::MAX, None, None),
            Survivors::First(count) => (0, Some(*count), None),
            Survivors::Random(seed) => (0, None, Some(Stream::new(*seed))),
        };
        Self {
            keep_below,
            first,
            random,
        }
    }

    /// Resolves "the first so many" against the changes that are at risk, in their order.
    pub(super) fn counting(mut self, numbers: Vec<u64>) -> Self {
        if let Some(count) = self.first {
            self.keep_below = numbers.get(count).copied().unwrap_or(u64::MAX);
        }
        self
    }

    /// How many of a directory's changes survive: a prefix, since file systems keep their order.
    pub(super) fn names_kept(&mut self, numbers: &[u64]) -> usize {
        match &mut self.random {
            Some(random) => {
                usize::try_from(below(random, numbers.len() as u64 + 1)).unwrap_or(numbers.len())
            }
            None => numbers
                .iter()
                .take_while(|number| **number < self.keep_below)
                .count(),
        }
    }

    /// Puts what survives of a file's changes into its durable content.
    pub(super) fn resolve_file(&mut self, content: &mut Vec<u8>, pending: &[(u64, FileChange)]) {
        let Some(random) = &mut self.random else {
            for (number, change) in pending {
                if *number < self.keep_below {
                    apply(content, change);
                }
            }
            return;
        };
        // Half of the time the file keeps a prefix, as one that was being written back in order.
        let prefix = below(random, pending.len() as u64 + 1);
        let in_order = below(random, 2) == 0;
        for (index, (_, change)) in pending.iter().enumerate() {
            let is_kept = if in_order {
                (index as u64) < prefix
            } else {
                below(random, 2) == 0
            };
            let is_edge = in_order && index as u64 == prefix;
            match change {
                _ if is_kept => apply(content, change),
                // A change that is not kept whole may be there in part.
                FileChange::Data { offset, bytes } if is_edge || below(random, 3) == 0 => {
                    tear(random, content, *offset, bytes);
                }
                FileChange::Data { .. } | FileChange::Len(_) => {}
            }
        }
    }
}

/// Writes some sectors of a write; with luck, the length without the data.
fn tear(random: &mut Stream, content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let sector = SECTORS[usize::from(below(random, 2) == 1)];
    let end = offset + bytes.len() as u64;
    let mut at = offset;
    while at < end {
        let next = ((at / sector + 1) * sector).min(end);
        if below(random, 2) == 0 {
            let (from, to) = (at - offset, next - offset);
            let range = usize::try_from(from).unwrap_or(0)..usize::try_from(to).unwrap_or(0);
            apply(
                content,
                &FileChange::Data {
                    offset: at,
                    bytes: bytes[range].to_vec(),
                },
            );
        }
        at = next;
    }
    if below(random, 2) == 0 && (content.len() as u64) < end {
        apply(content, &FileChange::Len(end));
    }
}
