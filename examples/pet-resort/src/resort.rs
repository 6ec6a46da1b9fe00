//! The resort: its guests, its bookings, and how it logs.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tidegate_core::env::Entropy;
use tidegate_logger::{ProcessTemplate, SpanId, TraceContext, TraceId};

use crate::reply::Problem;
use crate::story::Story;

/// A guest.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pet {
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) owner_id: &'static str,
}

impl Pet {
    const fn new(id: Id, name: &'static str, kind: &'static str, owner_id: Id) -> Self {
        Self {
            id,
            name,
            kind,
            owner_id,
        }
    }
}

type Id = &'static str;

/// Who pays.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Owner {
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
}

impl Owner {
    const fn new(id: Id, name: &'static str) -> Self {
        Self { id, name }
    }
}

pub(crate) const PETS: [Pet; 5] = [
    Pet::new("PET-001", "Rex", "dog", "OWN-001"),
    Pet::new("PET-002", "Mia", "cat", "OWN-001"),
    Pet::new("PET-003", "Coco", "bird", "OWN-002"),
    Pet::new("PET-004", "Hoppel", "rabbit", "OWN-002"),
    Pet::new("PET-005", "Smaug", "reptile", "OWN-003"),
];

pub(crate) const OWNERS: [Owner; 3] = [
    Owner::new("OWN-001", "Ann Archer"),
    Owner::new("OWN-002", "Ben Baker"),
    Owner::new("OWN-003", "Cleo Carter"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum BookingState {
    Pending,
    AwaitingApproval,
    CheckedIn,
    CheckedOut,
    Cancelled,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Booking {
    pub(crate) id: String,
    pub(crate) pet_id: &'static str,
    pub(crate) owner_id: &'static str,
    pub(crate) check_in_date: jiff::civil::Date,
    pub(crate) check_out_date: jiff::civil::Date,
    pub(crate) state: BookingState,
    /// The check-in that somebody has to approve, so that the approval goes on with it.
    #[serde(skip)]
    pub(crate) awaited: Option<Awaited>,
}

/// A process that another request ends.
#[derive(Debug, Clone)]
pub(crate) struct Awaited {
    pub(crate) correlation_id: String,
    pub(crate) trace_id: TraceId,
    pub(crate) root: Option<SpanId>,
}

/// How long simulated troubles take.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// A kennel system that does not answer.
    pub kennel_timeout: Duration,
    /// A person who looks at a check-in.
    pub agent: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            kennel_timeout: Duration::from_secs(2),
            agent: Duration::from_secs(3),
        }
    }
}

/// The state that all requests share.
#[derive(Debug)]
pub struct Resort {
    template: ProcessTemplate,
    pub(crate) pace: Pace,
    bookings: Mutex<BTreeMap<String, Booking>>,
    entropy: Mutex<Box<dyn Entropy>>,
}

impl Resort {
    /// A resort whose processes are logged as `template` says.
    #[must_use]
    pub fn new(template: ProcessTemplate, entropy: Box<dyn Entropy>, pace: Pace) -> Self {
        Self {
            template,
            pace,
            bookings: Mutex::default(),
            entropy: Mutex::new(entropy),
        }
    }

    /// A process that belongs to the trace and the business case of its request.
    pub(crate) fn story(
        &self,
        name: &'static str,
        trace: &TraceContext,
        account: &'static str,
    ) -> Story {
        let process = self.template.for_process(name).with_trace(trace);
        Story(process.with_account_id(account))
    }

    pub(crate) fn bookings(&self) -> MutexGuard<'_, BTreeMap<String, Booking>> {
        self.bookings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn booking(&self, id: &str) -> Result<Booking, Problem> {
        let found = self.bookings().get(id).cloned();
        found.ok_or_else(|| Problem::not_found("booking", id))
    }

    /// Moves a booking on, unless another request was faster.
    pub(crate) fn advance(
        &self,
        id: &str,
        from: &[BookingState],
        to: BookingState,
    ) -> Result<Booking, Problem> {
        let mut bookings = self.bookings();
        let booking = bookings
            .get_mut(id)
            .ok_or_else(|| Problem::not_found("booking", id))?;
        if !from.contains(&booking.state) {
            return Err(Problem::conflict(id, booking.state));
        }
        booking.state = to;
        let booking = booking.clone();
        let active = bookings
            .values()
            .filter(|b| !matches!(b.state, BookingState::CheckedOut | BookingState::Cancelled));
        let inside = bookings
            .values()
            .filter(|b| b.state == BookingState::CheckedIn);
        metrics::gauge!("petresort.bookings.active").set(active.count() as f64);
        metrics::gauge!("petresort.pets.checked_in").set(inside.count() as f64);
        Ok(booking)
    }

    pub(crate) fn trace<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> TraceContext {
        let mut entropy = self.entropy.lock().unwrap_or_else(PoisonError::into_inner);
        TraceContext::from_headers(lookup, entropy.as_mut())
    }
}
