//! The rules that every implementation of a port must keep.
//!
//! Each rule is a function named as a sentence; the macros make one test of each, so that a
//! failure names the rule that was broken. The same rules run on the real ports and on the
//! simulated ones.
//!
//! Optional promises do not exist here: a port that cannot keep a rule is not that port.

pub mod clock;
pub mod disk;
pub mod entropy;
pub mod spawn;
