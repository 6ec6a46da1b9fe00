//! Tokens of expressions.

/// A token of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ExpressionToken {
    /// A word, and whether it stood in backquotes.
    Name(String, bool),
    /// The digits of a whole number, which may be too many of them.
    Integer(String),
    Unsigned(String),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
    /// An operator or a bracket.
    Symbol(&'static str),
    End,
}

/// A mistake in the text of an expression.
#[derive(Debug)]
pub(super) struct SyntaxError {
    pub(super) code: &'static str,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

impl SyntaxError {
    pub(super) fn new(start: usize, end: usize, message: impl Into<String>) -> Self {
        Self {
            code: "TG0012",
            start,
            end,
            message: message.into(),
            help: None,
        }
    }

    /// A construct of the older language.
    pub(super) fn older(start: usize, end: usize, found: &str, instead: &str) -> Self {
        Self {
            code: "TG0812",
            help: Some(format!("write {instead}")),
            ..Self::new(start, end, format!("`{found}` is not part of expressions"))
        }
    }
}

/// All symbols; a longer one stands before its beginnings.
const SYMBOLS: [&str; 25] = [
    "&&", "||", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ".", ",", "?", ":", "+", "-",
    "*", "/", "%", "!", "<", ">", "=",
];

pub(super) struct ExpressionLexer<'t> {
    text: &'t str,
    pub(super) at: usize,
}

impl<'t> ExpressionLexer<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn blank(&mut self) -> Result<(), SyntaxError> {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if trimmed.starts_with("//") {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else if trimmed.starts_with("/*") {
                let Some(end) = trimmed.find("*/") else {
                    let end = self.text.len();
                    return Err(SyntaxError::new(self.at, end, "a comment has no end"));
                };
                self.at += end + 2;
            } else {
                return Ok(());
            }
        }
    }

    /// The next token and its first byte; the byte after its last is `self.at`.
    pub(super) fn next(&mut self) -> Result<(usize, ExpressionToken), SyntaxError> {
        self.blank()?;
        let start = self.at;
        let rest = self.rest();
        let bytes = rest.as_bytes();
        let Some(first) = bytes.first().copied() else {
            return Ok((start, ExpressionToken::End));
        };
        let starts_fraction = first == b'.' && bytes.get(1).is_some_and(u8::is_ascii_digit);
        let token = match first {
            b'0'..=b'9' => self.number()?,
            b'.' if starts_fraction => self.number()?,
            b'"' | b'\'' => self.string(false, false)?,
            b'`' => {
                let Some(end) = rest[1..].find('`') else {
                    let end = self.text.len();
                    return Err(SyntaxError::new(start, end, "a backquote is missing"));
                };
                self.at += end + 2;
                ExpressionToken::Name(rest[1..=end].to_owned(), true)
            }
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => match literal_prefix(bytes) {
                Some((length, is_raw, is_bytes)) => {
                    self.at += length;
                    self.string(is_raw, is_bytes)?
                }
                None => self.word(rest)?,
            },
            _ => self.symbol(rest)?,
        };
        Ok((start, token))
    }

    fn word(&mut self, rest: &str) -> Result<ExpressionToken, SyntaxError> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if let Some(letter) = rest[end..].chars().next().filter(|c| c.is_alphanumeric()) {
            let at = self.at + end;
            let message =
                format!("`{letter}` cannot be part of a name; put the name in backquotes");
            return Err(SyntaxError::new(at, at + letter.len_utf8(), message));
        }
        self.at += end;
        Ok(ExpressionToken::Name(rest[..end].to_owned(), false))
    }

    fn symbol(&mut self, rest: &str) -> Result<ExpressionToken, SyntaxError> {
        let start = self.at;
        for (found, instead) in [
            ("??", "`has(a.b) ? a.b : other`"),
            ("?.", "`has(a.b)` and `a.b`"),
            ("${", "the name alone"),
        ] {
            // `a ?.5 : 1` is a condition with a number.
            let is_number = found == "?." && rest.as_bytes().get(2).is_some_and(u8::is_ascii_digit);
            if rest.starts_with(found) && !is_number {
                return Err(SyntaxError::older(start, start + 2, found, instead));
            }
        }
        if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
            self.at += symbol.len();
            return Ok(ExpressionToken::Symbol(symbol));
        }
        let found = rest.chars().next().unwrap_or(' ');
        let end = start + found.len_utf8();
        let message = format!("`{}` is not part of expressions", found.escape_debug());
        Err(SyntaxError::new(start, end, message))
    }

    fn number(&mut self) -> Result<ExpressionToken, SyntaxError> {
        let start = self.at;
        let rest = self.rest();
        let bytes = rest.as_bytes();
        let is_hexadecimal = rest.starts_with("0x") || rest.starts_with("0X");
        let count = |from: usize, is_digit: fn(&u8) -> bool| {
            bytes[from..]
                .iter()
                .take_while(|byte| is_digit(byte))
                .count()
        };
        let mut end = if is_hexadecimal {
            2 + count(2, u8::is_ascii_hexdigit)
        } else {
            count(0, u8::is_ascii_digit)
        };
        let mut is_double = false;
        if !is_hexadecimal {
            if bytes.get(end) == Some(&b'.') && count(end + 1, u8::is_ascii_digit) > 0 {
                is_double = true;
                end += 1 + count(end + 1, u8::is_ascii_digit);
            }
            if matches!(bytes.get(end), Some(b'e' | b'E')) {
                is_double = true;
                let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
                let digits = count((end + 1 + sign).min(bytes.len()), u8::is_ascii_digit);
                end += 1 + sign + digits;
                if digits == 0 {
                    let message = "the exponent has no digits";
                    return Err(SyntaxError::new(start, start + end, message));
                }
            }
        }
        let is_unsigned = !is_double && matches!(bytes.get(end), Some(b'u' | b'U'));
        let digits = rest[..end].to_owned();
        end += usize::from(is_unsigned);
        let after = rest[end..].chars().next();
        if after.is_some_and(|c| c.is_alphanumeric() || c == '_') || digits.ends_with(['x', 'X']) {
            let message = "a number is followed by a letter, or has no digits";
            return Err(SyntaxError::new(start, start + end, message));
        }
        self.at += end;
        Ok(if is_double {
            ExpressionToken::Double(digits.parse().unwrap_or(f64::NAN))
        } else if is_unsigned {
            ExpressionToken::Unsigned(digits)
        } else {
            ExpressionToken::Integer(digits)
        })
    }

    fn string(&mut self, is_raw: bool, is_bytes: bool) -> Result<ExpressionToken, SyntaxError> {
        let start = self.at;
        let rest = self.rest();
        let quote = &rest[..1];
        let tripled = quote.repeat(3);
        let fence = if rest.starts_with(&tripled) {
            tripled.as_str()
        } else {
            quote
        };
        let body = &rest[fence.len()..];
        let mut out = Vec::new();
        let mut at = 0;
        let end = loop {
            let Some(next) = body[at..].chars().next() else {
                let message = "a string has no end";
                return Err(SyntaxError::new(start, self.text.len(), message));
            };
            if body[at..].starts_with(fence) {
                break at;
            }
            if fence.len() == 1 && matches!(next, '\n' | '\r') {
                let message = "a string ends on its line; three quotes hold several lines";
                return Err(SyntaxError::new(start, start + 1 + at, message));
            }
            if next == '\\' && !is_raw {
                let Some(used) = escape(&body[at..], is_bytes, &mut out) else {
                    let from = start + fence.len() + at;
                    let to = from + 1 + body[at + 1..].chars().next().map_or(0, char::len_utf8);
                    return Err(SyntaxError::new(from, to, "an escape is unknown"));
                };
                at += used;
            } else {
                out.extend_from_slice(next.encode_utf8(&mut [0; 4]).as_bytes());
                at += next.len_utf8();
            }
        };
        self.at = start + fence.len() * 2 + end;
        if is_bytes {
            return Ok(ExpressionToken::Bytes(out));
        }
        // Escapes of a string are whole characters, so this cannot fail.
        Ok(ExpressionToken::String(
            String::from_utf8(out).unwrap_or_default(),
        ))
    }
}

