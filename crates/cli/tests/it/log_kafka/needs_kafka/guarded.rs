//! The door that real clusters have: TLS and a password.

use std::time::{Duration, Instant};

use super::{config, configured, lines, run_in, run_with_input, topic, variable};

/// The configuration of a client at that door.
fn guarded(topic: &str, password: &str, authority: Option<&str>) -> String {
    let user = variable("KAFKA_SASL_USERNAME");
    let authority = authority.map_or_else(String::new, |ca| format!("ssl.ca.location: {ca}, "));
    let properties = format!(
        ", properties: {{security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512, {authority}\
         sasl.username: {user}, sasl.password: {password}}}}}}}\n"
    );
    let open = config(&variable("KAFKA_SASL_SSL_BOOTSTRAP"), topic);
    open.replacen("}}\n", &properties, 1)
}

#[test]
#[ignore = "needs Kafka"]
fn t44_send_and_tail_go_through_tls_with_scram() {
    let topic = topic("guarded");
    let (password, authority) = (variable("KAFKA_SASL_PASSWORD"), variable("KAFKA_SSL_CA"));
    let dir = configured(&guarded(&topic, &password, Some(&authority)));
    let ran = run_with_input(dir.path(), &["send", &topic], "one\ntwo\n");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = run_in(
        dir.path(),
        &["tail", &topic, "--until", "end", "-o", "json"],
    );
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let mut read: Vec<_> = lines(&ran)
        .iter()
        .map(|line| line["value"].as_str().unwrap().to_owned())
        .collect();
    read.sort();
    assert_eq!(read, ["one", "two"]);
}

/// Both commands end soon, and say what is wrong, where, and which setting to change.
fn is_told(configuration: &str, topic: &str, setting: &str) {
    let dir = configured(configuration);
    for arguments in [&["send", topic, "--value", "x"][..], &["tail", topic]] {
        let begun = Instant::now();
        let ran = run_in(dir.path(), arguments);
        let took = begun.elapsed();
        assert_eq!(ran.code, Some(1), "{}", ran.stdout);
        for part in [
            "error[log.login]",
            &variable("KAFKA_SASL_SSL_BOOTSTRAP"),
            setting,
            "`log.clusters.default.properties`",
        ] {
            assert!(ran.stderr.contains(part), "{part} in {}", ran.stderr);
        }
        assert!(!ran.stderr.contains("wrong-password"), "{}", ran.stderr);
        // Less than a broker that is away is waited for.
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
}

#[test]
#[ignore = "needs Kafka"]
fn t44_a_wrong_password_is_told_soon_and_by_its_setting() {
    let authority = variable("KAFKA_SSL_CA");
    let configuration = guarded("orders", "wrong-password", Some(&authority));
    is_told(&configuration, "orders", "`sasl.password`");
}

#[test]
#[ignore = "needs Kafka"]
fn t44_an_unknown_authority_is_told_soon_and_by_its_setting() {
    let password = variable("KAFKA_SASL_PASSWORD");
    let configuration = guarded("orders", &password, None);
    is_told(&configuration, "orders", "`ssl.ca.location`");
}
