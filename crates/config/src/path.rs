//! Paths of keys.

use std::fmt;

use crate::keys::Part;
use crate::secret::shown_name;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PathStep {
    Name(String),
    Index(usize),
}

/// Where a key is in the file: `eventbus.bindings.orders.retry.tiers[0].delay-ms`.
///
/// A name with more than letters, digits, `-` and `_` stands in quotes: the dots of a topic are no
/// steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KeyPath(Vec<PathStep>);

impl KeyPath {
    pub(crate) fn name(&self, name: &str) -> Self {
        self.with(PathStep::Name(name.to_owned()))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        self.with(PathStep::Index(index))
    }

    fn with(&self, step: PathStep) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    pub(crate) fn steps(&self) -> &[PathStep] {
        &self.0
    }

    /// The part whose section it is in.
    pub(crate) fn part(&self) -> Option<Part> {
        match self.0.first() {
            Some(PathStep::Name(name)) => Part::of_section(name),
            Some(PathStep::Index(_)) | None => None,
        }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a path; quotes and brackets as they are written, and `.0` for `[0]`, too.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        let mut rest = text;
        loop {
            let (step, tail) = read_step(rest)?;
            steps.push(step);
            if tail.is_empty() {
                return Some(Self(steps));
            }
            rest = if tail.starts_with('[') {
                tail
            } else {
                tail.strip_prefix('.')?
            };
        }
    }
}

fn read_step(text: &str) -> Option<(PathStep, &str)> {
    if let Some(inner) = text.strip_prefix('[') {
        let (number, tail) = inner.split_once(']')?;
        return Some((PathStep::Index(number.parse().ok()?), tail));
    }
    if let Some(inner) = text.strip_prefix('"') {
        let (name, tail) = inner.split_once('"')?;
        return Some((PathStep::Name(name.to_owned()), tail));
    }
    let end = text.find(['.', '[']).unwrap_or(text.len());
    let (name, tail) = text.split_at(end);
    if name.is_empty() {
        return None;
    }
    Some((PathStep::Name(name.to_owned()), tail))
}

/// Whether a name needs no quotes.
pub(crate) fn is_bare(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Index(index) => write!(f, "[{index}]")?,
                PathStep::Name(name) => {
                    if n > 0 {
                        f.write_str(".")?;
                    }
                    // An address where a name belongs is a slip, and still a secret.
                    let name = shown_name(name);
                    if is_bare(name) {
                        f.write_str(name)?;
                    } else {
                        write!(f, "\"{}\"", name.escape_debug())?;
                    }
                }
            }
        }
        Ok(())
    }
}
