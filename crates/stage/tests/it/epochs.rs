//! The content of epochs, and the traces that they leave: refused commits, clean-up, cuts, and audits.

use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::books::{AuditVerdict, Place};
use tidegate_core::env::Env;
use tidegate_core::{EventId, Offset, Shutdown, Topic};
use tidegate_flow::check::{Registered, check_flows};
use tidegate_flow::plan::FlowPlan;
use tidegate_log::{
    Append, Batch, Log, LogError, Read, Record, StoredRecord, TopicConfig, TopicPartition,
};
use tidegate_sim::{LogFault, LogRates, Sim, SimLog};
use tidegate_stage::operators::RegisteredFunctions;
use tidegate_stage::{PlantedStageBug, Stage, StageBooks, StageOptions, plant};

use crate::deaths::Scenario;
use crate::simulation::{FLOWS, options};
use crate::wrapped::WrappedLog;

pub(crate) fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

/// A stage on a simulated log, with its books.
pub(crate) struct Running {
    pub(crate) log: SimLog,
    env: Env,
    pub(crate) stage: Stage,
    pub(crate) books: StageBooks,
}

impl Running {
    pub(crate) fn new(
        plan: &Arc<FlowPlan>,
        settings: StageOptions,
        log: &SimLog,
        env: &Env,
    ) -> Self {
        let functions = Arc::new(RegisteredFunctions::default());
        let of_stage: Arc<dyn Log> = Arc::new(log.clone());
        let stage = Stage::new(
            Arc::clone(plan),
            settings.clone(),
            functions,
            Arc::clone(&of_stage),
            env,
        );
        let books = StageBooks::new(of_stage, env, Arc::clone(plan), settings).unwrap();
        Self {
            log: log.clone(),
            env: env.fork("test"),
            stage: stage.unwrap(),
            books,
        }
    }

    /// Runs until everything is read, and so much longer.
    pub(crate) async fn run(&self, longer: Duration) {
        let (trigger, stop) = Shutdown::new();
        let watching = async {
            for _ in 0..1_200 {
                let accounts = self.books.accounts().await.unwrap_or_default();
                if !accounts.is_empty() && accounts.iter().all(|one| one.account.queued == 0) {
                    self.env.clock.sleep(longer).await;
                    trigger.stop();
                    return;
                }
                self.env.clock.sleep(Duration::from_millis(100)).await;
            }
            panic!("it does not get on: {:#?}", self.stage.status());
        };
        let (ended, ()) = tokio::join!(self.stage.run(stop), watching);
        ended.unwrap();
    }

    async fn read(&self, name: &str) -> Vec<StoredRecord> {
        let at = TopicPartition::new(topic(name), 0);
        let read = Read {
            max_bytes: usize::MAX,
            ..Read::new(at, Offset(0))
        };
        match self.log.read(read).await {
            Ok(batch) => batch.records,
            Err(LogError::UnknownTopic { .. }) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }

    async fn ids(&self, name: &str) -> Vec<EventId> {
        let found = self.read(name).await;
        let ids = found
            .iter()
            .map(|stored| stored.record.headers.event_id().unwrap());
        ids.collect()
    }

    pub(crate) async fn is_clean(&self) {
        for one in self.books.audit().await.unwrap() {
            assert_eq!(one.verdict(), AuditVerdict::Clean, "{one:#?}");
        }
    }
}

pub(crate) fn plan(flow: &str) -> Arc<FlowPlan> {
    let checked = check_flows(&[flow], &Registered::default());
    let found = checked.diagnostics;
    Arc::new(checked.plan.unwrap_or_else(|| panic!("{found:?}")))
}

/// Runs a test on one simulated node with one input topic.
pub(crate) fn on_node<F: Future<Output = ()> + Send + 'static>(
    partitions: u32,
    test: impl FnOnce(SimLog, Env) -> F,
) {
    let mut sim = Sim::new(3);
    let node = sim.node("worker");
    let env = node.env();
    let log = SimLog::new(&env);
    let made = log.clone();
    let test = test(log, env);
    sim.block_on(&node, async move {
        let config = TopicConfig::new(partitions);
        made.create_topic(&topic("orders"), config).await.unwrap();
        test.await;
    });
}

