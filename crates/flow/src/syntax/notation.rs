//! How the grammar is written: a reader of its notation, and the data that it gives.

use std::fmt;

/// A class of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenClass {
    Name,
    /// A name before a colon; any word may be one.
    Field,
    Int,
    Num,
    ShortDuration,
    Text,
    /// As many tokens as CEL can take.
    Expression,
}

impl TokenClass {
    const ALL: [(Self, &'static str, &'static str); 7] = [
        (Self::Name, "NAME", "a name"),
        (Self::Field, "FIELD", "a field"),
        (Self::Int, "INT", "a whole number"),
        (Self::Num, "NUM", "a number"),
        (Self::ShortDuration, "SHORT_DURATION", "a duration"),
        (Self::Text, "STRING", "a text in double quotes"),
        (Self::Expression, "expr", "an expression"),
    ];

    /// The class as the message "expected …" names it.
    pub(super) fn in_words(self) -> &'static str {
        let row = Self::ALL.iter().find(|(class, ..)| *class == self);
        row.map_or("", |row| row.2)
    }
}

/// A look ahead that a number of tokens cannot express.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookahead {
    /// So many tokens fit.
    Tokens(usize),
    /// A name before `=`, `.` or `[`.
    Assignment,
    /// Not `when slow strategy`, which begins a block.
    NotSlow,
    /// A word and `failure`, which no assignment follows.
    Handler,
    /// A word that no colon follows.
    Modifier,
    /// An `end` of a block that is not the one of the process.
    OwnEnd,
}

/// The things that a list does beside repeating its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ListMarks {
    pub(super) at_least_one: bool,
    pub(super) each_once: bool,
    pub(super) recovers: bool,
    /// Everything up to `end` must be a part.
    pub(super) is_closed: bool,
}

/// A piece of the grammar.
#[derive(Debug)]
pub(super) enum GrammarItem {
    Word(&'static str),
    Class(TokenClass),
    Rule(&'static str, usize),
    Sequence(Vec<Self>),
    Choice(Vec<Self>),
    Optional {
        item: Box<Self>,
        is_published: bool,
    },
    List(Box<Self>, ListMarks),
    Labeled(&'static str, Box<Self>),
    /// Begins a line, so many steps further in.
    Line(u16, Box<Self>),
    Look(Lookahead),
    Coded(&'static str, Box<Self>),
}

/// A rule of the grammar.
#[derive(Debug)]
pub(super) struct GrammarRule {
    pub(super) name: &'static str,
    pub(super) item: GrammarItem,
}

impl GrammarItem {
    /// Visits this item and all inside of it, without following rules.
    pub(super) fn each(&self, visit: &mut dyn FnMut(&Self)) {
        visit(self);
        match self {
            Self::Word(_) | Self::Class(_) | Self::Rule(..) | Self::Look(_) => {}
            Self::Sequence(items) | Self::Choice(items) => {
                for item in items {
                    item.each(visit);
                }
            }
            Self::Optional { item, .. }
            | Self::List(item, _)
            | Self::Labeled(_, item)
            | Self::Line(_, item)
            | Self::Coded(_, item) => item.each(visit),
        }
    }
}

impl GrammarItem {
    /// The item beside others, with the parentheses that a choice needs there.
    fn in_group(&self, is_in_sequence: bool) -> String {
        let mut inner = self;
        while let Self::Labeled(_, item) | Self::Line(_, item) | Self::Coded(_, item) = inner {
            inner = item;
        }
        if is_in_sequence && matches!(inner, Self::Choice(_)) {
            format!("( {self} )")
        } else {
            self.to_string()
        }
    }
}

impl fmt::Display for GrammarItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |f: &mut fmt::Formatter<'_>, items: &[Self], between: &str| {
            let texts = items.iter().map(|item| item.in_group(between == " "));
            let shown: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
            f.write_str(&shown.join(between))
        };
        match self {
            Self::Word(word) => write!(f, "\"{word}\""),
            Self::Class(TokenClass::Field) => f.write_str("NAME"),
            Self::Class(class) => {
                let row = TokenClass::ALL.iter().find(|(other, ..)| other == class);
                f.write_str(row.map_or("", |row| row.1))
            }
            Self::Rule(name, _) => f.write_str(name),
            Self::Sequence(items) => joined(f, items, " "),
            Self::Choice(items) => joined(f, items, " | "),
            Self::Optional {
                is_published: false,
                ..
            }
            | Self::Look(_) => Ok(()),
            Self::Optional { item, .. } => write!(f, "[ {item} ]"),
            Self::List(item, marks) if marks.at_least_one => write!(f, "{item} {{ {item} }}"),
            Self::List(item, _) => write!(f, "{{ {item} }}"),
            Self::Labeled(_, item) | Self::Line(_, item) | Self::Coded(_, item) => item.fmt(f),
        }
    }
}

/// Reads the text of a grammar. The text is ours, so a mistake in it is a bug that every test meets.
pub(super) fn read(text: &'static str) -> Vec<GrammarRule> {
    let mut reader = NotationReader {
        rest: text.trim(),
        names: rule_names(text),
    };
    let mut rules = Vec::new();
    while !reader.rest.is_empty() {
        let name = reader.name();
        reader.take("=");
        let item = reader.choice();
        reader.take(";");
        rules.push(GrammarRule { name, item });
    }
    rules
}

/// The names before the equals signs at the start of a line.
fn rule_names(text: &'static str) -> Vec<&'static str> {
    let begins = |line: &&str| line.starts_with(|c: char| c.is_ascii_lowercase());
    let lines = text.lines().filter(begins);
    let names = lines.filter_map(|line| Some(line.split_once(" =")?.0.trim_end()));
    names.collect()
}

/// The only item, or all of them together.
fn one_or(mut items: Vec<GrammarItem>, all: fn(Vec<GrammarItem>) -> GrammarItem) -> GrammarItem {
    match items.len() {
        1 => items.remove(0),
        _ => all(items),
    }
}

struct NotationReader {
    rest: &'static str,
    names: Vec<&'static str>,
}

impl NotationReader {
    fn skip(&mut self, bytes: usize) -> &'static str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest.trim_start();
        taken
    }

    fn take_if(&mut self, mark: &str) -> bool {
        let is_there = self.rest.starts_with(mark);
        if is_there {
            self.skip(mark.len());
        }
        is_there
    }

    fn take(&mut self, mark: &str) {
        assert!(
            self.take_if(mark),
            "the grammar has no `{mark}` before: {:.40}",
            self.rest
        );
    }

    fn name(&mut self) -> &'static str {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        self.skip(end)
    }

