//! Java class names where failure codes belong.
//!
//! They are accepted as codes of their own, so that files written for the Java library load
//! unchanged. Nothing here raises them, so each gets a warning with the code it resembles.

/// Parts of class names, and the code that means the same here.
const RESEMBLING: &[(&str, &str)] = &[
    ("connecttimeout", "timeout.connect"),
    ("connectiontimeout", "timeout.connect"),
    ("sockettimeout", "timeout.read"),
    ("readtimeout", "timeout.read"),
    ("timeout", "timeout.*"),
    ("serviceunavailable", "service.unavailable"),
    ("toomanyrequests", "service.rate-limited"),
    ("connectexception", "connection.refused"),
    ("connectionrefused", "connection.refused"),
    ("unknownhost", "connection.unknown-host"),
    ("schemavalidation", "schema.invalid"),
    ("serialization", "schema.invalid"),
    ("jsonprocessing", "schema.invalid"),
    ("jsonparse", "schema.invalid"),
    ("optimisticlock", "conflict.optimistic-lock"),
    ("staleobjectstate", "conflict.optimistic-lock"),
    ("deadlock", "conflict.deadlock"),
    ("duplicatekey", "conflict.duplicate"),
    ("transientdataaccess", "database.transient"),
    ("dataintegrityviolation", "database.integrity"),
    ("businessruleviolation", "business.rule-violated"),
    ("illegalargument", "input.invalid"),
    ("nullpointer", "handler.panic"),
    ("authentication", "access.denied"),
    ("accessdenied", "access.denied"),
    ("callnotpermitted", "breaker.open"),
    ("ioexception", "connection.*"),
];

/// Endings of class names that say nothing about the failure.
const ENDINGS: &[&str] = &["FailureException", "Exception", "Error", "Failure"];

/// The code that resembles `code`, if `code` is the name of a Java class.
pub(crate) fn resembling(code: &str) -> Option<String> {
    let class = code.rsplit('.').next()?;
    // Our own codes are in lower case throughout; classes begin with a capital.
    if !class.starts_with(|c: char| c.is_ascii_uppercase()) {
        return None;
    }
    let lower = class.to_ascii_lowercase();
    let known = RESEMBLING.iter().find(|(part, _)| lower.contains(part));
    Some(known.map_or_else(|| kebab(class), |(_, code)| (*code).to_owned()))
}

fn kebab(class: &str) -> String {
    let stem = ENDINGS
        .iter()
        .find_map(|ending| class.strip_suffix(ending).filter(|stem| !stem.is_empty()))
        .unwrap_or(class);
    let mut kebab = String::new();
    for c in stem.chars() {
        if c.is_ascii_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.push(c.to_ascii_lowercase());
    }
    kebab
}

/// Whether two patterns may mean the same failure: `timeout.*` and `timeout.read` do.
pub(crate) fn overlap(a: &str, b: &str) -> bool {
    let covers = |pattern: &str, code: &str| {
        pattern
            .strip_suffix('*')
            .is_some_and(|prefix| code.starts_with(prefix))
    };
    a == b || covers(a, b) || covers(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_get_the_code_they_resemble() {
        for (class, code) in [
            ("java.net.SocketTimeoutException", "timeout.read"),
            (
                "javax.ws.rs.ServiceUnavailableException",
                "service.unavailable",
            ),
            (
                "com.enterprise.schema.SchemaValidationException",
                "schema.invalid",
            ),
            (
                "org.springframework.dao.OptimisticLockingFailureException",
                "conflict.optimistic-lock",
            ),
            ("com.acme.CardDeclinedException", "card-declined"),
        ] {
            assert_eq!(resembling(class).as_deref(), Some(code));
        }
        assert_eq!(resembling("timeout.*"), None);
        assert_eq!(resembling("schema.invalid"), None);
    }

    #[test]
    fn patterns_overlap_with_what_they_cover() {
        assert!(overlap("timeout.*", "timeout.read"));
        assert!(overlap("a", "a"));
        assert!(!overlap("timeout.*", "time"));
    }
}
