//! Stages under everything at once: processes die, partitions move, the log refuses, loses answers and crashes.
//!
//! At the end the faults stop and everything drains. Then the outputs are the model's, in its order
//! for each key. The state is the model's, too, and the books agree with a recount.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::Account;
use tidegate_core::env::{Entropy, Env, Stream};
use tidegate_core::{EventId, Mutex, Offset, Shutdown, Topic};
use tidegate_flow::check::{Registered, check_flows};
use tidegate_flow::model::{FlowModel, ModelInput, ModelScript};
use tidegate_flow::plan::FlowPlan;
use tidegate_log::{
    Append, Log, LogError, Read, Record, StoredRecord, TopicConfig, TopicPartition,
};
use tidegate_sim::{LogRates, Node, Sim, SimLog, for_each_seed, scaled};
use tidegate_stage::operators::RegisteredFunctions;
use tidegate_stage::{PlantedStageBug, Stage, StageBooks, StageOptions, StreamOptions, plant};

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A flow that is played.
pub(crate) struct Played {
    pub(crate) text: &'static str,
    pub(crate) partitions: i32,
    pub(crate) streams: &'static [&'static str],
    /// A state whose values are compared.
    pub(crate) state: Option<&'static str>,
    /// Whether the outputs of a key have one order.
    pub(crate) is_ordered: bool,
}

/// Flows whose results do not depend on the order of partitions: event time is one for the model.
pub(crate) const FLOWS: [Played; 7] = [
    Played {
        text: "process p receive orders filter amount > 3 emit to big end",
        partitions: 3,
        streams: &["orders"],
        state: None,
        is_ordered: true,
    },
    Played {
        text: "process p partition by amount receive orders filter amount > 3 emit to big end",
        partitions: 3,
        streams: &["orders"],
        state: None,
        is_ordered: false,
    },
    Played {
        text: "process p receive orders transform state.total = state.total + amount state.n = state.n + 1 \
               total = state.total n = state.n emit to totals \
               state local total keyed by customer type counter local n keyed by customer type counter end",
        partitions: 1,
        streams: &["orders"],
        state: Some("total"),
        is_ordered: true,
    },
    Played {
        text: "process p receive orders transform state.total = state.total + amount total = state.total \
               emit to totals emit to copies key by amount \
               state local total keyed by customer type counter end",
        partitions: 3,
        streams: &["orders"],
        state: Some("total"),
        is_ordered: false,
    },
    Played {
        text: "schema order_v1 time at customer: string amount: integer at: timestamp end \
               process p time by at watermark delay 1 second \
               receive orders schema order_v1 receive payments schema order_v1 \
               await orders until payments arrives matching on customer timeout 20 seconds emit to orphans \
               emit to matched on error correlation failure dead_letter strays end",
        partitions: 1,
        streams: &["orders", "payments"],
        state: None,
        is_ordered: true,
    },
    Played {
        text: "schema order_v1 time at customer: string amount: integer at: timestamp end \
               process p time by at watermark delay 2 seconds receive orders schema order_v1 \
               window tumbling 10 seconds key by customer aggregate count() as n sum(amount) as total end \
               allowed lateness 5 seconds late data to late \
               emit to hourly end",
        partitions: 1,
        streams: &["orders"],
        state: None,
        is_ordered: true,
    },
    // R24: one completion for each record that is committed.
    Played {
        text: "process p receive orders filter amount > 3 emit to big \
               on commit emit completion to done correlation customer end",
        partitions: 3,
        streams: &["orders"],
        state: None,
        is_ordered: true,
    },
];

/// Every stream of the flows.
pub(crate) const STREAMS: [&str; 11] = [
    "orders", "payments", "big", "totals", "copies", "orphans", "matched", "strays", "hourly",
    "late", "done",
];

pub(crate) const START_MS: u64 = 1_700_000_000_000;

/// An id whose last bits are a number.
fn id_of(number: u64) -> EventId {
    EventId::from_u128((u128::from(START_MS) << 80) | (7 << 76) | (0b10 << 62) | u128::from(number))
}

pub(crate) fn input(stream: &str, number: u64, draw: &mut dyn Entropy) -> ModelInput {
    let customer = format!("c{}", draw.below(5));
    let (jitter, amount) = (draw.below(4_000), draw.below(10));
    let at = i64::try_from(START_MS + number * 300 + 4_000 - jitter).unwrap();
    let at = jiff::Timestamp::from_millisecond(at).unwrap();
    let value = match draw.below(40) {
        0 => "not JSON".to_owned(),
        _ => format!("{{\"customer\":\"{customer}\",\"amount\":{amount},\"at\":\"{at}\"}}"),
    };
    ModelInput {
        stream: stream.to_owned(),
        key: Some(customer),
        at: Some(jiff::Timestamp::from_millisecond(i64::try_from(START_MS).unwrap()).unwrap()),
        id: Some(id_of(number)),
        value: value.into_bytes(),
        ..ModelInput::default()
    }
}