pub(crate) fn id_of(number: usize) -> EventId {
    EventId::from_u128((1_700_000_000_000 << 80) | (7 << 76) | (0b10 << 62) | number as u128)
}

/// An order whose JSON is about so long.
pub(crate) async fn order(log: &SimLog, number: usize, size: usize) {
    let customer = format!("c{number}");
    let value = format!(
        "{{\"customer\":\"{customer}\",\"amount\":1,\"text\":\"{}\"}}",
        "x".repeat(size)
    );
    let record = Record::new(value).key(customer).event_id(id_of(number));
    log.append(vec![Append::new(topic("orders"), record)])
        .await
        .unwrap();
}

/// R26: the topic of a stream takes shorter records than most.
#[test]
fn r26_an_output_that_its_topic_does_not_take_is_a_dead_letter() {
    on_node(1, |log, env| async move {
        let config = TopicConfig {
            max_record_size: 6 * 1024,
            ..TopicConfig::new(1)
        };
        log.create_topic(&topic("big"), config).await.unwrap();
        for number in 0..30 {
            let size = if number == 11 { 7_000 } else { 10 };
            order(&log, number, size).await;
        }
        let plan = plan("process p receive orders emit to big end");
        let running = Running::new(&plan, options("p"), &log, &env);
        running.run(Duration::ZERO).await;
        assert_eq!(running.ids("p_dlq").await, [id_of(11)]);
        assert_eq!(running.ids("big").await.len(), 29);
        // The record itself was refused, and not its epoch.
        assert_eq!(running.stage.status().aborted_epochs, 0);
        running.is_clean().await;
    });
}

/// R26: what one record makes is larger than a commit. Another one is too large even for its dead letter.
#[test]
fn r26_a_record_whose_epoch_the_log_refuses_is_a_dead_letter() {
    on_node(1, |log, env| async move {
        for number in 0..60 {
            let size = match number {
                11 => 12_000,
                40 => 25_000,
                _ => 10,
            };
            order(&log, number, size).await;
        }
        log.set_max_commit(20_000);
        let plan = plan("process p receive orders emit to big emit to copies end");
        let running = Running::new(&plan, options("p"), &log, &env);
        running.run(Duration::ZERO).await;
        assert_eq!(running.ids("p_dlq").await, [id_of(11), id_of(40)]);
        let letters = running.read("p_dlq").await;
        let sizes: Vec<usize> = letters.iter().map(|stored| stored.record.size()).collect();
        assert!(sizes[0] > 12_000 && sizes[1] < 5_000, "{sizes:?}");
        for letter in &letters {
            let text = String::from_utf8_lossy(letter.record.value.as_ref().unwrap());
            assert!(text.contains("stage.commit.refused"), "{text}");
        }
        let mut expected: Vec<usize> = (0..60).collect();
        expected.retain(|number| ![11, 40].contains(number));
        for stream in ["big", "copies"] {
            // Both have ids of their own, derived from the one of the record.
            assert_eq!(running.ids(stream).await.len(), expected.len(), "{stream}");
        }
        assert_eq!(running.stage.status().starts, 1);
        running.is_clean().await;
    });
}

/// R26: timers that are due together make more than a commit takes.
#[test]
fn r26_timers_that_make_too_much_at_once_fire_in_several_epochs() {
    on_node(1, |log, env| async move {
        payments(&log).await;
        let flow = WAITS.replace("timeout 1 hour", "timeout 20 seconds");
        for number in 0..60 {
            order(&log, number, 1_000).await;
        }
        log.set_max_commit(20_000);
        let running = Running::new(&plan(&flow), options("p"), &log, &env);
        running.run(Duration::from_secs(60)).await;
        assert_eq!(running.ids("orphans").await.len(), 60);
        assert_eq!(running.stage.status().starts, 1);
        running.is_clean().await;
    });
}