/// The length of the letters before a quote, and whether they mean raw and bytes.
fn literal_prefix(bytes: &[u8]) -> Option<(usize, bool, bool)> {
    let is_quote = |at: usize| matches!(bytes.get(at), Some(b'"' | b'\''));
    match bytes {
        [b'r' | b'R', ..] if is_quote(1) => Some((1, true, false)),
        [b'b' | b'B', ..] if is_quote(1) => Some((1, false, true)),
        [b'b' | b'B', b'r' | b'R', ..] if is_quote(2) => Some((2, true, true)),
        _ => None,
    }
}

/// Decodes one escape; the answer is the number of its bytes.
fn escape(text: &str, is_bytes: bool, out: &mut Vec<u8>) -> Option<usize> {
    let letter = *text.as_bytes().get(1)?;
    let number = |from: usize, digits: usize, radix: u32| {
        let text = text.get(from..from + digits)?;
        // `from_str_radix` also takes a sign.
        let is_plain = text.bytes().all(|b| char::from(b).is_digit(radix));
        is_plain
            .then(|| u32::from_str_radix(text, radix).ok())
            .flatten()
    };
    let simple = match letter {
        b'a' => 0x07,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0b,
        b'\\' | b'?' | b'"' | b'\'' | b'`' => letter,
        _ => 0,
    };
    if simple != 0 {
        out.push(simple);
        return Some(2);
    }
    let (value, used) = match letter {
        b'x' | b'X' => (number(2, 2, 16)?, 4),
        b'u' if !is_bytes => (number(2, 4, 16)?, 6),
        b'U' if !is_bytes => (number(2, 8, 16)?, 10),
        b'0'..=b'3' => (number(1, 3, 8)?, 4),
        _ => return None,
    };
    if is_bytes {
        out.push(u8::try_from(value).ok()?);
    } else {
        out.extend_from_slice(char::from_u32(value)?.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Some(used)
}

/// The place of the first escape of a text that is unknown. A backslash that ends the text is none.
pub(crate) fn unknown_escape(text: &str) -> Option<usize> {
    let mut at = 0;
    while let Some(next) = text[at..].find('\\') {
        at += next;
        match escape(&text[at..], false, &mut Vec::new()) {
            Some(used) => at += used,
            None => return (at + 1 < text.len()).then_some(at),
        }
    }
    None
}

/// A text without its quotes and with its escapes decoded. One that is unknown was told about, and stands for its
/// letter.
pub(crate) fn unescaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let used = match next {
            '\\' => escape(rest, false, &mut out),
            _ => None,
        };
        if used.is_none() && next != '\\' {
            out.extend_from_slice(&rest.as_bytes()[..next.len_utf8()]);
        }
        rest = &rest[used.unwrap_or(next.len_utf8())..];
    }
    // Escapes of a text are whole characters, so this cannot fail.
    String::from_utf8(out).unwrap_or_default()
}
