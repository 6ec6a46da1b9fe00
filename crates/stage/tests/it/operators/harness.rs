//! Tables in memory, and one chain beside the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tidegate_core::books::{Account, Books, Place};
use tidegate_core::{EventId, Offset};
use tidegate_flow::check::{Registered, check_flows};
use tidegate_flow::model::{FlowModel, ModelInput, ModelScript};
use tidegate_flow::plan::{FlowPlan, StateKind};
use tidegate_log::{Record, StoredRecord};
use tidegate_stage::chain::{ChainOutput, InputRecord, StageOutput, TaskOperators, TaskTime};
use tidegate_stage::operators::{ChainOptions, TaskChain};
use tidegate_stage::state::backend::text_hash;
use tidegate_stage::task_state::{RowVisit, TableId, TaskState};

/// The tables of a task, in memory: by table, hash of the text, and key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tables(BTreeMap<(TableId, u32, Vec<u8>), Bytes>);

fn place(table: TableId, key: &[u8]) -> (TableId, u32, Vec<u8>) {
    (table, text_hash(table, key), key.to_vec())
}

impl TaskState for Tables {
    fn get(&self, table: TableId, key: &[u8]) -> Option<Bytes> {
        self.0.get(&place(table, key)).cloned()
    }

    fn put(&mut self, table: TableId, key: &[u8], value: Bytes) {
        self.0.insert(place(table, key), value);
    }

    fn delete(&mut self, table: TableId, key: &[u8]) {
        self.0.remove(&place(table, key));
    }

    fn rows(&self, table: TableId, start: &[u8], visit: &mut RowVisit<'_>) {
        for ((of, _, key), value) in self.0.range(place(table, start)..) {
            if *of != table || !key.starts_with(start) || visit(key, value).is_break() {
                return;
            }
        }
    }

    fn rows_behind(&self, table: TableId, key: Option<&[u8]>, visit: &mut RowVisit<'_>) {
        let from = key.map_or((table, 0, Vec::new()), |key| place(table, key));
        for ((of, _, found), value) in self.0.range(from..) {
            let is_behind = key.is_none_or(|key| key != found);
            if *of != table || is_behind && visit(found, value).is_break() {
                return;
            }
        }
    }

    fn rows_of_hash(&self, table: TableId, hash: u32, visit: &mut RowVisit<'_>) {
        let all = (table, hash, Vec::new())..;
        for ((of, one, key), value) in self.0.range(all) {
            if (*of, *one) != (table, hash) || visit(key, value).is_break() {
                return;
            }
        }
    }
}

impl Tables {
    /// Rows in all tables but that of the chain itself.
    pub(crate) fn rows(&self) -> usize {
        let states = self.0.keys().filter(|(table, ..)| table.0 > 0);
        states.count()
    }

    /// Rows of one table.
    pub(crate) fn rows_in(&self, table: u16) -> usize {
        self.0.keys().filter(|(of, ..)| of.0 == table).count()
    }

    /// Rows of states that are not the same in another one.
    pub(crate) fn differing(&self, other: &Self) -> usize {
        let rows = self.0.iter().filter(|((table, ..), _)| table.0 > 0);
        rows.filter(|(key, value)| other.0.get(*key) != Some(*value))
            .count()
    }
}

pub(crate) fn plan(flow: &str) -> Arc<FlowPlan> {
    plan_with(flow, &Registered::default())
}

pub(crate) fn plan_with(flow: &str, registered: &Registered) -> Arc<FlowPlan> {
    let checked = check_flows(&[flow], registered);
    let found = checked.diagnostics;
    Arc::new(checked.plan.unwrap_or_else(|| panic!("{flow}\n{found:?}")))
}

/// 2026-01-05T10:00:00Z.
pub(crate) const START: i64 = 1_767_607_200_000;

/// One chain with its tables.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) plan: Arc<FlowPlan>,
    pub(crate) process: String,
    pub(crate) options: ChainOptions,
    pub(crate) chain: TaskChain,
    pub(crate) tables: Tables,
    pub(crate) now: i64,
    pub(crate) out: ChainOutput,
    offsets: BTreeMap<usize, i64>,
    /// Whether the chain is made anew from a copy of the tables after each call.
    pub(crate) restarts: bool,
}

