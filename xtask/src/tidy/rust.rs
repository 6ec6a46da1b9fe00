//! Tells code from comments and strings in Rust source, as far as the rules need it.

/// One line, taken apart.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// The code, with the contents of strings and characters left out.
    pub(crate) code: String,
    /// The text of comments, without their marks.
    pub(crate) comment: String,
}

/// Takes a source text apart, line by line.
pub(crate) fn lines(source: &str) -> Vec<Line> {
    let mut splitter = Splitter {
        rest: source,
        lines: vec![Line::default()],
    };
    while let Some(next) = splitter.rest.chars().next() {
        splitter.step(next);
    }
    splitter.lines
}

struct Splitter<'a> {
    rest: &'a str,
    lines: Vec<Line>,
}

impl Splitter<'_> {
    fn step(&mut self, next: char) {
        if self.rest.starts_with("//") {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            let text = self.rest[2..end]
                .trim_start_matches(['/', '!'])
                .trim()
                .to_owned();
            self.line().comment.push_str(&text);
            self.rest = &self.rest[end..];
        } else if self.rest.starts_with("/*") {
            self.block_comment();
        } else if let Some(marks) = raw_string(self.rest, self.ends_in_word()) {
            self.raw_string(marks);
        } else if next == '"' {
            self.string();
        } else if let Some(length) = character(self.rest) {
            self.line().code.push_str("' '");
            self.rest = &self.rest[length..];
        } else {
            self.take(next);
        }
    }

    fn line(&mut self) -> &mut Line {
        if self.lines.is_empty() {
            self.lines.push(Line::default());
        }
        let last = self.lines.len() - 1;
        &mut self.lines[last]
    }

    fn ends_in_word(&mut self) -> bool {
        self.line()
            .code
            .ends_with(|c: char| c.is_alphanumeric() || c == '_')
    }

    fn take(&mut self, next: char) {
        if next == '\n' {
            self.lines.push(Line::default());
        } else {
            self.line().code.push(next);
        }
        self.rest = &self.rest[next.len_utf8()..];
    }

    /// Drops `length` bytes but keeps count of the lines.
    fn skip(&mut self, length: usize) {
        let (gone, rest) = self.rest.split_at(length);
        for _ in gone.matches('\n') {
            self.lines.push(Line::default());
        }
        self.rest = rest;
    }

    fn block_comment(&mut self) {
        let mut depth = 0_u32;
        while let Some(next) = self.rest.chars().next() {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.rest = &self.rest[2..];
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.rest = &self.rest[2..];
                if depth == 0 {
                    return;
                }
            } else {
                if next == '\n' {
                    self.lines.push(Line::default());
                } else {
                    self.line().comment.push(next);
                }
                self.rest = &self.rest[next.len_utf8()..];
            }
        }
    }

    fn string(&mut self) {
        let mut escaped = false;
        let end = self.rest[1..].find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        self.line().code.push_str("\"\"");
        self.skip(end.map_or(self.rest.len(), |end| end + 2));
    }

    fn raw_string(&mut self, marks: usize) {
        let start = self.rest.find('"').map_or(self.rest.len(), |at| at + 1);
        let closing = format!("\"{}", "#".repeat(marks));
        let end = self.rest[start..].find(&closing);
        self.line().code.push_str("\"\"");
        self.skip(end.map_or(self.rest.len(), |end| start + end + closing.len()));
    }
}

/// How many marks a raw string that begins here has; `None` when none begins.
fn raw_string(text: &str, follows_word: bool) -> Option<usize> {
    if follows_word {
        return None;
    }
    let text = text
        .strip_prefix(['b', 'c'])
        .unwrap_or(text)
        .strip_prefix('r')?;
    let marks = text.len() - text.trim_start_matches('#').len();
    text[marks..].starts_with('"').then_some(marks)
}

/// The length of the character literal that begins here. A lifetime is none.
fn character(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('\'')?;
    let first = inner.chars().next()?;
    if first == '\\' {
        // The escaped character may itself be a quote.
        let from = 2;
        return inner.get(from..)?.find('\'').map(|end| 1 + from + end + 1);
    }
    let end = first.len_utf8();
    (first != '\'' && inner[end..].starts_with('\'')).then_some(1 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(source: &str) -> Vec<String> {
        lines(source).into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn strings_lose_their_contents_and_keep_their_lines() {
        assert_eq!(code("f(\"a // b\\\"c\"); g"), ["f(\"\"); g"]);
        assert_eq!(code("f(r#\"x \" y\nz\"#) + 1"), ["f(\"\"", ") + 1"]);
        assert_eq!(
            code("let r = br\"//\"; bar\"x\""),
            ["let r = \"\"; bar\"\""]
        );
    }

    #[test]
    fn characters_and_lifetimes_are_told_apart() {
        assert_eq!(
            code("'\"' 'a' '\\'' '\\\\' fn f<'a>(x: &'a str)"),
            ["' ' ' ' ' ' ' ' fn f<'a>(x: &'a str)"]
        );
    }

    #[test]
    fn comments_are_kept_apart() {
        let lines = lines("a /* b /* c */ d */ e // f\n/// g\nh");
        assert_eq!(
            lines[0],
            Line {
                code: "a  e ".to_owned(),
                comment: " b  c  d f".to_owned()
            }
        );
        assert_eq!(
            lines[1],
            Line {
                code: String::new(),
                comment: "g".to_owned()
            }
        );
        assert_eq!(lines[2].code, "h");
    }
}
