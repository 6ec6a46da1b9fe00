//! A real broker keeps the rules. It is shared: rules use names of their own, and a rebalance takes
//! as long as it takes.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::books::{Books, Tally};
use tidegate_core::env::system::system_entropy;
use tidegate_core::env::{Clock, Entropy, Env, Spawn};
use tidegate_core::{GroupName, Topic};
use tidegate_log::conformance::{Account, Promises, Stage, Times, Written};
use tidegate_log::inspect::LogScope;
use tidegate_log::kafka::{KafkaConfig, KafkaLog, recount_group};
use tidegate_log::{Log, LogAdmin, LogFuture, OpenLog};

use crate::proxy::{END_TXN, Loss, OFFSET_COMMIT, PRODUCE, Proxy};

#[derive(Debug)]
struct Kafka {
    config: KafkaConfig,
    log: Mutex<KafkaLog>,
    env: Env,
    /// Made where a rule wants it; whatever is opened from then on goes over it.
    line: Mutex<Option<Arc<Proxy>>>,
}

impl Kafka {
    /// Connects to the broker that the environment names.
    async fn connect() -> Self {
        Self::open(KafkaConfig::new("conformance", variable("KAFKA_BOOTSTRAP"))).await
    }

    /// The same by the door that wants TLS and a password.
    async fn connect_guarded() -> Self {
        let servers = variable("KAFKA_SASL_SSL_BOOTSTRAP");
        let mut config = KafkaConfig::new("conformance", servers);
        config.properties = [
            ("security.protocol", "SASL_SSL".to_owned()),
            ("ssl.ca.location", variable("KAFKA_SSL_CA")),
            ("sasl.mechanism", "SCRAM-SHA-512".to_owned()),
            ("sasl.username", variable("KAFKA_SASL_USERNAME")),
            ("sasl.password", variable("KAFKA_SASL_PASSWORD")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        Self::open(config).await
    }

    async fn open(config: KafkaConfig) -> Self {
        let log = KafkaLog::connect(config.clone(), Env::system()).await;
        Self {
            config,
            log: Mutex::new(log.unwrap()),
            env: Env::system(),
            line: Mutex::default(),
        }
    }

    fn line(&self) -> Option<Arc<Proxy>> {
        self.line.lock().unwrap().clone()
    }

    async fn open_again(&self) -> Arc<dyn Log> {
        let mut config = self.config.clone();
        if let Some(line) = self.line() {
            config.bootstrap_servers = line.servers();
        }
        let log = KafkaLog::connect(config, Env::system()).await.unwrap();
        *self.log.lock().unwrap() = log.clone();
        Arc::new(log)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests are told by their environment where the broker is"
)]
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: cargo xtask services up"))
}

impl Stage for Kafka {
    fn log(&self) -> Arc<dyn Log> {
        Arc::new(self.log.lock().unwrap().clone())
    }

    fn admin(&self) -> Option<Arc<dyn LogAdmin>> {
        let log = self.log.lock().unwrap().clone();
        let scope = LogScope::default();
        Some(Arc::new(OpenLog::Kafka { log, scope }))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.env.clock)
    }

    fn spawn(&self) -> Arc<dyn Spawn> {
        Arc::clone(&self.env.spawn)
    }

    fn unique(&self) -> String {
        format!("{:016x}", system_entropy().next_u64())
    }

    fn times(&self) -> Times {
        Times {
            settle: Duration::from_secs(60),
            quiet: Duration::from_secs(1),
        }
    }

    fn promises(&self) -> Promises {
        Promises {
            deletion_waits_for_groups: false,
            answers_in_the_end: true,
            reads_commits_at_once: false,
        }
    }

    fn reopen(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Log>> + Send + '_>> {
        Box::pin(self.open_again())
    }

    fn over_a_bad_line(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Log>> + Send + '_>> {
        *self.line.lock().unwrap() = Some(Arc::new(Proxy::start(&self.config.bootstrap_servers)));
        Box::pin(self.open_again())
    }

    fn lose_next_answer(&self, of: Written) {
        let requests: &[i16] = match of {
            Written::Append => &[PRODUCE],
            // Offsets alone, or the end of a transaction.
            Written::Commit => &[OFFSET_COMMIT, END_TXN],
        };
        self.line().unwrap().lose_next_answer(requests, Loss::Cut);
    }

    fn answers_lost(&self) -> u64 {
        self.line().map_or(0, |line| line.lost())
    }

    fn refuse_next_commit(&self) -> bool {
        false
    }

    fn account<'a>(&'a self, group: &'a GroupName, topic: &'a Topic) -> LogFuture<'a, Account> {
        let log = self.log.lock().unwrap().clone();
        Box::pin(async move {
            let recount = recount_group(&log, group, topic).await?;
            let mut account = Account::new(&Books::default(), true);
            for partition in &recount.partitions {
                let books = partition.books.clone().unwrap();
                account.settled = account.settled.plus(Tally {
                    count: i64::try_from(books.count).unwrap(),
                    id_sum: books.id_sum,
                });
                for (place, tally) in &books.places {
                    let there = account.places.entry(place.clone()).or_default();
                    *there = there.plus(*tally);
                }
                account.is_confirmed &= partition.is_verifiable() && partition.agrees();
            }
            Ok(account)
        })
    }
}

pub(crate) mod needs_kafka {
    use std::sync::Arc;

    use tidegate_log::conformance::Scene;

    use super::Kafka;

    macro_rules! run {
        ($rule:path) => {
            tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .worker_threads(2)
                .build()
                .unwrap()
                .block_on(async { $rule(Scene::new(Arc::new(Kafka::connect().await))).await })
        };
    }

    tidegate_log::log_conformance!(run, #[ignore = "needs Kafka"]);
    tidegate_log::log_admin_conformance!(run, #[ignore = "needs Kafka"]);
}

/// A part of the rules once more, by the door that real clusters have: what each client of ours does
/// there is in it, from a read to a transaction of a group.
mod guarded {
    mod needs_kafka {
        use std::sync::Arc;

        use tidegate_log::conformance::Scene;

        use crate::kafka::Kafka;

        macro_rules! run {
            ($rule:path) => {
                tokio::runtime::Builder::new_multi_thread()
                    .enable_all()
                    .worker_threads(2)
                    .build()
                    .unwrap()
                    .block_on(async {
                        $rule(Scene::new(Arc::new(Kafka::connect_guarded().await))).await
                    })
            };
        }

        macro_rules! some {
            ($($module:ident: $($rule:ident),+;)+) => {
                $($(tidegate_log::log_conformance_test!(
                    run, [#[ignore = "needs Kafka"]], $module, $rule
                );)+)+
            };
        }

        some! {
            appends:
                t01_records_lie_in_the_order_of_their_appends,
                t02_appended_records_are_there_after_a_restart,
                a_value_of_one_mebibyte_comes_back_whole;
            groups: t11_the_next_owner_goes_on_at_the_committed_offset;
            rebalances: t10_members_share_the_partitions;
            commits:
                an_offset_reads_back_with_its_metadata,
                t20_records_and_offsets_are_committed_together,
                t24_a_committed_read_waits_for_commits_under_way;
            books: t26_postings_are_booked_with_their_commit;
            fences: t21_a_zombie_commits_nothing;
        }
    }
}
