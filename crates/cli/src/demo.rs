//! The demos: small stories that anyone can check.
//!
//! They run on the simulator, so an outage takes a moment, and a seed tells the whole story again.

mod dependency;
mod path;
mod story;

pub(crate) use story::{Frame, Story, Verdict};
