//! Finds events that the Event Log API would refuse, before they are sent.

use std::fmt;

use super::{Defaults, Event, Extras, Text, is_taken, or_default};

/// Something about one field that the API would refuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldProblem {
    /// The field, as on the wire, such as `processName` or `spanLinks[2]`.
    pub path: String,
    /// The problem.
    pub message: String,
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

const HTTP_METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

impl Event {
    /// Everything the API would refuse about this event once `defaults` are filled in.
    ///
    /// Logging does not ask for it: an event with problems is accepted, sent, and set aside as
    /// rejected. Limits count characters.
    ///
    /// ```
    /// use tidegate_logger::{Defaults, Event};
    /// let event = Event::step("CheckIn", "KeyHandedOver", "").trace_id("abc");
    /// let problems = event.validate(&Defaults::new("pet-resort-api", "PET_RESORT", "PET_RESORT"));
    /// let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    /// assert_eq!(lines, [
    ///     "correlationId: missing",
    ///     "details: must not be empty",
    ///     "traceId: must be 32 lowercase hex digits",
    /// ]);
    /// ```
    #[must_use]
    pub fn validate(&self, defaults: &Defaults) -> Vec<FieldProblem> {
        let mut found = Found::default();
        let application = or_default(self.application_id.as_ref(), &defaults.application_id);
        let target = or_default(self.target_system.as_ref(), &defaults.target_system);
        let origin = or_default(
            self.originating_system.as_ref(),
            &defaults.originating_system,
        );

        found.required("applicationId", application, 200);
        found.required("correlationId", self.correlation_id.as_deref(), 200);
        found.required("processName", self.process_name.as_deref(), 510);
        if self.process_status.is_none() {
            found.add("processStatus", self.missing("eventType"));
        }
        found.at_most("step", self.step.as_deref(), 510);
        if self.step.is_some() && self.process_status == Some(super::ProcessStatus::Error) {
            found.add("step", "must be absent for ERROR");
        }
        match self.details.as_deref() {
            None => found.add("details", self.missing("summary")),
            Some("") => found.add("details", "must not be empty"),
            Some(_) => {}
        }
        found.required("targetSystem", target, 200);
        found.required("originatingSystem", origin, 200);
        found.at_most("userId", self.user_id.as_deref(), 200);
        self.extras().check(&mut found);
        found.problems
    }

    /// Names the property of an older writer when it stands where a field is missing.
    fn missing(&self, older: &str) -> String {
        match self.extras().properties.get(older) {
            Some(_) => format!("missing; {older} was given"),
            None => "missing".to_owned(),
        }
    }
}

impl Extras {
    fn check(&self, found: &mut Found) {
        found.hex("traceId", self.trace_id.as_deref(), 32);
        found.hex("spanId", self.span_id.as_deref(), 16);
        found.hex("parentSpanId", self.parent_span_id.as_deref(), 16);
        found.at_most("accountId", self.account_id.as_deref(), 64);
        found.within("result", self.result.as_deref(), 2048);
        found.at_most("errorCode", self.error_code.as_deref(), 100);
        found.at_most("errorMessage", self.error_message.as_deref(), 2048);
        found.at_most("idempotencyKey", self.idempotency_key.as_deref(), 128);
        found.at_most("batchId", self.batch_id.as_deref(), 200);
        for (index, link) in self.span_links.iter().flatten().enumerate() {
            found.hex(&format!("spanLinks[{index}]"), Some(link), 16);
        }
        found.at_most("endpoint", self.endpoint.as_deref(), 510);
        if let Some(method) = &self.http_method
            && !HTTP_METHODS.contains(&&**method)
        {
            let methods = HTTP_METHODS.join(", ");
            found.add("httpMethod", format!("must be one of {methods}"));
        }
        if let Some(code) = self.http_status_code
            && !(100..600).contains(&code)
        {
            found.add(
                "httpStatusCode",
                format!("is {code}, and must be 100 to 599"),
            );
        }
        for (name, _) in self.properties.iter().filter(|(name, _)| is_taken(name)) {
            found.add(
                name,
                "is not written: the name belongs to a field or the transport",
            );
        }
    }
}

#[derive(Default)]
struct Found {
    problems: Vec<FieldProblem>,
}

impl Found {
    fn add(&mut self, path: &str, message: impl Into<Text>) {
        self.problems.push(FieldProblem {
            path: path.to_owned(),
            message: message.into().into_owned(),
        });
    }

    fn required(&mut self, path: &str, text: Option<&str>, limit: usize) {
        match text {
            None => self.add(path, "missing"),
            Some(_) => self.within(path, text, limit),
        }
    }

    /// Not empty, and not longer than `limit`.
    fn within(&mut self, path: &str, text: Option<&str>, limit: usize) {
        if text == Some("") {
            self.add(path, "must not be empty");
        }
        self.at_most(path, text, limit);
    }

    fn at_most(&mut self, path: &str, text: Option<&str>, limit: usize) {
        let length = text.map_or(0, |text| text.chars().count());
        if length > limit {
            let message = format!("has {length} characters, and may have at most {limit}");
            self.add(path, message);
        }
    }

    fn hex(&mut self, path: &str, text: Option<&str>, digits: usize) {
        let is_hex = |text: &str| {
            text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        if text.is_some_and(|text| !is_hex(text)) {
            self.add(path, format!("must be {digits} lowercase hex digits"));
        }
    }
}
