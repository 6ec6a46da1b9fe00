//! The fixed part of a chain: its process, its inputs, and the tables of its state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_flow::model::IDLE_TIMEOUT;
use tidegate_flow::plan::{FlowPlan, OperatorPlan, ProcessPlan};

use super::moving::ms;
use super::progress::{InputActivity, Progress};
use super::{ChainOptions, LAST_TABLE};
use crate::chain::ChainInput;
use crate::task_state::TableId;

/// The two tables of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StateTables {
    pub(super) main: TableId,
    pub(super) elements: TableId,
}

/// Everything about a chain that does not change with records.
#[derive(Debug)]
pub(super) struct ChainPlan {
    pub(super) plan: Arc<FlowPlan>,
    pub(super) process: ProcessPlan,
    pub(super) name: String,
    pub(super) dead_letters: String,
    pub(super) options: ChainOptions,
    pub(super) inputs: Vec<ChainInput>,
    /// The tables by the id of the state.
    pub(super) tables: BTreeMap<String, StateTables>,
    pub(super) streams: BTreeSet<Arc<str>>,
}

impl ChainPlan {
    pub(super) fn stream(&self, name: &str) -> Arc<str> {
        let known = self.streams.get(name);
        known.map_or_else(|| Arc::from(name), Arc::clone)
    }

    pub(super) fn step_tables(&self, at: usize) -> StateTables {
        let id = self.process.steps[at].state.as_deref().unwrap_or_default();
        // Every state of the plan has its tables.
        self.tables.get(id).copied().unwrap_or(StateTables {
            main: TableId(LAST_TABLE),
            elements: TableId(LAST_TABLE),
        })
    }

    /// The fields of the key that a record of a stream has at a step.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the other steps have no key of their own"
    )]
    pub(super) fn step_key(&self, at: usize, stream: &str) -> &[String] {
        match &self.process.steps[at].operator {
            OperatorPlan::Deduplicate { by, .. } => by,
            OperatorPlan::Window { key, .. } => key,
            OperatorPlan::Join { on, .. } | OperatorPlan::Await { on, .. } => on,
            OperatorPlan::Hold { key, .. } => {
                let mut sources = self.process.sources.iter();
                let source = sources.find(|source| source.alias == stream);
                let own = source.and_then(|source| source.hold.as_ref());
                let own = own.map(|own| own.key.as_slice());
                own.filter(|own| !own.is_empty()).unwrap_or(key)
            }
            _ => &[],
        }
    }

    /// The topic that the records of a stream pass before a step.
    pub(super) fn repartition_of(&self, at: usize, stream: &str) -> Option<&str> {
        if !self.options.is_repartitioned {
            return None;
        }
        let start = format!("{}-{stream}-by-", self.name);
        let mut topics = self.process.steps[at].repartition.iter();
        let found = topics.find(|topic| topic.starts_with(&start));
        found.map(String::as_str)
    }

    /// How long an input may be silent.
    pub(super) fn idle_timeout(&self, stream: &str) -> i64 {
        let default = u64::try_from(IDLE_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
        ms(self
            .options
            .idle_timeout_ms
            .get(stream)
            .copied()
            .unwrap_or(default))
    }

    /// The progress of a chain that has seen nothing.
    pub(super) fn begin(&self) -> Progress {
        let sources = self.process.sources.iter().map(|source| {
            let timeout = self.idle_timeout(&source.stream);
            (format!("s{}", source.alias), timeout)
        });
        let topics = self.inputs.iter().filter(|input| input.is_repartition);
        let topics = topics.map(|input| {
            let timeout = self.idle_timeout(&input.stream);
            (format!("r{}", input.stream), timeout)
        });
        let inputs = sources
            .chain(topics)
            .map(|(name, idle_timeout)| InputActivity {
                name,
                idle_timeout,
                newest: None,
                last_seen: 0,
            });
        Progress {
            clock: None,
            watermark: i64::MIN,
            numbers: 0,
            inputs: inputs.collect(),
        }
    }
}