impl Task {
    pub(crate) fn new(plan: &Arc<FlowPlan>, process: &str, options: ChainOptions) -> Self {
        let options = ChainOptions {
            instance: "model".to_owned(),
            ..options
        };
        let chain = TaskChain::new(Arc::clone(plan), process, options.clone()).unwrap();
        let mut task = Self {
            plan: Arc::clone(plan),
            process: process.to_owned(),
            options,
            chain,
            tables: Tables::default(),
            now: START,
            out: ChainOutput::default(),
            offsets: BTreeMap::new(),
            restarts: false,
        };
        task.chain.reload(&task.tables, task.time());
        task
    }

    /// A task whose records need no other key.
    pub(crate) fn alone(flow: &str, process: &str) -> Self {
        let options = ChainOptions {
            is_repartitioned: false,
            ..ChainOptions::default()
        };
        Self::new(&plan(flow), process, options)
    }

    pub(crate) fn time(&self) -> TaskTime {
        TaskTime {
            now_ms: self.now,
            epoch_start_ms: self.now,
        }
    }

    /// The process ends, and another one goes on with what lies in the tables.
    pub(crate) fn restart(&mut self) {
        let plan = Arc::clone(&self.plan);
        self.chain = TaskChain::new(plan, &self.process, self.options.clone()).unwrap();
        self.tables = self.tables.clone();
        self.chain.reload(&self.tables, self.time());
    }

    fn rest(&mut self) {
        if self.restarts {
            self.restart();
        }
    }

    pub(crate) fn send(&mut self, stream: &str, id: EventId, record: Record) {
        let inputs = self.chain.inputs();
        let input = inputs.iter().position(|input| &*input.stream == stream);
        let input = input.unwrap();
        let offset = self.offsets.entry(input).or_default();
        *offset += 1;
        let record = StoredRecord {
            offset: Offset(*offset - 1),
            record,
        };
        let time = self.time();
        let record = InputRecord {
            input,
            topic: stream,
            partition: 0,
            id,
            record: &record,
        };
        self.fire();
        self.chain
            .record(&mut self.tables, time, record, &mut self.out)
            .unwrap();
        self.rest();
        self.fire();
    }

    pub(crate) fn fire(&mut self) {
        let time = self.time();
        // Small turns, so that tests see more than one.
        while self
            .chain
            .fire(&mut self.tables, time, 2, &mut self.out)
            .unwrap()
        {
            self.rest();
        }
        self.rest();
    }

    pub(crate) fn put(&mut self, stream: &str, number: u128, value: &str) {
        let at = u64::try_from(self.now).unwrap();
        let record = Record::new(value.to_owned()).timestamp_ms(at);
        self.send(stream, EventId::from_u128(number), record);
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now += i64::try_from(by.as_millis()).unwrap();
        self.fire();
    }

    pub(crate) fn texts(&self, stream: &str) -> Vec<String> {
        let outputs = self.out.outputs.iter();
        let outputs = outputs.filter(|output| &*output.stream == stream);
        outputs.map(text).collect()
    }

    pub(crate) fn pending(&self) -> usize {
        let mut count = 0;
        self.chain.pending(&self.tables, &mut |_| count += 1);
        count
    }

    /// The books as the moves tell them.
    pub(crate) fn books(&self) -> Books {
        let mut books = Books::default();
        for one in &self.out.moves {
            let from = Some(one.from.clone()).filter(|from| *from != Place::Queued);
            books.move_one(one.id, from, Some(one.to.clone()));
        }
        books
    }

    pub(crate) fn account(&self) -> Account {
        assert!(self.books().is_balanced());
        self.books().account()
    }

    pub(crate) fn values(&self, name: &str) -> BTreeMap<String, String> {
        self.chain.values(&self.tables, name, self.time())
    }
}

pub(crate) fn text(output: &StageOutput) -> String {
    String::from_utf8(output.value.clone().unwrap().to_vec()).unwrap()
}

