//! A small shop on `tidegate-queue`; see the README.

pub mod handlers;
pub mod run;
pub mod shop;
pub mod totals;
