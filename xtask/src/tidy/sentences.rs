//! Sentences of comments and documents: short, and the subject first.

use crate::tidy::Finding;
use crate::tidy::rust;
use crate::tidy::tree::Tree;

/// Words that a sentence may have.
const WORDS: usize = 25;
/// A sentence that begins with one of these has its subject last.
const OPENERS: [&str; 2] = ["What", "Whoever"];

/// Sentences of comments in Rust and of Markdown that are too long, or begin with [`OPENERS`].
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with(&["md"]) {
        let lines = text.lines().map(str::to_owned);
        findings.extend(check_lines(path, lines));
    }
    for (path, text) in tree.with(&["rs"]) {
        let lines = rust::lines(text).into_iter().map(|line| line.comment);
        findings.extend(check_lines(path, lines));
    }
    findings
}

fn check_lines(path: &str, lines: impl Iterator<Item = String>) -> Vec<Finding> {
    let mut prose = Prose::default();
    for (index, line) in lines.enumerate() {
        prose.take(index + 1, line.trim());
    }
    prose.end_paragraph();
    let complaints = prose.sentences.iter().filter_map(|(line, sentence)| {
        complaint(sentence).map(|text| Finding::new(path, *line, text))
    });
    complaints.collect()
}

fn complaint(sentence: &str) -> Option<String> {
    let words: Vec<&str> = sentence.split_whitespace().collect();
    let start = words.iter().take(6).copied().collect::<Vec<_>>().join(" ");
    if words.len() > WORDS {
        let count = words.len();
        return Some(format!(
            "a sentence of {count} words, at most {WORDS} may be: `{start} …`"
        ));
    }
    let first = words.first()?.trim_start_matches(['*', '(', '"']);
    (OPENERS.contains(&first) && !sentence.ends_with('?'))
        .then(|| format!("a sentence begins with its subject, not with `{first}`: `{start} …`"))
}

/// Puts the lines of a text together to sentences.
#[derive(Default)]
struct Prose {
    is_code: bool,
    paragraph: Vec<(usize, String)>,
    sentences: Vec<(usize, String)>,
}

impl Prose {
    fn take(&mut self, number: usize, line: &str) {
        if line.starts_with("```") {
            self.is_code = !self.is_code;
        }
        if self.is_code || line.is_empty() || is_mark(line) {
            return self.end_paragraph();
        }
        if line.starts_with('|') {
            self.end_paragraph();
            for cell in line.split('|') {
                self.paragraph.push((number, cell.to_owned()));
                self.end_paragraph();
            }
            return;
        }
        if line.starts_with(['-', '*', '>']) || line.starts_with(|c: char| c.is_ascii_digit()) {
            self.end_paragraph();
        }
        self.paragraph.push((number, line.to_owned()));
    }

    fn end_paragraph(&mut self) {
        let Some((first, _)) = self.paragraph.first() else {
            return;
        };
        let mut start = *first;
        let mut sentence = String::new();
        let mut is_quoted = false;
        for (number, line) in std::mem::take(&mut self.paragraph) {
            for word in line.split_whitespace() {
                if sentence.is_empty() {
                    start = number;
                }
                // A quotation counts as one word, however long.
                if !is_quoted {
                    sentence.push(' ');
                }
                sentence.push_str(word);
                is_quoted ^= word.matches('`').count() % 2 == 1;
                let bare = word.trim_end_matches(['*', ')', '"']);
                if !is_quoted && bare.ends_with(['.', '!', '?', ':', ';']) {
                    let whole = std::mem::take(&mut sentence).trim().to_owned();
                    self.sentences.push((start, whole));
                }
            }
        }
        self.sentences.push((start, sentence.trim().to_owned()));
    }
}

/// Whether a line is a heading, a fence or a tag.
fn is_mark(line: &str) -> bool {
    line.starts_with("```") || line.starts_with(['#', '<'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_and_late_subjects_are_found() {
        let long = "word ".repeat(26);
        let comment = format!("/// Short.\n/// {long}.\nfn f() {{}}\n// What is it?\n");
        let page =
            "# What it is\n\nOne. Whoever reads\nthis `What` stops.\n\n```\nWhat now.\n```\n";
        let tree = Tree::of(&[("crates/a/src/a.rs", &comment), ("docs/a.md", page)]);
        let found: Vec<(String, usize)> = check(&tree)
            .into_iter()
            .map(|finding| (finding.file, finding.line))
            .collect();
        let expected = [("docs/a.md", 3), ("crates/a/src/a.rs", 2)];
        assert_eq!(found, expected.map(|(file, line)| (file.to_owned(), line)));
    }
}
