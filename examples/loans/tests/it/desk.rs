//! A running service, and somebody who asks it.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use loans::{LoanService, Terms};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tidegate_config::{Inputs, load};
use tidegate_core::Topic;
use tidegate_core::env::system::SystemClock;
use tidegate_core::env::{Clock, Env, Sleep};
use tidegate_log::{Log, Read, Record, TopicPartition};
use tidegate_server::Exporter;
use tidegate_store::sql::{SqlAccess, SqlConnection as _, SqlDatabase as _};
use tidegate_store::{Store, StoreOptions};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::lines;

const LIMIT: Duration = Duration::from_secs(60);

static EXPORTER: LazyLock<Exporter> = LazyLock::new(|| Exporter::install().unwrap());

/// The clock of this machine, and some more.
#[derive(Debug)]
struct AheadClock {
    system: SystemClock,
    ahead_ms: Arc<AtomicU64>,
}

impl Clock for AheadClock {
    fn now(&self) -> SystemTime {
        self.system.now() + Duration::from_millis(self.ahead_ms.load(Ordering::Relaxed))
    }

    fn elapsed(&self) -> Duration {
        self.system.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.system.sleep(duration)
    }
}

pub(crate) struct Desk {
    client: Client,
    url: String,
    store: Store,
    log: Arc<dyn Log>,
    topic: Topic,
    ahead_ms: Arc<AtomicU64>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
    /// The schema of a service on PostgreSQL, and how it is dropped.
    schema: Option<(Store, String)>,
    _dir: tempfile::TempDir,
}

/// The servers that a service uses.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Servers {
    /// None: SQLite and the embedded log.
    Embedded,
    /// PostgreSQL and Kafka, as the environment names them.
    PostgresAndKafka,
}

/// Runs tests that take their servers on both kinds.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod embedded {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name(crate::desk::Servers::Embedded).await;
                }
            )*
        }
        mod needs_postgres {
            mod needs_kafka {
                $(
                    #[tokio::test(flavor = "multi_thread")]
                    #[ignore = "needs PostgreSQL and Kafka"]
                    async fn $name() {
                        super::super::$name(crate::desk::Servers::PostgresAndKafka).await;
                    }
                )*
            }
        }
    };
}
pub(crate) use on_both;

impl Servers {
    /// A service on them.
    pub(crate) async fn desk(self, terms: Terms) -> Desk {
        match self {
            Self::Embedded => Desk::open_with("", "loan-events", terms).await,
            Self::PostgresAndKafka => Desk::on_servers(terms).await,
        }
    }
}

async fn execute(store: &Store, sql: String) {
    let Store::Postgres(server) = store else {
        panic!("it is PostgreSQL");
    };
    let run = server.run("test", move |db| db.execute_raw(sqlx::AssertSqlSafe(sql)));
    run.await.unwrap();
}

impl Desk {
    /// A service on SQLite and the embedded log.
    pub(crate) async fn open() -> Self {
        Self::open_with("", "loan-events", Terms::default()).await
    }

    /// A service with a schema and a topic of its own.
    async fn on_servers(terms: Terms) -> Self {
        let url = std::env::var("DATABASE_URL").expect("DATABASE_URL names the server");
        let servers = std::env::var("KAFKA_BOOTSTRAP").expect("KAFKA_BOOTSTRAP names the broker");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let own = format!("loans_{}_{}", now.unwrap().as_nanos(), std::process::id());
        let options = StoreOptions::new(&url);
        let store = Store::open(&options, &Env::system()).await.unwrap();
        execute(&store, format!("CREATE SCHEMA {own}")).await;
        let topic = own.replace('_', "-");
        let more = format!(
            "store: {{url: '{url}?options=-csearch_path%3D{own}'}}\n\
             log: {{clusters: {{default: {{bootstrap-servers: ['{servers}']}}}}, \
             topics: {{{topic}: {{partitions: 4}}}}}}\n"
        );
        let mut desk = Self::open_with(&more, &topic, terms).await;
        desk.schema = Some((store, own));
        desk
    }

