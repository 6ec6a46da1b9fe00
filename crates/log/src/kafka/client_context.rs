//! Hears what a client has to say: its log, its errors, and which requests the broker knows.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tidegate_core::Mutex;

use super::failure::{self, Meaning};

/// The log and the errors of a client so far.
#[derive(Debug, Default)]
pub(super) struct KafkaClientContext {
    reports: Mutex<ClientReports>,
}

#[derive(Debug, Default)]
struct ClientReports {
    refusal: Option<(RDKafkaErrorCode, String)>,
    last: Option<String>,
    /// The highest version of each request that a broker knows, by the number of the request.
    requests: BTreeMap<i16, i16>,
}

impl KafkaClientContext {
    /// The text and the code of a refusal.
    pub(super) fn refusal(&self) -> Option<(RDKafkaErrorCode, String)> {
        self.reports.lock().refusal.clone()
    }

    /// The last error, which mostly tells why there is no answer.
    pub(super) fn last(&self) -> Option<String> {
        self.reports.lock().last.clone()
    }

    /// The requests that brokers know, where the client was told to log them.
    pub(super) fn requests(&self) -> BTreeMap<i16, i16> {
        self.reports.lock().requests.clone()
    }

    /// Takes in a line of the client's log.
    pub(super) fn line(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        if let Some((request, version)) = request_version(text) {
            self.reports.lock().requests.insert(request, version);
            return;
        }
        // Most errors of the client mend themselves; the others reach a caller.
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => {
                tracing::warn!(target: "tidegate_log::kafka", "{facility}: {text}");
            }
            RDKafkaLogLevel::Warning | RDKafkaLogLevel::Notice => {
                // The same settings go to consumers and producers; each says which it has no use for.
                if facility == "CONFWARN" {
                    tracing::debug!(target: "tidegate_log::kafka", "{facility}: {text}");
                } else {
                    tracing::info!(target: "tidegate_log::kafka", "{facility}: {text}");
                }
            }
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
                tracing::debug!(target: "tidegate_log::kafka", "{facility}: {text}");
            }
        }
    }

    /// Takes in an error of the client.
    pub(super) fn failure(&self, error: &KafkaError, reason: &str) {
        tracing::debug!(target: "tidegate_log::kafka", "{error}: {reason}");
        let mut reports = self.reports.lock();
        if let Some(code) = failure::code_of(error)
            && failure::meaning(code) == Meaning::Refusal
        {
            reports.refusal = Some((code, reason.to_owned()));
        }
        // That all are down says less than why the last one is.
        let says_little = failure::code_of(error) == Some(RDKafkaErrorCode::AllBrokersDown);
        if !says_little || reports.last.is_none() {
            reports.last = Some(reason.to_owned());
        }
    }
}

impl ClientContext for KafkaClientContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.line(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.failure(&error, reason);
    }
}

impl ConsumerContext for KafkaClientContext {}

/// Lets a client that is asked now and then say what it has to say, which piles up otherwise.
pub(super) fn poll_events(consumer: &BaseConsumer<KafkaClientContext>) {
    drop(consumer.poll(Duration::from_millis(1)));
}

/// Reads `[thrd:…]: …:   ApiKey OffsetFetch (9) Versions 0..9`, the client's line about a request
/// that a broker knows.
fn request_version(text: &str) -> Option<(i16, i16)> {
    let (_, said) = text.split_once("ApiKey ")?;
    let (_, said) = said.split_once('(')?;
    let (request, said) = said.split_once(") Versions ")?;
    let (_, version) = said.split_once("..")?;
    Some((request.trim().parse().ok()?, version.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_a_broker_knows_are_read_from_the_clients_log() {
        let line = "[thrd:b:9092/1]: b:9092/1:   ApiKey OffsetFetch (9) Versions 0..8";
        assert_eq!(request_version(line), Some((9, 8)));
        assert_eq!(
            request_version("ApiKey Unknown-80? (80) Versions 0..1"),
            Some((80, 1))
        );
        for other in [
            "",
            "ApiKey",
            "ApiKey x (y) Versions 0..1",
            "Feature (0..1) supported",
        ] {
            assert_eq!(request_version(other), None);
        }
    }
}
