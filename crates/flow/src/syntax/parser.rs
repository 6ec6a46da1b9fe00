//! Tokens to tree: a descent over the rules of the grammar.
//!
//! **Invariant:** one mistake is one diagnostic. After it, everything is skipped up to the next line that stands
//! no further in than the part that failed.

mod expression_end;
mod failure;

use std::cell::Cell;
use std::collections::BTreeMap;

use super::grammar::{RESERVED, rules};
use super::lexer::{FlowToken, FlowTokenKind, lex};
use super::notation::{GrammarItem as Item, ListMarks, Lookahead, TokenClass};
use super::tree::{SyntaxTree, TreeNode, millis_of};
use crate::value::decimal;
use crate::{Diagnostic, Span};
use failure::{Parsed, is_unit};

/// Bytes of one file.
pub const MAX_FILE: usize = 1 << 20;
/// Types, brackets of an expression, and names of a path inside each other.
pub const MAX_NESTING: usize = 64;
/// Bytes of one expression.
pub const MAX_EXPRESSION: usize = crate::expression::MAX_EXPRESSION_BYTES;
/// Bytes of one name.
pub const MAX_NAME: usize = 128;
/// Fields of one record.
pub const MAX_FIELDS: usize = 1_000;
/// Parts of one list: paths, arms, values, assignments, rows.
pub const MAX_LIST: usize = 4_000;
/// Statements of one process. A record goes through its steps by calls inside each other, and looks at all of them.
pub const MAX_STATEMENTS: usize = 250;
/// Days of one duration: a time so far ahead of now is still one that a timestamp can hold.
pub const MAX_DURATION_DAYS: u64 = 1_000_000;
/// Diagnostics that are listed for one file.
pub const MAX_DIAGNOSTICS: usize = 100;
/// Looks at a token or a rule that a byte of text may cost, and that an empty file may.
pub const MAX_STEPS_PER_BYTE: u64 = 100;

/// Labels of names that are declared where they stand.
const DECLARING: [&str; 4] = ["name", "alias", "into", "field"];

/// Parses the text with this number among the files of a namespace.
///
/// The tree has everything that could be read; the diagnostics say all that could not.
#[must_use]
pub fn parse(text: &str, source: u32) -> (SyntaxTree, Vec<Diagnostic>) {
    let is_too_long = text.len() > MAX_FILE;
    let text = if is_too_long { "" } else { text };
    let lexed = lex(text, source);
    let mut parser = FlowParser {
        text,
        source,
        tokens: &lexed.tokens,
        at: 0,
        depth: 0,
        types: 0,
        steps: Cell::new(0),
        diagnostics: lexed.diagnostics,
        declined: (0, Vec::new()),
        lines: Vec::new(),
        expressions: Vec::new(),
        skipped: Vec::new(),
        process: None,
        misnamed: None,
        failed_at: 0,
        is_at_loose_end: false,
    };
    if is_too_long {
        let message = format!("the file is longer than {MAX_FILE} bytes, the limit `file`");
        parser
            .diagnostics
            .push(Diagnostic::new("TG0016", Span::new(source, 0, 0), message));
    }
    let mut children = Vec::new();
    // A failure has been written down where it happened.
    parser.item(&rules()[0].item, 0, &mut children).ok();
    let read = lexed.tokens.len() + lexed.comments.len();
    let steps = parser.steps.get() + read as u64;
    let FlowParser {
        lines,
        expressions,
        skipped,
        mut diagnostics,
        ..
    } = parser;
    check_lengths(&lexed.tokens, source, &mut diagnostics);
    diagnostics.sort_by_key(|diagnostic| diagnostic.span);
    let end = u32::try_from(lexed.tokens.len() - 1).unwrap_or(u32::MAX);
    let tree = SyntaxTree {
        text: text.to_owned(),
        source,
        tokens: lexed.tokens,
        comments: lexed.comments,
        root: TreeNode {
            label: "",
            tokens: (0, end),
            children,
        },
        lines,
        expressions,
        skipped,
        steps,
    };
    (tree, diagnostics)
}