/// Something that is done to both.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Send {
        stream: String,
        key: Option<String>,
        /// Milliseconds since the record before.
        after: u64,
        value: String,
    },
    Advance(u64),
    Slow(bool),
    End,
}

/// Does the same to the model and to a chain, and compares everything that comes out.
pub(crate) fn compare(
    (plan, process): (&Arc<FlowPlan>, &str),
    (script, options): (ModelScript, ChainOptions),
    acts: &[Act],
    restarts: bool,
) {
    let mut model = FlowModel::new(plan, process, script).unwrap();
    let options = ChainOptions {
        is_repartitioned: false,
        ..options
    };
    let mut task = Task::new(plan, process, options);
    task.restarts = restarts;
    let mut has_begun = false;
    for (number, act) in acts.iter().enumerate() {
        match act {
            Act::Send {
                stream,
                key,
                after,
                value,
            } => {
                if has_begun {
                    task.now += i64::try_from(*after).unwrap();
                }
                has_begun = true;
                let id = EventId::from_u128((7 << 76) | (2 << 62) | number as u128);
                let at = u64::try_from(task.now).unwrap();
                let mut record = Record::new(value.clone()).timestamp_ms(at);
                record.key = key.clone().map(Bytes::from);
                model.send(ModelInput {
                    stream: stream.clone(),
                    key: key.clone(),
                    at: Some(Timestamp::from_millisecond(task.now).unwrap()),
                    id: Some(id),
                    value: value.clone().into_bytes(),
                    headers: BTreeMap::new(),
                });
                task.send(stream, id, record);
            }
            Act::Advance(by) if has_begun => {
                model.advance(Duration::from_millis(*by));
                task.advance(Duration::from_millis(*by));
            }
            Act::Advance(_) => {}
            Act::Slow(is_slow) => {
                model.set_slow(*is_slow);
                // A restart forgets it: it is a fact about the moment.
                task.chain.set_slow(*is_slow);
            }
            Act::End => {
                model.finish();
                let time = task.time();
                let task = &mut task;
                // In small bunches, as an epoch has room.
                let finish =
                    |task: &mut Task| task.chain.finish(&mut task.tables, time, 2, &mut task.out);
                while finish(task).unwrap() {}
            }
        }
        same(
            &model,
            &task,
            &format!("after {number}: {act:?}\nof {acts:#?}"),
        );
    }
}

fn same(model: &FlowModel<'_>, task: &Task, place: &str) {
    let process = &task.plan.processes[&task.process];
    let mut streams: BTreeSet<String> = BTreeSet::new();
    streams.extend(process.sinks.iter().map(|sink| sink.stream.clone()));
    streams.extend(process.topics.iter().map(|topic| topic.name.clone()));
    streams.extend(task.out.outputs.iter().map(|out| out.stream.to_string()));
    for stream in streams {
        type Shown = (Option<String>, EventId, String);
        let wanted: Vec<Shown> = model
            .outputs(&stream)
            .map(|output| (output.key.clone(), output.id, output.value.clone()))
            .collect();
        let outputs = task.out.outputs.iter();
        let outputs = outputs.filter(|output| *output.stream == *stream);
        let found: Vec<Shown> = outputs
            .map(|output| {
                let key = output.key.as_ref();
                let key = key.map(|key| String::from_utf8(key.to_vec()).unwrap());
                (key, output.id, text(output))
            })
            .collect();
        assert_eq!(found, wanted, "the stream {stream} {place}");
    }
    assert_eq!(task.account(), model.account(), "the books {place}");
    for (at, metric) in process.metrics.iter().enumerate() {
        let found = task.out.metrics.iter().filter(|(of, _)| *of == at);
        let found: Vec<&String> = found.map(|(_, value)| value).collect();
        let wanted: Vec<&String> = model.metric(&metric.name).iter().collect();
        assert_eq!(found, wanted, "the metric {} {place}", metric.name);
    }
    for state in &process.state {
        if let (StateKind::Local(_), Some((_, name))) = (&state.kind, state.id.split_once('/')) {
            let wanted = model.state(name);
            assert_eq!(task.values(name), wanted, "the state {name} {place}");
        }
    }
}
