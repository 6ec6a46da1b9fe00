//! The plan: what a stage does, as data.
