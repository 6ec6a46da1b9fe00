//! Problems of a configuration, and their places.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use serde::Serialize;

use crate::keys::Part;
use crate::load::ConfigSource;
use crate::value::ValueLocation;

/// A stretch of one source text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct TextSpan {
    /// Which source, counted from zero.
    pub(crate) source: usize,
    /// The first byte.
    pub(crate) start: usize,
    /// The byte after the last.
    pub(crate) end: usize,
    /// The line, counted from one.
    pub(crate) line: usize,
    /// The column in characters, counted from one.
    pub(crate) column: usize,
}

impl TextSpan {
    /// The stretch of a source, with its line and column.
    fn in_text(texts: &[ConfigSource], source: usize, range: Range<usize>) -> Self {
        let text = texts.get(source).map_or("", |source| source.text.as_str());
        let before = text.get(..range.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            source,
            start: range.start,
            end: range.end,
            line: 1 + before.matches('\n').count(),
            column: 1 + before[line_start..].chars().count(),
        }
    }

    /// The beginning of a source.
    pub(crate) fn top_of(source: usize) -> Self {
        Self {
            source,
            line: 1,
            column: 1,
            ..Self::default()
        }
    }
}

/// One thing that is wrong.
///
/// ```
/// use tidegate_config::{Inputs, load};
/// let loaded = load(&Inputs::of_text("tidegate.yaml", "server:\n  read-only: maybe\n"));
/// let problem = &loaded.problems[0];
/// assert_eq!((problem.line, problem.column), (2, 14));
/// assert_eq!(problem.path, "server.read-only");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The name of the source, `environment` or `arguments`.
    pub file: String,
    /// The line, counted from one; zero outside of files.
    pub line: usize,
    /// The column in characters, counted from one; zero outside of files.
    pub column: usize,
    /// The path of the key.
    pub path: String,
    /// The mistake, to be read after the path.
    pub message: String,
    /// Advice, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The parts that it may be about: the one whose section it is in, and those that were probably meant.
    #[serde(skip)]
    pub parts: Vec<Part>,
    /// The other place of a contradiction, if that is in a file. The message names its line, too.
    #[serde(skip)]
    pub(crate) also: Option<TextSpan>,
    #[serde(skip)]
    pub(crate) span: Option<TextSpan>,
}

impl Problem {
    /// A problem with a stretch of one of `texts`, for a language that has its own checker.
    ///
    /// The path is shown before the message. A second stretch is drawn as well.
    #[must_use]
    pub fn in_text(
        texts: &[ConfigSource],
        (source, range): (usize, Range<usize>),
        also: Option<(usize, Range<usize>)>,
        path: &str,
        message: &str,
    ) -> Self {
        let span = TextSpan::in_text(texts, source, range);
        Self {
            file: texts
                .get(source)
                .map_or(String::new(), |text| text.name.clone()),
            line: span.line,
            column: span.column,
            path: path.to_owned(),
            message: message.to_owned(),
            hint: None,
            parts: vec![Part::Flows],
            also: also.map(|(source, range)| TextSpan::in_text(texts, source, range)),
            span: Some(span),
        }
    }

    /// The same problem with advice, if there is any.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Option<String>>) -> Self {
        self.hint = hint.into();
        self
    }

    /// The same problem, about these parts as well.
    pub(crate) fn parts(mut self, parts: impl IntoIterator<Item = Part>) -> Self {
        self.parts.extend(parts);
        self
    }

    /// The same problem with its second place.
    pub(crate) fn also(mut self, spot: &ValueLocation) -> Self {
        self.also = spot.span();
        self
    }

    /// Files in their order, then what came from elsewhere.
    fn rank(&self) -> (usize, usize, usize, &str, &str) {
        let source = self.span.map_or(usize::MAX, |span| span.source);
        (source, self.line, self.column, &self.path, &self.message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        f.write_str(": ")?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

/// Everything that is wrong, in the order of the file.
///
/// It displays as one line per problem; [`Problems::render`] adds the lines of the file. It
/// serializes as the list of its problems.
///
/// ```
/// use tidegate_config::{Inputs, load};
/// let loaded = load(&Inputs::of_text("tidegate.yaml", "sever: {}\n"));
/// assert_eq!(
///     loaded.problems.to_string(),
///     "tidegate.yaml:1:1: sever: is not a key of the file (did you mean `server`?)",
/// );
/// ```
#[derive(Clone, Default)]
pub struct Problems {
    list: Vec<Problem>,
    /// The texts with every secret blanked out, so that a snippet cannot show one.
    texts: Arc<Vec<ConfigSource>>,
}

impl Problems {
    /// These problems in the order of `texts`, which are drawn as they are.
    #[must_use]
    pub fn in_texts(list: Vec<Problem>, texts: Vec<ConfigSource>) -> Self {
        Self::new(list, Arc::new(texts))
    }

    pub(crate) fn new(mut list: Vec<Problem>, texts: Arc<Vec<ConfigSource>>) -> Self {
        list.sort_by(|a, b| a.rank().cmp(&b.rank()));
        list.dedup();
        Self { list, texts }
    }

    /// The texts that are drawn, with every secret blanked out.
    #[must_use]
    pub fn texts(&self) -> &[ConfigSource] {
        &self.texts
    }

    /// Adds a problem in its place, for instance one that [`crate::Config::section`] found.
    pub fn add(&mut self, problem: Problem) {
        let at = self
            .list
            .partition_point(|other| other.rank() <= problem.rank());
        self.list.insert(at, problem);
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&Problem) -> bool) {
        self.list.retain(keep);
    }
}

impl Deref for Problems {
    type Target = [Problem];

    fn deref(&self) -> &[Problem] {
        &self.list
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.list).finish()
    }
}

impl Serialize for Problems {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.list.serialize(serializer)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.list.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
