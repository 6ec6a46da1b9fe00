//! When the other side wants to be asked again.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::Response;
use reqwest::header::RETRY_AFTER;
use tidegate_core::env::Clock;

/// Longest wait that a server can ask for.
///
/// A date in a wrong year would otherwise stop the sending for as long.
const RETRY_AFTER_LIMIT: Duration = Duration::from_secs(3600);

/// The wait that a response asks for.
pub(super) fn of(response: &Response, clock: &dyn Clock) -> Option<Duration> {
    let header = response.headers().get(RETRY_AFTER)?;
    parse(header.to_str().ok()?, clock.now())
}

/// The wait that a `Retry-After` header asks for: seconds, or a date in the form of HTTP. A date in
/// the past means now. Anything else asks for nothing.
fn parse(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    let wait = if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
        // More digits than fit are a long time too.
        Duration::from_secs(text.parse().unwrap_or(u64::MAX))
    } else {
        let at = DateTimeParser::new().parse_timestamp(text).ok()?;
        let now = Timestamp::try_from(now).ok()?;
        Duration::try_from(at.duration_since(now)).unwrap_or_default()
    };
    Some(wait.min(RETRY_AFTER_LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn seconds_and_dates_are_understood_and_limited() {
        // Wed, 21 Oct 2015 07:28:00 GMT
        let now = UNIX_EPOCH + Duration::from_secs(1_445_412_480);
        let check = |text: &str, expect: Option<u64>| {
            assert_eq!(parse(text, now), expect.map(Duration::from_secs), "{text}");
        };
        check("0", Some(0));
        check("120", Some(120));
        check(" 7 ", Some(7));
        check("3601", Some(3600));
        check("99999999999999999999999", Some(3600));
        check("Wed, 21 Oct 2015 07:28:30 GMT", Some(30));
        check("Wed, 21 Oct 2015 07:27:00 GMT", Some(0));
        check("Fri, 21 Oct 2095 07:28:00 GMT", Some(3600));
        check("", None);
        check("-1", None);
        check("1.5", None);
        check("soon", None);
    }
}
