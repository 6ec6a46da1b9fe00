//! The knowledge of the bank about its transactions, and of the topic about its records. Neither knows
//! anything of the books.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tidegate_core::Topic;
use tidegate_core::env::{Entropy, Stream};
use tidegate_log::{Log, LogError, Read, TopicPartition};

/// How many accounts there are; events of one are published in their order.
const KEYS: u64 = 30;
/// One transaction in so many is taken back.
const ROLLED_BACK_ONE_IN: u64 = 9;

/// A transaction, and its number among those of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) key: String,
    number: u64,
}

impl Transfer {
    pub(super) fn payload(&self) -> String {
        self.number.to_string()
    }
}

/// Makes transactions up, and knows which of them were committed.
#[derive(Debug)]
pub(super) struct Ledgers {
    entropy: Box<dyn Entropy>,
    number: u64,
    committed: BTreeMap<String, Vec<u64>>,
    rolled_back: usize,
}

/// Everything that does not fit together, and what happened on the way.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RowFindings {
    /// Transactions that were committed.
    pub(super) committed: usize,
    /// Transactions that were taken back, none of whose events may be in the topic.
    pub(super) rolled_back: usize,
    /// Keys of the committed ones.
    pub(super) keys: usize,
    /// Committed events that are not in the topic.
    pub(super) missing: usize,
    /// Events in the topic that nobody committed.
    pub(super) unwanted: usize,
    /// Records beyond the first one of their event.
    pub(super) repeated: usize,
    /// Events whose first record lies before that of an earlier one of their key.
    pub(super) out_of_order: usize,
}

impl Ledgers {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            entropy: Box::new(Stream::new(seed)),
            number: 0,
            committed: BTreeMap::new(),
            rolled_back: 0,
        }
    }

    /// The next transaction, and whether it will be committed.
    pub(super) fn next_transfer(&mut self) -> (Transfer, bool) {
        self.number += 1;
        let transfer = Transfer {
            key: format!("account-{}", self.entropy.below(KEYS)),
            number: self.number,
        };
        (transfer, self.entropy.below(ROLLED_BACK_ONE_IN) != 0)
    }

    /// A transaction ended.
    pub(super) fn wrote(&mut self, transfer: Transfer, is_committed: bool) {
        match is_committed {
            true => {
                let of_key = self.committed.entry(transfer.key).or_default();
                of_key.push(transfer.number);
            }
            false => self.rolled_back += 1,
        }
    }

    /// Holds what was committed against what was published.
    pub(super) fn findings(&self, published: &[(String, String)]) -> RowFindings {
        let mut firsts: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        let (mut seen, mut repeated, mut unwanted) = (BTreeSet::new(), 0, 0);
        for (key, payload) in published {
            let number = payload.parse().unwrap_or(0);
            let is_known = self
                .committed
                .get(key)
                .is_some_and(|numbers| numbers.contains(&number));
            match (is_known, seen.insert((key, number))) {
                (false, _) => unwanted += 1,
                (true, false) => repeated += 1,
                (true, true) => firsts.entry(key).or_default().push(number),
            }
        }
        let committed: usize = self.committed.values().map(Vec::len).sum();
        let found: usize = firsts.values().map(Vec::len).sum();
        let pairs = firsts.values().flat_map(|numbers| numbers.windows(2));
        RowFindings {
            committed,
            rolled_back: self.rolled_back,
            keys: self.committed.len(),
            missing: committed - found,
            unwanted,
            repeated,
            out_of_order: pairs.filter(|pair| pair[0] > pair[1]).count(),
        }
    }
}

/// The keys and values of all records of a topic, those of one partition in their order.
pub(super) async fn published(
    log: &dyn Log,
    topic: &Topic,
) -> Result<Vec<(String, String)>, LogError> {
    let mut all = Vec::new();
    for partition in log.describe(topic).await?.partitions {
        let at = TopicPartition::new(topic.clone(), partition.partition.0);
        let mut from = partition.start;
        while from < partition.end {
            let batch = log.read(Read::new(at.clone(), from)).await?;
            from = batch.next;
            let text = |bytes: Option<&[u8]>| {
                String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
            };
            let records = batch.records.iter().map(|stored| &stored.record);
            all.extend(records.map(|record| {
                let (key, value) = (record.key.as_deref(), record.value.as_deref());
                (text(key), text(value))
            }));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_witness_sees_what_is_missing_unwanted_repeated_or_out_of_order() {
        let mut ledgers = Ledgers::new(1);
        for (key, number, is_committed) in [
            ("a", 1, true),
            ("a", 2, true),
            ("b", 3, true),
            ("b", 4, false),
        ] {
            let key = key.to_owned();
            ledgers.wrote(Transfer { key, number }, is_committed);
        }
        let found = |records: &[(&str, &str)]| {
            let records = records.iter();
            let records = records.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let found = ledgers.findings(&records.collect::<Vec<_>>());
            assert_eq!((found.committed, found.rolled_back, found.keys), (3, 1, 2));
            [
                found.missing,
                found.unwanted,
                found.repeated,
                found.out_of_order,
            ]
        };
        assert_eq!(found(&[("a", "1"), ("b", "3"), ("a", "2")]), [0, 0, 0, 0]);
        assert_eq!(
            found(&[("a", "1"), ("a", "2"), ("a", "1"), ("b", "3")]),
            [0, 0, 1, 0]
        );
        assert_eq!(found(&[("a", "2"), ("a", "1")]), [1, 0, 0, 1]);
        assert_eq!(found(&[("a", "1"), ("b", "4")]), [2, 1, 0, 0]);
    }
}
