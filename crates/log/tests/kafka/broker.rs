//! A broker of one's own, for tests that kill it.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A broker that belongs to one test. Dropping it kills it; its directory stays when the test fails.
pub(crate) struct Broker {
    directory: PathBuf,
    ports: [u16; 2],
    process: Option<Child>,
}

impl Broker {
    /// Formats a directory and starts a broker on it.
    pub(crate) fn start() -> Self {
        Self::start_with("")
    }

    /// The same with these further settings.
    pub(crate) fn start_with(settings: &str) -> Self {
        let name = format!("tidegate-broker-{}-{}", std::process::id(), free_port());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let mut broker = Self {
            directory,
            ports: [free_port(), free_port()],
            process: None,
        };
        let settings = format!("{}{settings}", broker.properties());
        std::fs::write(broker.settings(), settings).unwrap();
        let format = [
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "VGlkZWdhdGVTZXJ2aWNlcw",
            "-c",
        ];
        let status = java()
            .args(format)
            .arg(broker.settings())
            .stdout(Stdio::null())
            .status();
        assert!(
            status.unwrap().success(),
            "the broker's storage is formatted"
        );
        broker.restart();
        broker
    }

    pub(crate) fn servers(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    /// Starts it on the data it has, and waits until it listens.
    pub(crate) fn restart(&mut self) {
        let log = std::fs::File::create(self.directory.join("log")).unwrap();
        let child = java()
            .arg("kafka.Kafka")
            .arg(self.settings())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(child);
        let begin = Instant::now();
        while TcpStream::connect(self.servers()).is_err() {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "the broker listens"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Runs a tool of the broker against it.
    #[allow(dead_code, reason = "not every test program runs a tool")]
    pub(crate) fn run_tool(&self, class: &str, arguments: &[&str]) {
        let ran = java()
            .args([class, "--bootstrap-server", &self.servers()])
            .args(arguments)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{class}: {said}");
    }

    /// Kills it with -9.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn settings(&self) -> PathBuf {
        self.directory.join("server.properties")
    }

    fn properties(&self) -> String {
        let [broker, controller] = self.ports;
        let data = self.directory.join("data").display().to_string();
        format!(
            "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
"
        )
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
        if !std::thread::panicking() {
            std::fs::remove_dir_all(&self.directory).ok();
        }
    }
}

/// Java with the broker's jars, which `cargo xtask services up` has fetched.
fn java() -> Command {
    let mut java = Command::new("java");
    java.args([
        // It lives for seconds: whatever makes a start quicker is worth more than a quick broker.
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Xmx512m",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
    ]);
    java.arg(jars().join("*"));
    java
}

/// The jars that `cargo xtask services up` has fetched: beside the certificates of the broker that the
/// environment names, or where they usually are.
fn jars() -> PathBuf {
    let by_variable = std::env::var("KAFKA_SSL_CA").ok();
    let home = by_variable
        .as_deref()
        .map(Path::new)
        .and_then(|ca| ca.parent()?.parent());
    let usual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/services/kafka");
    let jars = home.unwrap_or(&usual).join("libs");
    assert!(
        jars.is_dir(),
        "{} is not there: cargo xtask services up",
        jars.display()
    );
    jars
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
