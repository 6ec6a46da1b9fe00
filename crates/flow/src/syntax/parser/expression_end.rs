//! Where an expression ends.

use super::super::grammar::RESERVED;
use super::super::lexer::FlowTokenKind;
use super::super::notation::GrammarItem as Item;
use super::failure::{ParseStop, Parsed};
use super::{FlowParser, MAX_EXPRESSION, MAX_NESTING, index};
use crate::{Diagnostic, Span};

/// Signs after which CEL needs an operand.
const OPERATORS: [&str; 15] = [
    "+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "?", ":",
];
/// Words between operands that another language has.
const FOREIGN: [&str; 7] = ["and", "or", "is", "between", "??", "?.", "${"];

impl FlowParser<'_> {
    pub(super) fn begins_expression(&self, at: usize) -> bool {
        match self.token(at).kind {
            FlowTokenKind::Word => {
                let word = self.word(at);
                word != "in" && !RESERVED.contains(&word)
            }
            FlowTokenKind::End | FlowTokenKind::Comment => false,
            FlowTokenKind::QuotedName
            | FlowTokenKind::Number
            | FlowTokenKind::Text
            | FlowTokenKind::CelText => true,
            FlowTokenKind::Mark => ["(", "[", "{", "!", "-", "${"].contains(&self.word(at)),
        }
    }

    /// Steps over an expression: as long as CEL can continue.
    pub(super) fn expression(&mut self, item: &'static Item) -> Parsed {
        let start = self.at;
        let mut open: Vec<usize> = Vec::new();
        let mut needs_operand = true;
        loop {
            self.steps.set(self.steps.get() + 1);
            let (word, kind) = (self.word(self.at), self.token(self.at).kind);
            let is_after_dot = self.at > start && self.word(self.at - 1) == ".";
            let is_word = kind == FlowTokenKind::Word;
            let is_foreign =
                FOREIGN.contains(&word) && (!needs_operand || word == "${") && !is_after_dot;
            if is_foreign {
                return Err(self.fail(item, None));
            }
            if needs_operand && is_after_dot && is_word {
                // Behind a dot any word is a field.
                needs_operand = false;
            } else if ["(", "[", "{"].contains(&word) {
                open.push(self.at);
                if open.len() > MAX_NESTING {
                    let message = format!(
                        "more than {MAX_NESTING} brackets inside each other, the limit `nesting`"
                    );
                    return Err(self.stop(Diagnostic::new("TG0016", self.span(self.at), message)));
                }
                needs_operand = true;
            } else if let Some(opener) = open.last().copied() {
                let closes = matches!(
                    (self.word(opener), word),
                    ("(", ")") | ("[", "]") | ("{", "}")
                );
                let is_stray = ["=", "=>", "|", ")", "]", "}"].contains(&word) && !closes;
                if is_stray || self.is_end(self.at) || (is_word && RESERVED.contains(&word)) {
                    return Err(self.unclosed(opener));
                }
                if closes {
                    open.pop();
                }
                needs_operand = !closes && (kind == FlowTokenKind::Mark || word == "in");
            } else if needs_operand {
                if !self.begins_expression(self.at) {
                    break;
                }
                needs_operand = ["!", "-"].contains(&word);
            } else if OPERATORS.contains(&word) || word == "." || word == "in" {
                needs_operand = true;
            } else {
                break;
            }
            self.at += 1;
        }
        if self.at == start {
            return Err(self.fail(item, None));
        }
        let span = Span::new(
            self.source,
            self.token(start).start,
            self.token(self.at - 1).end,
        );
        if (span.end - span.start) as usize > MAX_EXPRESSION {
            let message = format!(
                "the expression is longer than {MAX_EXPRESSION} bytes, the limit `expression`"
            );
            return Err(self.stop(Diagnostic::new("TG0016", span, message)));
        }
        self.expressions.push((index(start), index(self.at)));
        Ok(())
    }

    fn unclosed(&mut self, opener: usize) -> ParseStop {
        let word = self.word(opener);
        let message = format!(
            "this `{word}` is not closed before `{}`",
            self.shown(self.at)
        );
        let diagnostic = Diagnostic::new("TG0012", self.span(opener), message);
        self.stop(diagnostic)
    }
}