/// R26: what one timer makes is larger than a commit, and so is its dead letter. The others fire.
#[test]
fn r26_a_timer_whose_output_the_log_refuses_is_a_dead_letter() {
    on_node(1, |log, env| async move {
        payments(&log).await;
        let flow = WAITS.replace("timeout 1 hour", "timeout 20 seconds");
        for number in 0..12 {
            let size = if number == 5 { 12_000 } else { 10 };
            order(&log, number, size).await;
        }
        let running = Running::new(&plan(&flow), options("p"), &log, &env);
        let limiting = async {
            // They wait; from now on the log takes less.
            env.clock.sleep(Duration::from_secs(10)).await;
            log.set_max_commit(10_000);
        };
        tokio::join!(running.run(Duration::from_secs(60)), limiting);
        assert_eq!(running.ids("orphans").await.len(), 11);
        assert_eq!(running.ids("p_dlq").await, [id_of(5)]);
        let letter = &running.read("p_dlq").await[0];
        let text = String::from_utf8_lossy(letter.record.value.as_ref().unwrap()).into_owned();
        assert!(text.contains("stage.commit.refused"), "{text}");
        assert_eq!(running.stage.status().starts, 1);
        running.is_clean().await;
    });
}

/// R14: values that nobody touches any more are removed with the interval of the checkpoints.
#[test]
fn r14_the_usual_clean_up_removes_what_has_expired() {
    on_node(1, |log, env| async move {
        for number in 0..600 {
            order(&log, number, 1).await;
        }
        let plan = plan(
            "process p receive orders transform state.n = state.n + 1 emit to big \
             state local n keyed by customer type counter ttl 10 seconds \
             checkpoint every 1 minute end",
        );
        let running = Running::new(&plan, options("p"), &log, &env);
        running.run(Duration::from_secs(200)).await;
        let tasks = running.stage.status().tasks;
        assert!(tasks[0].entries < 10, "{tasks:?}");
        running.is_clean().await;
    });
}

/// A topic of the stage's own does not grow for ever.
#[test]
fn a_repartition_topic_is_cut_behind_what_was_read() {
    let flow = &FLOWS[1];
    on_node(3, |log, env| async move {
        let scenario = Scenario::new(flow, "p", 400);
        log.append(scenario.appends.clone()).await.unwrap();
        let running = Running::new(&scenario.plan, options("p"), &log, &env);
        running.run(Duration::ZERO).await;
        let mut cut = 0;
        for topic in log.topics().await.unwrap() {
            let is_own = ["orders", "big", "p_dlq", "stage.p.changelog"];
            if is_own.contains(&topic.as_str()) {
                continue;
            }
            for partition in log.describe(&topic).await.unwrap().partitions {
                let left = partition.end.0 - partition.start.0;
                cut += partition.start.0;
                assert!(left < 30, "{topic}: {partition:?}");
            }
        }
        assert!(cut > 200, "{cut} records were cut");
        let log: Arc<dyn Log> = Arc::new(log);
        let plan = Arc::clone(&scenario.plan);
        scenario.expected.check(log, &env, plan, options("p")).await;
    });
}

pub(crate) const WAITS: &str = "process p receive orders receive payments \
                     await orders until payments arrives matching on customer timeout 1 hour emit to orphans \
                     emit to matched end";

pub(crate) async fn payments(log: &SimLog) {
    let config = TopicConfig::new(1);
    log.create_topic(&topic("payments"), config).await.unwrap();
}

/// A frame that holds a waiting record is destroyed: the audit says so, and names the record.
#[test]
fn an_audit_names_the_record_that_waited_in_a_damaged_frame() {
    on_node(1, |log, env| async move {
        payments(&log).await;
        for number in 0..20 {
            order(&log, number, 10).await;
        }
        let plan = plan(WAITS);
        let mut settings = options("p");
        settings.epoch_records = 1;
        let running = Running::new(&plan, settings.clone(), &log, &env);
        running.run(Duration::ZERO).await;
        running.is_clean().await;
        let wrapped = WrappedLog {
            alter: Arc::new(|batch: &mut Batch| {
                let is_changelog = batch.at.topic.as_str().ends_with(".changelog");
                for stored in batch.records.iter_mut().filter(|_| is_changelog) {
                    let mut frame = stored.record.value.clone().unwrap().to_vec();
                    let text = br#""customer":"c7""#;
                    if let Some(at) = frame.windows(text.len()).position(|part| part == text) {
                        frame[at + 2] ^= 1;
                        stored.record.value = Some(Bytes::from(frame));
                    }
                }
            }),
            ..WrappedLog::new(Arc::new(log.clone()))
        };
        let books = StageBooks::new(Arc::new(wrapped), &env, plan, settings).unwrap();
        let audited = books.audit().await.unwrap();
        let orders = audited.iter().find(|one| one.name == "p@orders").unwrap();
        assert_eq!(orders.verdict(), AuditVerdict::Loss, "{orders:#?}");
        let missing = &orders.missing[0];
        assert_eq!((missing.count, missing.id), (1, Some(id_of(7))));
        assert_eq!(missing.place, Place::Parked);
        let codes = audited.iter().flat_map(|one| &one.findings);
        let codes: Vec<&str> = codes.map(|one| one.code.as_str()).collect();
        assert_eq!(codes, ["stage.changelog.damaged"]);
        // A question that needs the whole state gets the reason.
        let error = books.pending().await.unwrap_err();
        assert_eq!(error.code.as_str(), "stage.changelog.damaged");
    });
}

