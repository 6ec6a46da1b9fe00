//! The questions that clients ask.

use jiff::Timestamp;
use tidegate_logger::StepStatus;

use crate::EventLogError;
use crate::event::words;
use crate::limit::{WINDOW, WORDS_OF_QUERY};
use crate::page::PageRequest;

/// A span of time, each end included and each optional.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeWindow {
    /// The first moment (`startDate`), in microseconds since 1970.
    pub start_us: Option<i64>,
    /// The last moment (`endDate`).
    pub end_us: Option<i64>,
}

impl TimeWindow {
    /// Reads `startDate` and `endDate`: a time with its offset, or a day in UTC, of which all counts.
    ///
    /// # Errors
    /// A text is neither, or the window ends before it begins.
    pub fn read(start: Option<&str>, end: Option<&str>) -> Result<Self, EventLogError> {
        let start_us = start.map(|text| moment("startDate", text, Day::Begin));
        let end_us = end.map(|text| moment("endDate", text, Day::End));
        let window = Self {
            start_us: start_us.transpose()?,
            end_us: end_us.transpose()?,
        };
        match (window.start_us, window.end_us) {
            (Some(start), Some(end)) if end < start => Err(EventLogError::request(
                "endDate",
                "must not be before `startDate`",
            )),
            (Some(_) | None, Some(_) | None) => Ok(window),
        }
    }

    /// Refuses a window with one end, and one that is longer than a search may be.
    fn check_bounded(self) -> Result<(), EventLogError> {
        match (self.start_us, self.end_us) {
            (None, None) => Ok(()),
            (Some(_), None) => Err(EventLogError::request(
                "endDate",
                "missing beside `startDate`",
            )),
            (None, Some(_)) => Err(EventLogError::request(
                "startDate",
                "missing beside `endDate`",
            )),
            (Some(start), Some(end)) => {
                let longest = i64::try_from(WINDOW.as_micros()).unwrap_or(i64::MAX);
                match end.saturating_sub(start) > longest {
                    true => {
                        let days = WINDOW.as_secs() / 86_400;
                        let message = format!("must be at most {days} days after `startDate`");
                        Err(EventLogError::request("endDate", message))
                    }
                    false => Ok(()),
                }
            }
        }
    }
}

/// Which end of a day a date stands for.
#[derive(Clone, Copy)]
enum Day {
    Begin,
    End,
}

fn moment(path: &str, text: &str, day: Day) -> Result<i64, EventLogError> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at.as_microsecond());
    }
    let begin = format!("{text}T00:00:00Z").parse::<Timestamp>();
    let begin = begin.map_err(|_| {
        EventLogError::request(path, "must be ISO-8601: a time with an offset, or a day")
    })?;
    let begin = begin.as_microsecond();
    Ok(match day {
        Day::Begin => begin,
        Day::End => begin.saturating_add(86_400 * 1_000_000 - 1),
    })
}

/// Reads a word of `eventStatus`.
///
/// # Errors
/// It is none of the five.
pub(crate) fn status(text: &str) -> Result<StepStatus, EventLogError> {
    crate::sql::OUTCOMES
        .into_iter()
        .find(|outcome| outcome.as_str() == text)
        .ok_or_else(|| {
            let message = "must be SUCCESS, FAILURE, IN_PROGRESS, SKIPPED or WARNING";
            EventLogError::request("eventStatus", message)
        })
}

/// The events of an account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountQuery {
    /// When they happened.
    pub window: TimeWindow,
    /// Of this process.
    pub process_name: Option<String>,
    /// With this outcome.
    pub event_status: Option<String>,
    /// Also those of correlations that are linked to the account.
    pub include_linked: bool,
    /// Which page.
    pub page: PageRequest,
}

/// A lookup by account or process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LookupQuery {
    /// Of this account.
    pub account_id: Option<String>,
    /// Of this process.
    pub process_name: Option<String>,
    /// With this outcome.
    pub event_status: Option<String>,
    /// When they happened.
    pub window: TimeWindow,
    /// Which page.
    pub page: PageRequest,
}

impl LookupQuery {
    /// Refuses a lookup that would go through everything.
    pub(crate) fn check(&self) -> Result<(), EventLogError> {
        check_subject(self.account_id.as_deref(), self.process_name.as_deref())?;
        self.window.check_bounded()
    }
}

