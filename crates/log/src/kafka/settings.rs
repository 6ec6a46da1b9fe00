//! The settings of the clients of a cluster: ours, and those that the user passes on.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};

use crate::error::LogError;
use crate::port::Join;

use super::KafkaConfig;

/// Settings that carry a promise of the port. A user who could change them could lose records without
/// any part noticing, so they are refused by name: a line has the name and the reason.
const OURS: &str = "\
acks: an append is durable when it returns
allow.auto.create.topics: a mistyped name is an error
auto.commit.enable: offsets are committed when records are settled
auto.commit.interval.ms: nothing is committed by time
auto.offset.reset: `StartAt` says where a group starts, and a lost offset is an error
batch.size: it follows from the limits of the topics
bootstrap.servers: it has a key of its own
check.crcs: damage is never handed out
delivery.report.only.error: every delivery is verified
delivery.timeout.ms: the log itself never gives up on a record
enable.auto.commit: offsets are committed when records are settled
enable.auto.offset.store: offsets are committed when records are settled
enable.gapless.guarantee: a failed record fails its own call
enable.idempotence: a repeated request adds nothing
enable.partition.eof: the end of a partition is ours to find
group.id: it is said when a group is joined
group.instance.id: it is said when a group is joined
group.protocol: only the classic protocol is supported so far
group.remote.assignor: only the classic protocol is supported so far
heartbeat.interval.ms: it follows from the session timeout
isolation.level: what was aborted is never handed out
log.queue: the log of the client is ours to read
max.in.flight: five keep their order
max.in.flight.requests.per.connection: five keep their order
max.poll.interval.ms: the client is polled by a thread of its own
message.max.bytes: each topic has its own limit
message.send.max.retries: the log itself never gives up on a record
message.timeout.ms: the log itself never gives up on a record
metadata.broker.list: it is `bootstrap.servers`, which has a key of its own
offset.store.method: offsets live in the group
partition.assignment.strategy: it is cooperative-sticky
partitioner: a key stays in its partition whichever log holds it
partitioner_consistent_random: a key stays in its partition whichever log holds it
queue.buffering.max.kbytes: what is on its way is bounded by `max-in-flight`
queue.buffering.max.messages: what is on its way is bounded by `max-in-flight`
request.required.acks: an append is durable when it returns
retries: the log itself never gives up on a record
session.timeout.ms: it is said when a group is joined
sticky.partitioning.linger.ms: the log chooses partitions itself
transaction.timeout.ms: it follows from the session timeout
transactional.id: it follows from group and instance
";

/// The longest batch of a producer, in bytes before compression: the client's own default.
pub(super) const BATCH_SIZE: u64 = 1_000_000;
/// The bytes of a batch beside those that [`Record::size`](crate::Record::size) counts: 61 bytes
/// of a batch, at most 31 of a record, and what a header takes more than in our own form.
pub(super) const OVERHEAD: u64 = 1_024;

/// The shortest time between two heartbeats.
const SHORTEST_HEARTBEAT: Duration = Duration::from_millis(100);
/// The buffer of a member's client, in KiB, where nothing else is asked for.
const MEMBER_BUFFER_KIB: usize = 8_192;

/// The ways to say who we are that this program knows.
const MECHANISMS: [&str; 3] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];

/// Refuses settings that are ours, and those that this program cannot keep.
pub(super) fn check(properties: &BTreeMap<String, String>) -> Result<(), LogError> {
    check_mechanism(properties)?;
    for name in properties.keys() {
        if let Some(why) = reserved(name) {
            return Err(LogError::Refused {
                doing: "the client settings",
                why: format!("`{name}` cannot be set: {why}"),
            });
        }
    }
    Ok(())
}

/// Why a setting is ours; none for one that a user may set.
fn reserved(name: &str) -> Option<&'static str> {
    let mut all = OURS.lines().filter_map(|line| line.split_once(": "));
    all.find_map(|(ours, why)| (ours == name).then_some(why))
}

