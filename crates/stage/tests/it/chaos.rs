//! Real processes on a broker of their own: killed, stopped past their session, and the broker restarted under them.

use crate::simulation::{FLOWS, Played};

/// The flows that the processes run, with three partitions each: state, and a topic of the stage's own.
const PLAYED: [&Played; 2] = [&FLOWS[3], &FLOWS[1]];

mod needs_kafka {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;
    use std::process::Child;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use tidegate_core::env::{Entropy, Env, Stream};
    use tidegate_core::{GroupName, Shutdown};
    use tidegate_log::kafka::{KafkaConfig, KafkaLog};
    use tidegate_log::{Append, Log, TopicConfig};
    use tidegate_sim::is_long;
    use tidegate_testkit::child::{self, pause, resume};

    use super::PLAYED;
    use crate::broker::Broker;
    use crate::deaths::Scenario;
    use crate::simulation::options;

    /// The session of a member: shorter than usual, so that a stop outlasts it.
    const SESSION: Duration = Duration::from_secs(6);
    const LIMIT: Duration = Duration::from_secs(180);
    const SERVERS: &str = "STAGE_CHAOS_SERVERS";
    const NUMBER: &str = "STAGE_CHAOS_NUMBER";
    const COUNT: &str = "STAGE_CHAOS_COUNT";

    async fn connect(servers: &str) -> Arc<dyn Log> {
        let config = KafkaConfig::new("chaos", servers);
        let log = KafkaLog::connect(config, Env::system().fork("kafka")).await;
        Arc::new(log.unwrap())
    }

    fn scenarios(count: u64) -> Vec<Scenario> {
        let played = PLAYED.iter().enumerate();
        played
            .map(|(number, flow)| Scenario::new(flow, &format!("chaos{number}"), count))
            .collect()
    }

