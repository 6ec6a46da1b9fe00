//! Variables in flow style: `{ token: ${TOKEN:-} }`.
//!
//! To YAML the braces of a variable open and close a section. So before a text is parsed, such
//! characters of a variable are swapped for others without a meaning, one for one. They are swapped
//! back in every text that the parser returns.
//!
//! **Invariant:** the escaped text has as many characters in each line as the original, so lines
//! and columns hold for both.

use std::borrow::Cow;

/// Characters that end or split a text in flow style.
const MEANINGFUL: [char; 5] = ['{', '}', '[', ']', ','];

/// A text whose variables are safe to parse, and the way back.
pub(crate) struct EscapedText<'a> {
    original: &'a str,
    text: Cow<'a, str>,
    /// Stand-ins for [`MEANINGFUL`]: characters that the original does not have.
    substitutes: Vec<char>,
    /// Where each character of the original begins; empty when nothing was swapped.
    offsets: Vec<usize>,
}

impl<'a> EscapedText<'a> {
    pub(crate) fn new(original: &'a str) -> Self {
        let mut escaped = Self {
            original,
            text: Cow::Borrowed(original),
            substitutes: Vec::new(),
            offsets: Vec::new(),
        };
        if original.contains("${") {
            // Private-use characters have no meaning to YAML and are allowed in it.
            let private = '\u{e000}'..='\u{f8ff}';
            let unused = private.filter(|c| !original.contains(*c));
            escaped.substitutes = unused.take(MEANINGFUL.len()).collect();
            if escaped.substitutes.len() == MEANINGFUL.len() {
                escaped.offsets = original.char_indices().map(|(at, _)| at).collect();
                escaped.text = Cow::Owned(escaped.swapped());
            }
        }
        escaped
    }

    /// The text as it was written.
    pub(crate) const fn original(&self) -> &'a str {
        self.original
    }

    /// The text to parse.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// A text of the parser as it stands in the original.
    pub(crate) fn unescape(&self, text: &str) -> String {
        let back = |c: char| {
            let at = self
                .substitutes
                .iter()
                .position(|substitute| *substitute == c);
            at.map_or(c, |at| MEANINGFUL[at])
        };
        if self.offsets.is_empty() {
            text.to_owned()
        } else {
            text.chars().map(back).collect()
        }
    }

    /// The byte of the original at which the parser's character `index`, byte `byte`, stands.
    pub(crate) fn offset(&self, index: usize, byte: Option<usize>) -> usize {
        let end = self.original.len();
        if self.offsets.is_empty() {
            return byte.unwrap_or(end).min(end);
        }
        self.offsets.get(index).copied().unwrap_or(end)
    }

    fn swapped(&self) -> String {
        let mut text = String::with_capacity(self.original.len() + 64);
        let mut rest = self.original;
        while let Some(start) = rest.find("${") {
            text.push_str(&rest[..=start]);
            rest = &rest[start + 1..];
            let end = variable_end(rest);
            for c in rest[..end].chars() {
                let at = MEANINGFUL.iter().position(|meaningful| *meaningful == c);
                text.push(at.map_or(c, |at| self.substitutes[at]));
            }
            rest = &rest[end..];
        }
        text.push_str(rest);
        text
    }
}

/// Where the variable ends whose `{` is the first character; a variable never spans lines.
fn variable_end(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut previous = '$';
    for (at, c) in text.char_indices() {
        match c {
            '\n' | '\r' => return 0,
            '{' if previous == '$' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        previous = c;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_text_has_the_same_shape() {
        let text = "ö: {a: ${A:-${B:-x,y}}, b: ${\n}, c: $, d: ${D}}";
        let escaped = EscapedText::new(text);
        assert_eq!(escaped.text().chars().count(), text.chars().count());
        assert_eq!(escaped.unescape(escaped.text()), text);
        assert_eq!(escaped.text().matches('{').count(), 2);
        let at = escaped.text().chars().position(|c| c == 'd').unwrap();
        assert_eq!(&text[escaped.offset(at, None)..][..2], "d:");
    }

    #[test]
    fn a_text_without_variables_is_left_alone() {
        let escaped = EscapedText::new("a: {b: $c}");
        assert_eq!(escaped.text(), "a: {b: $c}");
        assert_eq!(escaped.offset(3, Some(3)), 3);
    }
}