/// Refuses ways to say who we are that need a part which was not built in. The client would say so too,
/// in words that do not tell what to do; and left alone it takes Kerberos, which it does not know.
fn check_mechanism(properties: &BTreeMap<String, String>) -> Result<(), LogError> {
    let names = ["sasl.mechanism", "sasl.mechanisms"];
    let asked = names
        .iter()
        .find_map(|name| Some((name, properties.get(*name)?)));
    let protocol = properties.get("security.protocol");
    let wants_sasl = protocol.is_some_and(|it| it.to_ascii_lowercase().starts_with("sasl"));
    let known = MECHANISMS.join(", ");
    let why = match asked {
        Some((_, value)) if MECHANISMS.contains(&value.as_str()) => return Ok(()),
        Some((name, value)) => {
            format!("`{name}` is `{value}`, and this program knows {known}")
        }
        None if wants_sasl => {
            format!("`security.protocol` asks for SASL, so `sasl.mechanism` must be one of {known}")
        }
        None => return Ok(()),
    };
    Err(LogError::Refused {
        doing: "the client settings",
        why,
    })
}

/// The settings of every client of a cluster.
pub(super) fn client(config: &KafkaConfig) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", &config.bootstrap_servers);
    client.set("client.id", "tidegate");
    // By default a client that found no broker looks again only after ten seconds.
    client.set("reconnect.backoff.ms", "100");
    client.set("reconnect.backoff.max.ms", "1000");
    client.set_log_level(RDKafkaLogLevel::Info);
    // Our OpenSSL comes with us and does not know where this machine keeps the authorities that it trusts.
    if !config.properties.contains_key("ssl.ca.pem") {
        client.set("ssl.ca.location", "probe");
    }
    for (name, value) in &config.properties {
        client.set(name, value);
    }
    client
}

/// The settings of every consumer: the client itself commits, skips and invents nothing.
pub(super) fn consumer(config: &KafkaConfig) -> ClientConfig {
    let mut consumer = client(config);
    consumer
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_committed")
        .set("allow.auto.create.topics", "false")
        .set("check.crcs", "true");
    consumer
}

/// The member of a group.
pub(super) fn member(config: &KafkaConfig, join: &Join) -> ClientConfig {
    let session = join.session_timeout;
    let mut member = consumer(config);
    // A sixth of the session leaves room for five heartbeats that get lost. A rebalance is heard of
    // with the next one, so they come at least every second.
    let heartbeat = (session / 6).clamp(SHORTEST_HEARTBEAT, Duration::from_secs(1));
    let heartbeat = heartbeat.min(join.max_heartbeat.max(SHORTEST_HEARTBEAT));
    let poll_interval = Duration::from_secs(300).max(session * 2);
    member
        .set("group.id", join.group.as_str())
        .set("session.timeout.ms", millis(session))
        .set("heartbeat.interval.ms", millis(heartbeat))
        .set("max.poll.interval.ms", millis(poll_interval))
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("enable.partition.eof", "false");
    // The client's own buffer comes in front of the session's, so each gets half of what is given.
    let buffer = join.buffer.map_or(MEMBER_BUFFER_KIB, |bytes| {
        (bytes / 2048).clamp(1, MEMBER_BUFFER_KIB)
    });
    let buffer = buffer.to_string();
    set_default(config, &mut member, "queued.max.messages.kbytes", &buffer);
    set_default(config, &mut member, "fetch.wait.max.ms", "100");
    // By default a client whose buffer was full fetches nothing for a whole second.
    set_default(config, &mut member, "fetch.queue.backoff.ms", "10");
    if let Some(instance) = &join.instance {
        member.set("group.instance.id", instance);
    }
    set_name(&mut member, join.name.as_deref());
    member
}

