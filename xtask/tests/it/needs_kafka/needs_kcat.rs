//! kcat speaks through every door of the broker.

use std::process::{Command, Output};

use super::create_topic;
use crate::{fresh, said, variable};

/// One way into the broker.
struct Door {
    bootstrap: String,
    settings: Vec<String>,
}

impl Door {
    fn plain() -> Self {
        Self {
            bootstrap: variable("KAFKA_BOOTSTRAP"),
            settings: vec![],
        }
    }

    fn sasl(password: &str) -> Self {
        Self {
            bootstrap: variable("KAFKA_SASL_BOOTSTRAP"),
            settings: vec![
                "security.protocol=SASL_PLAINTEXT".to_owned(),
                "sasl.mechanisms=PLAIN".to_owned(),
                format!("sasl.username={}", variable("KAFKA_SASL_USERNAME")),
                format!("sasl.password={password}"),
            ],
        }
    }

    fn ssl() -> Self {
        Self {
            bootstrap: variable("KAFKA_SSL_BOOTSTRAP"),
            settings: vec![
                "security.protocol=SSL".to_owned(),
                format!("ssl.ca.location={}", variable("KAFKA_SSL_CA")),
                "ssl.endpoint.identification.algorithm=https".to_owned(),
            ],
        }
    }

    /// Both locks. By PLAIN only: librdkafka before 2.6.1, which Debian's kcat is made of, repeats its nonce in
    /// SCRAM, and Kafka 4 refuses that.
    fn sasl_ssl() -> Self {
        let mut door = Self::ssl();
        door.bootstrap = variable("KAFKA_SASL_SSL_BOOTSTRAP");
        door.settings[0] = "security.protocol=SASL_SSL".to_owned();
        door.settings.extend([
            "sasl.mechanisms=PLAIN".to_owned(),
            format!("sasl.username={}", variable("KAFKA_SASL_USERNAME")),
            format!("sasl.password={}", variable("KAFKA_SASL_PASSWORD")),
        ]);
        door
    }

    fn kcat(&self, arguments: &[&str]) -> Output {
        let settings = self
            .settings
            .iter()
            .flat_map(|setting| ["-X", setting.as_str()]);
        // The shell feeds kcat one line, as a user would.
        Command::new("sh")
            .args([
                "-c",
                "echo tide | timeout 60 kcat \"$@\"",
                "kcat",
                "-b",
                &self.bootstrap,
            ])
            .args(settings)
            .args(arguments)
            .output()
            .expect("sh is installed")
    }

    /// A record with a header goes in and comes out whole.
    fn carries_a_record(&self, topic: &str) {
        let topic = fresh(topic);
        create_topic(&topic);
        let header = "event-type=high-water";
        let produce = || self.kcat(&["-P", "-t", &topic, "-k", "moon", "-H", header]);
        let mut produced = produce();
        // A broker lists a new topic a moment before it takes records for it.
        for _ in 0..100 {
            if !said(&produced).contains("Unknown topic or partition") {
                break;
            }
            produced = produce();
        }
        assert!(produced.status.success(), "{}", said(&produced));
        let consumed = self.kcat(&[
            "-C",
            "-q",
            "-t",
            &topic,
            "-o",
            "beginning",
            "-e",
            "-f",
            "%k|%h|%s\n",
        ]);
        assert!(consumed.status.success(), "{}", said(&consumed));
        assert_eq!(
            String::from_utf8_lossy(&consumed.stdout),
            "moon|event-type=high-water|tide\n"
        );
    }
}

#[test]
#[ignore = "needs kafka"]
fn plaintext_carries_a_record() {
    Door::plain().carries_a_record("plain");
}

#[test]
#[ignore = "needs kafka"]
fn sasl_carries_a_record() {
    Door::sasl(&variable("KAFKA_SASL_PASSWORD")).carries_a_record("sasl");
}

#[test]
#[ignore = "needs kafka"]
fn sasl_refuses_a_wrong_password() {
    let refused = Door::sasl("wrong").kcat(&["-L", "-m", "3"]);
    assert!(!refused.status.success(), "{}", said(&refused));
    assert!(
        said(&refused).contains("uthentication"),
        "{}",
        said(&refused)
    );
}

#[test]
#[ignore = "needs kafka"]
fn ssl_carries_a_record_under_our_authority() {
    Door::ssl().carries_a_record("ssl");
}

#[test]
#[ignore = "needs kafka"]
fn ssl_is_refused_without_our_authority() {
    let mut door = Door::ssl();
    door.settings
        .retain(|setting| !setting.starts_with("ssl.ca.location"));
    let refused = door.kcat(&["-L", "-m", "3"]);
    assert!(!refused.status.success(), "{}", said(&refused));
}

#[test]
#[ignore = "needs kafka"]
fn sasl_ssl_carries_a_record() {
    Door::sasl_ssl().carries_a_record("sasl-ssl");
}
