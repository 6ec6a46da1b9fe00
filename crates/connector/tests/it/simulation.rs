//! Bindings under everything at once. Processes crash, partitions move, members are taken for dead. The log
//! refuses, loses answers and crashes; so does the store. Clocks jump, operators pause and stop, and handlers fail, panic
//! and hang.
//!
//! Safety is checked after each step: whatever lies before a committed offset was handled, or lies in a tier, in the
//! store or in the dead letters. Its books balance. The records of a lane are first called in their order. Under STRICT
//! each is done before the next one, and ordered keys keep their order in the store as well. At the end the faults stop,
//! and everything drains: each event was handled, or is one dead letter. The books say the same, and an audit finds
//! nothing.
//!
//! Where hand-offs are made at least once, no member is taken for dead: what it writes then is a copy of a record that
//! somebody else may have handled.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_connector::parked::{ParkedModel, ParkedRates, ParkedStore};
use tidegate_connector::{
    AckMode, Binding, BindingBooks, BindingOptions, BoundHandler, ConcurrencyMode, Connector,
    HandOff, HandlerAnswer, ListenerType, OrderingMode, StrictExhausted, TierOptions,
};
use tidegate_core::books::Books;
use tidegate_core::env::{Entropy, Env, Stream};
use tidegate_core::{
    Code, EventId, Failure, FailureClass, Mutex, Offset, Partition, TierIndex, Topic,
};
use tidegate_log::{
    Append, Log, LogError, Read, Record, StoredRecord, TopicConfig, TopicPartition,
};
use tidegate_sim::{LogRates, Node, Sim, SimLog, is_long, seeds};

use crate::scripted_log::ScriptedLog;

const PARTITIONS: i32 = 3;
const SECOND: Duration = Duration::from_secs(1);

/// A call of the handler.
struct WitnessedCall {
    partition: Partition,
    key: String,
    n: u128,
    tier: TierIndex,
    is_handled: bool,
}

/// The history, kept outside of the nodes.
struct Witness {
    handled: Mutex<BTreeSet<u128>>,
    /// Every call, in order.
    calls: Mutex<Vec<WitnessedCall>>,
    options: BindingOptions,
    is_calm: AtomicBool,
    random: Mutex<Stream>,
    fenced: AtomicU64,
}

impl Witness {
    fn draw(&self, bound: u64) -> u64 {
        let mut random = self.random.lock();
        let random: &mut dyn Entropy = &mut *random;
        random.below(bound)
    }
}

fn number(id: EventId) -> u128 {
    id.as_u128() & 0xffff_ffff
}

/// An id whose last bits are a number.
fn id_of(number: u64) -> EventId {
    EventId::from_u128(
        (1_700_000_000_000_u128 << 80) | (7 << 76) | (0b10 << 62) | u128::from(number),
    )
}

fn fails(class: FailureClass, code: &'static str) -> HandlerAnswer {
    Err(Failure::new(class, Code::from_static(code), "storm").into())
}

fn handler(witness: Arc<Witness>, env: &Env) -> BoundHandler {
    let clock = Arc::clone(&env.clock);
    BoundHandler::from_fn(move |record| {
        let (witness, clock) = (Arc::clone(&witness), Arc::clone(&clock));
        async move {
            let n = number(record.event_id());
            let call = {
                let mut calls = witness.calls.lock();
                calls.push(WitnessedCall {
                    partition: record.partition(),
                    key: String::from_utf8_lossy(record.key().unwrap()).into_owned(),
                    n,
                    tier: record.tier(),
                    is_handled: false,
                });
                calls.len() - 1
            };
            if witness.options.transactional {
                let output = Record::new(n.to_string()).event_id(record.event_id());
                let output = Append::new(Topic::new("out").unwrap(), output);
                record.send(output.partition(record.partition().0));
            }
            if n.is_multiple_of(17) {
                return fails(FailureClass::Permanent, "business.rule");
            }
            // Under STRICT it would wait for ever.
            if n.is_multiple_of(13) && witness.options.ordering != OrderingMode::Strict {
                return fails(FailureClass::Transient, "timeout.read");
            }
            if !witness.is_calm.load(Ordering::Relaxed) {
                match witness.draw(100) {
                    0..20 => return fails(FailureClass::Transient, "connection.refused"),
                    20..23 => return fails(FailureClass::System, "access.denied"),
                    23..27 => panic!("handlers panic"),
                    27..30 => std::future::pending().await,
                    30..50 => {
                        clock
                            .sleep(Duration::from_millis(witness.draw(3_000)))
                            .await;
                    }
                    _ => {}
                }
            }
            witness.handled.lock().insert(n);
            witness.calls.lock()[call].is_handled = true;
            Ok(())
        }
    })
}

