//! Whether a broker is there, new enough, and takes us.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer};
use tidegate_core::env::Clock;

use crate::error::LogError;

use super::client_context::KafkaClientContext;
use super::failure::{self, Meaning};
use super::workers::Workers;
use super::{KafkaConfig, settings};

/// Requests without which a promise would not hold: their number, the lowest version that does it,
/// and what for. All came with 2.5 at the latest.
const NEEDED: [(i16, i16, &str); 5] = [
    (0, 7, "produce"),
    (9, 7, "stable reads of committed offsets"),
    (22, 0, "idempotent producers"),
    (26, 0, "transactions"),
    (28, 3, "transactions that are fenced by their group"),
];

/// Asks a broker who it is and what it can do.
pub(super) async fn probe(
    config: &KafkaConfig,
    clock: &Arc<dyn Clock>,
    workers: &Workers,
) -> Result<(), LogError> {
    let limit = config.request_timeout;
    let (asked, clock) = (config.clone(), Arc::clone(clock));
    let answer = workers
        .run("kafka-probe", limit + Duration::from_secs(1), move || {
            ask(&asked, &*clock)
        })
        .await;
    answer.unwrap_or_else(|_| Err(config.away(config.late())))
}

fn ask(config: &KafkaConfig, clock: &dyn Clock) -> Result<(), LogError> {
    /// How long one try waits before what was heard meanwhile is looked at.
    const TRY: Duration = Duration::from_millis(250);
    /// How long there is nothing to hear before it is believed that all was said.
    const LISTEN: Duration = Duration::from_millis(20);
    /// How long a broker that has answered is asked for the versions of its requests.
    const SILENCE: Duration = Duration::from_secs(1);
    let refused = |why: String| LogError::Refused {
        doing: "the connection",
        why,
    };
    let mut client = settings::consumer(config);
    // The client tells what a broker can do only in its log.
    client.set("debug", "feature");
    client.set_log_level(RDKafkaLogLevel::Debug);
    let consumer: BaseConsumer<KafkaClientContext> =
        BaseConsumer::from_config_and_context(&client, KafkaClientContext::default())
            .map_err(|error| refused(failure::said(&error)))?;
    let context = Arc::clone(consumer.context());
    let until = clock.elapsed() + config.request_timeout;
    let mut answered = None;
    loop {
        let answer = consumer.fetch_metadata(Some("tidegate-probe"), TRY);
        // Log lines and errors arrive by polling only, and those about requests one after the other.
        let mut known = None;
        while known != Some(context.requests().len()) {
            known = Some(context.requests().len());
            drop(consumer.poll(LISTEN));
        }
        if let Some((code, why)) = context.refusal() {
            return Err(match failure::login_settings(code) {
                Some(settings) => LogError::Login {
                    servers: config.bootstrap_servers.clone(),
                    why,
                    settings,
                },
                None => refused(why),
            });
        }
        let why = match answer {
            Ok(_) if context.requests().is_empty() => {
                // The lines about requests may still be on their way.
                let since = *answered.get_or_insert(clock.elapsed());
                if clock.elapsed() < since + SILENCE {
                    continue;
                }
                tracing::warn!(
                    "the Kafka client does not log which requests the broker supports; a broker \
                     before 2.5 is refused at the first call that it cannot answer"
                );
                return Ok(());
            }
            Ok(_) => return lacking(&context.requests()).map_or(Ok(()), |why| Err(refused(why))),
            Err(error)
                if failure::code_of(&error).map(failure::meaning) == Some(Meaning::Refusal) =>
            {
                return Err(refused(error.to_string()));
            }
            Err(error) => context.last().unwrap_or_else(|| error.to_string()),
        };
        if clock.elapsed() >= until {
            return Err(config.away(why));
        }
    }
}

/// The promises that a broker which knows these requests cannot keep.
fn lacking(requests: &BTreeMap<i16, i16>) -> Option<String> {
    let lacks = |(number, version, _): &&(i16, i16, &str)| {
        requests.get(number).is_none_or(|known| known < version)
    };
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(lacks)
        .map(|(.., what)| *what)
        .collect();
    if missing.is_empty() {
        return None;
    }
    Some(format!(
        "it is too old, Kafka 2.5 or newer is needed; it lacks {}",
        missing.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_is_too_old_is_told_what_it_lacks() {
        let new = BTreeMap::from([(0, 9), (9, 8), (22, 4), (26, 3), (28, 3)]);
        assert_eq!(lacking(&new), None);
        let mut old = new;
        old.insert(28, 2);
        old.remove(&22);
        let why = lacking(&old).unwrap();
        assert!(
            why.contains("2.5") && why.contains("fenced by their group"),
            "{why}"
        );
        assert!(why.contains("idempotent"), "{why}");
    }
}
