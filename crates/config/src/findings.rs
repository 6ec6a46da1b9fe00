//! The findings of a load so far: problems, warnings, and places that must not be shown.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use crate::keys::{self, KeyKind, relaxed};
use crate::load::ConfigSource;
use crate::path::KeyPath;
use crate::problem::{Problem, Problems, TextSpan};
use crate::secret::{is_secret_name, is_suspicious};
use crate::value::ValueLocation;

/// Problems that are kept; past this many, only the fact that there are more is reported.
pub const MAX_PROBLEMS: usize = 1000;

pub(crate) struct Findings<'a> {
    sources: &'a [ConfigSource],
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    /// Where secrets stand in the texts.
    masks: Vec<TextSpan>,
    /// Sources that could not be parsed, so that we do not know where their secrets are.
    opaque: Vec<usize>,
}

impl<'a> Findings<'a> {
    pub(crate) const fn new(sources: &'a [ConfigSource]) -> Self {
        Self {
            sources,
            problems: Vec::new(),
            warnings: Vec::new(),
            masks: Vec::new(),
            opaque: Vec::new(),
        }
    }

    /// A problem at this spot, not yet added.
    pub(crate) fn at(
        &self,
        spot: &ValueLocation,
        path: &KeyPath,
        message: impl Into<String>,
    ) -> Problem {
        // The last file is the one that was asked for; what it imports stands before it.
        let main = self.sources.len().checked_sub(1).map(TextSpan::top_of);
        let spot = match main {
            Some(top) if *spot == ValueLocation::Default => ValueLocation::File(top),
            Some(_) | None => spot.clone(),
        };
        let (file, prefix) = spot.source(|span| self.file(span));
        let span = spot.span();
        Problem {
            file,
            line: span.map_or(0, |span| span.line),
            column: span.map_or(0, |span| span.column),
            path: path.to_string(),
            message: format!("{prefix}{}", message.into()),
            hint: None,
            parts: path.part().into_iter().collect(),
            also: None,
            span,
        }
    }

    /// The spot in words, for a message whose own spot is elsewhere.
    pub(crate) fn place(&self, spot: &ValueLocation) -> String {
        match spot {
            ValueLocation::Default => "the default".to_owned(),
            ValueLocation::File(span) if self.sources.len() > 1 => {
                format!("{} line {}", self.file(span), span.line)
            }
            ValueLocation::File(span) => format!("line {}", span.line),
            ValueLocation::Environment(variable) => format!("variable `{variable}`"),
            ValueLocation::Argument(argument) => format!("argument `{argument}`"),
        }
    }

    fn file(&self, span: &TextSpan) -> &str {
        let source = self.sources.get(span.source);
        source.map_or("", |source| &source.name)
    }

    pub(crate) fn problem(&mut self, problem: Problem) {
        keep(&mut self.problems, problem);
    }

    pub(crate) fn warning(&mut self, warning: Problem) {
        keep(&mut self.warnings, warning);
    }

    /// Whether further problems are not kept, so that work on their words is wasted.
    pub(crate) const fn is_full(&self) -> bool {
        self.problems.len() >= MAX_PROBLEMS
    }

    /// Keeps what stands here out of every snippet.
    pub(crate) fn mask(&mut self, span: TextSpan) {
        self.masks.push(span);
    }

    /// Keeps everything that looks like the value of a secret key out of the snippets of a source.
    pub(crate) fn opaque(&mut self, source: usize) {
        self.opaque.push(source);
    }

    /// The problems and the warnings, over texts without secrets.
    pub(crate) fn close(self) -> (Problems, Problems) {
        let mut texts: Vec<ConfigSource> = self.sources.to_vec();
        for (n, source) in texts.iter_mut().enumerate() {
            let here = self.masks.iter().filter(|span| span.source == n);
            let mut ranges: Vec<Range<usize>> = here.map(|span| span.start..span.end).collect();
            if self.opaque.contains(&n) {
                ranges.extend(ranges_by_name(&source.text));
            }
            source.text = blank(&source.text, ranges);
        }
        let texts = Arc::new(texts);
        (
            Problems::new(self.problems, Arc::clone(&texts)),
            Problems::new(self.warnings, texts),
        )
    }
}

/// Adds to a list up to its limit, and then one last word.
fn keep(list: &mut Vec<Problem>, mut problem: Problem) {
    match list.len().cmp(&(MAX_PROBLEMS - 1)) {
        Ordering::Less => list.push(problem),
        Ordering::Equal => {
            problem.message = format!("is not the last: only {MAX_PROBLEMS} are listed");
            problem.hint = None;
            problem.also = None;
            list.push(problem);
        }
        Ordering::Greater => {}
    }
}

/// Stars instead of characters, with every byte offset as before.
fn blank(text: &str, mut ranges: Vec<Range<usize>>) -> String {
    ranges.sort_by_key(|range| range.start);
    let mut blanked = String::with_capacity(text.len());
    let mut ranges = ranges.into_iter().peekable();
    let mut hidden_until = 0;
    for (at, c) in text.char_indices() {
        while let Some(range) = ranges.next_if(|range| range.start <= at) {
            hidden_until = hidden_until.max(range.end);
        }
        if at < hidden_until && c != '\n' {
            blanked.extend(std::iter::repeat_n('*', c.len_utf8()));
        } else {
            blanked.push(c);
        }
    }
    blanked
}

/// The text after the name of each secret key, and every line that may hold a password. The lines below
/// that stand further in belong to it: they may be the rest of a long text.
fn ranges_by_name(text: &str) -> Vec<Range<usize>> {
    let names: Vec<String> = keys::all()
        .into_iter()
        .filter(|listed| listed.key.kind == KeyKind::Secret)
        .map(|listed| relaxed(listed.key.name))
        .collect();
    let is_secret = |before: &str| {
        let name = before.replace(['"', '\''], "");
        is_secret_name(&name)
            || names
                .iter()
                .any(|secret| relaxed(name.trim_end()).ends_with(secret))
    };
    let mut ranges = Vec::new();
    let mut start = 0;
    // The indentation of the secret key whose value we are in.
    let mut inside: Option<usize> = None;
    for line in text.split_inclusive('\n') {
        let indent = line.len() - line.trim_start().len();
        inside = inside.filter(|outer| indent > *outer || line.trim().is_empty());
        let mut pieces = line.match_indices(':').map(|(at, _)| at);
        if inside.is_some() {
            ranges.push(start..start + line.len());
        } else if is_suspicious(line.trim()) {
            inside = Some(indent);
            ranges.push(start..start + line.len());
        } else if let Some(at) = pieces.find(|at| is_secret(last_word(&line[..*at]))) {
            inside = Some(indent);
            ranges.push(start + at + 1..start + line.len());
        }
        start += line.len();
    }
    ranges
}

/// The text before a colon, from the last bracket, comma or blank on.
fn last_word(before: &str) -> &str {
    let before = before.trim_end();
    before
        .rsplit([' ', '{', ',', '[', ':'])
        .next()
        .unwrap_or(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanking_keeps_every_offset() {
        let by_name = |text| blank(text, ranges_by_name(text));
        assert_eq!(blank("aöb\nc", vec![1..5, 2..3]), "a***\nc");
        assert_eq!(
            by_name("x: 1\n  token: hunter2\ny: 2"),
            "x: 1\n  token:********\ny: 2"
        );
    }
}
