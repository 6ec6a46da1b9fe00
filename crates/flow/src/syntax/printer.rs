//! Tree to text: every token and comment of the file, with our spaces and lines.
//!
//! **Invariant:** printing changes nothing but white space, and printing what was printed changes nothing.

use std::collections::BTreeMap;

use super::lexer::{FlowComment, FlowTokenKind};
use super::spacing::blanks;
use super::tree::{SyntaxNode, SyntaxTree};

const INDENT: &str = "    ";

/// The text of a file in the one form that `flow fmt` writes.
///
/// ```
/// use tidegate_flow::syntax::{parse, print};
/// let (tree, _) = parse("process  copy receive a emit   to b end", 0);
/// assert_eq!(print(&tree), "process copy\n    receive a\n    emit to b\nend\n");
/// ```
#[must_use]
pub fn print(tree: &SyntaxTree) -> String {
    let mut depths = vec![None; tree.tokens.len()];
    for (at, depth) in &tree.lines {
        // The end of the file is no line, although a list may have looked for one there.
        if let Some(place) = depths.get_mut(*at as usize) {
            *place = Some(*depth);
        }
    }
    let mut inside = vec![None; tree.tokens.len()];
    for (from, to) in &tree.expressions {
        for (at, is_blank) in (*from..*to).zip(blanks(tree, *from, *to)).skip(1) {
            inside[at as usize] = Some(is_blank);
        }
    }
    let rows = table_rows(tree, &inside);
    let mut printer = FlowPrinter {
        tree,
        depths,
        inside,
        out: String::new(),
        depth: 0,
    };
    let end = tree.tokens.len() - 1;
    let mut at = 0;
    while at < end {
        printer.begin(at);
        if let Some(row) = rows.get(&at) {
            printer.out.push_str(&row.text);
            at = row.to;
        } else {
            printer.out.push_str(tree.token_text(index(at)));
            at += 1;
        }
    }
    printer.begin(end);
    let mut out = printer.out;
    out.truncate(out.trim_end().len());
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

/// A row of a decision table as it is printed, up to a token.
struct PrintedRow {
    to: usize,
    text: String,
}

struct FlowPrinter<'t> {
    tree: &'t SyntaxTree,
    /// The depth of the line that a token begins.
    depths: Vec<Option<u16>>,
    /// For the tokens inside of expressions, whether a blank stands before them.
    inside: Vec<Option<bool>>,
    out: String,
    /// The depth of the current line.
    depth: u16,
}

impl FlowPrinter<'_> {
    /// Writes what stands before a token: its comments, and a line break, a blank or nothing.
    fn begin(&mut self, at: usize) {
        let tree = self.tree;
        let token = tree.tokens[at];
        let is_end = token.kind == FlowTokenKind::End;
        let mut end = at
            .checked_sub(1)
            .map_or(0, |before| self.tree.tokens[before].end as usize);
        let depth = if is_end { Some(0) } else { self.depths[at] };
        let mut is_line_over = false;
        let mut has_comment = false;
        let comments = &tree.comments;
        let first = comments.partition_point(|comment| (comment.before as usize) < at);
        for comment in comments[first..]
            .iter()
            .take_while(|comment| comment.before as usize == at)
        {
            let (start, text) = (comment.start as usize, comment_text(tree, *comment));
            let is_trailing = at > 0 && !self.tree.text[end..start].contains('\n') && !is_line_over;
            if is_trailing {
                let blanks = if text.starts_with("//") { "  " } else { " " };
                self.out.push_str(blanks);
            } else {
                let inner = depth.map_or(self.depth + 1, |depth| {
                    depth + u16::from(self.is_closing(at))
                });
                self.new_line(
                    inner,
                    end,
                    start,
                    depth == Some(0) && !has_comment && !self.is_closing(at),
                );
            }
            self.out.push_str(text);
            is_line_over |= text.starts_with("//") || !is_trailing;
            has_comment |= !is_trailing;
            end = comment.end as usize;
        }
        if is_end {
            return;
        }
        match depth {
            Some(depth) => {
                let is_declaration = depth == 0 && !self.is_closing(at) && !has_comment;
                self.new_line(depth, end, token.start as usize, is_declaration);
                self.depth = depth;
            }
            None if is_line_over => self.new_line(self.depth + 1, end, token.start as usize, false),
            None if at > 0
                && (end > self.tree.tokens[at - 1].end as usize
                    || is_apart(tree, &self.inside, at)) =>
            {
                self.out.push(' ')
            }
            None => {}
        }
    }

    fn is_closing(&self, at: usize) -> bool {
        self.tree.token_text(index(at)) == "end"
    }

    /// A line break, with a blank line where the text had one or a declaration begins.
    fn new_line(&mut self, depth: u16, end: usize, start: usize, is_declaration: bool) {
        if self.out.is_empty() {
            return;
        }
        let had_blank = self.tree.text[end..start].matches('\n').count() > 1;
        self.out.push_str(if had_blank || is_declaration {
            "\n\n"
        } else {
            "\n"
        });
        self.out.push_str(&INDENT.repeat(depth.into()));
    }
}

