//! Test files on the real logs: the real client, and a clock that stands still in between.
//!
//! The same files are played on the model here, and on the simulated log by `tidegate flow test --runtime --crash`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use jiff::Timestamp;
use tidegate_core::Shutdown;
use tidegate_core::env::system::system_entropy;
use tidegate_core::env::{Clock, Entropy, Env};
use tidegate_flow::model::ModelInput;
use tidegate_flow::scenario::{
    ScenarioFile, ScenarioLook, ScenarioProcess, ScenarioStep, ScenarioStop, run_scenarios,
};
use tidegate_log::{EmbeddedConfig, EmbeddedLog, Log};
use tidegate_stage::Stage;
use tidegate_stage::scenario::PlayedStage;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::virtual_clock::VirtualClock;

const LIMIT: Duration = Duration::from_secs(60);

/// A stage of a test on a real log.
pub(crate) struct RealProcess {
    runtime: Arc<Runtime>,
    log: Arc<dyn Log>,
    played: PlayedStage,
    clock: Option<VirtualClock>,
    running: Option<(Stage, JoinHandle<()>)>,
    has_died: bool,
    /// How long an expectation is waited for: a broker shows the records of a transaction a moment after its offsets.
    shown_until: Instant,
}

impl RealProcess {
    fn new(
        runtime: &Arc<Runtime>,
        log: &Arc<dyn Log>,
        file: &ScenarioFile,
        prefix: &str,
    ) -> ScenarioStep<Self> {
        let on = (Arc::clone(log), prefix);
        let played = PlayedStage::new(file.plan(), file.process(), file.script()?, on)?;
        runtime.block_on(played.make_inputs())?;
        Ok(Self {
            runtime: Arc::clone(runtime),
            log: Arc::clone(log),
            played,
            clock: None,
            running: None,
            has_died: false,
            shown_until: Instant::now(),
        })
    }

    fn clock(&mut self, at: Option<Timestamp>) -> VirtualClock {
        let at = at.map_or(0, Timestamp::as_millisecond);
        let at = UNIX_EPOCH + Duration::from_millis(u64::try_from(at).unwrap());
        self.clock
            .get_or_insert_with(|| VirtualClock::new(at))
            .clone()
    }

    fn env(&self) -> Env {
        let clock: Arc<dyn Clock> = match &self.clock {
            Some(clock) => Arc::new(clock.clone()),
            None => Arc::new(VirtualClock::new(UNIX_EPOCH)),
        };
        Env {
            clock,
            ..Env::system()
        }
    }

    fn start(&mut self) -> ScenarioStep {
        if self.running.is_none() {
            let stage = self.played.stage(Arc::clone(&self.log), &self.env())?;
            let of_task = stage.clone();
            let running = self.runtime.spawn(async move {
                let (_trigger, stop) = Shutdown::new();
                of_task.run(stop).await.ok();
            });
            self.running = Some((stage, running));
        }
        Ok(())
    }

