//! Who is let in, and what is said otherwise.

mod needs_kafka {
    use std::time::{Duration, Instant};

    use tidegate_core::Offset;
    use tidegate_core::env::Env;
    use tidegate_log::kafka::{KafkaConfig, KafkaLog};
    use tidegate_log::{Commit, Join, Log, LogError, OffsetCommit, TopicPartition};

    use crate::scene::{
        append, append_of, assigned, config, group, numbers_once, open, run, topic, variable, with,
    };

    async fn refusal(config: KafkaConfig) -> LogError {
        KafkaLog::connect(config, Env::system()).await.unwrap_err()
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_broker_that_is_away_is_said_to_be_within_the_deadline() {
        run(async {
            let mut config = config("127.0.0.1:1");
            config.request_timeout = Duration::from_secs(2);
            let begin = Instant::now();
            let error = refusal(config).await;
            assert!(matches!(error, LogError::Unavailable { .. }), "{error}");
            let said = error.to_string();
            assert!(
                said.contains("127.0.0.1:1") && said.contains("refused"),
                "{said}"
            );
            // Far from both: the two seconds that were asked for and the thirty that are usual.
            assert!(begin.elapsed() < Duration::from_secs(20));
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

    /// A client at a door that wants a password.
    fn sasl(mechanism: &str, password: &str) -> KafkaConfig {
        with(
            config(&variable("KAFKA_SASL_BOOTSTRAP")),
            &[
                ("security.protocol", "sasl_plaintext"),
                ("sasl.mechanism", mechanism),
                ("sasl.username", &variable("KAFKA_SASL_USERNAME")),
                ("sasl.password", password),
            ],
        )
    }

    /// The same at the door that wants TLS as well.
    fn guarded(mechanism: &str, password: &str) -> KafkaConfig {
        let mut config = with(
            sasl(mechanism, password),
            &[
                ("security.protocol", "sasl_ssl"),
                ("ssl.ca.location", &variable("KAFKA_SSL_CA")),
            ],
        );
        config.bootstrap_servers = variable("KAFKA_SASL_SSL_BOOTSTRAP");
        config
    }

    const MECHANISMS: [&str; 3] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];

    /// Nobody is let in, and is told where and by which setting, without the password.
    async fn is_not_let_in(config: KafkaConfig, setting: &str) {
        let servers = config.bootstrap_servers.clone();
        let error = refusal(config).await;
        let LogError::Login { settings, .. } = &error else {
            panic!("{error}");
        };
        assert!(settings.contains(setting), "{settings}");
        let said = error.to_string();
        assert!(said.contains(&servers), "{said}");
        assert!(!format!("{error:?}").contains("wrong-password"), "{said}");
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t44_the_right_password_opens_and_a_wrong_one_is_a_refusal() {
        run(async {
            let password = variable("KAFKA_SASL_PASSWORD");
            for mechanism in MECHANISMS {
                let log = open(sasl(mechanism, &password)).await;
                assert!(log.topics().await.is_ok(), "{mechanism}");
                assert!(!format!("{log:?}").contains(&password));
                for door in [sasl, guarded] {
                    is_not_let_in(door(mechanism, "wrong-password"), "`sasl.password`").await;
                }
            }
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
            let authority = variable("KAFKA_SSL_CA");
            let log = open(with(tls.clone(), &[("ssl.ca.location", &authority)])).await;
            assert!(log.topics().await.is_ok());
            let text = std::fs::read_to_string(&authority).unwrap();
            let log = open(with(tls.clone(), &[("ssl.ca.pem", &text)])).await;
            assert!(log.topics().await.is_ok());
            is_not_let_in(tls, "`ssl.ca.location`").await;
        });
    }

    /// Records, a group and a transaction: each has clients of its own, which find the same door.
    async fn pass(mechanism: &str) {
        let log = open(guarded(mechanism, &variable("KAFKA_SASL_PASSWORD"))).await;
        let at = TopicPartition::new(topic(&log, 1).await, 0);
        append(&log, &at, 0..3).await;
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
        assert_eq!(
            numbers_once(&log, &at, 4).await,
            [0, 1, 2, 3],
            "{mechanism}"
        );
        session.close().await.unwrap();
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t44_records_go_through_tls_with_a_password_and_so_do_transactions() {
        run(async {
            for passing in MECHANISMS.map(|mechanism| tokio::spawn(pass(mechanism))) {
                passing.await.unwrap();
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
            let is_no = matches!(
                error,
                LogError::Unavailable { .. } | LogError::Refused { .. }
            );
            assert!(is_no, "{error}");
        });
    }
}