/// Outputs of a stream by key, in their order.
type ByKey = BTreeMap<String, Vec<(EventId, String)>>;

pub(crate) fn options(process: &str) -> StageOptions {
    let mut options = StageOptions::new(process).unwrap();
    options.epoch_records = 7;
    options.epoch_interval = Some(Duration::from_millis(300));
    options.parallelism = Some(2);
    for stream in STREAMS {
        let stream_options = StreamOptions {
            // Runs on one broker have topics of their own.
            topic: (process != "p").then(|| Topic::new(format!("{process}-{stream}")).unwrap()),
            // The clock of the model stands still, so no input is idle there.
            idle_timeout: Duration::from_secs(86_400),
            ..StreamOptions::default()
        };
        options.streams.insert(stream.to_owned(), stream_options);
    }
    options.restart.initial_delay = Duration::from_millis(100);
    options.restart.max_delay = Duration::from_secs(2);
    options
}

type Slot = Arc<Mutex<Option<Stage>>>;

fn start(node: &Node, name: usize, plan: &Arc<FlowPlan>, log: &SimLog, slot: &Slot) {
    let mut options = options("p");
    options.instance = format!("{name}-p");
    let functions = Arc::new(RegisteredFunctions::default());
    let env = node.env();
    let log: Arc<dyn Log> = Arc::new(log.clone());
    let stage = Stage::new(Arc::clone(plan), options, functions, log, &env).unwrap();
    *slot.lock() = Some(stage.clone());
    drop(node.start("stage", async move {
        let (_trigger, stop) = Shutdown::new();
        stage.run(stop).await.ok();
        std::future::pending::<()>().await;
    }));
}

async fn read_all(log: &dyn Log, topic: &Topic, partitions: i32) -> Vec<StoredRecord> {
    let mut all = Vec::new();
    for partition in 0..partitions {
        let at = TopicPartition::new(topic.clone(), partition);
        let mut from = Offset(0);
        loop {
            let read = Read {
                max_records: 100_000,
                max_bytes: usize::MAX,
                ..Read::new(at.clone(), from)
            };
            match log.read(read).await {
                Ok(batch) if batch.records.is_empty() => break,
                Ok(batch) => {
                    from = batch.next;
                    all.extend(batch.records);
                }
                Err(LogError::UnknownTopic { .. } | LogError::UnknownPartition { .. }) => break,
                Err(_) => {}
            }
        }
    }
    all
}

/// A world with its stages.
struct World {
    sim: Sim,
    broker: Node,
    log: SimLog,
    plan: Arc<FlowPlan>,
    workers: Vec<(Node, Slot)>,
}

impl World {
    fn start(&self, number: usize) {
        let (node, slot) = &self.workers[number];
        start(node, number, &self.plan, &self.log, slot);
    }

    fn books(&self) -> StageBooks {
        let log: Arc<dyn Log> = Arc::new(self.log.clone());
        StageBooks::new(
            log,
            &self.broker.env(),
            Arc::clone(&self.plan),
            options("p"),
        )
        .unwrap()
    }

    /// Sends records of a stream, to the log and to the model.
    fn send(
        &mut self,
        (stream, count): (&str, u64),
        sent: &mut u64,
        model: &mut FlowModel<'_>,
        draw: &mut dyn Entropy,
    ) {
        for _ in 0..count {
            let sending = input(stream, *sent, draw);
            *sent += 1;
            model.send(sending.clone());
            let record = Record::new(sending.value.clone())
                .key(sending.key.clone().unwrap())
                .event_id(sending.id.unwrap())
                .timestamp_ms(START_MS);
            let append = Append::new(Topic::new(sending.stream).unwrap(), record);
            let log = self.log.clone();
            self.sim.block_on(&self.broker, async move {
                // An append that is refused did nothing.
                while log.append(vec![append.clone()]).await.is_err() {}
            });
        }
    }

    /// Ends the faults and waits until everything that was sent is read.
    fn settle(&mut self) {
        self.log.set_rates(LogRates::default());
        for number in 0..self.workers.len() {
            let node = self.workers[number].0.clone();
            if !node.is_up() {
                self.sim.restart(&node);
                self.start(number);
            }
        }
        for _ in 0..600 {
            let books = self.books();
            let accounts = self
                .sim
                .block_on(&self.broker, async move { books.accounts().await.unwrap() });
            if !accounts.is_empty() && accounts.iter().all(|one| one.account.queued == 0) {
                // Timers of the last records may fire in an epoch of their own.
                self.sim.run_for(Duration::from_secs(3));
                return;
            }
            self.sim.run_for(Duration::from_millis(500));
        }
        let statuses: Vec<_> = self
            .workers
            .iter()
            .map(|(_, slot)| slot.lock().as_ref().map(Stage::status))
            .collect();
        panic!("it does not get on: {statuses:#?}");
    }
}

