//! Problems with the lines they are about.

use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{
    AnnotationKind, Element, Level, Renderer, Snippet, normalize_untrusted_str,
};

use crate::load::ConfigSource;
use crate::problem::{Problem, Problems, TextSpan};

/// Problems shown with their lines; past this many, only the number of the others is told.
const MAX_RENDERED: usize = 100;

/// Lines kept around the place of a problem, so that a large file is not scanned for each.
const CONTEXT_LINES: usize = 2;

/// Whether a rendering carries terminal colors.
///
/// ```
/// use tidegate_config::{Color, Inputs, load};
/// let loaded = load(&Inputs::of_text("tidegate.yaml", "shutdown-timeout: soon\n"));
/// let text = loaded.problems.render(Color::Never);
/// assert!(text.contains("shutdown-timeout: soon"));
/// assert!(text.contains("^^^^"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// Plain text.
    Never,
    /// Text with terminal escape codes.
    Always,
}

/// How serious what is rendered is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The configuration does not hold.
    Problem,
    /// It holds, and somebody should look.
    Warning,
}

impl Problems {
    /// Each problem as a line, the lines of the file it is about, and a caret.
    #[must_use]
    pub fn render(&self, color: Color) -> String {
        self.render_as(Severity::Problem, color)
    }

    /// The same for a list of either seriousness.
    #[must_use]
    pub fn render_as(&self, severity: Severity, color: Color) -> String {
        let mut blocks: Vec<String> = self
            .iter()
            .take(MAX_RENDERED)
            .map(|p| one(p, self.texts(), severity, color))
            .collect();
        if self.len() > MAX_RENDERED {
            blocks.push(format!("… and {} more", self.len() - MAX_RENDERED));
        }
        blocks.join("\n\n")
    }
}

fn one(problem: &Problem, texts: &[ConfigSource], severity: Severity, color: Color) -> String {
    let level = match severity {
        Severity::Problem => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = if problem.path.is_empty() {
        problem.message.clone()
    } else {
        format!("{}: {}", problem.path, problem.message)
    };
    let mut elements: Vec<Element<'_>> = Vec::new();
    let second = problem.also;
    // Two places of one file share a snippet, so that the reader sees them in their order.
    let together = matches!((problem.span, second), (Some(a), Some(b)) if a.source == b.source);
    if let Some(span) = problem.span {
        let others: &[TextSpan] = if together { second.as_slice() } else { &[] };
        elements.extend(snippet(span, others, texts));
    }
    if let (Some(span), false) = (second, together) {
        elements.extend(snippet(span, &[], texts));
    }
    if let Some(hint) = &problem.hint {
        elements.push(Level::HELP.message(normalize_untrusted_str(hint)).into());
    }
    let group = level
        .primary_title(normalize_untrusted_str(&title))
        .elements(elements);
    let renderer = match color {
        Color::Never => Renderer::plain(),
        Color::Always => Renderer::styled(),
    };
    let rendered = renderer.decor_style(DecorStyle::Ascii).render(&[group]);
    if problem.span.is_none() {
        return format!("{}: {rendered}", problem.file);
    }
    rendered
}

fn snippet<'a>(
    main: TextSpan,
    others: &[TextSpan],
    texts: &'a [ConfigSource],
) -> Option<Element<'a>> {
    let source = texts.get(main.source)?;
    let spans = others.iter().chain([&main]);
    let first = spans.clone().map(|span| span.start).min()?;
    let last = spans.clone().map(|span| span.end).max()?;
    let window = window(&source.text, first..last);
    let line = 1 + source.text.get(..window.start)?.matches('\n').count();
    let text = source.text.get(window.clone())?;
    let inside = |span: &TextSpan| {
        let start = span.start.saturating_sub(window.start).min(text.len());
        start
            ..span
                .end
                .saturating_sub(window.start)
                .clamp(start, text.len())
    };
    let marks = others
        .iter()
        .map(|span| AnnotationKind::Context.span(inside(span)));
    let snippet = Snippet::source(text)
        .path(source.name.as_str())
        .line_start(line)
        .annotations(marks)
        .annotation(AnnotationKind::Primary.span(inside(&main)));
    Some(snippet.into())
}

/// The whole lines around a range.
fn window(text: &str, range: Range<usize>) -> Range<usize> {
    let bytes = text.as_bytes();
    let (mut start, mut end) = (range.start.min(text.len()), range.end.min(text.len()));
    let mut left = CONTEXT_LINES;
    while start > 0 {
        if bytes[start - 1] == b'\n' {
            if left == 0 {
                break;
            }
            left -= 1;
        }
        start -= 1;
    }
    let mut left = CONTEXT_LINES;
    while end < bytes.len() {
        if bytes[end] == b'\n' {
            if left == 0 {
                break;
            }
            left -= 1;
        }
        end += 1;
    }
    start..end
}
