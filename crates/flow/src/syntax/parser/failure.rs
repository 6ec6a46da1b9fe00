//! The words about a token that does not fit, and where parsing goes on.

use tidegate_config::nearest;

use super::super::grammar::rules;
use super::super::lexer::FlowTokenKind;
use super::super::notation::{GrammarItem as Item, TokenClass};
use super::super::unsupported::Unsupported;
use super::{FlowParser, index};
use crate::Diagnostic;
use crate::diagnostic::explain;

/// Expected things that a message lists.
const MAX_LISTED: usize = 6;

/// The part could not be read, and a diagnostic says why.
pub(super) struct ParseStop;

pub(super) type Parsed = Result<(), ParseStop>;

impl FlowParser<'_> {
    /// Keeps a diagnostic about the current token.
    pub(super) fn stop(&mut self, diagnostic: Diagnostic) -> ParseStop {
        self.failed_at = self.at;
        if !self.is_at_loose_end {
            self.diagnostics.push(diagnostic);
        }
        ParseStop
    }

    /// The token as a message shows it.
    pub(super) fn shown(&self, at: usize) -> String {
        let token = self.token(at);
        if token.kind == FlowTokenKind::End {
            return "the end of the file".to_owned();
        }
        let text = &self.text[token.start as usize..token.end as usize];
        text.chars().take(40).collect()
    }

    /// The current token is not what `item` needs; `code` is the code that the grammar has for it.
    pub(super) fn fail(&mut self, item: &'static Item, code: Option<&'static str>) -> ParseStop {
        let at = self.at;
        if let Some(diagnostic) = self.unsupported() {
            return self.stop(diagnostic);
        }
        let (found, span) = (self.shown(at), self.span(at));
        let quoted = if self.is_end(at) {
            found.clone()
        } else {
            format!("`{found}`")
        };
        if matches!(item, Item::Word("end")) && code.is_none() {
            return self.missing_end(&quoted);
        }
        let mut expected: Vec<Expected> = Vec::new();
        first(item, &mut expected);
        if self.declined.0 == at && code.is_none() {
            for item in &self.declined.1 {
                first(item, &mut expected);
            }
        }
        expected.dedup();
        let about = code.and_then(explain);
        let about = about.map_or(String::new(), |row| format!("{}: ", row.text));
        let code = code.unwrap_or_else(|| self.number_code().unwrap_or("TG0010"));
        let message = format!("{about}expected {}, found {quoted}", in_words(&expected));
        let mut diagnostic = Diagnostic::new(code, span, message);
        let words = expected.iter().filter_map(|expected| match expected {
            Expected::Word(word) => Some(*word),
            Expected::Class(_) => None,
        });
        if at > 0 && self.word(at - 1) == "dead_letter" {
            let process = self.process.as_deref().unwrap_or("process");
            let help = format!("name the stream, for instance `dead_letter {process}_dlq`");
            diagnostic = diagnostic.help(help);
        } else if let Some(near) = nearest(&found, words) {
            diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
        }
        self.stop(diagnostic)
    }

    /// The code of a number that is none, or of a second unit.
    fn number_code(&self) -> Option<&'static str> {
        let is_number = |at: usize| self.token(at).kind == FlowTokenKind::Number;
        let is_unit = |at: usize| !self.word(at).is_empty() && is_unit(self.word(at));
        let mut bytes = self.word(self.at).bytes();
        let is_bad = is_number(self.at) && bytes.any(|byte| !byte.is_ascii_digit() && byte != b'.');
        let is_after_unit = self.at > 0
            && (is_unit(self.at - 1) || self.fits(TokenClass::ShortDuration, self.at - 1));
        let is_second = is_number(self.at) && is_after_unit;
        (is_bad || is_second).then_some("TG0003")
    }

    fn missing_end(&mut self, found: &str) -> ParseStop {
        // The opener is the last word of a line that stands further left than what is missing its end.
        let mut lines = self.lines.iter().rev();
        let line = lines.find(|(at, _)| *at as usize == self.at);
        let indent = line.map_or(0, |line| line.1);
        let mut lines = self.lines.iter().rev();
        let opener = lines.find(|(at, depth)| *depth <= indent && (*at as usize) < self.at);
        let opener = opener.map_or(0, |line| line.0 as usize);
        let opened = self.shown(opener);
        let message = format!("`{opened}` has no `end` before {found}");
        let diagnostic = Diagnostic::new("TG0011", self.span(opener), message);
        self.stop(diagnostic.also(self.span(self.at)))
    }

    /// The diagnostic for a construct of the older language at the current token.
    fn unsupported(&self) -> Option<Diagnostic> {
        let at = self.at;
        let before = at.checked_sub(1).map_or("", |at| self.word(at));
        let is_lookup =
            self.word(at + 1) == "=" && self.word(at + 2) == "lookup" && self.word(at + 3) == "(";
        let is_call = self.word(at) == "lookup" && self.word(at + 1) == "(";
        let lookup = Unsupported {
            word: "lookup(…)",
            code: "TG0806",
        };
        let (found, place) = if is_call || is_lookup {
            (lookup, if is_call { at } else { at + 2 })
        } else if let Some(found) = Unsupported::find(self.word(at)) {
            (found, at)
        } else {
            let found = Unsupported::find(before)?;
            (before == "not" || found.code == "TG0804").then_some((found, at - 1))?
        };
        let message = format!("`{}` is not supported", found.word);
        let row = explain(found.code);
        let diagnostic = Diagnostic::new(found.code, self.span(place), message);
        Some(diagnostic.help(row.map_or("", |row| row.repair)))
    }

    /// Goes on with the next line that stands no further in than `column`, after a part that began at `start`.
    ///
    /// An `end` further in than the opener of a closed list belongs to a block of the part that failed.
    pub(super) fn recover(&mut self, start: usize, column: u32, opener: Option<usize>) {
        let opener = opener.map_or(u32::MAX, |opener| self.token(opener).column);
        let mut at = self
            .failed_at
            .max(start + usize::from(self.failed_at <= start));
        let unsupported = Unsupported::find(self.word(self.failed_at));
        if let Some(end) = unsupported.and_then(Unsupported::closed_by) {
            let is_end = |at: &usize| self.word(*at) == end && self.token(*at).column >= column;
            let inside = (at..self.tokens.len()).take_while(|at| self.word(*at) != "process");
            at = inside.into_iter().find(is_end).map_or(at, |end| end + 1);
        }
        loop {
            let token = self.token(at);
            // At the top of the file, only a declaration is a new beginning: what else stands there belongs to one
            // that was closed too early.
            let is_top = self.depth == 0;
            let is_start = match is_top {
                true => self.is_declaration(at) || self.word(at) == "transform",
                false => self.word(at) != "end" || token.column <= opener,
            };
            let column = if is_top { self.token(0).column } else { column };
            let is_outer = token.begins_line && token.column <= column && is_start;
            let is_declaration = ["process", "decision_table"].contains(&self.word(at));
            if self.is_end(at) {
                self.is_at_loose_end = true;
                break;
            }
            if is_outer || is_declaration {
                break;
            }
            self.steps.set(self.steps.get() + 1);
            at += 1;
        }
        self.skipped.push((index(start), index(at)));
        self.at = at;
    }
}