pub(crate) fn play(seed: u64) -> u64 {
    let mut sim = Sim::new(seed);
    let mut script: Stream = sim.entropy("script");
    let draw: &mut dyn Entropy = &mut script;
    let flow: &'static Played = &FLOWS[usize::try_from(draw.below(FLOWS.len() as u64)).unwrap()];
    let checked = check_flows(&[flow.text], &Registered::default());
    let plan = checked
        .plan
        .unwrap_or_else(|| panic!("{:?}", checked.diagnostics));
    let plan = Arc::new(plan);
    let broker = sim.node("broker");
    let log = SimLog::new(&broker.env());
    log.set_holes(draw.below(2) == 0);
    let made = log.clone();
    let partitions = flow.partitions;
    sim.block_on(&broker, async move {
        for stream in flow.streams {
            let config = TopicConfig::new(u32::try_from(partitions).unwrap());
            made.create_topic(&Topic::new(*stream).unwrap(), config)
                .await
                .unwrap();
        }
    });
    let workers: Vec<(Node, Slot)> = (0..1 + draw.below(3))
        .map(|n| (sim.node(&format!("worker-{n}")), Slot::default()))
        .collect();
    let mut world = World {
        sim,
        broker,
        log,
        plan: Arc::clone(&plan),
        workers,
    };
    for number in 0..world.workers.len() {
        world.start(number);
    }
    let rates = LogRates {
        refuse: draw.below(30),
        lose_request: draw.below(30),
        lose_answer: draw.below(30),
        delay: Duration::from_millis(draw.below(40)),
    };
    world.log.set_rates(rates);
    let mut model = FlowModel::new(&plan, "p", ModelScript::default()).unwrap();
    let mut sent = 0;
    let mut last = flow.streams[0];
    for _ in 0..20 {
        let number = usize::try_from(draw.below(world.workers.len() as u64)).unwrap();
        let node = world.workers[number].0.clone();
        match draw.below(12) {
            0..6 => {
                let stream =
                    flow.streams[usize::try_from(draw.below(flow.streams.len() as u64)).unwrap()];
                if stream != last {
                    // Records of two topics have no order; so the others are read first.
                    world.settle();
                    world.log.set_rates(rates);
                    last = stream;
                }
                let count = 1 + draw.below(15);
                world.send((stream, count), &mut sent, &mut model, draw);
            }
            6 => world.sim.crash(&node),
            7 => {
                if !node.is_up() {
                    world.sim.restart(&node);
                    world.start(number);
                }
            }
            8 => world.log.rebalance(&options("p").group),
            9 => {
                // A zombie has something in hand.
                let count = draw.below(15);
                world.send((last, count), &mut sent, &mut model, draw);
                world.sim.run_for(Duration::from_millis(draw.below(60)));
                let nth = usize::try_from(draw.below(3)).unwrap();
                world.log.expel(&options("p").group, nth);
            }
            10 => world.log.crash(),
            _ => node.set_clock_offset_ms(i64::try_from(draw.below(600_000)).unwrap() - 300_000),
        }
        world.sim.run_for(Duration::from_millis(draw.below(2_000)));
    }
    world.settle();
    compare(&mut world, flow, &model);
    world.sim.trace().hash()
}

/// Outputs, state and books are those of the model.
fn compare(world: &mut World, flow: &'static Played, model: &FlowModel<'_>) {
    let expected = Expected::of(flow, model, &world.plan, "p");
    let log: Arc<dyn Log> = Arc::new(world.log.clone());
    let (plan, env) = (Arc::clone(&world.plan), world.broker.env());
    world.sim.block_on(&world.broker, async move {
        expected.check(log, &env, plan, options("p")).await
    });
}

/// The results of the model.
pub(crate) struct Expected {
    flow: &'static Played,
    streams: BTreeMap<String, (bool, ByKey)>,
    state: BTreeMap<String, String>,
    account: Account,
}

fn text(bytes: Option<bytes::Bytes>) -> String {
    String::from_utf8(bytes.unwrap_or_default().to_vec()).unwrap()
}

