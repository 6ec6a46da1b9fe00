//! One Apache Kafka node, broker and controller in one, from jars that Maven resolves.
//!
//! Four doors for clients: PLAINTEXT, SASL_PLAINTEXT with one user, SSL under a certificate authority of
//! our own, and SASL_SSL, which wants both. The user comes in by PLAIN and by SCRAM.

mod tls;

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::command::{find_program, output_of};
use crate::java;
use crate::services::process::{Home, Launch};
use crate::services::server::{Server, Variables, connect};

const POM: &str = include_str!("../../services/kafka/pom.xml");
const SASL_USER: &str = "tidegate";
/// Guards test data on loopback only.
const SASL_PASSWORD: &str = "tidegate-secret";
/// Any 16 bytes in URL-safe base64 do for a cluster of one.
const CLUSTER_ID: &str = "VGlkZWdhdGVTZXJ2aWNlcw";
/// The ways of SCRAM. The broker keeps their passwords in its storage, so they are put there when it is
/// formatted.
const SCRAMS: [&str; 2] = ["SCRAM-SHA-256", "SCRAM-SHA-512"];

/// The one broker of this checkout.
#[derive(Debug)]
pub(crate) struct Kafka;

impl Server for Kafka {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn owner_variable(&self) -> &'static str {
        "KAFKA_BOOTSTRAP"
    }

    fn missing_packages(&self) -> Vec<&'static str> {
        java::missing_packages()
    }

    fn fetch(&self, home: &Home) -> Result<()> {
        java::require()?;
        // Only the download can fail for want of a network; the keys are made while it runs.
        thread::scope(|scope| {
            let keys = scope.spawn(|| tls::make(&home.path("tls")));
            let jars = java::copy_jars(POM, &home.path("pom.xml"), &home.path("libs"));
            let keys = keys
                .join()
                .map_err(|_| anyhow::anyhow!("making the keys panicked"))?;
            jars.and(keys)
        })
    }

    fn prepare(&self, home: &Home) -> Result<()> {
        let data = home.path("data");
        // Storage that was formatted otherwise lacks something; it holds nothing but what tests wrote.
        let is_ours =
            fs::read_to_string(home.path("format")).is_ok_and(|noted| noted == formatting());
        if !is_ours && data.is_dir() {
            fs::remove_dir_all(&data).context("could not clear old storage away")?;
        }
        fs::create_dir_all(data).context("could not create Kafka's directory")
    }

    fn port_count(&self) -> usize {
        5
    }

    fn launch(&self, home: &Home, ports: &[u16]) -> Result<Launch> {
        let properties = home.path("server.properties");
        fs::write(&properties, settings(home, ports))
            .context("could not write the broker's settings")?;
        let program = find_program("java").context("java is not installed")?;
        let classes = home.path("libs").join("*");
        if !home.path("data/meta.properties").is_file() {
            let mut format = Command::new(&program);
            format
                .arg("-cp")
                .arg(&classes)
                .args(["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"])
                .arg(&properties);
            for user in users() {
                format.args(["--add-scram", &user]);
            }
            output_of(&mut format).context("could not format the broker's storage")?;
            fs::write(home.path("format"), formatting())
                .context("could not note how the storage was formatted")?;
        }
        let mut arguments: Vec<_> = [
            "-Xms1g",
            "-Xmx1g",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
        ]
        .map(Into::into)
        .into();
        arguments.extend([classes.into(), "kafka.Kafka".into(), properties.into()]);
        Ok(Launch {
            program,
            arguments,
            user: None,
        })
    }

    fn probe(&self, ports: &[u16]) -> Result<()> {
        let mut stream = connect(ports[0])?;
        stream.write_all(&metadata_request())?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        let word = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
        if word(4) != CORRELATION.to_be_bytes() {
            bail!("does not speak the Kafka protocol");
        }
        // A broker that the controller has not let in yet answers with an empty list.
        if i32::from_be_bytes(word(8)) < 1 {
            bail!("answers, but is not ready");
        }
        Ok(())
    }

    fn settle(&self, _: &[u16]) -> Result<()> {
        Ok(())
    }

    fn stop_signal(&self) -> Signal {
        Signal::TERM
    }

    fn variables(&self, home: &Home, ports: &[u16]) -> Variables {
        let at = |port: u16| format!("127.0.0.1:{port}");
        vec![
            ("KAFKA_BOOTSTRAP", at(ports[0])),
            ("KAFKA_SASL_BOOTSTRAP", at(ports[1])),
            ("KAFKA_SASL_USERNAME", SASL_USER.to_owned()),
            ("KAFKA_SASL_PASSWORD", SASL_PASSWORD.to_owned()),
            ("KAFKA_SSL_BOOTSTRAP", at(ports[2])),
            ("KAFKA_SASL_SSL_BOOTSTRAP", at(ports[3])),
            (
                "KAFKA_SSL_CA",
                home.path("tls/ca.pem").display().to_string(),
            ),
        ]
    }

    fn discard(&self, _: &Home) -> Result<()> {
        Ok(())
    }
}

