//! A scanner of JSON texts: it finds out where names and values stand, and decodes nothing.
//!
//! **Invariant:** a text that was scanned whole is valid JSON without a repeated name in any of its objects.

use std::borrow::Cow;
use std::collections::HashSet;

/// Objects and lists may stand this deep inside each other.
pub(crate) const MAX_JSON_DEPTH: usize = 128;
/// Up to this many names are compared one by one; more are put into a set.
const FEW_NAMES: usize = 48;

/// A text that is not the JSON that is needed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} at byte {at}")]
pub struct JsonError {
    /// The mistake in words.
    pub message: String,
    /// The byte where it was found.
    pub at: usize,
}

/// A string literal: the bytes between its quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quoted {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) has_escapes: bool,
}

impl Quoted {
    /// The characters that the literal stands for.
    pub(crate) fn decode(self, text: &str) -> Cow<'_, str> {
        let raw = &text[self.start as usize..self.end as usize];
        if self.has_escapes {
            Cow::Owned(unescape(raw))
        } else {
            Cow::Borrowed(raw)
        }
    }

    /// Whether the literal stands for `name`.
    #[inline]
    pub(crate) fn is(self, text: &str, name: &str) -> bool {
        if self.has_escapes {
            return self.decode(text) == name;
        }
        let (start, end) = (self.start as usize, self.end as usize);
        // Most names differ in their lengths, and then no byte is looked at.
        end - start == name.len() && text.as_bytes()[start..end] == *name.as_bytes()
    }
}

/// One member of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) name: Quoted,
    /// The first byte of the value, and the byte after its last.
    pub(crate) value: (u32, u32),
}

/// Reads a text from its start.
pub(crate) struct Scanner<'t> {
    text: &'t str,
    at: usize,
    /// The names of all open objects, innermost last.
    names: Vec<Quoted>,
}

