//! The model of the simulation keeps the rules, slow and in every order that a seed brings.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::env::{Clock, Env, Spawn};
use tidegate_core::{GroupName, Topic};
use tidegate_log::conformance::{Account, Promises, Scene, Stage, Times, Written};
use tidegate_log::{Log, LogFuture};
use tidegate_sim::{LogFault, LogRates, Sim, SimLog};

/// Seeds for each rule.
const SEEDS: u64 = 10;

#[derive(Debug)]
struct Model {
    log: SimLog,
    env: Env,
    last: AtomicU64,
    /// Answers that were to be lost.
    injected: AtomicU64,
}

impl Stage for Model {
    fn log(&self) -> Arc<dyn Log> {
        Arc::new(self.log.clone())
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
        Times {
            settle: Duration::from_secs(60),
            quiet: Duration::from_secs(2),
        }
    }

    fn promises(&self) -> Promises {
        Promises {
            deletion_waits_for_groups: true,
            answers_in_the_end: true,
            reads_commits_at_once: true,
        }
    }

    fn reopen(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Log>> + Send + '_>> {
        self.log.crash();
        let log = self.log();
        Box::pin(async move { log })
    }

    fn over_a_bad_line(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Log>> + Send + '_>> {
        let log = self.log();
        Box::pin(async move { log })
    }

    fn lose_next_answer(&self, _of: Written) {
        self.injected.fetch_add(1, Ordering::Relaxed);
        self.log.inject(LogFault::LoseAnswer);
    }

    fn answers_lost(&self) -> u64 {
        self.injected.load(Ordering::Relaxed) - self.log.faults_left()
    }

    fn refuse_next_commit(&self) -> bool {
        self.log.inject(LogFault::LoseRequest);
        true
    }

    fn account<'a>(&'a self, group: &'a GroupName, topic: &'a Topic) -> LogFuture<'a, Account> {
        let books = self.log.books(group, topic);
        let account = Account::new(&books, true);
        let is_confirmed = account.settled == self.log.recount(group, topic);
        Box::pin(async move {
            Ok(Account {
                is_confirmed,
                ..account
            })
        })
    }
}

macro_rules! run {
    ($rule:path) => {
        for seed in 0..SEEDS {
            let mut sim = Sim::new(seed);
            let node = sim.node("broker");
            let env = node.env();
            let log = SimLog::new(&env);
            log.set_rates(LogRates {
                delay: Duration::from_millis(seed),
                ..LogRates::default()
            });
            let last = AtomicU64::new(0);
            let injected = AtomicU64::new(0);
            let stage = Arc::new(Model {
                log,
                env,
                last,
                injected,
            });
            sim.block_on(&node, $rule(Scene::new(stage)));
        }
    };
}

tidegate_log::log_conformance!(run);