/// Records come and wait all the time while somebody audits.
#[test]
fn an_audit_under_load_misses_nothing() {
    on_node(1, |log, env| async move {
        payments(&log).await;
        let plan = plan(WAITS);
        let mut settings = options("p");
        settings.epoch_records = 2;
        let running = Running::new(&plan, settings, &log, &env);
        log.set_rates(LogRates {
            delay: Duration::from_millis(8),
            ..LogRates::default()
        });
        let (_trigger, stop) = Shutdown::new();
        let sending = async {
            let mut number = 0;
            loop {
                order(&log, number, 10).await;
                number += 1;
            }
        };
        let auditing = async {
            while running.stage.status().epochs < 10 {
                env.clock.sleep(Duration::from_millis(50)).await;
            }
            for _ in 0..20 {
                for one in running.books.audit().await.unwrap() {
                    assert_eq!(one.verdict(), AuditVerdict::Clean, "{one:#?}");
                }
                env.clock.sleep(Duration::from_millis(37)).await;
            }
        };
        tokio::select! {
            ended = running.stage.run(stop) => panic!("{ended:?}"),
            () = sending => {}
            () = auditing => {}
        }
    });
}

/// R24: some commits are lost, and some answers are.
#[test]
fn r24_each_committed_record_has_one_completion() {
    on_node(1, |log, env| async move {
        for number in 0..40 {
            order(&log, number, 10).await;
        }
        for fault in [
            LogFault::LoseRequest,
            LogFault::LoseAnswer,
            LogFault::Refuse,
        ] {
            log.inject(fault);
        }
        let plan = plan(
            "process p receive orders emit to big \
             on commit emit completion to done correlation customer end",
        );
        let running = Running::new(&plan, options("p"), &log, &env);
        running.run(Duration::ZERO).await;
        assert_eq!(log.faults_left(), 0);
        assert!(running.stage.status().aborted_epochs >= 2);
        let mut done = running.ids("done").await;
        done.sort();
        done.dedup();
        assert_eq!((done.len(), running.read("done").await.len()), (40, 40));
        running.is_clean().await;
    });
}

/// A state that is written again and again: its changelog is rolled. The stage stops behind each epoch, or behind
/// each second one.
fn rolls(turn: usize) {
    on_node(1, move |log, env| async move {
        let plan = plan(
            "process p receive orders transform state.last[customer] = text emit to big \
             state local last keyed by customer type map end",
        );
        for round in 0..40 {
            for number in 0..7 * (1 + (round + turn) % 2) {
                // Another text each time: a value that stays as it is is not written.
                order(&log, number % 4, 8_000 + round * 14 + number).await;
            }
            let running = Running::new(&plan, options("p"), &log, &env);
            running.run(Duration::ZERO).await;
        }
        let changelog = topic("stage.p.changelog");
        let found = log.describe(&changelog).await.unwrap().partitions[0];
        assert!(found.start.0 > 0, "{found:?}");
        let running = Running::new(&plan, options("p"), &log, &env);
        assert_eq!(running.books.values("last").await.unwrap().len(), 4);
        running.is_clean().await;
    });
}

/// R02: the changelog is cut behind its newest base, and not before a commit names that base.
#[test]
fn r02_a_changelog_is_rolled_and_a_cut_that_comes_too_early_is_caught() {
    let mut caught = 0;
    for turn in 0..2 {
        rolls(turn);
        plant(Some(PlantedStageBug::BaseCutTooEarly));
        caught += u32::from(catch_unwind(|| rolls(turn)).is_err());
        plant(None);
    }
    assert!(caught > 0);
}