/// A binding that depends on the seed.
fn options(draw: &mut dyn Entropy) -> BindingOptions {
    let mut options = BindingOptions::new("orders", "orders", "g").unwrap();
    options.concurrency_mode = match draw.below(3) {
        0 => ConcurrencyMode::Partition,
        1 => ConcurrencyMode::Key,
        _ => ConcurrencyMode::Unordered,
    };
    if draw.below(2) == 0 && options.concurrency_mode != ConcurrencyMode::Unordered {
        options.ordering = OrderingMode::KeyOrdered;
        options.key_ordered.max_parked = 5 + usize::try_from(draw.below(60)).unwrap();
    }
    if draw.below(2) == 0 {
        options.ack_mode = AckMode::Manual;
    }
    if draw.below(3) == 0 {
        options.listener_type = ListenerType::Batch;
    }
    options.max_poll_records = 1 + usize::try_from(draw.below(12)).unwrap();
    options.max_in_flight = 1 + usize::try_from(draw.below(20)).unwrap();
    options.handler_timeout = Duration::from_secs(2);
    options.stop_timeout = Duration::from_secs(5);
    options.breaker.is_enabled = draw.below(2) == 0;
    options.breaker.rule.open_for = Duration::from_secs(3);
    options.retry.tier0.max_attempts = 1 + u32::try_from(draw.below(3)).unwrap();
    let tiers = draw.below(3);
    options.retry.tiers = (0..tiers)
        .map(|n| TierOptions::new(Duration::from_secs(2 + 3 * n)))
        .collect();
    for tier in &mut options.retry.tiers {
        tier.max_attempts = 2;
    }
    if draw.below(5) == 0 {
        options = options.strict(StrictExhausted::Pause);
        options.concurrency_mode = ConcurrencyMode::Partition;
    }
    options.transactional = options.ordering != OrderingMode::KeyOrdered && draw.below(3) == 0;
    if !options.transactional && draw.below(3) == 0 {
        options.hand_off = HandOff::AtLeastOnce;
    }
    options
}

/// A process with a connector that is started again and again.
#[derive(Clone, Default)]
struct Slot(Arc<Mutex<Option<Connector>>>);

fn start_worker(
    node: &Node,
    slot: &Slot,
    log: &ScriptedLog,
    store: &ParkedModel,
    options: &BindingOptions,
    witness: &Arc<Witness>,
) {
    let env = node.env();
    let connector = Connector::new(Arc::new(log.clone()), &env);
    let connector = connector.with_store(Arc::new(store.on(&env)));
    let handler = handler(Arc::clone(witness), &env);
    connector
        .register(Binding::new(options.clone(), handler))
        .unwrap();
    *slot.0.lock() = Some(connector.clone());
    let clock = Arc::clone(&env.clock);
    drop(node.start("worker", async move {
        while connector.start("orders").await.is_err() {
            clock.sleep(SECOND).await;
        }
        std::future::pending::<()>().await;
    }));
}