/// A search for words in the details of events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextQuery {
    /// The words; each must stand in the details, or begin a word there.
    pub query: String,
    /// Of this account.
    pub account_id: Option<String>,
    /// Of this process.
    pub process_name: Option<String>,
    /// When they happened.
    pub window: TimeWindow,
    /// Which page.
    pub page: PageRequest,
}

impl TextQuery {
    /// The words to look for.
    pub(crate) fn check(&self) -> Result<Vec<String>, EventLogError> {
        check_subject(self.account_id.as_deref(), self.process_name.as_deref())?;
        self.window.check_bounded()?;
        let words = words(&self.query);
        if words.is_empty() {
            return Err(EventLogError::request(
                "query",
                "must hold a letter or a digit",
            ));
        }
        if words.len() > WORDS_OF_QUERY {
            let message = format!(
                "has {} words, and may have at most {WORDS_OF_QUERY}",
                words.len()
            );
            return Err(EventLogError::request("query", message));
        }
        Ok(words)
    }
}

fn check_subject(account: Option<&str>, process: Option<&str>) -> Result<(), EventLogError> {
    match (account, process) {
        (None, None) => Err(EventLogError::request(
            "accountId",
            "missing; `accountId` or `processName` is needed",
        )),
        (Some(_), _) | (_, Some(_)) => Ok(()),
    }
}

/// Which traces to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceQuery {
    /// With an event in this window.
    pub window: TimeWindow,
    /// With an event of this process.
    pub process_name: Option<String>,
    /// With an event of this account.
    pub account_id: Option<String>,
    /// This one.
    pub trace_id: Option<String>,
    /// With an event of this correlation.
    pub correlation_id: Option<String>,
    /// With one of these as their latest status, separated by commas.
    pub event_status: Option<String>,
    /// With failed events, or without.
    pub has_errors: Option<bool>,
    /// Which page.
    pub page: PageRequest,
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400 * 1_000_000;

    #[test]
    fn a_window_is_read_from_times_and_days() {
        let read = |start, end| TimeWindow::read(start, end);
        let day = read(Some("1970-01-02"), Some("1970-01-02")).unwrap();
        assert_eq!((day.start_us, day.end_us), (Some(DAY), Some(2 * DAY - 1)));
        let hour = read(Some("1970-01-01T01:00:00+01:00"), None).unwrap();
        assert_eq!((hour.start_us, hour.end_us), (Some(0), None));
        assert!(read(Some("1970-01-02"), Some("1970-01-01")).is_err());
        assert!(read(Some("yesterday"), None).is_err());
    }

    #[test]
    fn a_search_is_bounded_by_its_subject_and_thirty_days() {
        let of = |account: Option<&str>, start: Option<i64>, end: Option<i64>| {
            let lookup = LookupQuery {
                account_id: account.map(str::to_owned),
                window: TimeWindow {
                    start_us: start,
                    end_us: end,
                },
                ..LookupQuery::default()
            };
            lookup.check().map_err(|error| error.to_string())
        };
        assert_eq!(of(Some("A"), None, None), Ok(()));
        assert_eq!(of(Some("A"), Some(0), Some(30 * DAY)), Ok(()));
        for (account, start, end, expect) in [
            (None, None, None, "accountId"),
            (Some("A"), Some(0), None, "endDate"),
            (Some("A"), None, Some(0), "startDate"),
            (Some("A"), Some(0), Some(31 * DAY), "30 days"),
        ] {
            let error = of(account, start, end).unwrap_err();
            assert!(error.contains(expect), "{error}");
        }
    }

    #[test]
    fn a_text_query_has_words() {
        let of = |query: &str| TextQuery {
            query: query.to_owned(),
            process_name: Some("CheckIn".to_owned()),
            ..TextQuery::default()
        };
        assert_eq!(of("Booking BK").check().unwrap(), ["bk", "booking"]);
        assert!(of(" -- ").check().is_err());
        let many: Vec<String> = (0..21).map(|n| format!("w{n}")).collect();
        assert!(of(&many.join(" ")).check().is_err());
    }
}