const CORRELATION: i32 = 0x7469_6465;

/// A Metadata request, version 1, about no topic: the broker answers with the nodes it knows.
fn metadata_request() -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(3_i16.to_be_bytes());
    body.extend(1_i16.to_be_bytes());
    body.extend(CORRELATION.to_be_bytes());
    body.extend((-1_i16).to_be_bytes());
    body.extend(0_i32.to_be_bytes());
    let mut request = i32::try_from(body.len())
        .unwrap_or(i32::MAX)
        .to_be_bytes()
        .to_vec();
    request.extend(body);
    request
}

/// The user of each way of SCRAM, as the broker's own tool wants it.
fn users() -> [String; 2] {
    SCRAMS.map(|scram| format!("{scram}=[name={SASL_USER},password={SASL_PASSWORD}]"))
}

/// The formatting of the storage, which is noted beside it.
fn formatting() -> String {
    format!("{CLUSTER_ID} {}\n", users().join(" "))
}

/// The ways in at the doors that want a password, and the keys at those that speak TLS.
fn locks(home: &Home) -> String {
    let modules = "org.apache.kafka.common.security";
    let keys = escaped(&home.path("tls/server.p12"));
    let secret = tls::PASSWORD;
    let mut text = format!("sasl.enabled.mechanisms=PLAIN,{}\n", SCRAMS.join(","));
    for door in ["sasl_plaintext", "sasl_ssl"] {
        text += &format!(
            "listener.name.{door}.plain.sasl.jaas.config={modules}.plain.PlainLoginModule required \
             user_{SASL_USER}=\"{SASL_PASSWORD}\";\n"
        );
        for scram in SCRAMS.map(str::to_lowercase) {
            text += &format!(
                "listener.name.{door}.{scram}.sasl.jaas.config={modules}.scram.ScramLoginModule \
                 required;\n"
            );
        }
    }
    for door in ["ssl", "sasl_ssl"] {
        for (name, value) in [
            ("keystore.type", "PKCS12"),
            ("keystore.location", keys.as_str()),
            ("keystore.password", secret),
            ("key.password", secret),
        ] {
            text += &format!("listener.name.{door}.ssl.{name}={value}\n");
        }
    }
    text
}

fn settings(home: &Home, ports: &[u16]) -> String {
    let names = ["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"];
    let door = |(name, port): (&str, &u16)| format!("{name}://127.0.0.1:{port}");
    let doors: Vec<String> = names.into_iter().zip(ports).map(door).collect();
    let doors = doors.join(",");
    let protocols = names.map(|name| format!("{name}:{name}")).join(",");
    let controller = ports[names.len()];
    let locks = locks(home);
    let data = escaped(&home.path("data"));
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={doors},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={doors}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,{protocols}
{locks}log.dirs={data}
auto.create.topics.enable=false
# One node is all there is: without these the first group or transaction waits for ever.
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
offsets.topic.num.partitions=8
transaction.state.log.num.partitions=8
# Otherwise every first member of a group is kept waiting for three seconds.
group.initial.rebalance.delay.ms=0
# A killed broker is let in again only when the session of its predecessor has run out.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
"
    )
}

/// The path as a value of a properties file, where a backslash starts an escape.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace('\\', "\\\\")
}
