//! A real broker keeps the rules. It is shared: rules use names of their own, and a rebalance takes
//! as long as it takes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::system::system_entropy;
use tidegate_core::env::{Clock, Entropy, Env, Spawn};
use tidegate_log::Log;
use tidegate_log::conformance::{Promises, Stage, Times};
use tidegate_log::kafka::{KafkaConfig, KafkaLog};

#[derive(Debug)]
struct Kafka {
    servers: String,
    log: KafkaLog,
    env: Env,
}

impl Kafka {
    /// Connects to the broker that the environment names.
    #[expect(
        clippy::disallowed_methods,
        reason = "tests are told by their environment where the broker is"
    )]
    async fn connect() -> Self {
        let servers = std::env::var("KAFKA_BOOTSTRAP").expect("KAFKA_BOOTSTRAP names a broker");
        let log = open(&servers).await;
        let env = Env::system();
        Self { servers, log, env }
    }
}

async fn open(servers: &str) -> KafkaLog {
    let config = KafkaConfig::new("conformance", servers);
    KafkaLog::connect(config, Env::system()).await.unwrap()
}

impl Stage for Kafka {
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
        format!("{:016x}", system_entropy().next_u64())
    }

    fn times(&self) -> Times {
        Times {
            settle: Duration::from_secs(60),
            quiet: Duration::from_secs(2),
        }
    }

    fn promises(&self) -> Promises {
        Promises {
            deletion_waits_for_groups: false,
        }
    }

    fn reopen(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Log>> + Send + '_>> {
        Box::pin(async { Arc::new(open(&self.servers).await) as Arc<dyn Log> })
    }

    fn lose_next_answer(&self) {
        // The broker cannot be told to; the client's own tries are held to this elsewhere.
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
