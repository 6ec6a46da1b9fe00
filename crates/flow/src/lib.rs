#![doc = include_str!("../README.md")]

pub mod apply;
pub mod check;
pub mod diagnostic;
pub mod expression;
pub mod model;
pub mod plan;
pub mod scenario;
mod span;
pub mod syntax;
pub mod value;

pub use diagnostic::Diagnostic;
pub use span::Span;