    fn choice(&mut self) -> GrammarItem {
        let mut items = vec![self.sequence()];
        while self.take_if("|") {
            items.push(self.sequence());
        }
        one_or(items, GrammarItem::Choice)
    }

    fn sequence(&mut self) -> GrammarItem {
        let mut items = Vec::new();
        while !self.rest.starts_with(['|', ')', ']', '}', ';']) {
            items.push(self.item());
        }
        one_or(items, GrammarItem::Sequence)
    }

    fn item(&mut self) -> GrammarItem {
        for (mark, steps) in [(">", 1), ("<", 0)] {
            if self.take_if(mark) {
                return GrammarItem::Line(steps, Box::new(self.item()));
            }
        }
        if self.take_if("@") {
            let name = self.name();
            return GrammarItem::Look(match name {
                "assignment" => Lookahead::Assignment,
                "not_slow" => Lookahead::NotSlow,
                "handler" => Lookahead::Handler,
                "modifier" => Lookahead::Modifier,
                "own_end" => Lookahead::OwnEnd,
                number => Lookahead::Tokens(number.parse().unwrap_or(1)),
            });
        }
        let mut item = self.plain();
        // A mark stands directly behind its item, so a blank before it belongs to the next.
        if self.take_if("~") {
            item = GrammarItem::Coded(self.name(), Box::new(item));
        }
        if self.take_if(":") {
            item = GrammarItem::Labeled(self.name(), Box::new(item));
        }
        item
    }

    fn plain(&mut self) -> GrammarItem {
        if self.take_if("(") {
            let item = self.choice();
            self.take(")");
            return item;
        }
        if self.take_if("[") {
            let is_published = !self.take_if("-");
            let item = Box::new(self.choice());
            self.take("]");
            return GrammarItem::Optional { item, is_published };
        }
        if self.take_if("{") {
            let mut marks = ListMarks::default();
            while self.rest.starts_with(['+', '!', '*', '%']) {
                match self.skip(1) {
                    "+" => marks.at_least_one = true,
                    "!" => marks.each_once = true,
                    mark => {
                        marks.recovers = true;
                        marks.is_closed = mark == "%";
                    }
                }
            }
            let item = Box::new(self.choice());
            self.take("}");
            return GrammarItem::List(item, marks);
        }
        if let Some(rest) = self.rest.strip_prefix('"') {
            let end = rest.find('"').unwrap_or(rest.len());
            self.skip(1);
            let word = &rest[..end];
            self.rest = rest[end + 1..].trim_start();
            return GrammarItem::Word(word);
        }
        let name = self.name();
        if let Some(row) = TokenClass::ALL.iter().find(|row| row.1 == name) {
            return GrammarItem::Class(row.0);
        }
        let index = self.names.iter().position(|rule| *rule == name);
        GrammarItem::Rule(
            name,
            index.unwrap_or_else(|| panic!("the grammar has no rule `{name}`")),
        )
    }
}