fn comment_text(tree: &SyntaxTree, comment: FlowComment) -> &str {
    tree.text[comment.start as usize..comment.end as usize].trim_end()
}

/// Whether a blank stands between a token and the one before it on the same line.
fn is_apart(tree: &SyntaxTree, inside: &[Option<bool>], at: usize) -> bool {
    let (before, token) = (tree.token_text(index(at - 1)), tree.token_text(index(at)));
    let was_apart = tree.tokens[at - 1].end < tree.tokens[at].start;
    if let Some(is_blank) = inside[at] {
        return is_blank;
    }
    match (before, token) {
        (_, "," | "." | ".." | ":") | ("." | "..", _) => false,
        (",", _) | (_, "=" | "=>" | "|") | ("=" | "=>" | "|" | ":", _) => true,
        _ => {
            let is_sign = |at: usize| tree.tokens[at].kind == FlowTokenKind::Mark;
            was_apart || !(is_sign(at) || is_sign(at - 1))
        }
    }
}

/// The rows of all decision tables without comments inside, with their columns aligned.
fn table_rows(tree: &SyntaxTree, inside: &[Option<bool>]) -> BTreeMap<usize, PrintedRow> {
    let mut printed = BTreeMap::new();
    for table in tree.root().all("decision") {
        let rows: Vec<SyntaxNode<'_>> = table
            .children()
            .filter(|node| ["head", "row"].contains(&node.label()))
            .collect();
        let cells = |row: &SyntaxNode<'_>| {
            row.children()
                .map(|cell| (cell.label() == "result", joined(tree, inside, cell)))
                .collect()
        };
        let texts: Vec<Vec<(bool, String)>> = rows.iter().map(cells).collect();
        let columns = texts.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = texts.iter().filter_map(|row| row.get(column));
                let widths = cells.map(|(_, cell)| cell.chars().count());
                widths.max().unwrap_or(0)
            })
            .collect();
        for (row, cells) in rows.iter().zip(&texts) {
            let (from, to) = row.range();
            let has_comment = tree.comments_inside(from, to).next().is_some();
            if has_comment || tree.is_broken(*row) {
                continue;
            }
            let mut text = String::from("|");
            for (column, (is_result, cell)) in cells.iter().enumerate() {
                let is_first_result = *is_result && (column == 0 || !cells[column - 1].0);
                text.push_str(match (column, is_first_result) {
                    (0, _) => " ",
                    (_, true) => " => ",
                    (_, false) => " | ",
                });
                let pad = widths[column] - cell.chars().count();
                text.push_str(cell);
                text.push_str(&" ".repeat(pad));
            }
            text.push_str(" |");
            let to = to as usize;
            printed.insert(from as usize, PrintedRow { to, text });
        }
    }
    printed
}

fn joined(tree: &SyntaxTree, inside: &[Option<bool>], node: SyntaxNode<'_>) -> String {
    let (from, to) = node.range();
    let mut text = String::new();
    for at in from..to {
        if at > from && is_apart(tree, inside, at as usize) {
            text.push(' ');
        }
        text.push_str(tree.token_text(at));
    }
    text
}

fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
