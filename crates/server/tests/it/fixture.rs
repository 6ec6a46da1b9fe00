//! A running server, with what a test may turn.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tidegate_core::books::{AcceptedEvents, Audited, ComponentAccount};
use tidegate_core::env::system::SystemClock;
use tidegate_core::env::{BoxFuture, Clock, Env, Sleep, Stream};
use tidegate_core::{Component, EventId, EventLocation, Failure, HealthFinding};
use tidegate_server::{Health, ServeReport, Server, ServerBuilder, ServerConfig, Token};
use tokio::sync::{oneshot, watch};

use crate::client::{Answer, Client};

/// How long any step of a test may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for a fact, with a limit.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    let clock = SystemClock::new();
    tokio::select! {
        biased;
        value = future => value,
        () = clock.sleep(PATIENCE) => panic!("nothing happened within {PATIENCE:?}"),
    }
}

/// A clock that the test moves by hand.
#[derive(Debug)]
pub(crate) struct HandClock {
    elapsed: watch::Sender<Duration>,
    /// The pauses that were ever asked for.
    asked: watch::Sender<Vec<Duration>>,
}

impl HandClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            elapsed: watch::Sender::new(Duration::ZERO),
            asked: watch::Sender::new(Vec::new()),
        })
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.elapsed.send_modify(|now| *now += by);
    }

    /// Waits until somebody asked for a pause of this length.
    pub(crate) async fn asked_for(&self, pause: Duration) {
        let mut asked = self.asked.subscribe();
        within(asked.wait_for(|all| all.contains(&pause)))
            .await
            .unwrap();
    }
}

impl HandClock {
    /// Waits until pauses of this length were asked for twice.
    pub(crate) async fn asked_for_twice(&self, pause: Duration) {
        let mut asked = self.asked.subscribe();
        let is_twice = |all: &Vec<Duration>| all.iter().filter(|one| **one == pause).count() >= 2;
        within(asked.wait_for(is_twice)).await.unwrap();
    }
}

impl Clock for HandClock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000) + self.elapsed()
    }

    fn elapsed(&self) -> Duration {
        *self.elapsed.borrow()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let deadline = self.elapsed().saturating_add(duration);
        let mut elapsed = self.elapsed.subscribe();
        self.asked.send_modify(|all| all.push(duration));
        Box::pin(async move {
            if elapsed.wait_for(|now| *now >= deadline).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }
}

/// A part of the process that only has a health.
struct Part {
    name: &'static str,
    check: Box<dyn Fn() -> BoxFuture<'static, HealthFinding> + Send + Sync>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Component for Part {
    fn name(&self) -> &str {
        self.name
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn locate(&self, _: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        (self.check)()
    }
}

/// A server that runs, on a clock that stands still unless the test moves it.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) clock: Arc<HandClock>,
    pub(crate) health: Health,
    stop: Option<oneshot::Sender<()>>,
    report: oneshot::Receiver<ServeReport>,
}

impl Running {
    /// A server with defaults on a free port.
    pub(crate) async fn plain() -> Self {
        Self::start(config(), |builder| builder).await
    }

    pub(crate) async fn start(
        config: ServerConfig,
        build: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Self {
        let clock = HandClock::new();
        let env = Env {
            clock: clock.clone(),
            entropy: Box::new(Stream::new(7)),
            ..Env::system()
        };
        let health = Health::new(clock.clone());
        let builder = build(Server::builder(config).health(health.clone()));
        let server = builder.bind(&env).await.unwrap();
        let address = server.local_addr();
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, report) = oneshot::channel();
        let running = async move {
            let shutdown = async {
                stopped.await.ok();
            };
            tell.send(server.run(shutdown).await).ok();
        };
        drop(env.spawn.spawn("server", Box::pin(running)));
        Self {
            address,
            clock,
            health,
            stop: Some(stop),
            report,
        }
    }

    /// Watches a part that says of itself what `check` says.
    pub(crate) fn watch<R>(&self, name: &'static str, check: impl Fn() -> R + Send + Sync + 'static)
    where
        R: Future<Output = HealthFinding> + Send + 'static,
    {
        let check = Box::new(move || -> BoxFuture<'static, HealthFinding> { Box::pin(check()) });
        let part: Arc<dyn Component> = Arc::new(Part { name, check });
        self.health.watch(&part);
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Asks once, on a connection of its own.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.client().await.get(path).await
    }

    pub(crate) async fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        self.client().await.ask(method, path, headers, body).await
    }

    /// Begins to stop.
    pub(crate) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.send(()).unwrap();
        }
    }

    /// Waits for the end.
    pub(crate) async fn report(self) -> ServeReport {
        within(self.report).await.unwrap()
    }
}

/// Defaults, on any free port of loopback.
pub(crate) fn config() -> ServerConfig {
    ServerConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..ServerConfig::default()
    }
}

/// The same with the token `s3cret`.
pub(crate) fn config_with_token() -> ServerConfig {
    ServerConfig {
        token: Some(Token::new("s3cret").unwrap()),
        ..config()
    }
}
