//! The blanks inside of an expression, which follow from its tokens alone.
//!
//! So an expression has one form, whatever blanks it was written with, and a plan has its text in that form.

use super::lexer::FlowTokenKind;
use super::tree::SyntaxTree;

/// Signs after which a `-` is a sign of the number, and not a subtraction.
const BEFORE_OPERAND: [&str; 20] = [
    "(", "[", "{", ",", "+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "?",
    ":", "!",
];

/// For each token of an expression, whether a blank stands before it.
pub(super) fn blanks(tree: &SyntaxTree, from: u32, to: u32) -> Vec<bool> {
    let mut blanks = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    let (mut before, mut is_sign) = ("", false);
    for at in from..to {
        let token = tree.token_text(at);
        let kind = tree.tokens[at as usize].kind;
        let is_operand =
            |text: &str| !BEFORE_OPERAND.contains(&text) && text != "in" && !text.is_empty();
        let is_blank = match token {
            _ if before.is_empty() || is_sign || ["(", "[", "{", "."].contains(&before) => false,
            // A dot behind an operand is a selection; another one begins a number or a name.
            "." => !is_operand(before),
            ")" | "]" | "}" | "," => false,
            "(" | "[" | "{" => !is_operand(before),
            ":" => open.last() != Some(&"{"),
            _ => true,
        };
        blanks.push(is_blank);
        is_sign = token == "!" || (token == "-" && !is_operand(before));
        if kind == FlowTokenKind::Mark {
            match token {
                "(" | "[" | "{" => open.push(token),
                ")" | "]" | "}" => drop(open.pop()),
                _ => {}
            }
        }
        before = token;
    }
    blanks
}