/// Reads a partition outside of any group. The group is never joined: the client only wants a name.
pub(super) fn reader(config: &KafkaConfig) -> ClientConfig {
    let mut reader = consumer(config);
    reader
        .set("group.id", "tidegate-reader")
        .set("enable.partition.eof", "true");
    set_default(config, &mut reader, "queued.max.messages.kbytes", "4096");
    // A fetch that waits at the end of one partition would hold up the next one.
    set_default(config, &mut reader, "fetch.wait.max.ms", "20");
    set_default(config, &mut reader, "fetch.queue.backoff.ms", "10");
    reader
}

/// Asks for what a group has committed, without being in it.
pub(super) fn offset_fetcher(config: &KafkaConfig, group: &str) -> ClientConfig {
    let mut offset_fetcher = consumer(config);
    offset_fetcher.set("group.id", group);
    offset_fetcher
}

/// Adds records.
pub(super) fn producer(config: &KafkaConfig, batch_size: u64) -> ClientConfig {
    let mut producer = client(config);
    producer
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("max.in.flight.requests.per.connection", "5")
        .set("message.timeout.ms", "0")
        .set("message.max.bytes", "1000000000")
        .set("batch.size", batch_size.to_string())
        .set("queue.buffering.max.messages", "10000000")
        .set("queue.buffering.max.kbytes", "2097151");
    set_default(config, &mut producer, "linger.ms", "1");
    set_default(config, &mut producer, "compression.type", "lz4");
    producer
}

/// Adds records and commits offsets with them.
pub(super) fn transactional(
    config: &KafkaConfig,
    batch_size: u64,
    (id, name): (&str, Option<&str>),
    session: Duration,
) -> ClientConfig {
    let mut producer = producer(config, batch_size);
    set_name(&mut producer, name);
    // Shorter than the session: a member that lost its group cannot commit later than that.
    let timeout = (session * 2 / 3).max(Duration::from_secs(1));
    producer
        .set("transactional.id", id)
        .set("transaction.timeout.ms", millis(timeout));
    producer
}

/// The batch size for a topic that takes so much at once: a power of two, so that few producers
/// serve all topics.
pub(super) fn batch_size(max_message_bytes: u64) -> u64 {
    if max_message_bytes >= BATCH_SIZE + OVERHEAD {
        return BATCH_SIZE;
    }
    let room = max_message_bytes.saturating_sub(OVERHEAD / 2).max(1);
    1 << room.ilog2()
}

fn set_default(config: &KafkaConfig, client: &mut ClientConfig, name: &str, value: &str) {
    if !config.properties.contains_key(name) {
        client.set(name, value);
    }
}