impl<'t> Scanner<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Self {
            text,
            at: 0,
            names: Vec::new(),
        }
    }

    fn peek(&self) -> u8 {
        // No text of ours holds a zero byte outside of a string, so it can stand for the end.
        self.text.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T, JsonError> {
        Err(JsonError {
            message: message.into(),
            at: self.at,
        })
    }

    pub(crate) fn blank(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    /// Fails unless nothing but blanks is left.
    pub(crate) fn finish(&mut self) -> Result<(), JsonError> {
        self.blank();
        if self.at == self.text.len() {
            Ok(())
        } else {
            self.error("there is more after the end of the value")
        }
    }

    fn position(&self) -> u32 {
        // Callers refuse texts whose length does not fit.
        u32::try_from(self.at).unwrap_or(u32::MAX)
    }

    /// One value of any kind; its place is the answer.
    pub(crate) fn value(&mut self, depth: usize) -> Result<(u32, u32), JsonError> {
        self.blank();
        let start = self.position();
        match self.peek() {
            b'{' => self.object(depth, &mut |_| {})?,
            b'[' => self.list(depth, &mut |_| {})?,
            b'"' => {
                self.string()?;
            }
            b't' => self.word("true")?,
            b'f' => self.word("false")?,
            b'n' => self.word("null")?,
            b'-' | b'0'..=b'9' => self.number()?,
            _ => return self.error("a value is missing"),
        }
        Ok((start, self.position()))
    }

    /// An object; `each` gets its members in their order.
    pub(crate) fn object(
        &mut self,
        depth: usize,
        each: &mut dyn FnMut(Member),
    ) -> Result<(), JsonError> {
        self.open(depth, b'{', "an object")?;
        let base = self.names.len();
        // One bit for each name that was seen; a bit that is set already asks for a closer look.
        let mut seen = 0_u64;
        let mut is_first = true;
        while !self.closes(b'}', is_first)? {
            is_first = false;
            self.blank();
            if self.peek() != b'"' {
                return self.error("a name in quotes is missing");
            }
            let name_at = self.at;
            let name = self.string()?;
            let bit = self.name_bit(name);
            let count = self.names.len() - base;
            if seen & bit != 0 && count < FEW_NAMES && self.is_repeated(base, name) {
                return self.repeated(name, name_at);
            }
            seen |= bit;
            self.names.push(name);
            self.blank();
            if self.peek() != b':' {
                return self.error("a `:` is missing after the name");
            }
            self.at += 1;
            let value = self.value(depth + 1)?;
            each(Member { name, value });
        }
        if self.names.len() - base > FEW_NAMES {
            let mut set = HashSet::with_capacity(self.names.len() - base);
            for name in &self.names[base..] {
                if !set.insert(name.decode(self.text)) {
                    return self.repeated(*name, name.start as usize);
                }
            }
        }
        self.names.truncate(base);
        Ok(())
    }

    fn name_bit(&self, name: Quoted) -> u64 {
        if name.has_escapes {
            // The same name may be written without them, so every bit is meant.
            return u64::MAX;
        }
        let raw = &self.text.as_bytes()[name.start as usize..name.end as usize];
        let (first, last) = match raw {
            [] => (0, 0),
            [first, .., last] => (*first, *last),
            [only] => (*only, *only),
        };
        let mixed = u64::from(first)
            .wrapping_mul(31)
            .wrapping_add(u64::from(last))
            .wrapping_mul(31)
            .wrapping_add(raw.len() as u64);
        1 << (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
    }

    fn is_repeated(&self, base: usize, name: Quoted) -> bool {
        let written = name.decode(self.text);
        self.names[base..]
            .iter()
            .any(|other| other.is(self.text, &written))
    }

    fn repeated<T>(&self, name: Quoted, at: usize) -> Result<T, JsonError> {
        Err(JsonError {
            message: format!("the name `{}` is repeated", name.decode(self.text)),
            at,
        })
    }

    /// A list; `each` gets the places of its elements.
    pub(crate) fn list(
        &mut self,
        depth: usize,
        each: &mut dyn FnMut((u32, u32)),
    ) -> Result<(), JsonError> {
        self.open(depth, b'[', "a list")?;
        let mut is_first = true;
        while !self.closes(b']', is_first)? {
            is_first = false;
            let place = self.value(depth + 1)?;
            each(place);
        }
        Ok(())
    }

    fn open(&mut self, depth: usize, bracket: u8, kind: &str) -> Result<(), JsonError> {
        self.blank();
        if self.peek() != bracket {
            return self.error(format!("{kind} is missing"));
        }
        if depth >= MAX_JSON_DEPTH {
            return self.error(format!("values are nested more than {MAX_JSON_DEPTH} deep"));
        }
        self.at += 1;
        Ok(())
    }

    /// Whether the bracket closes here; between elements, reads the comma.
    fn closes(&mut self, bracket: u8, is_first: bool) -> Result<bool, JsonError> {
        self.blank();
        let next = self.peek();
        if next == bracket {
            self.at += 1;
            return Ok(true);
        }
        if is_first {
            return Ok(false);
        }
        if next != b',' {
            return self.error(format!("a `,` or `{}` is missing", char::from(bracket)));
        }
        self.at += 1;
        Ok(false)
    }

    fn word(&mut self, word: &str) -> Result<(), JsonError> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return self.error("a value is missing");
        }
        self.at += word.len();
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !self.peek().is_ascii_digit() {
            return self.error("a digit is missing");
        }
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == b'-' {
            self.at += 1;
        }
        if self.peek() == b'0' {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == b'.' {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<Quoted, JsonError> {
        self.at += 1;
        let start = self.position();
        let mut has_escapes = false;
        let bytes = self.text.as_bytes();
        loop {
            match bytes.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    has_escapes = true;
                    self.escape()?;
                }
                Some(0..=0x1f) => return self.error("a control character stands in a string"),
                Some(_) => self.at += 1,
                None => return self.error("a string has no end"),
            }
        }
        let end = self.position();
        self.at += 1;
        Ok(Quoted {
            start,
            end,
            has_escapes,
        })
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        match self.peek() {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                self.at += 1;
                Ok(())
            }
            b'u' => {
                let unit = self.unit()?;
                if (0xdc00..0xe000).contains(&unit) {
                    return self.error("half of a surrogate pair stands alone");
                }
                if (0xd800..0xdc00).contains(&unit) {
                    let follows = self.text.as_bytes()[self.at..].starts_with(b"\\u");
                    self.at += 1;
                    if !follows || !(0xdc00..0xe000).contains(&self.unit()?) {
                        return self.error("half of a surrogate pair stands alone");
                    }
                }
                Ok(())
            }
            _ => self.error("an escape is unknown"),
        }
    }

    /// The four hexadecimal digits after the `u` at the current place.
    fn unit(&mut self) -> Result<u32, JsonError> {
        let digits = self.text.as_bytes().get(self.at + 1..self.at + 5);
        let unit = digits.and_then(|digits| {
            digits.iter().try_fold(0, |unit, digit| {
                Some(unit * 16 + char::from(*digit).to_digit(16)?)
            })
        });
        match unit {
            Some(unit) => {
                self.at += 5;
                Ok(unit)
            }
            None => self.error("an escape needs four hexadecimal digits"),
        }
    }
}

/// The text of a scanned literal with escapes.
fn unescape(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut units: Vec<u16> = Vec::new();
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let mut used = at + 2;
        match rest.as_bytes()[at + 1] {
            b'u' => {
                units.clear();
                used = at;
                // A surrogate pair is two escapes; they are decoded together.
                while rest[used..].starts_with("\\u") {
                    units
                        .push(u16::from_str_radix(&rest[used + 2..used + 6], 16).unwrap_or(0xfffd));
                    used += 6;
                }
                text.push_str(&String::from_utf16_lossy(&units));
            }
            b'b' => text.push('\u{8}'),
            b'f' => text.push('\u{c}'),
            b'n' => text.push('\n'),
            b'r' => text.push('\r'),
            b't' => text.push('\t'),
            other => text.push(char::from(other)),
        }
        rest = &rest[used..];
    }
    text.push_str(rest);
    text
}

/// The value of a member of a scanned object.
pub(crate) fn member<'t>(object: &'t str, name: &str) -> Option<&'t str> {
    let mut found = None;
    let mut scanner = Scanner::new(object);
    let scanned = scanner.object(0, &mut |member| {
        if member.name.is(object, name) {
            found = Some(member.value);
        }
    });
    scanned.ok()?;
    found.map(|(start, end)| &object[start as usize..end as usize])
}

/// Appends a string with its quotes.
pub(crate) fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0x08 => "\\b",
            0x0c => "\\f",
            0..=0x1f => "",
            _ => continue,
        };
        out.push_str(&text[from..at]);
        if escape.is_empty() {
            out.push_str("\\u00");
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
            }
        } else {
            out.push_str(escape);
        }
        from = at + 1;
    }
    out.push_str(&text[from..]);
    out.push('"');
}