/// Something that would have fit.
#[derive(PartialEq)]
enum Expected {
    Word(&'static str),
    Class(TokenClass),
}

/// Everything that `item` can begin with. Returns whether it can be empty.
fn first(item: &'static Item, out: &mut Vec<Expected>) -> bool {
    let mut add = |expected: Expected| {
        if !out.contains(&expected) {
            out.push(expected);
        }
        false
    };
    match item {
        Item::Word(word) => add(Expected::Word(word)),
        Item::Class(class) => add(Expected::Class(*class)),
        Item::Rule(_, index) => first(&rules()[*index].item, out),
        Item::Sequence(items) => items.iter().all(|item| first(item, out)),
        Item::Choice(items) => {
            let empty: Vec<bool> = items.iter().map(|item| first(item, out)).collect();
            empty.contains(&true)
        }
        Item::Optional { item, is_published } => {
            if *is_published {
                first(item, out);
            }
            true
        }
        Item::List(item, marks) => first(item, out) || !marks.at_least_one,
        Item::Labeled(_, item) | Item::Line(_, item) | Item::Coded(_, item) => first(item, out),
        Item::Look(_) => true,
    }
}

fn in_words(expected: &[Expected]) -> String {
    let is_statement =
        expected.contains(&Expected::Word("receive")) && expected.contains(&Expected::Word("emit"));
    if is_statement {
        return "a statement or `end`".to_owned();
    }
    let shown = expected.iter().take(MAX_LISTED);
    let shown = shown.map(|expected| match expected {
        Expected::Word(word) => format!("`{word}`"),
        Expected::Class(class) => class.in_words().to_owned(),
    });
    let shown: Vec<String> = shown.collect();
    match shown.as_slice() {
        many if expected.len() > MAX_LISTED => format!("one of {}, …", many.join(", ")),
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        few => few.concat(),
    }
}

pub(super) fn is_unit(word: &str) -> bool {
    let mut units = Vec::new();
    let rule = rules().iter().find(|rule| rule.name == "unit");
    rule.map(|rule| first(&rule.item, &mut units));
    let is_word = |unit: &Expected| matches!(unit, Expected::Word(unit) if *unit == word);
    units.iter().any(is_word)
}
