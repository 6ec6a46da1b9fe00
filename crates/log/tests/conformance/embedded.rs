//! The embedded log keeps the rules: on the simulated disk, where every restart is a power cut, and
//! in a real directory.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::books::Books;
use tidegate_core::env::{Clock, Disk, Env, Spawn};
use tidegate_core::{GroupName, Topic};
use tidegate_log::conformance::{Account, Promises, Stage, Times, Written};
use tidegate_log::{EmbeddedConfig, EmbeddedLog, Log, LogAdmin, LogFuture, OpenLog};
use tidegate_sim::{SimDisk, Survivors};

use crate::lossy::Losses;

/// A log in a directory, so small that a rule reaches several files of each kind.
pub(crate) fn small(dir: &Path) -> EmbeddedConfig {
    EmbeddedConfig {
        segment_size: 16 * 1024,
        journal_size: 64 * 1024,
        cache_size: 4 * 1024,
        ..EmbeddedConfig::new(dir)
    }
}

/// The log that is open at the moment.
#[derive(Debug)]
struct Life {
    log: EmbeddedLog,
    /// The disk, where it can lose its power.
    disk: Option<SimDisk>,
}

#[derive(Debug)]
struct Embedded {
    env: Env,
    config: EmbeddedConfig,
    life: Mutex<Life>,
    last: AtomicU64,
    times: Times,
    losses: Losses,
}

impl Embedded {
    fn new(env: Env, config: EmbeddedConfig, disk: Option<SimDisk>, times: Times) -> Self {
        let losses = Losses::default();
        let life = open(&env, &config, disk, &losses);
        Self {
            losses,
            env,
            config,
            life: Mutex::new(life),
            last: AtomicU64::new(0),
            times,
        }
    }
}

fn open(env: &Env, config: &EmbeddedConfig, disk: Option<SimDisk>, losses: &Losses) -> Life {
    let mut env = env.fork("log");
    if let Some(disk) = &disk {
        env.disk = Arc::new(disk.clone()) as Arc<dyn Disk>;
    }
    env.disk = Arc::new(losses.on(env.disk));
    let log = EmbeddedLog::open(&env, config.clone()).unwrap();
    Life { log, disk }
}

impl Stage for Embedded {
    fn log(&self) -> Arc<dyn Log> {
        Arc::new(self.life.lock().unwrap().log.clone())
    }

    fn admin(&self) -> Option<Arc<dyn LogAdmin>> {
        let log = self.life.lock().unwrap().log.clone();
        let owned = Vec::new();
        Some(Arc::new(OpenLog::Embedded { log, owned }))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.env.clock)
    }

    fn spawn(&self) -> Arc<dyn Spawn> {
        Arc::clone(&self.env.spawn)
    }

    fn unique(&self) -> String {
        self.last.fetch_add(1, Ordering::Relaxed).to_string()
    }

    fn times(&self) -> Times {
        self.times
    }

    fn promises(&self) -> Promises {
        Promises {
            deletion_waits_for_groups: true,
            // A log whose sync failed takes nothing more until it is opened again.
            answers_in_the_end: false,
            reads_commits_at_once: true,
        }
    }

    fn reopen(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Log>> + Send + '_>> {
        Box::pin(async move {
            let (log, disk) = {
                let life = self.life.lock().unwrap();
                let draw = self.last.fetch_add(1, Ordering::Relaxed);
                let after = |disk: &SimDisk| disk.after_crash(&Survivors::Random(draw));
                let disk = life.disk.as_ref().map(after);
                (life.log.clone(), disk)
            };
            // After a power cut the old process is not there to close anything.
            if disk.is_none() {
                log.close().await;
            }
            *self.life.lock().unwrap() = open(&self.env, &self.config, disk, &self.losses);
            self.log()
        })
    }

    fn over_a_bad_line(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Log>> + Send + '_>> {
        Box::pin(async { self.log() })
    }

    fn lose_next_answer(&self, _of: Written) {
        self.losses.lose_next();
    }

    fn answers_lost(&self) -> u64 {
        self.losses.lost()
    }

    fn refuse_next_commit(&self) -> bool {
        self.losses.refuse_next();
        true
    }

    fn account<'a>(&'a self, group: &'a GroupName, topic: &'a Topic) -> LogFuture<'a, Account> {
        let log = self.life.lock().unwrap().log.clone();
        Box::pin(async move {
            let audited = log.storage().audit().await?;
            let found = audited
                .into_iter()
                .find(|one| one.topic == *topic && one.group.as_ref() == Some(group));
            Ok(match found {
                Some(found) => {
                    // Over all buckets: of old events, what is posted is folded later than what lay
                    // there before.
                    let is_balanced = found.books.account().is_balanced();
                    Account::new(&found.books, found.missing.is_empty() && is_balanced)
                }
                None => Account::new(&Books::default(), true),
            })
        })
    }
}

pub(crate) mod simulated {
    use tidegate_log::conformance::Scene;
    use tidegate_sim::Sim;

    use super::*;

    macro_rules! run {
        ($rule:path) => {
            for seed in 0..3 {
                let mut sim = Sim::new(seed);
                let node = sim.node("a");
                let env = node.env();
                let times = Times {
                    settle: Duration::from_secs(60),
                    quiet: Duration::from_secs(2),
                };
                sim.block_on(&node, async move {
                    let disk = SimDisk::new(seed);
                    let config = small(Path::new("/log"));
                    let stage = Embedded::new(env, config, Some(disk), times);
                    $rule(Scene::new(Arc::new(stage))).await;
                });
            }
        };
    }

    tidegate_log::log_conformance!(run);
    tidegate_log::log_admin_conformance!(run);
}

pub(crate) mod directory {
    use tidegate_log::conformance::Scene;

    use super::*;

    macro_rules! run {
        ($rule:path) => {{
            let dir = tempfile::tempdir().unwrap();
            let times = Times {
                settle: Duration::from_secs(60),
                quiet: Duration::from_millis(200),
            };
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_time()
                .worker_threads(2)
                .build()
                .unwrap();
            runtime.block_on(async {
                let stage = Embedded::new(Env::system(), small(dir.path()), None, times);
                $rule(Scene::new(Arc::new(stage))).await;
            });
        }};
    }

    tidegate_log::log_conformance!(run);
    tidegate_log::log_admin_conformance!(run);
}
