//! Who is let in, and what is said otherwise.

mod needs_kafka {
    use std::time::{Duration, Instant};

    use tidegate_core::Offset;
    use tidegate_core::env::Env;
    use tidegate_log::kafka::{KafkaConfig, KafkaLog};
    use tidegate_log::{Commit, Join, Log, LogError, OffsetCommit, TopicPartition};

    use crate::broker::{Broker, USER};
    use crate::scene::{
        append, append_of, assigned, config, group, numbers, open, run, topic, variable,
    };

    async fn refusal(config: KafkaConfig) -> LogError {
        KafkaLog::connect(config, Env::system()).await.unwrap_err()
    }

    fn with(mut config: KafkaConfig, properties: &[(&str, &str)]) -> KafkaConfig {
        for (name, value) in properties {
            config
                .properties
                .insert((*name).to_owned(), (*value).to_owned());
        }
        config
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_broker_that_is_away_is_said_to_be_within_the_deadline() {
        run(async {
            let mut config = config("127.0.0.1:1");
            config.request_timeout = Duration::from_secs(2);
            let begin = Instant::now();
            let error = refusal(config).await;
            assert!(matches!(error, LogError::Away { .. }), "{error}");
            let said = error.to_string();
            assert!(
                said.contains("127.0.0.1:1") && said.contains("refused"),
                "{said}"
            );
            assert!(begin.elapsed() < Duration::from_secs(5));
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn settings_that_cannot_be_are_refused_by_name() {
        run(async {
            let servers = variable("KAFKA_BOOTSTRAP");
            for (name, value) in [
                ("acks", "1"),
                ("isolation.level", "read_uncommitted"),
                ("no.such.setting", "1"),
                ("linger.ms", "soon"),
            ] {
                let error = refusal(with(config(&servers), &[(name, value)])).await;
                assert!(matches!(error, LogError::Refused { .. }), "{error}");
                assert!(error.to_string().contains(name), "{error}");
            }
        });
    }

    fn sasl(password: &str) -> KafkaConfig {
        with(
            config(&variable("KAFKA_SASL_BOOTSTRAP")),
            &[
                ("security.protocol", "sasl_plaintext"),
                ("sasl.mechanism", "PLAIN"),
                ("sasl.username", &variable("KAFKA_SASL_USERNAME")),
                ("sasl.password", password),
            ],
        )
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t44_the_right_password_opens_and_a_wrong_one_is_a_refusal() {
        run(async {
            let log = open(sasl(&variable("KAFKA_SASL_PASSWORD"))).await;
            let at = TopicPartition::new(topic(&log, 1).await, 0);
            append(&log, &at, 0..3).await;
            assert_eq!(numbers(&log, &at).await, [0, 1, 2]);
            let error = refusal(sasl("wrong-password")).await;
            assert!(matches!(error, LogError::Refused { .. }), "{error}");
            assert!(!error.to_string().contains("wrong-password"), "{error}");
            assert!(!format!("{log:?}").contains(&variable("KAFKA_SASL_PASSWORD")));
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t44_tls_opens_with_the_right_authority_and_is_a_refusal_without() {
        run(async {
            let tls = with(
                config(&variable("KAFKA_SSL_BOOTSTRAP")),
                &[("security.protocol", "ssl")],
            );
            let known = [("ssl.ca.location", variable("KAFKA_SSL_CA"))];
            let known = known
                .each_ref()
                .map(|(name, value)| (*name, value.as_str()));
            let log = open(with(tls.clone(), &known)).await;
            assert!(log.topics().await.is_ok());
            let error = refusal(tls).await;
            assert!(matches!(error, LogError::Refused { .. }), "{error}");
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t44_records_go_through_tls_with_a_password_and_so_do_transactions() {
        let broker = Broker::start();
        run(async move {
            let authority = Broker::authority();
            let guarded = |mechanism: &str, password: &str| {
                with(
                    config(&broker.guarded_servers()),
                    &[
                        ("security.protocol", "sasl_ssl"),
                        ("ssl.ca.location", &authority.display().to_string()),
                        ("sasl.mechanism", mechanism),
                        ("sasl.username", USER.0),
                        ("sasl.password", password),
                    ],
                )
            };
            for mechanism in ["SCRAM-SHA-512", "PLAIN"] {
                let log = open(guarded(mechanism, USER.1)).await;
                let at = TopicPartition::new(topic(&log, 1).await, 0);
                append(&log, &at, 0..3).await;
                // The clients of a group and of a transaction find the same door.
                let join = Join::new(group(), vec![at.topic.clone()]);
                let session = log.join(join).await.unwrap();
                let fence = assigned(&*session).await[&at].fence;
                let offset = OffsetCommit {
                    at: at.clone(),
                    fence,
                    next: Offset(3),
                    metadata: String::new(),
                    postings: vec![],
                };
                let commit = Commit {
                    appends: vec![append_of(&at, 3)],
                    offsets: vec![offset],
                };
                session.commit(commit).await.unwrap();
                assert_eq!(numbers(&log, &at).await, [0, 1, 2, 3], "{mechanism}");
                session.close().await.unwrap();
                let error = refusal(guarded(mechanism, "wrong-password")).await;
                assert!(matches!(error, LogError::Refused { .. }), "{error}");
                assert!(!error.to_string().contains("wrong-password"), "{error}");
            }
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_door_that_wants_another_key_is_no_open_door() {
        run(async {
            // A plain client at the door that wants a password: the broker hangs up, again and again.
            let mut config = config(&variable("KAFKA_SASL_BOOTSTRAP"));
            config.request_timeout = Duration::from_secs(3);
            let error = refusal(config).await;
            let is_no = matches!(error, LogError::Away { .. } | LogError::Refused { .. });
            assert!(is_no, "{error}");
        });
    }
}