    /// Waits until everything that was sent is committed, and everything that is due.
    fn settle(&mut self) -> ScenarioStep {
        self.start()?;
        let Some((stage, _)) = &self.running else {
            return Ok(());
        };
        let books = self.played.books(&self.env())?;
        let until = Instant::now() + LIMIT;
        self.runtime.block_on(async {
            loop {
                if self.played.is_read(&books).await? && stage.is_at_rest().await {
                    self.shown_until = Instant::now() + LIMIT;
                    return Ok(());
                }
                if Instant::now() > until {
                    let message = format!("it does not come to rest: {:#?}", stage.status());
                    return Err(ScenarioStop::Failure(message));
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    }
}

impl ScenarioProcess for RealProcess {
    fn send(&mut self, input: ModelInput) -> ScenarioStep {
        let clock = self.clock(input.at);
        let at = input.at.map_or(0, Timestamp::as_millisecond);
        let ahead = u64::try_from(at).unwrap().saturating_sub(now_ms(&clock));
        if ahead > 0 {
            self.advance(Duration::from_millis(ahead))?;
        }
        // A record that is sent before the stage began would be read at its start.
        self.settle()?;
        self.runtime
            .block_on(self.played.send(input, now_ms(&clock)))?;
        self.settle()
    }

    fn advance(&mut self, by: Duration) -> ScenarioStep {
        self.settle()?;
        self.clock(None).advance(by);
        self.settle()
    }

    fn crash(&mut self) -> ScenarioStep {
        if let Some((_, running)) = self.running.take() {
            running.abort();
            self.runtime.block_on(running).ok();
        }
        self.has_died = true;
        self.settle()
    }

    fn finish(&mut self) -> ScenarioStep {
        Ok(())
    }

    fn set_slow(&mut self, _: bool) -> ScenarioStep {
        Err(ScenarioStop::Skipped(
            "nothing but the load makes a stage slow".to_owned(),
        ))
    }

    fn look(&mut self) -> ScenarioStep<ScenarioLook> {
        let books = self.played.books(&self.env())?;
        let stage = self.running.as_ref().map(|(stage, _)| stage);
        self.runtime
            .block_on(self.played.look(&books, stage, !self.has_died))
    }

    fn looks_again(&mut self) -> bool {
        std::thread::sleep(Duration::from_millis(20));
        Instant::now() < self.shown_until
    }
}

impl Drop for RealProcess {
    fn drop(&mut self) {
        if let Some((_, running)) = self.running.take() {
            running.abort();
            self.runtime.block_on(running).ok();
        }
    }
}

fn now_ms(clock: &dyn Clock) -> u64 {
    clock.now_ms()
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Plays every test file of a folder whose name begins so, on the model and on a log.
fn play(runtime: &Arc<Runtime>, log: &Arc<dyn Log>, dir: &Path, start: &str) {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with(start) && name.ends_with(".test.yaml")
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no test file begins with `{start}`");
    let mut entropy = system_entropy();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let read = &mut |flow: &str| {
            std::fs::read_to_string(dir.join(flow)).map_err(|error| error.to_string())
        };
        for outcome in run_scenarios(&text, read).unwrap() {
            assert_eq!(
                outcome.failure, None,
                "{path:?} on the model: {}",
                outcome.name
            );
        }
        let file = ScenarioFile::parse(&text, read).unwrap();
        for number in 0..file.len() {
            let prefix = format!("t{:x}.", entropy.next_u64());
            let played = RealProcess::new(runtime, log, &file, &prefix)
                .and_then(|mut process| file.play(number, &mut process));
            let outcome = file.outcome(number, played);
            assert_eq!(outcome.failure, None, "{path:?}: {}", outcome.name);
            if let Some(why) = outcome.skipped {
                eprintln!("skipped {path:?}: {}: {why}", outcome.name);
            }
        }
    }
}

fn runtime() -> Arc<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Arc::new(builder.worker_threads(2).enable_all().build().unwrap())
}

fn on_embedded(dir: &Path, start: &str) {
    let kept = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let _entered = runtime.enter();
    let log = EmbeddedLog::open(&Env::system(), EmbeddedConfig::new(kept.path())).unwrap();
    let on: Arc<dyn Log> = Arc::new(log.clone());
    play(&runtime, &on, dir, start);
    runtime.block_on(log.close());
}

#[test]
fn r10_await_keeps_its_promises_on_the_embedded_log() {
    on_embedded(&folder("tests/scenarios"), "await");
}

#[test]
fn r11_hold_keeps_its_promises_on_the_embedded_log() {
    on_embedded(&folder("tests/scenarios"), "hold");
}

#[test]
fn r13_windows_keep_their_promises_on_the_embedded_log() {
    on_embedded(&folder("tests/scenarios"), "windows");
}

#[test]
fn r14_state_expires_on_the_embedded_log() {
    on_embedded(&folder("tests/scenarios"), "ttl");
}

#[test]
fn r25_the_example_processes_are_those_of_the_model_on_the_embedded_log() {
    on_embedded(&folder("../../examples/flows"), "");
}

mod needs_kafka {
    use super::*;
    use tidegate_log::kafka::{KafkaConfig, KafkaLog};

    fn on_kafka(dir: &Path, start: &str) {
        let servers = std::env::var("KAFKA_BOOTSTRAP").expect("KAFKA_BOOTSTRAP is not set");
        let runtime = runtime();
        let config = KafkaConfig::new("test", &servers);
        let log = KafkaLog::connect(config, Env::system().fork("kafka"));
        let log: Arc<dyn Log> = Arc::new(runtime.block_on(log).unwrap());
        play(&runtime, &log, dir, start);
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn r10_await_keeps_its_promises_on_kafka() {
        on_kafka(&folder("tests/scenarios"), "await");
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn r11_hold_keeps_its_promises_on_kafka() {
        on_kafka(&folder("tests/scenarios"), "hold");
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn r13_windows_keep_their_promises_on_kafka() {
        on_kafka(&folder("tests/scenarios"), "windows");
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn r14_state_expires_on_kafka() {
        on_kafka(&folder("tests/scenarios"), "ttl");
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn r25_the_example_processes_are_those_of_the_model_on_kafka() {
        on_kafka(&folder("../../examples/flows"), "");
    }
}