    /// A service with these lines at the end of its configuration.
    async fn open_with(more: &str, topic: &str, terms: Terms) -> Self {
        lines::keep();
        // A client wants one, although it speaks plain HTTP here. All but the first call change nothing.
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display();
        let mut text = format!(
            "server: {{listen: '127.0.0.1:0'}}\n\
             outbox: {{loans: {{topic: {topic}, dlq-topic: {topic}-dlq, metrics-prefix: loan_outbox}}}}\n"
        );
        match more {
            "" => write!(
                text,
                "store: {{url: 'sqlite://{path}/loans.db'}}\n\
                 log: {{embedded: {{path: '{path}/log'}}, topics: {{{topic}: {{partitions: 4}}}}}}\n"
            )
            .unwrap(),
            more => text.push_str(more),
        }
        let (config, _) = load(&Inputs::of_text("tidegate.yaml", &text))
            .checked()
            .unwrap();
        let ahead_ms = Arc::new(AtomicU64::new(0));
        let mut env = Env::system();
        env.clock = Arc::new(AheadClock {
            system: SystemClock::new(),
            ahead_ms: Arc::clone(&ahead_ms),
        });
        let service = LoanService::open(&config, terms, Some(EXPORTER.clone()), env)
            .await
            .unwrap();
        let (stop, stopped) = oneshot::channel();
        Self {
            client: Client::new(),
            url: service.url(),
            store: service.store(),
            log: service.log(),
            topic: Topic::new(topic).unwrap(),
            ahead_ms,
            stop,
            running: tokio::spawn(service.run(async {
                stopped.await.ok();
            })),
            schema: None,
            _dir: dir,
        }
    }

    /// Lets this much time pass on the clock of the service.
    pub(crate) fn pass(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap();
        self.ahead_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// Stops the service, which closes everything.
    pub(crate) async fn close(self) {
        self.stop.send(()).unwrap();
        self.running.await.unwrap();
        if let Some((store, own)) = self.schema {
            execute(&store, format!("DROP SCHEMA {own} CASCADE")).await;
        }
    }

    /// Sends a request and gives status and body.
    pub(crate) async fn ask(
        &self,
        what: &str,
        body: Value,
        headers: &[(&str, &str)],
    ) -> (u16, Value) {
        let (method, path) = what.split_once(' ').unwrap();
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if !body.is_null() {
            request = request.json(&body);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap();
        let status = response.status();
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{what}");
        (status.as_u16(), response.json().await.unwrap())
    }

    /// The text of a page.
    pub(crate) async fn page(&self, path: &str) -> (u16, String) {
        let request = self.client.get(format!("{}{path}", self.url));
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// Asks for a loan of so many cents, and gives its id and status.
    pub(crate) async fn borrow(&self, cents: i64) -> (String, String) {
        let body = json!({"customer": "ada", "amountCents": cents, "months": 12});
        let (status, loan) = self.ask("POST /api/loans", body, &[]).await;
        assert_eq!(status, 201, "{loan}");
        let text = |key: &str| loan[key].as_str().unwrap().to_owned();
        (text("id"), text("status"))
    }

    /// Asks for a change of a loan.
    pub(crate) async fn change(&self, id: &str, what: &str) -> (u16, Value) {
        let path = format!("POST /api/loans/{id}/{what}");
        self.ask(&path, Value::Null, &[]).await
    }

    /// Pays back so many cents.
    pub(crate) async fn pay(&self, id: &str, cents: i64) -> (u16, Value) {
        let path = format!("POST /api/loans/{id}/pay");
        self.ask(&path, json!({"amountCents": cents}), &[]).await
    }

    /// The loan as it is.
    pub(crate) async fn loan(&self, id: &str) -> Value {
        let path = format!("GET /api/loans/{id}");
        let (status, loan) = self.ask(&path, Value::Null, &[]).await;
        assert_eq!(status, 200);
        loan
    }

    /// The types and states of the rows of a loan, in their order.
    pub(crate) async fn rows(&self, id: &str) -> Vec<(String, String)> {
        let sql = "SELECT type, status FROM outbox_event WHERE aggregate_id = $1 ORDER BY id";
        let (access, doing, id) = (SqlAccess::Read, "look", id.to_owned());
        match &self.store {
            Store::Sqlite(db) => {
                let call = db.call(access, doing, move |db| db.fetch_all(sql, &[&id]));
                call.await.unwrap()
            }
            Store::Postgres(db) => {
                let call = db.call(access, doing, move |db| db.fetch_all(sql, &[&id]));
                call.await.unwrap()
            }
        }
    }

    /// The records of a loan in the topic, in their order.
    pub(crate) async fn records(&self, id: &str) -> Vec<Record> {
        let described = self.log.describe(&self.topic).await.unwrap();
        let mut found = Vec::new();
        for partition in described.partitions {
            let at = TopicPartition::new(self.topic.clone(), partition.partition.0);
            let mut from = partition.start;
            while from < partition.end {
                let batch = self.log.read(Read::new(at.clone(), from)).await.unwrap();
                from = batch.next;
                let records = batch.records.into_iter().map(|stored| stored.record);
                found.extend(records.filter(|record| record.key.as_deref() == Some(id.as_bytes())));
            }
        }
        found
    }

    /// Waits until all events of a loan were published and its customer was told of them.
    pub(crate) async fn told(&self, id: &str, events: &[&str]) {
        let began = std::time::Instant::now();
        loop {
            let lines = lines::about("notified", id);
            let rows = self.rows(id).await;
            let is_sent = rows.iter().all(|(_, status)| status == "SENT");
            if is_sent && lines.len() >= events.len() {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{rows:?} {lines:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