    /// The process that runs the stages, until it is killed or its input ends.
    pub(crate) fn run(variable: impl Fn(&str) -> Option<String>) -> bool {
        let Some(servers) = variable(SERVERS) else {
            return false;
        };
        let number = variable(NUMBER).unwrap();
        let count: u64 = variable(COUNT).unwrap().parse().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let log = connect(&servers).await;
            let (trigger, stop) = Shutdown::new();
            let mut running = Vec::new();
            for scenario in scenarios(count) {
                let mut settings = options(&scenario.process);
                settings.instance = format!("{}-{number}", scenario.process);
                settings.session_timeout = SESSION;
                settings.parallelism = Some(2);
                let stage = scenario.stage_with(settings, Arc::clone(&log), &Env::system());
                let stop = stop.clone();
                running.push(tokio::spawn(async move { stage.run(stop).await }));
            }
            child::say("up");
            tokio::task::spawn_blocking(|| {
                let mut text = String::new();
                std::io::stdin().read_line(&mut text).ok();
            })
            .await
            .unwrap();
            trigger.stop();
            for stage in running {
                stage.await.unwrap().unwrap();
            }
            child::say("ended");
        });
        true
    }

    struct Worker {
        process: Child,
        lines: child::ChildLines,
    }

    fn start(servers: &str, number: usize, count: u64) -> Worker {
        let (number, count) = (number.to_string(), count.to_string());
        let variables = [
            (SERVERS, OsStr::new(servers)),
            (NUMBER, OsStr::new(&number)),
            (COUNT, OsStr::new(&count)),
        ];
        let (process, mut lines) = child::start(&variables).unwrap();
        assert_eq!(lines.next().as_deref(), Some("up"));
        Worker { process, lines }
    }

    /// Waits until everything is read.
    async fn settle(scenarios: &[Scenario], log: &Arc<dyn Log>) {
        let env = Env::system();
        let until = Instant::now() + LIMIT;
        for scenario in scenarios {
            let books = scenario.books(Arc::clone(log), &env);
            loop {
                // Offsets alone do not tell: behind the records of a transaction lies its marker.
                let found = books.audit().await.unwrap_or_default();
                let queued: i64 = found.iter().map(|one| one.recount.queued).sum();
                if !found.is_empty() && queued == 0 {
                    break;
                }
                assert!(Instant::now() < until, "it does not get on: {found:#?}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    /// R02, R04, R08, A08: two processes share the partitions of two stages.
    #[test]
    #[ignore = "needs Kafka"]
    fn r02_processes_that_are_killed_and_stopped_give_what_the_model_gives() {
        let (lasts, count) = match is_long() {
            true => (Duration::from_secs(300), 12_000),
            false => (Duration::from_secs(15), 600),
        };
        let mut broker = Broker::start();
        let servers = broker.servers();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let scenarios = scenarios(count);
        let log = runtime.block_on(connect(&servers));
        for (scenario, flow) in scenarios.iter().zip(PLAYED) {
            let topic = options(&scenario.process).topic(flow.streams[0]).unwrap();
            let config = TopicConfig::new(u32::try_from(flow.partitions).unwrap());
            runtime.block_on(log.create_topic(&topic, config)).unwrap();
        }
        let mut workers: Vec<Worker> = (0..2).map(|n| start(&servers, n, count)).collect();
        let appends: Vec<Append> = scenarios
            .iter()
            .flat_map(|scenario| scenario.appends.iter().cloned())
            .collect();
        let sending = {
            let log = Arc::clone(&log);
            // In small batches all the time; each record is added once, however often the broker is away.
            let batch = 20;
            let pause = lasts / u32::try_from(appends.len() / batch).unwrap();
            runtime.spawn(async move {
                for some in appends.chunks(batch) {
                    for delivered in log.deliver(some.to_vec()).await.unwrap() {
                        delivered.unwrap();
                    }
                    tokio::time::sleep(pause).await;
                }
            })
        };
        let mut draws = Stream::new(7);
        let draws: &mut dyn Entropy = &mut draws;
        let mut done: BTreeMap<&str, u32> = BTreeMap::new();
        let end = Instant::now() + lasts;
        let mut round = 0;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(500 + draws.below(2_500)));
            let number = usize::try_from(draws.below(2)).unwrap();
            round += 1;
            let what = match round % 5 {
                3 => {
                    let worker = &workers[number];
                    pause(&worker.process).unwrap();
                    std::thread::sleep(SESSION + Duration::from_secs(2 + draws.below(4)));
                    resume(&worker.process).unwrap();
                    "stops past the session"
                }
                0 => {
                    broker.kill();
                    std::thread::sleep(Duration::from_millis(draws.below(3_000)));
                    broker.restart();
                    "broker restarts"
                }
                _ => {
                    let process = &mut workers[number].process;
                    process.kill().unwrap();
                    process.wait().unwrap();
                    workers[number] = start(&servers, number, count);
                    "kills"
                }
            };
            *done.entry(what).or_default() += 1;
        }
        runtime.block_on(async {
            tokio::time::timeout(LIMIT, sending).await.unwrap().unwrap();
            settle(&scenarios, &log).await;
        });
        for worker in &mut workers {
            drop(worker.process.stdin.take());
            assert_eq!(worker.lines.next().as_deref(), Some("ended"));
            assert!(worker.process.wait().unwrap().success());
        }
        for scenario in scenarios {
            let (plan, settings) = (Arc::clone(&scenario.plan), options(&scenario.process));
            let group: GroupName = settings.group.clone();
            let (log, env) = (Arc::clone(&log), Env::system());
            runtime.block_on(scenario.expected.check(log, &env, plan, settings));
            eprintln!("{group}: {count} records, {done:?}, lost 0, doubled 0, audit clean");
        }
    }
}

/// Runs a part of this program in a process of its own, where its variables say so.
pub(crate) fn run_child() -> bool {
    needs_kafka::run(|name| std::env::var(name).ok())
}
