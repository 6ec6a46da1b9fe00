//! Errors of the client as errors of the log.

use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tidegate_core::Topic;

use crate::error::LogError;

use RDKafkaErrorCode as Code;

/// The broker says no, and will say it again.
const REFUSALS: [Code; 15] = [
    Code::Authentication,
    Code::SSL,
    Code::UnsupportedFeature,
    Code::SaslAuthenticationFailed,
    Code::TopicAuthorizationFailed,
    Code::GroupAuthorizationFailed,
    Code::ClusterAuthorizationFailed,
    Code::TransactionalIdAuthorizationFailed,
    Code::DelegationTokenAuthorizationFailed,
    Code::UnsupportedSASLMechanism,
    Code::IllegalSASLState,
    Code::UnsupportedVersion,
    Code::SecurityDisabled,
    Code::OffsetMetadataTooLarge,
    Code::InvalidCommitOffsetSize,
];

/// A broker that does not know a request, or not the version of it that is needed.
const TOO_OLD: &str = "Kafka 2.5 or newer is needed";

/// The member's place in the group has changed; under its new generation it may still own what it
/// owned.
const STALE: [Code; 6] = [
    Code::AssignmentLost,
    Code::FencedInstanceId,
    Code::RebalanceInProgress,
    Code::IllegalGeneration,
    Code::StaleMemberEpoch,
    Code::UnknownMemberId,
];

/// The broker takes other records of the batch, or would.
const INVALID_RECORDS: [Code; 5] = [
    Code::InvalidRecord,
    Code::InvalidDifferentRecord,
    Code::InvalidTimestamp,
    Code::PolicyViolation,
    Code::UnsupportedForMessageFormat,
];

/// Whether it says that this record, or one beside it, is none that the topic takes.
pub(super) fn is_about_record(code: Code) -> bool {
    INVALID_RECORDS.contains(&code)
}

/// The meaning of an error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// No answer, or none from whoever should know.
    NoAnswer,
    /// Credentials, rights or version.
    Refusal,
    /// There is no such topic or partition.
    NoTopic,
    /// The group has moved on.
    Stale,
    /// A record is larger than the topic takes.
    TooLarge,
}

/// The meaning of an error code. A code that is not known to be final counts as no answer: asking
/// again is safe, giving up is not.
pub(super) fn meaning(code: Code) -> Meaning {
    if REFUSALS.contains(&code) {
        Meaning::Refusal
    } else if STALE.contains(&code) {
        Meaning::Stale
    } else if code == Code::UnknownTopicOrPartition
        || code == Code::UnknownTopic
        || code == Code::UnknownPartition
        || code == Code::InvalidTopic
    {
        Meaning::NoTopic
    } else if code == Code::MessageSizeTooLarge || code == Code::InvalidMessageSize {
        Meaning::TooLarge
    } else {
        Meaning::NoAnswer
    }
}

/// Whether it says that there is no such topic or partition.
pub(super) fn is_no_topic(error: &KafkaError) -> bool {
    code_of(error).map(meaning) == Some(Meaning::NoTopic)
}

/// How long a question that got this error is worth asking again, because the answer is about to
/// change. A partition whose leader is just being found has one in a moment, and so has a group whose
/// coordinator is being found. A topic that was just made may be unknown to the broker that is asked,
/// but not for long.
pub(super) fn patience(error: &KafkaError) -> Duration {
    match code_of(error) {
        Some(
            Code::NotLeaderForPartition
            | Code::LeaderNotAvailable
            | Code::UnknownLeaderEpoch
            | Code::FencedLeaderEpoch
            | Code::NotCoordinator
            | Code::CoordinatorNotAvailable
            | Code::CoordinatorLoadInProgress,
        ) => Duration::MAX,
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition) => {
            Duration::from_secs(2)
        }
        Some(_) | None => Duration::ZERO,
    }
}

/// The settings that decide about a login that fails with this code; none for other errors.
pub(super) fn login_settings(code: Code) -> Option<&'static str> {
    const SASL: [Code; 4] = [
        Code::Authentication,
        Code::SaslAuthenticationFailed,
        Code::UnsupportedSASLMechanism,
        Code::IllegalSASLState,
    ];
    if SASL.contains(&code) {
        Some("`sasl.username`, `sasl.password` and `sasl.mechanism`")
    } else if code == Code::SSL {
        Some("`ssl.ca.location` and `security.protocol`")
    } else {
        None
    }
}

/// The code of an error, also of those that the client's own function forgets.
pub(super) fn code_of(error: &KafkaError) -> Option<Code> {
    if let KafkaError::AdminOp(code) = error {
        return Some(*code);
    }
    error.rdkafka_error_code()
}

/// Why a broker refuses. One that does not know a request, or not the version that is needed, is too old.
pub(super) fn refusal(code: Code) -> String {
    if code == Code::UnsupportedFeature || code == Code::UnsupportedVersion {
        return format!("{code}: {TOO_OLD}");
    }
    code.to_string()
}

