//! Expressions: CEL, checked and evaluated.
