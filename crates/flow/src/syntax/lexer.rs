//! Bytes to tokens.

use logos::{Lexer, Logos};

use crate::{Diagnostic, Span};

/// The kinds of tokens. Words have their meaning from the place where they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Logos)]
#[logos(skip r"[ \t\r\n\f]+", error = LexFault)]
pub enum FlowTokenKind {
    /// A word or a name.
    #[regex(r"[A-Za-z_][A-Za-z0-9_]*")]
    Word,
    /// A name in backquotes.
    #[regex(r"`[^`\n]+`")]
    QuotedName,
    /// A number, or a number with a unit behind it.
    #[regex(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?[A-Za-z0-9_]*")]
    Number,
    /// A text in double quotes.
    #[token("\"", text)]
    Text,
    /// A text that only CEL knows: single or triple quotes, or a prefix.
    #[token("'", text)]
    #[regex(r#"[rRbB]{1,2}["']"#, text, priority = 20)]
    #[regex(r#"[rRbB]{0,2}""""#, long_text, priority = 30)]
    #[regex(r#"[rRbB]{0,2}'''"#, long_text, priority = 30)]
    CelText,
    /// One of the signs of the language and of CEL.
    #[token("=>")]
    #[token("==")]
    #[token("!=")]
    #[token("<=")]
    #[token(">=")]
    #[token("&&")]
    #[token("||")]
    #[token("??")]
    #[token("?.")]
    #[token("${")]
    #[token("..")]
    #[regex(r"[=!<>+\-*/%.,:;?|()\[\]{}]", priority = 1)]
    Mark,
    /// The end of the file.
    End,
    /// Never a token: kept aside for the printer.
    #[regex(r"//[^\n]*", allow_greedy = true)]
    #[token("/*", block_comment)]
    Comment,
}

/// The fault in the text of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LexFault {
    /// A character that nothing begins with.
    #[default]
    Character,
    /// A text without its closing quote.
    Text,
    /// A comment without its end.
    Comment,
}

/// A comment, in front of the token with this index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowComment {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) before: u32,
}

/// A token of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowToken {
    /// Its kind.
    pub kind: FlowTokenKind,
    /// The first byte.
    pub start: u32,
    /// The byte after the last.
    pub end: u32,
    /// The column of the first byte, counted in bytes from zero.
    pub(super) column: u32,
    /// Whether it is the first one of its line.
    pub(super) begins_line: bool,
}

/// All tokens of a text, the last of which is [`FlowTokenKind::End`], and its comments.
pub(super) struct LexedText {
    pub(super) tokens: Vec<FlowToken>,
    pub(super) comments: Vec<FlowComment>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

impl LexedText {
    fn found(&mut self, code: &'static str, span: Span, message: &str) {
        self.diagnostics.push(Diagnostic::new(code, span, message));
    }
}

/// Reads the tokens of a text. The text is at most `u32::MAX` bytes long, by the limit of a file.
pub(super) fn lex(text: &str, source: u32) -> LexedText {
    let mut lexer = FlowTokenKind::lexer(text);
    let mut lexed = LexedText {
        tokens: Vec::new(),
        comments: Vec::new(),
        diagnostics: Vec::new(),
    };
    let (mut line_start, mut scanned, mut is_new_line) = (0, 0, true);
    let mut last_bad = None;
    while let Some(result) = lexer.next() {
        let range = lexer.span();
        let span = Span::new(source, offset(range.start), offset(range.end));
        // Not skipped by the lexer, whose skips are calls inside each other.
        if result == Ok(FlowTokenKind::Comment) {
            lexed.comments.push(FlowComment {
                start: span.start,
                end: span.end,
                before: offset(lexed.tokens.len()),
            });
            continue;
        }
        if let Some(at) = text[scanned..range.start].rfind('\n') {
            line_start = scanned + at + 1;
            is_new_line = true;
        }
        scanned = range.start;
        let kind = match result {
            Ok(kind) => kind,
            Err(LexFault::Character) => {
                // A run of strange characters is one mistake.
                if last_bad != Some(range.start) {
                    let shown: String = text[range.clone()].chars().take(1).collect();
                    let message = format!("`{}` has no meaning here", shown.escape_debug());
                    lexed.found("TG0001", span, &message);
                }
                last_bad = Some(range.end);
                continue;
            }
            Err(LexFault::Comment) => {
                lexed.found("TG0002", span.part(0, 2), "this comment has no `*/`");
                continue;
            }
            Err(LexFault::Text) => {
                let message = "this text has no closing quote on its line";
                lexed.found("TG0002", span.part(0, 1), message);
                FlowTokenKind::Text
            }
        };
        let column = offset(range.start - line_start);
        lexed.tokens.push(FlowToken {
            kind,
            start: span.start,
            end: span.end,
            column,
            begins_line: is_new_line,
        });
        is_new_line = false;
    }
    let end = offset(text.len());
    lexed.tokens.push(FlowToken {
        kind: FlowTokenKind::End,
        start: end,
        end,
        column: 0,
        begins_line: true,
    });
    lexed
}

fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// The rest of a comment after its opening sign.
fn block_comment(lexer: &mut Lexer<'_, FlowTokenKind>) -> Result<(), LexFault> {
    let end = lexer.remainder().find("*/").map(|end| end + 2);
    lexer.bump(end.unwrap_or(lexer.remainder().len()));
    end.map(|_| ()).ok_or(LexFault::Comment)
}

/// The rest of a text after its opening quote; it ends with its line.
fn text(lexer: &mut Lexer<'_, FlowTokenKind>) -> Result<(), LexFault> {
    let quote = lexer.slice().as_bytes().last().copied().unwrap_or(b'"');
    let is_raw = lexer.slice().contains(['r', 'R']);
    let mut is_escaped = false;
    for (at, byte) in lexer.remainder().bytes().enumerate() {
        if byte == b'\n' {
            lexer.bump(at);
            return Err(LexFault::Text);
        }
        if byte == quote && !is_escaped {
            lexer.bump(at + 1);
            return Ok(());
        }
        is_escaped = byte == b'\\' && !is_escaped && !is_raw;
    }
    lexer.bump(lexer.remainder().len());
    Err(LexFault::Text)
}

/// The rest of a text in triple quotes, which may have many lines.
fn long_text(lexer: &mut Lexer<'_, FlowTokenKind>) -> Result<(), LexFault> {
    let (prefix, fence) = lexer.slice().split_at(lexer.slice().len() - 3);
    let is_raw = prefix.contains(['r', 'R']);
    let rest = lexer.remainder().as_bytes();
    let mut at = 0;
    while at < rest.len() && !rest[at..].starts_with(fence.as_bytes()) {
        at += if rest[at] == b'\\' && !is_raw { 2 } else { 1 };
    }
    let is_closed = at < rest.len();
    lexer.bump(if is_closed { at + 3 } else { rest.len() });
    is_closed.then_some(()).ok_or(LexFault::Text)
}