/// The text of an error. Of a setting that the client does not take it names the key and not the value,
/// which may be a password.
pub(super) fn said(error: &KafkaError) -> String {
    if let KafkaError::ClientConfig(_, why, key, _) = error {
        return format!("the setting `{key}`: {why}");
    }
    match code_of(error) {
        Some(Code::UnsupportedFeature | Code::UnsupportedVersion) => {
            format!("{error}: {TOO_OLD}")
        }
        Some(_) | None => error.to_string(),
    }
}

/// The error of a client that could not be made.
pub(super) fn of_settings(error: &KafkaError) -> LogError {
    LogError::Refused {
        doing: "the client settings",
        why: said(error),
    }
}

/// The error of a question: nothing was to be changed by it.
pub(super) fn of_question(
    doing: &'static str,
    servers: &str,
    topic: Option<&Topic>,
    error: &KafkaError,
) -> LogError {
    let code = code_of(error);
    match (code.map(meaning), topic) {
        (_, Some(topic)) if code == Some(Code::TopicAuthorizationFailed) => LogError::Forbidden {
            topic: topic.clone(),
            doing,
            why: said(error),
        },
        (Some(Meaning::Refusal), _) => LogError::Refused {
            doing,
            why: said(error),
        },
        (Some(Meaning::NoTopic), Some(topic)) => LogError::UnknownTopic {
            topic: topic.clone(),
        },
        (Some(_), _) => LogError::Unavailable {
            servers: servers.to_owned(),
            why: said(error),
        },
        // No code: the client itself does not take what it was told.
        (None, _) => LogError::Refused {
            doing,
            why: said(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_is_not_taken_is_named_without_its_value() {
        let mut config = rdkafka::ClientConfig::new();
        for (key, value) in [
            ("sasl.passwort", "hunter22"),
            ("sasl.jaas.config", "required password=\"hunter22\";"),
        ] {
            config.set(key, value);
            let error = config.create::<rdkafka::consumer::BaseConsumer>();
            let error = error.map(drop).unwrap_err();
            let said = of_question("the client settings", "b:1", None, &error).to_string();
            assert!(said.contains(key) && !said.contains("hunter22"), "{said}");
            config.remove(key);
        }
    }

    #[test]
    fn every_client_error_has_its_meaning() {
        let topic = Topic::new("orders").unwrap();
        let of = |error: KafkaError| of_question("a read", "b:1", Some(&topic), &error).code();
        for (error, code) in [
            (
                KafkaError::MetadataFetch(Code::AllBrokersDown),
                "log.unavailable",
            ),
            (
                KafkaError::MetadataFetch(Code::OperationTimedOut),
                "log.unavailable",
            ),
            (
                KafkaError::MetadataFetch(Code::Authentication),
                "log.refused",
            ),
            (
                KafkaError::AdminOp(Code::TopicAuthorizationFailed),
                "log.forbidden",
            ),
            (
                KafkaError::MetadataFetch(Code::UnknownTopicOrPartition),
                "log.unknown-topic",
            ),
            (
                KafkaError::MetadataFetch(Code::InvalidTopic),
                "log.unknown-topic",
            ),
            (KafkaError::Subscription("no".to_owned()), "log.refused"),
        ] {
            let shown = error.to_string();
            assert_eq!(of(error).to_string(), code, "{shown}");
        }
        assert_eq!(meaning(Code::IllegalGeneration), Meaning::Stale);
        let patience = |code| patience(&KafkaError::MetadataFetch(code));
        assert_eq!(patience(Code::NotLeaderForPartition), Duration::MAX);
        assert_eq!(patience(Code::UnknownLeaderEpoch), Duration::MAX);
        // The very first group of a broker is asked for while the broker makes its topic of offsets.
        assert_eq!(patience(Code::NotCoordinator), Duration::MAX);
        assert_eq!(patience(Code::UnknownPartition), Duration::from_secs(2));
        assert_eq!(patience(Code::OperationTimedOut), Duration::ZERO);
        assert_eq!(meaning(Code::MessageSizeTooLarge), Meaning::TooLarge);
        let names = |code, name| login_settings(code).is_some_and(|all| all.contains(name));
        assert!(names(Code::Authentication, "`sasl.password`"));
        assert!(names(Code::SSL, "`ssl.ca.location`"));
        assert_eq!(login_settings(Code::TopicAuthorizationFailed), None);
        for code in [Code::UnsupportedFeature, Code::UnsupportedVersion] {
            let error = KafkaError::OffsetFetch(code);
            assert_eq!(of(error.clone()).to_string(), "log.refused");
            assert!(said(&error).contains(TOO_OLD) && refusal(code).contains(TOO_OLD));
        }
    }
}