fn check_lengths(tokens: &[FlowToken], source: u32, diagnostics: &mut Vec<Diagnostic>) {
    let is_name = |kind| matches!(kind, FlowTokenKind::Word | FlowTokenKind::QuotedName);
    for token in tokens {
        if is_name(token.kind) && (token.end - token.start) as usize > MAX_NAME {
            let message = format!("the name is longer than {MAX_NAME} bytes, the limit `name`");
            let span = Span::new(source, token.start, token.end);
            diagnostics.push(Diagnostic::new("TG0016", span, message));
        }
    }
}

struct FlowParser<'p> {
    text: &'p str,
    source: u32,
    tokens: &'p [FlowToken],
    at: usize,
    /// Rules inside each other, and types among them.
    depth: usize,
    types: usize,
    steps: Cell<u64>,
    diagnostics: Vec<Diagnostic>,
    /// The furthest token at which something optional was passed over, and what that was.
    declined: (usize, Vec<&'static Item>),
    lines: Vec<(u32, u16)>,
    expressions: Vec<(u32, u32)>,
    skipped: Vec<(u32, u32)>,
    /// The name of the process that is being read.
    process: Option<String>,
    /// A reserved word that stands for a name, which has been told about.
    misnamed: Option<usize>,
    /// The token at which the last failure happened.
    failed_at: usize,
    /// Whether a mistake skipped the rest of the file, so that a missing `end` is no second one.
    is_at_loose_end: bool,
}

