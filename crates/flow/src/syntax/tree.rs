//! The tree of a file: labeled nodes over its tokens.

use std::fmt::Write;

use super::lexer::{FlowComment, FlowToken, FlowTokenKind};
use crate::Span;

/// One labeled piece of a text; what it has no label for is found among its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TreeNode {
    pub(super) label: &'static str,
    /// The index of the first token, and of the one after the last.
    pub(super) tokens: (u32, u32),
    pub(super) children: Vec<Self>,
}

/// A file as the parser understood it.
///
/// ```
/// let (tree, diagnostics) = tidegate_flow::syntax::parse("lookup rates key code end", 0);
/// assert!(diagnostics.is_empty());
/// let lookup = tree.root().get("lookup").unwrap();
/// assert_eq!(lookup.get("name").unwrap().name(), "rates");
/// ```
#[derive(Debug, Clone)]
pub struct SyntaxTree {
    pub(super) text: String,
    pub(super) source: u32,
    pub(super) tokens: Vec<FlowToken>,
    pub(super) comments: Vec<FlowComment>,
    pub(super) root: TreeNode,
    /// Tokens that begin a line in the printed form, with the depth of that line.
    pub(super) lines: Vec<(u32, u16)>,
    /// Stretches of tokens that are expressions, in their order.
    pub(super) expressions: Vec<(u32, u32)>,
    /// Stretches of tokens that were skipped after a mistake.
    pub(super) skipped: Vec<(u32, u32)>,
    /// How often the parser looked at a token or a rule.
    pub(super) steps: u64,
}

impl SyntaxTree {
    /// The whole file.
    #[must_use]
    pub const fn root(&self) -> SyntaxNode<'_> {
        SyntaxNode {
            tree: self,
            node: &self.root,
        }
    }

    /// The tokens, the last of which is the end of the file.
    #[must_use]
    pub fn tokens(&self) -> &[FlowToken] {
        &self.tokens
    }

    /// How often the lexer and the parser took a step, for a test of their limit.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether a word stands in a part that could not be read, so that it may be declared there.
    #[must_use]
    pub fn is_skipped(&self, word: &str) -> bool {
        let mut words = self.skipped.iter().flat_map(|(from, to)| *from..*to);
        words.any(|index| self.token_text(index) == word)
    }

    /// Whether a part of this node could not be read.
    #[must_use]
    pub fn is_broken(&self, node: SyntaxNode<'_>) -> bool {
        let (from, to) = node.node.tokens;
        let mut skipped = self.skipped.iter();
        skipped.any(|(start, end)| *start < to && *end > from)
    }

    /// The comments between the tokens of a stretch.
    pub(super) fn comments_inside(&self, from: u32, to: u32) -> impl Iterator<Item = &FlowComment> {
        let comments = &self.comments;
        let first = comments.partition_point(|comment| comment.before <= from);
        let rest = comments[first..].iter();
        rest.take_while(move |comment| comment.before < to)
    }

    pub(super) fn token_text(&self, index: u32) -> &str {
        let token = self.tokens.get(index as usize);
        token.map_or("", |token| {
            &self.text[token.start as usize..token.end as usize]
        })
    }

    /// The tree as lines, without places: two texts of one meaning have the same.
    #[must_use]
    pub fn outline(&self) -> String {
        let mut text = String::new();
        outline(self.root(), 0, &mut text);
        text
    }
}

fn outline(node: SyntaxNode<'_>, depth: usize, text: &mut String) {
    let label = match node.node.label {
        "" => "file",
        label => label,
    };
    // Writing to a string cannot fail.
    write!(text, "{}{label}", "  ".repeat(depth)).ok();
    if node.node.children.is_empty() {
        write!(text, ": {}", node.words().join(" ")).ok();
    } else if depth > 0 {
        write!(text, " ({})", node.word()).ok();
    }
    text.push('\n');
    for child in node.children() {
        outline(child, depth + 1, text);
    }
}

/// The milliseconds of a duration; none where they are more than a number can hold.
pub(super) fn millis_of(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (count, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit = match unit {
        "ms" | "millisecond" | "milliseconds" => 1,
        "s" | "second" | "seconds" => 1_000,
        "m" | "minute" | "minutes" => 60_000,
        "h" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        // Weeks: the parser lets nothing else through.
        _ => 604_800_000_u64,
    };
    unit.checked_mul(count.parse().ok()?)
}

/// Stands for a part that is not there: it has neither words nor parts.
static NOTHING: TreeNode = TreeNode {
    label: "",
    tokens: (u32::MAX, u32::MAX),
    children: Vec::new(),
};

impl From<SyntaxNode<'_>> for Span {
    fn from(node: SyntaxNode<'_>) -> Self {
        node.span()
    }
}

/// A node of a tree, with the ways to read it.
#[derive(Debug, Clone, Copy)]
pub struct SyntaxNode<'t> {
    tree: &'t SyntaxTree,
    node: &'t TreeNode,
}

