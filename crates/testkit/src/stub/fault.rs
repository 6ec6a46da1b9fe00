//! The faults that a stub can be told to have.

use std::collections::VecDeque;
use std::time::Duration;

/// The fault of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is stored, and this comes back.
    Status {
        /// The status.
        status: u16,
        /// The header `Retry-After`, in whatever form.
        retry_after: Option<String>,
        /// The body, in place of the error body of the API.
        body: Option<String>,
    },
    /// Nothing is stored, and no answer ever comes.
    Hang,
    /// All goes well, after this time.
    Delay(Duration),
    /// Nothing is stored, and the connection is reset.
    Reset,
    /// The events are stored; the answer breaks off in the middle of its body.
    HalfAnswer,
    /// The events are stored, and the connection is closed without an answer.
    ApplyThenDrop,
    /// The events at these places of a batch are not stored this time, the others are. One event
    /// alone gets 503.
    Partial(Vec<usize>),
}

impl Fault {
    /// This status, with the error body of the API.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::Status {
            status,
            retry_after: None,
            body: None,
        }
    }

    /// The same fault with this header `Retry-After`; only a status can carry it.
    #[must_use]
    pub fn retry_after(mut self, text: impl Into<String>) -> Self {
        if let Self::Status { retry_after, .. } = &mut self {
            *retry_after = Some(text.into());
        }
        self
    }

    /// The same fault with this body; only a status can carry it.
    #[must_use]
    pub fn body(mut self, text: impl Into<String>) -> Self {
        if let Self::Status { body, .. } = &mut self {
            *body = Some(text.into());
        }
        self
    }
}

/// A request as a stub saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Which request it was, counted from 1.
    pub number: u64,
    /// Its path.
    pub path: String,
    /// Its headers, with names in lowercase.
    pub headers: Vec<(String, String)>,
    /// The length of its body in bytes.
    pub body_len: usize,
}

impl Request {
    /// The header with this name in lowercase.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(own, _)| own == name);
        header.map(|(_, value)| value.as_str())
    }
}

type Decide = dyn Fn(&Request) -> Option<Fault> + Send + Sync;

/// The faults to come: first those in line, then those of the rule.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) line: VecDeque<Fault>,
    pub(super) rule: Option<Box<Decide>>,
}

impl Faults {
    pub(super) fn next(&mut self, request: &Request) -> Option<Fault> {
        let first = self.line.pop_front();
        first.or_else(|| self.rule.as_ref().and_then(|rule| rule(request)))
    }
}