impl FlowParser<'_> {
    fn token(&self, at: usize) -> FlowToken {
        self.tokens[at.min(self.tokens.len() - 1)]
    }

    /// The text of a word or a sign; nothing for texts and quoted names, which are never words of the grammar.
    fn word(&self, at: usize) -> &str {
        let token = self.token(at);
        match token.kind {
            FlowTokenKind::Word | FlowTokenKind::Mark | FlowTokenKind::Number => {
                &self.text[token.start as usize..token.end as usize]
            }
            FlowTokenKind::QuotedName
            | FlowTokenKind::Text
            | FlowTokenKind::CelText
            | FlowTokenKind::End
            | FlowTokenKind::Comment => "",
        }
    }

    fn is_end(&self, at: usize) -> bool {
        self.token(at).kind == FlowTokenKind::End
    }

    fn span(&self, at: usize) -> Span {
        let token = self.token(at);
        Span::new(self.source, token.start, token.end)
    }

    fn fits(&self, class: TokenClass, at: usize) -> bool {
        let (kind, word) = (self.token(at).kind, self.word(at));
        let digits = || word.bytes().all(|byte| byte.is_ascii_digit());
        let is_word = kind == FlowTokenKind::Word && !RESERVED.contains(&word);
        let is_name = is_word || kind == FlowTokenKind::QuotedName;
        match class {
            TokenClass::Name => is_name || self.misnamed == Some(at),
            TokenClass::Field => {
                let is_before_colon =
                    self.word(at + 1) == ":" && (is_name || kind == FlowTokenKind::Word);
                is_before_colon || (is_name && !["key", "time"].contains(&word))
            }
            TokenClass::Int => kind == FlowTokenKind::Number && digits(),
            TokenClass::Num => {
                let is_plain =
                    |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
                let (whole, fraction) = word.split_once('.').unwrap_or((word, "0"));
                kind == FlowTokenKind::Number && is_plain(whole) && is_plain(fraction)
            }
            TokenClass::ShortDuration => {
                let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
                kind == FlowTokenKind::Number && ["ms", "s", "m", "h", "d", "w"].contains(&unit)
            }
            TokenClass::Text => kind == FlowTokenKind::Text,
            TokenClass::Expression => self.begins_expression(at),
        }
    }

    fn allows(&self, look: Lookahead, at: usize) -> bool {
        let follows = |at: usize| ["=", ".", "["].contains(&self.word(at));
        match look {
            Lookahead::Tokens(_) => true,
            Lookahead::Assignment => self.fits(TokenClass::Name, at) && follows(at + 1),
            Lookahead::NotSlow => self.word(at + 1) != "slow" || self.word(at + 2) != "strategy",
            Lookahead::Handler => self.word(at + 1) == "failure" && !follows(at + 2),
            Lookahead::Modifier => self.word(at + 1) != ":",
            Lookahead::OwnEnd => {
                let is_transform = self.word(at + 1) == "transform"
                    && self.fits(TokenClass::Name, at + 2)
                    && !follows(at + 3);
                !self.is_end(at + 1) && !self.is_declaration(at + 1) && !is_transform
            }
        }
    }

    fn is_declaration(&self, at: usize) -> bool {
        ["process", "schema", "lookup", "decision_table"].contains(&self.word(at))
    }

    /// Whether `item` can begin at a token, by up to `left` tokens; `next` answers for what comes after it.
    fn admits(
        &self,
        item: &'static Item,
        at: usize,
        left: usize,
        next: &mut dyn FnMut(usize, usize) -> bool,
    ) -> bool {
        self.steps.set(self.steps.get() + 1);
        if left == 0 {
            return true;
        }
        match item {
            Item::Word(word) => self.word(at) == *word && next(at + 1, left - 1),
            Item::Class(TokenClass::Expression) => self.begins_expression(at),
            Item::Class(class) => self.fits(*class, at) && next(at + 1, left - 1),
            Item::Rule(_, index) => self.admits(&rules()[*index].item, at, left, next),
            Item::Sequence(items) => self.admits_all(items, at, left, next),
            Item::Choice(items) => items.iter().any(|item| self.admits(item, at, left, next)),
            Item::Optional { item, .. } => self.admits(item, at, left, next) || next(at, left),
            Item::List(inner, marks) => {
                let mut again = |to: usize, left: usize| {
                    left == 0 || next(to, left) || (to > at && self.admits(item, to, left, next))
                };
                self.admits(inner, at, left, &mut again) || (!marks.at_least_one && next(at, left))
            }
            Item::Labeled(_, item) | Item::Line(_, item) | Item::Coded(_, item) => {
                self.admits(item, at, left, next)
            }
            Item::Look(Lookahead::Tokens(count)) => next(at, left.max(*count)),
            Item::Look(look) => self.allows(*look, at) && next(at, left),
        }
    }

    fn admits_all(
        &self,
        items: &'static [Item],
        at: usize,
        left: usize,
        next: &mut dyn FnMut(usize, usize) -> bool,
    ) -> bool {
        match items.split_first() {
            None => next(at, left),
            Some((first, rest)) => self.admits(first, at, left, &mut |at, left| {
                left == 0 || self.admits_all(rest, at, left, next)
            }),
        }
    }

    /// Whether an optional part begins here, by as many tokens as it asks for.
    fn begins(&mut self, item: &'static Item) -> bool {
        let begins = self.admits(item, self.at, 1, &mut |_, _| true);
        if !begins {
            self.decline(item);
        }
        begins
    }

    fn decline(&mut self, item: &'static Item) {
        if self.declined.0 != self.at {
            self.declined = (self.at, Vec::new());
        }
        self.declined.1.push(item);
    }

    /// Parses `item` at the current token; `indent` is the depth of the line that it belongs to.
    fn item(&mut self, item: &'static Item, indent: u16, out: &mut Vec<TreeNode>) -> Parsed {
        self.steps.set(self.steps.get() + 1);
        match item {
            Item::Word(word) => {
                if self.word(self.at) != *word {
                    return Err(self.fail(item, None));
                }
                self.at += 1;
                Ok(())
            }
            Item::Class(TokenClass::Expression) => self.expression(item),
            Item::Class(class) => {
                if !self.fits(*class, self.at) {
                    return Err(self.fail(item, None));
                }
                self.check_number(*class);
                self.check_signs();
                self.at += 1;
                Ok(())
            }
            Item::Rule(name, index) => {
                let start = self.at;
                self.nested(name, |parser| {
                    parser.item(&rules()[*index].item, indent, out)
                })?;
                if *name == "duration" {
                    self.check_duration(start);
                }
                Ok(())
            }
            Item::Sequence(items) => items
                .iter()
                .try_for_each(|item| self.item(item, indent, out)),
            Item::Choice(items) => {
                let at = self.at;
                let pick = |tokens| {
                    items
                        .iter()
                        .find(|item| self.admits(item, at, tokens, &mut |_, _| true))
                };
                let Some(picked) = pick(3).or_else(|| pick(2)).or_else(|| pick(1)) else {
                    return Err(self.fail(item, None));
                };
                self.item(picked, indent, out)
            }
            Item::Optional { item, .. } => match self.begins(item) {
                true => self.item(item, indent, out),
                false => Ok(()),
            },
            Item::List(inner, marks) => self.list(item, inner, *marks, indent, out),
            Item::Labeled(label, item) => self.labeled(label, item, indent, out),
            Item::Line(steps, item) => {
                self.lines.push((index(self.at), indent + steps));
                self.item(item, indent + steps, out)
            }
            Item::Look(_) => Ok(()),
            Item::Coded(code, inner) => {
                if !self.admits(inner, self.at, 1, &mut |_, _| true) {
                    return Err(self.fail(inner, Some(code)));
                }
                self.item(inner, indent, out)
            }
        }
    }

    /// Says so where the number at the current token is more than a plan can hold.
    fn check_number(&mut self, class: TokenClass) {
        let (word, after) = (self.word(self.at), self.word(self.at + 1));
        let limit = match class {
            TokenClass::Int if word.parse::<u64>().is_err() && !is_unit(after) => "64 bits",
            TokenClass::Num if decimal(word).is_none() => "28 digits",
            TokenClass::Name
            | TokenClass::Field
            | TokenClass::Int
            | TokenClass::Num
            | TokenClass::ShortDuration
            | TokenClass::Text
            | TokenClass::Expression => return,
        };
        let message = format!("`{}` has more than {limit}", self.shown(self.at));
        let found = Diagnostic::new("TG0003", self.span(self.at), message);
        self.diagnostics.push(found);
    }

    /// Says so where the text at the current token has an escape that expressions do not know, or the name a dot.
    fn check_signs(&mut self) {
        let token = self.token(self.at);
        let text = &self.text[token.start as usize..token.end as usize];
        if token.kind == FlowTokenKind::QuotedName && text.contains('.') {
            let message = "a name has no dot; each name of a path has its own backquotes";
            let found = Diagnostic::new("TG0001", self.span(self.at), message);
            self.diagnostics.push(found);
        }
        if token.kind != FlowTokenKind::Text {
            return;
        }
        let Some(at) = crate::expression::unknown_escape(text) else {
            return;
        };
        let span = self.span(self.at);
        let escape: String = text[at..].chars().take(2).collect();
        let message = format!("the escape `{}` is unknown", escape.escape_debug());
        let found = Diagnostic::new("TG0012", span.part(at, at + escape.len()), message);
        let help = "write two backslashes where one is meant";
        self.diagnostics.push(found.help(help));
    }

    /// Says so where the duration from `start` on is longer than one may be.
    fn check_duration(&mut self, start: usize) {
        const MAX_MILLIS: u64 = MAX_DURATION_DAYS * 86_400_000;
        let text: String = (start..self.at).map(|at| self.word(at)).collect();
        if millis_of(&text).is_none_or(|millis| millis > MAX_MILLIS) {
            let message = format!(
                "the duration is longer than {MAX_DURATION_DAYS} days, the limit `duration`"
            );
            let span = self.span(start).to(self.span(self.at - 1));
            self.diagnostics
                .push(Diagnostic::new("TG0016", span, message));
        }
    }

    /// Says so where a list has more parts than it may have. Those of a file are not counted, and those of a
    /// declaration have a limit of their own.
    fn check_count(&mut self, count: usize, marks: ListMarks) -> Parsed {
        let message = if marks.is_closed {
            return Ok(());
        } else if self.word(self.at) == "." && count >= MAX_NESTING {
            format!("more than {MAX_NESTING} names in one path, the limit `nesting`")
        } else if count > MAX_LIST {
            format!("more than {MAX_LIST} parts in one list, the limit `list`")
        } else {
            return Ok(());
        };
        Err(self.stop(Diagnostic::new("TG0016", self.span(self.at), message)))
    }

    /// Parses what a rule stands for. Only types have themselves inside.
    fn nested(&mut self, name: &str, parse: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        let types = usize::from(name == "type");
        if self.types + types > MAX_NESTING {
            let message =
                format!("more than {MAX_NESTING} types inside each other, the limit `nesting`");
            return Err(self.stop(Diagnostic::new("TG0016", self.span(self.at), message)));
        }
        self.depth += 1;
        self.types += types;
        let result = parse(self);
        self.depth -= 1;
        self.types -= types;
        result
    }

    fn labeled(
        &mut self,
        label: &'static str,
        item: &'static Item,
        indent: u16,
        out: &mut Vec<TreeNode>,
    ) -> Parsed {
        let from = self.at;
        if DECLARING.contains(&label) {
            self.declared_name(label);
        }
        let mut children = Vec::new();
        self.item(item, indent, &mut children)?;
        out.push(TreeNode {
            label,
            tokens: (index(from), index(self.at)),
            children,
        });
        Ok(())
    }

    /// Checks the name that is declared at the current token, and steps over a reserved word in its place.
    fn declared_name(&mut self, label: &'static str) {
        let (span, word) = (self.span(self.at), self.word(self.at).to_owned());
        let is_word = self.token(self.at).kind == FlowTokenKind::Word;
        let is_field = label == "field";
        if !is_word {
            return;
        }
        if RESERVED.contains(&word.as_str()) && !is_field && !self.token(self.at).begins_line {
            let message = format!("`{word}` is a reserved word and cannot be a name");
            let help = format!("write another name, or `{word}` in backquotes");
            let found = Diagnostic::new("TG0014", span, message);
            self.diagnostics.push(found.help(help));
            self.misnamed = Some(self.at);
        }
        if word.starts_with('_') {
            let message =
                format!("`{word}` begins with `_`: such names are metadata of the record");
            let found = Diagnostic::new("TG0014", span, message);
            self.diagnostics.push(found);
        } else if !is_field && word.chars().any(|c| c.is_ascii_uppercase()) {
            let message = format!("`{word}` is not in snake_case");
            let found = Diagnostic::new("TG0015", span, message);
            self.diagnostics.push(found);
        }
        if label == "name" && self.word(self.at.wrapping_sub(1)) == "process" {
            self.process = Some(word);
        }
    }

    fn list(
        &mut self,
        whole: &'static Item,
        item: &'static Item,
        marks: ListMarks,
        indent: u16,
        out: &mut Vec<TreeNode>,
    ) -> Parsed {
        let opener = self.at.saturating_sub(2);
        let mut seen: BTreeMap<String, Span> = BTreeMap::new();
        let mut is_first = marks.at_least_one;
        let mut last_column = u32::MAX;
        let mut count = 0;
        loop {
            let start = self.at;
            let begins = self.begins(item);
            count += usize::from(begins);
            if !begins && is_first {
                return Err(self.fail(whole, None));
            }
            is_first = false;
            self.check_count(count, marks)?;
            let is_wrong = !begins && marks.is_closed && self.is_garbage(indent, opener);
            if !begins && !is_wrong {
                return Ok(());
            }
            let (before, lines) = (out.len(), self.lines.len());
            let parsed = match begins {
                true => self.item(item, indent, out),
                false => Err(self.fail(whole, None)),
            };
            match parsed {
                Ok(()) if marks.each_once => self.check_once(start, &mut seen),
                Ok(()) => {}
                Err(stop) if !marks.recovers => return Err(stop),
                Err(_) => {
                    out.truncate(before);
                    self.lines.truncate(lines);
                    // A token that begins no part belongs to the part before it.
                    let column = self.token(start).column;
                    let column = if begins {
                        column
                    } else {
                        column.min(last_column)
                    };
                    self.recover(start, column, marks.is_closed.then_some(opener));
                }
            }
            if begins {
                last_column = self.token(start).column;
            }
            if self.diagnostics.len() > MAX_DIAGNOSTICS {
                self.at = self.tokens.len() - 1;
                self.is_at_loose_end = true;
            }
        }
    }

    /// Whether the current token is neither a part of a closed list nor what may come after it.
    fn is_garbage(&self, indent: u16, opener: usize) -> bool {
        let is_left_of_opener = self.token(self.at).column <= self.token(opener).column;
        let is_next = self.is_declaration(self.at) && is_left_of_opener;
        let is_file = self.depth == 0 && indent == 0;
        !self.is_end(self.at) && (is_file || (self.word(self.at) != "end" && !is_next))
    }

    fn check_once(&mut self, start: usize, seen: &mut BTreeMap<String, Span>) {
        // A field may have the name of a clause.
        let is_field = self.word(start + 1) == ":";
        let key = format!("{}{}", self.word(start), if is_field { ":" } else { "" });
        let span = self.span(start);
        match seen.get(&key) {
            Some(first) => {
                let message = format!("`{}` is given twice", self.word(start));
                let diagnostic = Diagnostic::new("TG0013", span, message).also(*first);
                self.diagnostics.push(diagnostic);
            }
            None => drop(seen.insert(key, span)),
        }
    }
}

fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