impl Expected {
    pub(crate) fn of(
        flow: &'static Played,
        model: &FlowModel<'_>,
        plan: &FlowPlan,
        process: &str,
    ) -> Self {
        let found = &plan.processes[process];
        let mut names: Vec<String> = found.sinks.iter().map(|sink| sink.stream.clone()).collect();
        names.extend(found.ways_out.iter().filter_map(|way| way.stream.clone()));
        let told: Vec<&String> = found.completions.iter().map(|one| &one.stream).collect();
        names.extend(told.iter().map(|stream| (*stream).clone()));
        names.push(format!("{process}_dlq"));
        names.sort();
        names.dedup();
        let mut streams = BTreeMap::new();
        for name in names {
            let letters = model.dead_letters().iter();
            let is_letters = letters.clone().any(|letter| letter.stream == name);
            // A completion tells the time.
            let is_letters = is_letters || told.contains(&&name);
            let mut expected = ByKey::new();
            for output in model.outputs(&name) {
                let value = if is_letters {
                    String::new()
                } else {
                    output.value.clone()
                };
                let key = output.key.clone().unwrap_or_default();
                expected.entry(key).or_default().push((output.id, value));
            }
            if !flow.is_ordered || is_letters {
                expected.values_mut().for_each(|list| list.sort());
            }
            streams.insert(name, (is_letters, expected));
        }
        Self {
            flow,
            streams,
            state: flow.state.map(|name| model.state(name)).unwrap_or_default(),
            account: model.account(),
        }
    }

    pub(crate) async fn check(
        &self,
        log: Arc<dyn Log>,
        env: &Env,
        plan: Arc<FlowPlan>,
        options: StageOptions,
    ) {
        let flow = self.flow;
        for (stream, (is_letters, expected)) in &self.streams {
            let topic = options.topic(stream).unwrap();
            let mut written = ByKey::new();
            for stored in read_all(&*log, &topic, flow.partitions).await {
                let record = stored.record;
                let value = if *is_letters {
                    String::new()
                } else {
                    text(record.value)
                };
                let id = record.headers.event_id().unwrap();
                written
                    .entry(text(record.key))
                    .or_default()
                    .push((id, value));
            }
            if !flow.is_ordered || *is_letters {
                written.values_mut().for_each(|list| list.sort());
            }
            assert_eq!(&written, expected, "stream `{stream}` of {}", flow.text);
        }
        let inputs: Vec<String> = flow
            .streams
            .iter()
            .map(|stream| format!("@{}", options.topic(stream).unwrap()))
            .collect();
        let books = StageBooks::new(log, env, plan, options).unwrap();
        if let Some(name) = flow.state {
            assert_eq!(
                books.values(name).await.unwrap(),
                self.state,
                "{}",
                flow.text
            );
        }
        for one in &books.audit().await.unwrap() {
            assert!(one.missing.is_empty(), "{one:#?}");
        }
        let accounts = books.accounts().await.unwrap();
        assert!(
            accounts.iter().all(|one| one.account.is_balanced()),
            "{accounts:#?}"
        );
        let sum = |get: fn(&Account) -> i64| -> i64 {
            let own = accounts
                .iter()
                .filter(|one| inputs.iter().any(|input| one.name.ends_with(input)));
            own.map(|one| get(&one.account)).sum()
        };
        assert_eq!(
            sum(|account| account.parked),
            self.account.parked,
            "{accounts:#?}"
        );
        if accounts.len() == flow.streams.len() {
            assert_eq!(sum(|account| account.accepted), self.account.accepted);
            assert_eq!(sum(|account| account.delivered), self.account.delivered);
            assert_eq!(
                sum(|account| account.dead_lettered),
                self.account.dead_lettered
            );
        }
    }
}

/// R02, R03, R04, R08, R10, R13, R24, A01: whatever dies, the results are those of a run without deaths.
#[test]
fn r02_whatever_dies_the_results_are_the_models() {
    for_each_seed("tidegate-stage", scaled(1_000), |seed| {
        play(seed);
    });
}

#[test]
fn one_seed_played_twice_is_one_run() {
    for seed in 0..scaled(200) {
        assert_eq!(play(seed), play(seed), "seed {seed}");
    }
}

/// The first seed that catches a bug.
fn seed_that_catches(bug: PlantedStageBug) -> Option<u64> {
    (0..200).find(|seed| {
        plant(Some(bug));
        let caught = catch_unwind(AssertUnwindSafe(|| play(*seed))).is_err();
        plant(None);
        caught
    })
}

#[test]
fn planted_bugs_are_caught() {
    for bug in [
        PlantedStageBug::StateAheadOfEpoch,
        PlantedStageBug::OffsetsBeforeOutputs,
        PlantedStageBug::SkippedFrame,
        PlantedStageBug::TimerFiredTwice,
        PlantedStageBug::Zombie,
    ] {
        assert!(seed_that_catches(bug).is_some(), "{bug:?}");
    }
}
