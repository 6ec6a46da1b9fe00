//! The API as a process of its own.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tidegate_core::env::Env;
use tidegate_core::env::system::SystemClock;
use tidegate_eventlog::{EventLog, EventLogOptions};
use tidegate_logger::HttpApi;
use tidegate_server::eventlog::{EventLogApi, event_log_routes};
use tidegate_server::{Server, ServerConfig};
use tidegate_store::{Store, StoreOptions};

use crate::measure::{cpu_time_of, resident_mib_of};
use crate::program::{Program, Running, Why};
use crate::report::Cost;

/// The argument that makes this program the API.
pub(crate) const CHILD: &str = "--event-log-api";

/// An API that runs. Dropped, it is killed.
pub(super) struct ApiProcess {
    running: Running,
    pub(super) address: SocketAddr,
}

impl ApiProcess {
    /// Starts it on the database at `url`, and returns once it answers.
    pub(super) fn start(url: &str) -> Result<Self, Why> {
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let program = Program {
            name: "api",
            command: vec![this.into_os_string(), OsString::from(CHILD)],
        };
        let running = program.start(url, &[])?;
        let answer = running.answer()?;
        let address = answer.get("address").and_then(Value::as_str);
        let address = address.and_then(|text| text.parse().ok());
        let address = address.ok_or_else(|| format!("no address in {answer}"))?;
        Ok(Self { running, address })
    }

    /// The client of applications.
    pub(super) fn client(&self) -> Arc<HttpApi> {
        let client = HttpApi::builder(format!("http://{}", self.address));
        let client = client.build(Arc::new(SystemClock::new()));
        Arc::new(client.expect("the client starts"))
    }

    /// The processor time and the memory that it has used.
    pub(super) fn cost(&self) -> Cost {
        let id = self.running.id().to_string();
        Cost {
            cpu_s: cpu_time_of(&id).as_secs_f64(),
            rss_mb: resident_mib_of(&id),
        }
    }
}

/// Serves the API on the database of `DATABASE_URL` until it is killed.
pub(crate) fn run_child(_: &[String]) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime can be had");
    runtime.block_on(async {
        let env = Env::system();
        let url = std::env::var("DATABASE_URL").expect("DATABASE_URL is set");
        let store = Store::open(&StoreOptions::new(url), &env).await;
        let store = store.expect("the database answers");
        let log = EventLog::open(store, EventLogOptions::default(), &env).await;
        let routes = event_log_routes(EventLogApi {
            log: log.expect("the tables are made"),
            clock: Arc::clone(&env.clock),
            version: env!("CARGO_PKG_VERSION"),
            build: "bench".to_owned(),
        });
        let config = ServerConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            ..ServerConfig::default()
        };
        let server = Server::builder(config).routes(routes).bind(&env).await;
        let server = server.expect("an address is free");
        println!("{}", json!({"address": server.local_addr().to_string()}));
        let report = server.run(std::future::pending()).await;
        eprintln!("the API stopped: {report:?}");
    });
}
