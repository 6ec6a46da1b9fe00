//! Text to tree, and back.
//!
//! The grammar is data (`grammar`): one text of rules that the parser walks, the printer takes its line breaks
//! from, and the reference page shows. So they cannot disagree.

mod grammar;
mod lexer;
mod notation;
mod parser;
mod printer;
mod spacing;
mod tree;
mod unsupported;

pub use grammar::{RESERVED, published, words};
pub use lexer::{FlowToken, FlowTokenKind};
pub use parser::{
    MAX_DIAGNOSTICS, MAX_DURATION_DAYS, MAX_EXPRESSION, MAX_FIELDS, MAX_FILE, MAX_LIST, MAX_NAME,
    MAX_NESTING, MAX_STATEMENTS, MAX_STEPS_PER_BYTE, parse,
};
pub use printer::print;
pub use tree::{SyntaxNode, SyntaxTree};

#[cfg(test)]
mod tests;
