//! Tests that need the real thing: threads, files, processes, memory.

#![expect(
    clippy::disallowed_methods,
    reason = "these run in real time, on real files and threads"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{Disk, Env, OpenMode};
use tidegate_logger::spill::{ACTIVE, SpillError, inspect, recount};
use tidegate_logger::{
    Api, ApiAnswer, ApiFailure, EventOutcome, Logger, LoggerConfig, LoggerConfigBuilder, LoggerId,
    LoggerReport, LossCallback, OnFull, Payload, RunningLogger, Sending, StartError,
};
use tidegate_sim::scaled;
use tokio::sync::oneshot;

use crate::fixture::{Losses, event};
use crate::gate::Gate;
use crate::probed_disk::probed_disk;

/// Long enough for a busy machine, short enough for a person.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// An API in this process that works or does not.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    is_up: AtomicBool,
    count: AtomicU64,
}

impl Switch {
    pub(crate) fn up(&self) {
        self.is_up.store(true, Ordering::SeqCst);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }
}

impl Api for Switch {
    fn send_from<'a>(&'a self, _: Option<LoggerId>, batch: &'a [Payload]) -> Sending<'a> {
        Box::pin(async move {
            if self.is_up.load(Ordering::SeqCst) {
                self.count.fetch_add(batch.len() as u64, Ordering::SeqCst);
                return ApiAnswer::PerEvent(vec![EventOutcome::Stored; batch.len()]);
            }
            ApiAnswer::Failed(ApiFailure {
                code: tidegate_core::Code::from_static("connection.refused"),
                message: "down".to_owned(),
                retry_after: None,
            })
        })
    }
}

pub(crate) fn spilling_to(dir: &TempDir) -> LoggerConfigBuilder {
    LoggerConfig::builder().spillover_path(dir.path().join("spill"))
}

/// A logger on a thread of its own with ports of the test's choice.
pub(crate) struct OnThread {
    pub(crate) logger: Logger,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<LoggerReport>,
}

impl OnThread {
    pub(crate) fn start(
        config: LoggerConfigBuilder,
        api: Arc<dyn Api>,
        env: Env,
        on_loss: LossCallback,
    ) -> Self {
        let (logger, task) =
            Logger::open(config.build().unwrap(), api, env, Some(on_loss)).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(task.run(async { stopped.await.unwrap() }))
        });
        Self {
            logger,
            stop,
            thread,
        }
    }

    pub(crate) fn shut_down(self) -> LoggerReport {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap()
    }
}

#[track_caller]
pub(crate) fn wait_until(what: &str, fact: impl Fn() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(start.elapsed() < LIMIT, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn unaccounted(dir: &TempDir) -> u64 {
    let counted = recount(&SystemDisk, &dir.path().join("spill")).unwrap();
    counted.unaccounted()
}

pub(crate) fn lines(dir: &TempDir, name: &str) -> usize {
    let bytes = std::fs::read(dir.path().join("spill").join(name)).unwrap_or_default();
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap()
}

#[test]
fn l01_logging_never_touches_the_disk_on_the_thread_of_the_caller_and_returns_while_it_hangs() {
    let dir = TempDir::new().unwrap();
    let threads = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&threads);
    let gate = Arc::new(Gate::default());
    let hangs = Arc::clone(&gate);
    let probe = move |operation: &'static str, path: &Path| {
        let who = std::thread::current().id();
        seen.lock().unwrap().insert((format!("{who:?}"), operation));
        if operation == "sync" && path.ends_with(ACTIVE) {
            hangs.pass();
        }
    };
    let mut env = Env::system();
    env.disk = probed_disk(probe);
    let config = spilling_to(&dir)
        .queue_capacity(50)
        .circuit_breaker_threshold(1);
    let losses = Losses::default();
    let running = OnThread::start(config, Arc::new(Switch::default()), env, losses.callback());
    gate.shut();
    running.logger.log(event(0)).unwrap();
    gate.wait_until_somebody_is_held();
    let logger = running.logger.clone();
    let caller = std::thread::spawn(move || {
        for number in 1..3_000 {
            logger.log(event(number)).ok();
        }
    });
    let who = format!("{:?}", caller.thread().id());
    wait_until("each call has returned", || caller.is_finished());
    caller.join().unwrap();
    let seen = threads.lock().unwrap().clone();
    let its: Vec<_> = seen.iter().filter(|(thread, _)| *thread == who).collect();
    assert!(its.is_empty(), "the caller's thread did {its:?}");
    let account = running.logger.account();
    assert!(
        account.lost.total() > 0,
        "both queues were full: {account:?}"
    );
    gate.open();
    let account = running.shut_down().account;
    assert_eq!(
        account.accepted,
        account.spilled + account.lost.total(),
        "{account:?}"
    );
    let lost = usize::try_from(account.lost.total()).unwrap();
    wait_until("every loss is reported", || losses.all().len() >= lost);
    assert_eq!(losses.all().len(), lost);
}

