//! Tests of the stage runtime.

mod operators;
