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
use tidegate_log::kafka::{KafkaConfig, KafkaLog, recount_group};
use tidegate_log::{Call, Log};

use crate::proxy::{END_TXN, Loss, OFFSET_COMMIT, PRODUCE, Proxy};

#[derive(Debug)]
struct Kafka {
    servers: String,
    log: Mutex<KafkaLog>,
    env: Env,
    /// Made where a rule wants it; whatever is opened from then on goes over it.
    line: Mutex<Option<Arc<Proxy>>>,
}

impl Kafka {
    /// Connects to the broker that the environment names.
    #[expect(
        clippy::disallowed_methods,
        reason = "tests are told by their environment where the broker is"
    )]
    async fn connect() -> Self {
        let servers = std::env::var("KAFKA_BOOTSTRAP").expect("KAFKA_BOOTSTRAP names a broker");
        let log = Mutex::new(open(&servers).await);
        let env = Env::system();
        let line = Mutex::default();
        Self {
            servers,
            log,
            env,
            line,
        }
    }

    fn line(&self) -> Option<Arc<Proxy>> {
        self.line.lock().unwrap().clone()
    }

    async fn open_again(&self) -> Arc<dyn Log> {
        let servers = self
            .line()
            .map_or_else(|| self.servers.clone(), |line| line.servers());
        let log = open(&servers).await;
        *self.log.lock().unwrap() = log.clone();
        Arc::new(log)
    }
}

async fn open(servers: &str) -> KafkaLog {
    let config = KafkaConfig::new("conformance", servers);
    KafkaLog::connect(config, Env::system()).await.unwrap()
}

impl Stage for Kafka {
    fn log(&self) -> Arc<dyn Log> {
        Arc::new(self.log.lock().unwrap().clone())
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
        }
    }

    fn reopen(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Log>> + Send + '_>> {
        Box::pin(self.open_again())
    }

    fn over_a_bad_line(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Log>> + Send + '_>> {
        *self.line.lock().unwrap() = Some(Arc::new(Proxy::start(&self.servers)));
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

    fn account<'a>(&'a self, group: &'a GroupName, topic: &'a Topic) -> Call<'a, Account> {
        let log = self.log.lock().unwrap().clone();
        Box::pin(async move {
            let recount = recount_group(&log, group, topic).await?;
            let mut account = Account::new(&Books::default(), true);
            for partition in &recount.partitions {
                let books = partition.books.unwrap();
                account.settled = account.settled.plus(Tally {
                    count: i64::try_from(books.count).unwrap(),
                    id_sum: books.id_sum,
                });
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
}