#[test]
fn l23_with_on_full_block_logging_on_a_thread_waits_and_loses_nothing() {
    let dir = TempDir::new().unwrap();
    let api = Arc::new(Switch::default());
    let config = spilling_to(&dir)
        .on_full(OnFull::Block)
        .queue_capacity(10)
        .max_spillover_events(20)
        .circuit_breaker_threshold(1)
        .circuit_breaker_reset_ms(50)
        .replay_interval_ms(1_000)
        .build()
        .unwrap();
    let losses = Losses::default();
    let logger = RunningLogger::start(config, api.clone(), Some(losses.callback())).unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..2_u64)
        .map(|thread| {
            let (logger, done) = (Logger::clone(&logger), Arc::clone(&done));
            std::thread::spawn(move || {
                for number in 0..150 {
                    logger.log(event(thread * 1_000 + number)).unwrap();
                    done.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    wait_until("the file is full", || lines(&dir, ACTIVE) == 20);
    assert!(done.load(Ordering::SeqCst) < 300, "they wait");
    api.up();
    for thread in threads {
        thread.join().unwrap();
    }
    let account = logger.shutdown().account;
    assert_eq!(account.accepted, 300);
    assert_eq!(account.delivered + account.spilled, 300, "{account:?}");
    assert_eq!(losses.all(), []);
    assert_eq!(unaccounted(&dir), 0);
}

/// Covers W9: in the reference one process destroys the events of the other.
#[test]
fn l28_a_second_opening_of_the_directory_is_refused_and_harms_nothing() {
    let dir = TempDir::new().unwrap();
    let config = || {
        let config = spilling_to(&dir).circuit_breaker_threshold(1);
        config.build().unwrap()
    };
    let first = RunningLogger::start(config(), Arc::new(Switch::default()), None).unwrap();
    first.log(event(0)).unwrap();
    let error = RunningLogger::start(config(), Arc::new(Switch::default()), None).unwrap_err();
    assert!(
        matches!(error, StartError::Spill(SpillError::Locked { .. })),
        "{error}"
    );
    let answer = child("l28", &dir.path().join("spill"));
    assert!(
        answer.contains("refused: spill directory")
            && answer.contains(&format!("is used by process {},", std::process::id())),
        "another process says: {answer}"
    );
    first.log(event(1)).unwrap();
    assert_eq!(first.shutdown().account.spilled, 2);
    // Once the first has ended, the next one is let in.
    let answer = child("l28", &dir.path().join("spill"));
    assert!(
        answer.contains("opened with 2"),
        "another process says: {answer}"
    );
}

/// Runs `child_process_entry` in a process of its own and gives what it said.
fn child(what: &str, path: &Path) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "real::child_process_entry",
            "--ignored",
            "--nocapture",
        ])
        .env("TIDEGATE_CHILD", format!("{what} {}", path.display()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}\n{errors}");
    text
}

#[test]
#[ignore = "not a test: what others run in a process of its own"]
fn child_process_entry() {
    let Ok(asked) = std::env::var("TIDEGATE_CHILD") else {
        return;
    };
    let (what, path) = asked.split_once(' ').unwrap();
    let config = LoggerConfig::builder().spillover_path(path);
    match what {
        "l28" => {
            let api = Arc::new(Switch::default());
            match Logger::open(config.build().unwrap(), api, Env::system(), None) {
                Ok((logger, _task)) => println!("opened with {}", logger.account().spilled),
                Err(error) => println!("refused: {error}"),
            }
        }
        "l39" => {
            let before = status("VmRSS");
            let api = Arc::new(Switch::default());
            api.up();
            let logger = RunningLogger::start(config.build().unwrap(), api, None).unwrap();
            let opened = status("VmHWM");
            let account = logger.account();
            let backlog = account.spilled + account.delivered;
            let start = Instant::now();
            while logger.account().delivered < backlog {
                assert!(start.elapsed() < 20 * LIMIT, "{:?}", logger.account());
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(logger.shutdown().account.delivered, backlog);
            let replayed = status("VmHWM");
            println!(
                "lines {backlog} opened {} replayed {}",
                opened.saturating_sub(before),
                replayed.saturating_sub(before)
            );
        }
        "starved" => {
            let mut taken = Vec::new();
            while let Ok(file) = std::fs::File::open("/dev/null") {
                taken.push(file);
            }
            let api = Arc::new(Switch::default());
            let started = RunningLogger::start(LoggerConfig::builder().build().unwrap(), api, None);
            let is_refused = matches!(started, Err(StartError::Runtime(_)));
            drop(taken);
            println!("refused {is_refused}");
        }
        other => panic!("nobody knows `{other}`"),
    }
}

/// A process whose file descriptors are all in use: it is told, and is left without a logger that
/// runs nowhere.
#[test]
fn a_logger_that_gets_no_runtime_is_not_started() {
    let test = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
        .arg(test)
        .args([
            "--exact",
            "real::child_process_entry",
            "--ignored",
            "--nocapture",
        ])
        .env("TIDEGATE_CHILD", "starved /nowhere")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("refused true"), "{text}");
}

/// A number of KiB from the status of this process: `VmRSS` is its memory now, `VmHWM` at most.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Writes a spill file of so many MiB that a Java client could have left, and says how many lines
/// it has.
fn write_backlog(dir: &Path, mib: u64, line: impl Fn(u64) -> String) -> u64 {
    SystemDisk.create_dir_all(dir).unwrap();
    let path = dir.join(ACTIVE);
    let mut file = SystemDisk.open(&path, OpenMode::CreateNew).unwrap();
    let (mut written, mut number) = (0, 0);
    let mut buffer = Vec::new();
    while written < mib << 20 {
        buffer.clear();
        while buffer.len() < 1 << 20 {
            buffer.extend_from_slice(line(number).as_bytes());
            number += 1;
        }
        file.append(&buffer).unwrap();
        written += buffer.len() as u64;
    }
    file.sync().unwrap();
    number
}

#[track_caller]
fn assert_constant_memory(mib: u64, line: impl Fn(u64) -> String) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("spill");
    let count = write_backlog(&path, mib, line);
    let said = child("l39", &path);
    let said = &said[said.find("lines ").unwrap()..];
    let number = |name: &str| -> u64 {
        let rest = &said[said.find(name).unwrap() + name.len()..];
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    assert_eq!(number("lines "), count);
    let grown = [number("opened "), number("replayed ")];
    assert!(
        grown.iter().all(|kib| *kib < 16 * 1024),
        "KiB after opening and after replay: {grown:?}, for {mib} MiB and {count} lines"
    );
}

/// Covers W15: the reference holds the whole file in memory.
#[test]
fn l39_a_file_far_larger_than_memory_is_opened_and_replayed_in_constant_memory() {
    assert_constant_memory(scaled(1_280), |number| {
        format!(
            "{{\"applicationId\":\"pet-resort-api\",\"correlationId\":\"{number:08x}\",\
             \"processName\":\"CreateBooking\",\"processStatus\":\"STEP\",\
             \"step\":\"BookingCreated\",\"details\":\"Booking BK-{number} created for PET-001\",\
             \"targetSystem\":\"PET_RESORT\",\"originatingSystem\":\"PET_RESORT\",\
             \"timestamp\":\"2026-06-01T10:15:30.123Z\",\"userId\":\"system\"}}\n"
        )
    });
}

#[test]
fn l39_memory_does_not_grow_with_the_number_of_lines_either() {
    assert_constant_memory(scaled(640), |number| {
        format!("{{\"details\":\"{number}\"}}\n")
    });
}

/// On every platform we build for, the port replaces a file atomically (`rename(2)` within one
/// directory), so the reference's fallback has no case; `docs/decisions/0008` says more. The promises
/// of that fallback are checked of the port here, and of a rename that fails in `spill.rs`.
#[test]
fn l40_replacing_a_file_leaves_one_complete_file() {
    let dir = TempDir::new().unwrap();
    let (from, to) = (dir.path().join(ACTIVE), dir.path().join("replay"));
    for round in 0..50_u8 {
        let mut file = SystemDisk.open(&from, OpenMode::CreateNew).unwrap();
        file.append(&vec![round; 10_000]).unwrap();
        file.sync().unwrap();
        SystemDisk.replace(&from, &to).unwrap();
        let entries = SystemDisk.list(dir.path()).unwrap();
        let names: Vec<String> = entries.into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["replay"]);
        let disk: &dyn Disk = &SystemDisk;
        assert_eq!(disk.read(&to, 1 << 20).unwrap(), vec![round; 10_000]);
    }
}

/// Covers W1.
#[test]
fn l50_on_a_real_disk_ten_thousand_queued_events_are_all_there_after_shutdown() {
    let dir = TempDir::new().unwrap();
    let losses = Losses::default();
    let config = spilling_to(&dir).build().unwrap();
    let api = Arc::new(Switch::default());
    let logger = RunningLogger::start(config, api, Some(losses.callback())).unwrap();
    assert_eq!(logger.log_all((0..10_000).map(event)), 10_000);
    let report = logger.shutdown();
    assert_eq!(report.account.spilled, 10_000, "{report:?}");
    let counted = recount(&SystemDisk, &dir.path().join("spill")).unwrap();
    assert_eq!(counted.unaccounted(), 0);
    let inspection = inspect(&SystemDisk, &dir.path().join("spill")).unwrap();
    assert_eq!(inspection.waiting(), 10_000);
    assert_eq!(losses.all(), []);
}

#[test]
fn l52_threads_that_race_with_shutdown_lose_nothing_that_was_accepted() {
    for round in 0..scaled(400) {
        let dir = TempDir::new().unwrap();
        let api = Arc::new(Switch::default());
        if round % 2 == 0 {
            api.up();
        }
        let config = spilling_to(&dir).queue_capacity(200).batch_size(7);
        let losses = Losses::default();
        let logger = RunningLogger::start(
            config.build().unwrap(),
            api.clone(),
            Some(losses.callback()),
        )
        .unwrap();
        let accepted = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (logger, accepted) = (Logger::clone(&logger), Arc::clone(&accepted));
                std::thread::spawn(move || {
                    let mut refused = 0;
                    loop {
                        match logger.log(event(accepted.load(Ordering::Relaxed))) {
                            Ok(()) => {
                                accepted.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(why) => {
                                refused += 1;
                                if why.reason == "shutdown_in_progress" {
                                    return refused;
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        let handle = Logger::clone(&logger);
        wait_until("there is something", || {
            handle.account().accepted > signed(round * 50)
        });
        let report = logger.shutdown();
        let refused: u64 = threads.into_iter().map(|t| t.join().unwrap()).sum();
        let accepted = signed(accepted.load(Ordering::SeqCst));
        let account = handle.account();
        assert!(account.is_balanced(), "{account:?}");
        assert_eq!(account.delivered, signed(api.count()));
        let lost = usize::try_from(account.lost.total()).unwrap();
        wait_until("every loss is reported", || losses.all().len() >= lost);
        // The cap may refuse what was accepted, and tells; nothing else does.
        let reported = losses.by_reason();
        let capped = reported.get("spillover_max_events").copied().unwrap_or(0);
        assert_eq!(
            account.delivered + account.spilled + capped,
            accepted,
            "{report:?}"
        );
        assert_eq!(account.in_flight + account.retrying, 0);
        assert_eq!(signed(refused) + capped, reported.values().sum::<i64>());
        assert_eq!(unaccounted(&dir), 0);
    }
}

#[test]
fn dropping_a_running_logger_drains_it_as_shutdown_does() {
    let dir = TempDir::new().unwrap();
    let config = || spilling_to(&dir).build().unwrap();
    let logger = RunningLogger::start(config(), Arc::new(Switch::default()), None).unwrap();
    logger.log_all((0..500).map(event));
    drop(logger);
    assert_eq!(unaccounted(&dir), 0);
    let api = Arc::new(Switch::default());
    api.up();
    let logger = RunningLogger::start(config(), api.clone(), None).unwrap();
    wait_until("all have arrived", || api.count() == 500);
    drop(logger);
}
