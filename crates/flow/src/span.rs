//! Places in the texts of flow files.

/// A stretch of one source text.
///
/// ```
/// use tidegate_flow::Span;
/// let expression = Span::new(0, 10, 20);
/// assert_eq!(expression.part(2, 3), Span::new(0, 12, 13));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// Which text, counted from zero.
    pub source: u32,
    /// The first byte.
    pub start: u32,
    /// The byte after the last.
    pub end: u32,
}

impl Span {
    /// The bytes from `start` up to `end` of a text.
    #[must_use]
    pub const fn new(source: u32, start: u32, end: u32) -> Self {
        Self { source, start, end }
    }

    /// The bytes from `start` up to `end`, counted from the start of this span and kept inside of it.
    #[must_use]
    pub fn part(self, start: usize, end: usize) -> Self {
        let inside = |at: usize| {
            let at = u32::try_from(at).unwrap_or(u32::MAX);
            self.start.saturating_add(at).min(self.end)
        };
        Self::new(self.source, inside(start), inside(end))
    }

    /// The stretch from the start of this span to the end of another one in the same text.
    #[must_use]
    pub fn to(self, last: Self) -> Self {
        Self::new(self.source, self.start, last.end.max(self.start))
    }
}