/// All records of a topic, by partition; nothing while the log refuses.
async fn read_all(log: &SimLog, topic: &Topic) -> Vec<(TopicPartition, StoredRecord)> {
    let mut all = Vec::new();
    for partition in 0..PARTITIONS {
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
                    all.extend(batch.records.into_iter().map(|stored| (at.clone(), stored)));
                }
                Err(LogError::Unavailable { .. }) => {}
                Err(LogError::UnknownTopic { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    all
}

/// The places of all events, as the log tells them.
#[derive(Default)]
struct Census {
    /// Records before the committed offset of their group, by topic.
    passed: Vec<u128>,
    /// Records of tiers that are still to be taken.
    waiting: BTreeSet<u128>,
    letters: BTreeMap<u128, u64>,
    /// Records of the store, parked or on their way.
    parked: BTreeSet<u128>,
    /// Whether every group has passed everything.
    is_drained: bool,
}

async fn census(log: SimLog, store: ParkedModel, options: BindingOptions, sent: u64) -> Census {
    let mut census = Census {
        is_drained: true,
        ..Census::default()
    };
    // The offsets first: a row that leaves afterwards is handled, or a letter by then.
    let count = match options.ordering {
        OrderingMode::KeyOrdered => 0,
        OrderingMode::RelaxedInRetry | OrderingMode::Strict => options.retry.tiers.len(),
    };
    let tiers = (0..count).map(|n| TierIndex(u32::try_from(n + 1).unwrap()));
    let mut topics = vec![(options.topic.clone(), options.group.clone())];
    for tier in tiers {
        topics.push((
            options.tier_topic(tier).unwrap(),
            options.tier_group(tier).unwrap(),
        ));
    }
    let mut seen = 0;
    for (n, (topic, group)) in topics.into_iter().enumerate() {
        // The offsets first: records that come later only lie behind them.
        let at: Vec<TopicPartition> = (0..PARTITIONS)
            .map(|partition| TopicPartition::new(topic.clone(), partition))
            .collect();
        let committed = loop {
            match log.committed(&group, &at).await {
                Ok(found) => break found,
                Err(LogError::Unavailable { .. }) => {}
                // The binding has not started yet.
                Err(LogError::UnknownTopic { .. }) => break vec![None; at.len()],
                Err(error) => panic!("{error}"),
            }
        };
        let next: BTreeMap<TopicPartition, i64> = at
            .into_iter()
            .zip(committed)
            .map(|(at, held)| (at, held.map_or(0, |held| held.next.0)))
            .collect();
        for (at, stored) in read_all(&log, &topic).await {
            let id = number(stored.event_id("sim", &at));
            seen += u64::from(n == 0);
            if stored.offset.0 < next[&at] {
                census.passed.push(id);
            } else {
                census.is_drained = false;
                if n > 0 {
                    census.waiting.insert(id);
                }
            }
        }
    }
    census.is_drained &= seen == sent;
    let parked = store.count("g@orders").await.unwrap().rows;
    census.is_drained &= parked.is_empty();
    census.parked = parked.into_iter().map(|(_, _, id)| number(id)).collect();
    for (at, stored) in read_all(&log, &options.dlt_topic().unwrap()).await {
        *census
            .letters
            .entry(number(stored.event_id("sim", &at)))
            .or_default() += 1;
    }
    census
}

/// Nothing that a group has passed is nowhere.
fn check(census: &Census, witness: &Witness) {
    let handled = witness.handled.lock();
    for id in &census.passed {
        let is_somewhere = handled.contains(id)
            || census.waiting.contains(id)
            || census.letters.contains_key(id)
            || census.parked.contains(id);
        assert!(is_somewhere, "event {id} was passed and is nowhere");
    }
}

/// A record is called only after those of its key in front of it: they were handled, or are never called again.
fn check_order(witness: &Witness) {
    let calls = witness.calls.lock();
    let mut first: BTreeMap<u128, usize> = BTreeMap::new();
    let mut done: BTreeMap<u128, usize> = BTreeMap::new();
    let mut last: BTreeMap<u128, usize> = BTreeMap::new();
    for (index, call) in calls.iter().enumerate() {
        first.entry(call.n).or_insert(index);
        last.insert(call.n, index);
        if call.is_handled {
            done.entry(call.n).or_insert(index);
        }
    }
    for (lane, numbers) in lanes(&calls, ConcurrencyMode::Key) {
        for (before, after) in numbers.iter().zip(numbers.iter().skip(1)) {
            let begun = first[after];
            let is_in_order = match done.get(before) {
                Some(done) => *done < begun,
                None => last[before] < begun,
            };
            assert!(
                is_in_order,
                "{lane:?}: {after} was called before {before} was done"
            );
        }
    }
}

/// The events of each lane that were called in their own topic.
fn lanes(
    calls: &[WitnessedCall],
    mode: ConcurrencyMode,
) -> BTreeMap<(Partition, String), BTreeSet<u128>> {
    let mut lanes: BTreeMap<(Partition, String), BTreeSet<u128>> = BTreeMap::new();
    for call in calls.iter() {
        let key = match mode {
            ConcurrencyMode::Partition => String::new(),
            ConcurrencyMode::Key => call.key.clone(),
            ConcurrencyMode::Unordered => return BTreeMap::new(),
        };
        lanes
            .entry((call.partition, key))
            .or_default()
            .insert(call.n);
    }
    lanes
}

/// The records of a lane are first called in their order. Under STRICT each is done before the next one.
fn check_main_path(witness: &Witness) {
    let calls = witness.calls.lock();
    let is_strict = witness.options.ordering == OrderingMode::Strict;
    let (mut first, mut done) = (BTreeMap::new(), BTreeMap::new());
    for (index, call) in calls.iter().enumerate() {
        if call.tier.0 == 0 {
            first.entry(call.n).or_insert(index);
        }
        if call.is_handled {
            done.entry(call.n).or_insert(index);
        }
    }
    let mode = match witness.options.ordering {
        // Other keys pass those that wait in the store.
        OrderingMode::KeyOrdered => ConcurrencyMode::Key,
        OrderingMode::RelaxedInRetry | OrderingMode::Strict => witness.options.concurrency_mode,
    };
    for (lane, numbers) in lanes(&calls, mode) {
        // A letter is never done.
        let own = |n: &&u128| first.contains_key(n) && !(is_strict && n.is_multiple_of(17));
        let numbers: Vec<&u128> = numbers.iter().filter(own).collect();
        for pair in numbers.windows(2) {
            let before = match is_strict {
                true => done.get(pair[0]),
                false => first.get(pair[0]),
            };
            assert!(
                before.is_some_and(|before| *before < first[pair[1]]),
                "{lane:?}: {} was called before {}",
                pair[1],
                pair[0]
            );
        }
    }
}

/// The books of a binding, of the store and of all its groups.
fn books(log: &SimLog, parked: &Books, options: &BindingOptions) -> Books {
    let mut books = parked.clone();
    books.merge(&log.books(&options.group, &options.topic));
    let tiers = match options.ordering {
        OrderingMode::KeyOrdered => 0,
        OrderingMode::RelaxedInRetry | OrderingMode::Strict => options.retry.tiers.len(),
    };
    for n in 1..=tiers {
        let tier = TierIndex(u32::try_from(n).unwrap());
        let (group, topic) = (
            options.tier_group(tier).unwrap(),
            options.tier_topic(tier).unwrap(),
        );
        books.merge(&log.books(&group, &topic));
    }
    books
}

/// Each record that left the topic is in exactly one place, after each step.
fn check_identity(books: &Books, sent: u64, options: &BindingOptions) {
    let account = books.account();
    // The records of the topic are not counted here, so whatever left it is missing under `queued`.
    let moved = account.retrying + account.parked + account.dead_lettered + account.delivered;
    assert_eq!(moved + account.lost.total(), -account.queued, "{account:?}");
    let places = [account.retrying, account.parked, account.dead_lettered];
    // A copy may be handled before the offset of its record is committed.
    let is_early = options.hand_off == HandOff::AtLeastOnce;
    assert!(
        is_early || places.iter().all(|count| *count >= 0),
        "{account:?}"
    );
    assert!(account.delivered >= 0, "{account:?}");
    let sent = i64::try_from(sent).unwrap();
    assert!((-sent..=0).contains(&account.queued), "{account:?}");
}

pub(crate) fn play(seed: u64) -> u64 {
    let mut sim = Sim::new(seed);
    let mut script = sim.entropy("script");
    let draw: &mut dyn Entropy = &mut script;
    let broker = sim.node("broker");
    let log = SimLog::new(&broker.env());
    let store = ParkedModel::new(&broker.env());
    let options = options(draw);
    let witness = Arc::new(Witness {
        handled: Mutex::default(),
        calls: Mutex::default(),
        options: options.clone(),
        is_calm: AtomicBool::new(false),
        random: Mutex::new(sim.entropy("handlers")),
        fenced: AtomicU64::new(0),
    });
    let (made, topic) = (log.clone(), options.topic.clone());
    sim.block_on(&broker, async move {
        for topic in [topic, Topic::new("out").unwrap()] {
            made.create_topic(&topic, TopicConfig::new(3))
                .await
                .unwrap();
        }
    });
    let beneath: Arc<dyn Log> = Arc::new(log.clone());
    let faulty = ScriptedLog::new(&beneath);
    let count = 1 + usize::try_from(draw.below(3)).unwrap();
    let workers: Vec<(Node, Slot)> = (0..count)
        .map(|n| (sim.node(&format!("worker-{n}")), Slot::default()))
        .collect();
    for (node, slot) in &workers {
        start_worker(node, slot, &faulty, &store, &options, &witness);
    }
    log.set_rates(LogRates {
        refuse: draw.below(40),
        lose_request: draw.below(40),
        lose_answer: draw.below(40),
        delay: Duration::from_millis(draw.below(60)),
    });
    let rates = ParkedRates {
        refuse: draw.below(60),
        lose_answer: draw.below(60),
        delay: Duration::from_millis(draw.below(60)),
    };
    store.set_rates(rates);
    let mut sent = 0;
    for _ in 0..25 {
        let (node, slot) = &workers[usize::try_from(draw.below(workers.len() as u64)).unwrap()];
        match draw.below(22) {
            0..5 => {
                let batch = 1 + draw.below(15);
                let appends = (sent..sent + batch).map(|n| {
                    let partition = i32::try_from(draw.below(3)).unwrap();
                    let record = Record::new(n.to_string())
                        .key(format!("k{}", n % 5))
                        .event_id(id_of(n));
                    Append::new(options.topic.clone(), record).partition(partition)
                });
                let (appends, log): (Vec<Append>, SimLog) = (appends.collect(), log.clone());
                sent += batch;
                sim.block_on(&broker, async move {
                    // An append that is refused did nothing.
                    while log.append(appends.clone()).await.is_err() {}
                });
            }
            5 => {
                sim.crash(node);
                *slot.0.lock() = None;
            }
            6 | 7 => {
                if !node.is_up() {
                    sim.restart(node);
                    start_worker(node, slot, &faulty, &store, &options, &witness);
                }
            }
            16 => faulty.set_full(true),
            17 => {
                faulty.set_missing(Some(match options.retry.tiers.is_empty() {
                    true => options.dlt_topic().unwrap(),
                    false => options.tier_topic(TierIndex(1)).unwrap(),
                }));
            }
            18 => {
                faulty.set_full(false);
                faulty.set_missing(None);
            }
            8 => log.rebalance(&options.group),
            9 if options.hand_off == HandOff::AtLeastOnce => log.rebalance(&options.group),
            9 => {
                let nth = usize::try_from(draw.below(3)).unwrap();
                witness
                    .fenced
                    .fetch_add(u64::from(log.expel(&options.group, nth)), Ordering::Relaxed);
            }
            10 => log.crash(),
            11 => node.set_clock_offset_ms(i64::try_from(draw.below(600_000)).unwrap() - 300_000),
            12 => operate(slot, node, &[OperatorCommand::Pause]),
            19 => operate(slot, node, &[OperatorCommand::Stop]),
            20 => operate(slot, node, &[OperatorCommand::Start]),
            21 => operate(slot, node, &[OperatorCommand::Stop, OperatorCommand::Start]),
            13 => store.set_rates(ParkedRates {
                refuse: 1_000,
                ..rates
            }),
            14 => store.set_rates(rates),
            _ => operate(slot, node, &[OperatorCommand::Resume]),
        }
        sim.run_for(Duration::from_millis(draw.below(4_000)));
        let found = sim.block_on(
            &broker,
            census(log.clone(), store.clone(), options.clone(), sent),
        );
        check(&found, &witness);
        check_main_path(&witness);
        let own = store.clone();
        let parked = sim.block_on(&broker, async move { own.count("g@orders").await.unwrap() });
        check_identity(&books(&log, &parked.books, &options), sent, &options);
    }
    // The storm is over.
    faulty.set_full(false);
    faulty.set_missing(None);
    witness.is_calm.store(true, Ordering::Relaxed);
    log.set_rates(LogRates::default());
    store.set_rates(ParkedRates::default());
    for (node, slot) in &workers {
        node.set_clock_offset_ms(0);
        if !node.is_up() {
            sim.restart(node);
            start_worker(node, slot, &faulty, &store, &options, &witness);
        }
        operate(slot, node, &CALM);
    }
    // Without tiers a record may be kept until the breaker gives it up.
    let mut left = 1_500;
    let found = loop {
        sim.run_for(Duration::from_secs(2));
        let found = sim.block_on(
            &broker,
            census(log.clone(), store.clone(), options.clone(), sent),
        );
        check(&found, &witness);
        if found.is_drained {
            break found;
        }
        left -= 1;
        for (node, slot) in &workers {
            operate(slot, node, &CALM);
        }
        let health: Vec<String> = workers
            .iter()
            .filter_map(|(_, slot)| Some(format!("{:?}", slot.0.lock().as_ref()?.health())))
            .collect();
        assert!(left > 0, "it does not drain: {health:?} {options:?}");
    };
    let handled = witness.handled.lock();
    let all: BTreeSet<u128> = (0..u128::from(sent)).collect();
    let mut gone: BTreeSet<u128> = handled.clone();
    gone.extend(found.letters.keys());
    assert_eq!(gone, all);
    assert!(
        found.letters.values().all(|count| *count == 1),
        "{:?}",
        found.letters
    );
    let own = store.clone();
    let parked = sim.block_on(&broker, async move { own.count("g@orders").await.unwrap() });
    let account = books(&log, &parked.books, &options).account();
    let letters = i64::try_from(found.letters.len()).unwrap();
    let sent = i64::try_from(sent).unwrap();
    assert_eq!((account.retrying, account.parked), (0, 0), "{account:?}");
    if options.ordering == OrderingMode::KeyOrdered {
        check_order(&witness);
    }
    check_main_path(&witness);
    if options.transactional {
        // Each event that was handled has one output, and no letter has any.
        let (out, log) = (Topic::new("out").unwrap(), log.clone());
        let written = sim.block_on(&broker, async move { read_all(&log, &out).await });
        let mut counts: BTreeMap<u128, u64> = BTreeMap::new();
        for (at, stored) in written {
            *counts
                .entry(number(stored.event_id("sim", &at)))
                .or_default() += 1;
        }
        let expect = all.iter().filter(|n| !found.letters.contains_key(*n));
        let expect: BTreeMap<u128, u64> = expect.map(|n| (*n, 1)).collect();
        assert_eq!(counts, expect);
    }
    assert_eq!(
        (account.dead_lettered, account.delivered),
        (letters, sent - letters),
        "{account:?}"
    );
    check_audit(&mut sim, &broker, &log, &store, options);
    sim.trace().hash()
}

/// A command of an operator.
#[derive(Debug, Clone, Copy)]
enum OperatorCommand {
    Pause,
    Resume,
    Stop,
    Start,
}

/// So that a binding flows, whatever was commanded before.
const CALM: [OperatorCommand; 2] = [OperatorCommand::Start, OperatorCommand::Resume];

/// An operator commands a binding of a process that is up. Commands are refused where its state does not allow them.
fn operate(slot: &Slot, node: &Node, commands: &'static [OperatorCommand]) {
    let connector = slot.0.lock().clone();
    let Some(connector) = connector.filter(|_| node.is_up()) else {
        return;
    };
    drop(node.start("operator", async move {
        for command in commands {
            match command {
                OperatorCommand::Pause => connector.pause("orders").await.ok(),
                OperatorCommand::Resume => connector.resume("orders").await.ok().map(drop),
                OperatorCommand::Stop => connector.stop("orders").await.ok(),
                OperatorCommand::Start => connector.start("orders").await.ok(),
            };
        }
    }));
}

/// Books and recount agree.
fn check_audit(
    sim: &mut Sim,
    broker: &Node,
    log: &SimLog,
    store: &ParkedModel,
    options: BindingOptions,
) {
    let books = BindingBooks::new(Arc::new(log.clone()), vec![options.clone()]);
    let books = books.with_store(Some(Arc::new(store.clone())));
    let audited = sim.block_on(
        broker,
        async move { books.audit().await.unwrap().remove(0) },
    );
    assert_eq!(audited.missing, [], "{audited:?} {options:?}");
    assert_eq!(audited.unaccounted, 0, "{audited:?} {options:?}");
}

#[test]
fn sim_bindings_lose_nothing_under_everything_at_once() {
    let count = if is_long() { 1_000 } else { 24 };
    seeds!(count, |seed| {
        assert_eq!(play(seed), play(seed), "one seed, one history");
    });
}
