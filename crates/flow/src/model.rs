//! The model: a plain interpreter of the plan.