impl<'t> SyntaxNode<'t> {
    /// The label of the grammar.
    #[must_use]
    pub const fn label(self) -> &'static str {
        self.node.label
    }

    /// The tree that it belongs to.
    #[must_use]
    pub const fn tree(self) -> &'t SyntaxTree {
        self.tree
    }

    /// All labeled nodes directly inside.
    pub fn children(self) -> impl Iterator<Item = Self> {
        let (tree, children) = (self.tree, self.node.children.iter());
        children.map(move |node| SyntaxNode { tree, node })
    }

    /// The first node of this label directly inside.
    #[must_use]
    pub fn get(self, label: &str) -> Option<Self> {
        self.children().find(|child| child.label() == label)
    }

    /// The first node of this label directly inside, or one without words where there is none.
    #[must_use]
    pub fn child(self, label: &str) -> Self {
        let tree = self.tree;
        let node = &NOTHING;
        self.get(label).unwrap_or(SyntaxNode { tree, node })
    }

    /// The paths of a list of fields under this label.
    pub fn paths(self, label: &str) -> impl Iterator<Item = Self> {
        self.child(label).all("path")
    }

    /// The names of these paths.
    #[must_use]
    pub fn path_names(self, label: &str) -> Vec<String> {
        self.paths(label).map(SyntaxNode::name).collect()
    }

    /// Whether there is a node of this label directly inside.
    #[must_use]
    pub fn has(self, label: &str) -> bool {
        self.get(label).is_some()
    }

    /// Every node of this label directly inside.
    pub fn all(self, label: &'static str) -> impl Iterator<Item = Self> {
        self.children().filter(move |child| child.label() == label)
    }

    /// The first token as it is written.
    #[must_use]
    pub fn word(self) -> &'t str {
        self.tree.token_text(self.node.tokens.0)
    }

    /// The first tokens as they are written, at most `count`.
    pub fn words(self) -> Vec<&'t str> {
        let (from, to) = self.node.tokens;
        let words = (from..to).map(|index| self.tree.token_text(index));
        words.collect()
    }

    /// The name, without the backquotes that may be around it. A path has its dots.
    #[must_use]
    pub fn name(self) -> String {
        self.words().concat().replace('`', "")
    }

    /// The number in front, if it fits.
    #[must_use]
    pub fn int(self) -> Option<u64> {
        self.word().parse().ok()
    }

    /// The duration in milliseconds; one that does not fit is as long as can be.
    #[must_use]
    pub fn millis(self) -> u64 {
        let text: String = self.words().concat();
        if text.is_empty() {
            return 0;
        }
        millis_of(&text).unwrap_or(u64::MAX)
    }

    /// The index of the first token, and of the one after the last.
    pub(super) const fn range(self) -> (u32, u32) {
        self.node.tokens
    }

    /// The place in the file.
    #[must_use]
    pub fn span(self) -> Span {
        let (from, to) = self.node.tokens;
        self.head()
            .to(self.place(to.max(from.saturating_add(1)) - 1))
    }

    /// The place of the first token.
    #[must_use]
    pub fn head(self) -> Span {
        self.place(self.node.tokens.0)
    }

    fn place(self, token: u32) -> Span {
        let token = self.tree.tokens.get(token as usize);
        token.map_or(Span::default(), |token| {
            Span::new(self.tree.source, token.start, token.end)
        })
    }

    /// The text as it is written, with blanks in place of comments: what CEL reads.
    #[must_use]
    pub fn source_text(self) -> String {
        let span = self.span();
        let (start, end) = (span.start as usize, span.end as usize);
        let mut text = self.tree.text[start..end].to_owned();
        let (from, to) = self.node.tokens;
        for comment in self.tree.comments_inside(from, to) {
            let range = comment.start as usize - start..comment.end as usize - start;
            text.replace_range(range.clone(), &" ".repeat(range.len()));
        }
        text
    }

    /// The text with the blanks that we put into expressions.
    #[must_use]
    pub fn canonical_text(self) -> String {
        let (from, to) = self.node.tokens;
        let blanks = super::spacing::blanks(self.tree, from, to);
        let tokens = self.words().into_iter().zip(blanks);
        tokens.fold(String::new(), |text, (token, is_blank)| {
            text + if is_blank { " " } else { "" } + token
        })
    }

    /// The text between the quotes, with the escapes of expressions resolved.
    #[must_use]
    pub fn unquoted(self) -> String {
        let quoted = self.word();
        let inner = quoted.strip_prefix('"').unwrap_or(quoted);
        let inner = inner.strip_suffix('"').unwrap_or(inner);
        crate::expression::unescaped(inner)
    }

    /// Whether one pair of parentheses is around the whole node.
    #[must_use]
    pub fn is_in_parentheses(self) -> bool {
        let words = self.words();
        let mut depth = 0_usize;
        let closes = words.iter().position(|word| {
            match *word {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0
        });
        words.first() == Some(&"(") && closes == Some(words.len() - 1)
    }

    /// Whether the first token is a text.
    #[must_use]
    pub fn is_text(self) -> bool {
        let token = self.tree.tokens.get(self.node.tokens.0 as usize);
        token.is_some_and(|token| token.kind == FlowTokenKind::Text)
    }
}