/// A member that has a name is known to the broker by it.
fn set_name(client: &mut ClientConfig, name: Option<&str>) {
    if let Some(name) = name {
        client.set("client.id", name);
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_carry_a_promise_are_refused_by_name() {
        for name in ["acks", "isolation.level", "enable.auto.commit", "group.id"] {
            let set = BTreeMap::from([(name.to_owned(), "1".to_owned())]);
            let error = check(&set).unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
        let passed = ["sasl.username", "linger.ms", "fetch.min.bytes", "client.id"];
        let passed = passed.map(|name| (name.to_owned(), "1".to_owned()));
        assert!(check(&BTreeMap::from(passed)).is_ok());
    }

    #[test]
    fn a_mechanism_that_is_not_built_in_is_refused_by_name() {
        for (settings, refused) in [
            (
                &[("security.protocol", "SASL_SSL")][..],
                Some("sasl.mechanism"),
            ),
            (&[("security.protocol", "ssl")], None),
            (&[("sasl.mechanism", "SCRAM-SHA-512")], None),
            (&[("sasl.mechanisms", "PLAIN")], None),
            (
                &[
                    ("security.protocol", "sasl_plaintext"),
                    ("sasl.mechanism", "SCRAM-SHA-256"),
                ],
                None,
            ),
            (&[("sasl.mechanism", "OAUTHBEARER")], Some("OAUTHBEARER")),
            (&[("sasl.mechanisms", "GSSAPI")], Some("sasl.mechanisms")),
            (&[("ssl.ca.location", "/ca.pem")], None),
        ] {
            let set = settings
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let said = check(&set.collect()).err().map(|error| error.to_string());
            assert_eq!(said.is_some(), refused.is_some(), "{settings:?}: {said:?}");
            if let (Some(said), Some(named)) = (said, refused) {
                assert!(
                    said.contains(named) && said.contains("SCRAM-SHA-512"),
                    "{said}"
                );
            }
        }
    }

    #[test]
    fn authorities_are_those_of_the_machine_unless_others_are_named() {
        let location = |properties: &[(&str, &str)]| {
            let mut config = KafkaConfig::new("test", "127.0.0.1:1");
            for (name, value) in properties {
                let (name, value) = ((*name).to_owned(), (*value).to_owned());
                config.properties.insert(name, value);
            }
            let told = client(&config);
            told.get("ssl.ca.location").map(str::to_owned)
        };
        assert_eq!(location(&[]).as_deref(), Some("probe"));
        let named = location(&[("ssl.ca.location", "/ca.pem")]);
        assert_eq!(named.as_deref(), Some("/ca.pem"));
        assert_eq!(location(&[("ssl.ca.pem", "-----BEGIN")]), None);
    }

    #[test]
    fn every_setting_of_ours_that_a_client_gets_is_among_those_refused() {
        let config = KafkaConfig::new("test", "127.0.0.1:1");
        let join = Join::new(
            tidegate_core::GroupName::new("g").unwrap(),
            vec![tidegate_core::Topic::new("t").unwrap()],
        );
        let theirs = [
            "client.id",
            "compression.type",
            "fetch.queue.backoff.ms",
            "fetch.wait.max.ms",
            "linger.ms",
            "queued.max.messages.kbytes",
            "reconnect.backoff.max.ms",
            "reconnect.backoff.ms",
            "ssl.ca.location",
        ];
        let clients = [
            member(&config, &join),
            reader(&config),
            offset_fetcher(&config, "g"),
            transactional(&config, BATCH_SIZE, ("id", None), Duration::from_secs(45)),
        ];
        for client in clients {
            for name in client.config_map().keys() {
                let refused = reserved(name).is_some();
                assert!(refused || theirs.contains(name), "{name}");
            }
        }
    }

    #[test]
    fn a_member_has_the_name_the_heartbeat_and_the_buffer_it_asks_for() {
        let config = KafkaConfig::new("test", "127.0.0.1:1");
        let usual = Join::new(
            tidegate_core::GroupName::new("g").unwrap(),
            vec![tidegate_core::Topic::new("t").unwrap()],
        );
        let tier = Join {
            name: Some("eventbus-orders-retry-1".to_owned()),
            buffer: Some(4 * 1024 * 1024),
            max_heartbeat: Duration::from_millis(300),
            ..usual.clone()
        };
        let short = Join {
            session_timeout: Duration::from_millis(1_200),
            max_heartbeat: Duration::from_secs(10),
            ..usual.clone()
        };
        let tiny = Join {
            max_heartbeat: Duration::ZERO,
            buffer: Some(0),
            ..usual.clone()
        };
        let names = [
            "client.id",
            "heartbeat.interval.ms",
            "queued.max.messages.kbytes",
        ];
        for (join, expected) in [
            (usual, ["tidegate", "1000", "8192"]),
            (tier, ["eventbus-orders-retry-1", "300", "2048"]),
            (short, ["tidegate", "200", "8192"]),
            (tiny, ["tidegate", "100", "1"]),
        ] {
            let told = member(&config, &join);
            assert_eq!(names.map(|name| told.get(name).unwrap()), expected);
        }
    }

    #[test]
    fn batches_fit_into_what_a_topic_takes() {
        for max in [1_u64, 600, 2_024, 65_000, 1_048_588, 1_000_500, 5_000_000] {
            let size = batch_size(max);
            assert!(size <= max.max(1) && size <= BATCH_SIZE, "{max}: {size}");
        }
        assert_eq!(batch_size(4 * 1024 * 1024), BATCH_SIZE);
    }
}
