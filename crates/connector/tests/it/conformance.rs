//! The rules of a binding, played on every log.

pub(crate) mod breaker;
pub(crate) mod copies;
pub(crate) mod faults;
pub(crate) mod history;
pub(crate) mod lifecycle;
pub(crate) mod offsets;
pub(crate) mod ordered;
pub(crate) mod outages;
pub(crate) mod refusals;
pub(crate) mod states;
pub(crate) mod tiers;
pub(crate) mod time;
