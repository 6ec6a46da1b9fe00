//! The operators of a task, alone: the same as the model, from the tables alone, one promise after the other.

mod differential;
mod examples;
mod harness;
mod promises;
mod repartition;
