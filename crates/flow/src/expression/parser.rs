//! The tree of an expression, by precedence climbing.

use super::lexer::{ExpressionLexer, ExpressionToken, SyntaxError};
use crate::value::FlowValue;

/// Brackets, calls and conditions may stand this deep inside each other.
pub(super) const MAX_NESTING: usize = 64;
/// Operators that are applied to each other, brackets or not.
const MAX_CHAIN: u16 = 250;
/// Words that the standard keeps for itself.
const RESERVED: &str = "as break const continue else for function if import let loop package \
    namespace return var void while";

/// A node of the tree, with its place in the text.
#[derive(Debug, Clone)]
pub(crate) struct Syntax {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) kind: SyntaxKind,
    depth: u16,
}

#[derive(Debug, Clone)]
pub(crate) enum SyntaxKind {
    Literal(FlowValue<'static>),
    Name(String),
    /// A name behind a leading dot: never the variable of a macro.
    Outer(String),
    Select(Box<Syntax>, String),
    Index(Box<(Syntax, Syntax)>),
    /// A call, with the value before the dot if there is one.
    Call(Option<Box<Syntax>>, String, Vec<Syntax>),
    Not(Box<Syntax>),
    Negate(Box<Syntax>),
    And(Vec<Syntax>),
    Or(Vec<Syntax>),
    Binary(BinaryOperator, Box<(Syntax, Syntax)>),
    Conditional(Box<[Syntax; 3]>),
    List(Vec<Syntax>),
    Map(Vec<(Syntax, Syntax)>),
}

/// An operator between two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryOperator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// Symbol, precedence, operator; a higher precedence binds closer.
const OPERATORS: [(&str, u8, BinaryOperator); 12] = [
    ("==", 1, BinaryOperator::Equal),
    ("!=", 1, BinaryOperator::NotEqual),
    ("<", 1, BinaryOperator::Less),
    ("<=", 1, BinaryOperator::LessOrEqual),
    (">", 1, BinaryOperator::Greater),
    (">=", 1, BinaryOperator::GreaterOrEqual),
    ("in", 1, BinaryOperator::In),
    ("+", 2, BinaryOperator::Add),
    ("-", 2, BinaryOperator::Subtract),
    ("*", 3, BinaryOperator::Multiply),
    ("/", 3, BinaryOperator::Divide),
    ("%", 3, BinaryOperator::Remainder),
];

impl BinaryOperator {
    /// The operator as it is written.
    pub(crate) fn symbol(self) -> &'static str {
        let row = OPERATORS.iter().find(|(_, _, operator)| *operator == self);
        row.map_or("", |(symbol, _, _)| symbol)
    }
}

impl Syntax {
    fn of(start: usize, end: usize, kind: SyntaxKind) -> Result<Self, SyntaxError> {
        let parts: Vec<&Self> = match &kind {
            SyntaxKind::Literal(_) | SyntaxKind::Name(_) | SyntaxKind::Outer(_) => Vec::new(),
            SyntaxKind::Select(of, _) | SyntaxKind::Not(of) | SyntaxKind::Negate(of) => vec![of],
            SyntaxKind::Index(pair) | SyntaxKind::Binary(_, pair) => vec![&pair.0, &pair.1],
            SyntaxKind::Call(target, _, arguments) => target
                .iter()
                .map(|target| &**target)
                .chain(arguments)
                .collect(),
            SyntaxKind::And(terms) | SyntaxKind::Or(terms) | SyntaxKind::List(terms) => {
                terms.iter().collect()
            }
            SyntaxKind::Conditional(parts) => parts.iter().collect(),
            SyntaxKind::Map(entries) => {
                let entries = entries.iter();
                entries.flat_map(|(key, value)| [key, value]).collect()
            }
        };
        let below = parts.iter().map(|part| part.depth).max().unwrap_or(0);
        if below >= MAX_CHAIN {
            let message = format!("more than {MAX_CHAIN} operations are applied to each other");
            return Err(SyntaxError::new(start, end, message));
        }
        Ok(Self {
            start,
            end,
            kind,
            depth: below + 1,
        })
    }
}

type Tree = Result<Syntax, SyntaxError>;

/// The tree of a text.
pub(super) fn tree(text: &str) -> Tree {
    let mut parser = Parser {
        lexer: ExpressionLexer::new(text),
        token: ExpressionToken::End,
        start: 0,
        end: 0,
        last_end: 0,
        nesting: 0,
    };
    parser.advance()?;
    let tree = parser.expression()?;
    if parser.token == ExpressionToken::End {
        return Ok(tree);
    }
    Err(parser.after_operand())
}

struct Parser<'t> {
    lexer: ExpressionLexer<'t>,
    token: ExpressionToken,
    /// The place of the token.
    start: usize,
    end: usize,
    /// The end of the token before it.
    last_end: usize,
    nesting: usize,
}

impl Parser<'_> {
    fn advance(&mut self) -> Result<ExpressionToken, SyntaxError> {
        self.last_end = self.end;
        let (start, token) = self.lexer.next()?;
        self.start = start;
        self.end = self.lexer.at;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn is(&self, symbol: &str) -> bool {
        matches!(self.token, ExpressionToken::Symbol(found) if found == symbol)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(&self.token, ExpressionToken::Name(found, false) if found == word)
    }

    /// Whether the token can name a field; four words need backquotes for that.
    fn is_field_name(&self) -> bool {
        let words = ["true", "false", "null", "in"];
        matches!(&self.token, ExpressionToken::Name(name, is_quoted)
            if *is_quoted || !words.contains(&name.as_str()))
    }

    fn is_number(&self) -> bool {
        matches!(
            self.token,
            ExpressionToken::Integer(_) | ExpressionToken::Double(_)
        )
    }

    fn accept(&mut self, symbol: &str) -> Result<bool, SyntaxError> {
        let is_there = self.is(symbol);
        if is_there {
            self.advance()?;
        }
        Ok(is_there)
    }

    fn expect(&mut self, symbol: &str) -> Result<(), SyntaxError> {
        if self.accept(symbol)? {
            return Ok(());
        }
        let older = self.after_operand();
        if older.code != "TG0012" {
            return Err(older);
        }
        Err(self.expected(&format!("`{symbol}`")))
    }

    fn expected(&self, wanted: &str) -> SyntaxError {
        let found = match &self.token {
            ExpressionToken::End => "the end of the expression".to_owned(),
            ExpressionToken::Name(name, _) => format!("`{name}`"),
            ExpressionToken::Symbol(symbol) => format!("`{symbol}`"),
            ExpressionToken::Integer(_)
            | ExpressionToken::Unsigned(_)
            | ExpressionToken::Double(_) => "a number".to_owned(),
            ExpressionToken::String(_) | ExpressionToken::Bytes(_) => "a string".to_owned(),
        };
        let message = format!("expected {wanted}, found {found}");
        SyntaxError::new(self.start, self.end.max(self.start), message)
    }

    /// The mistake of a token that cannot follow an operand.
    fn after_operand(&self) -> SyntaxError {
        for (word, instead) in [
            ("and", "`&&`"),
            ("or", "`||`"),
            ("is", "`==`"),
            ("between", "two comparisons"),
        ] {
            if self.is_word(word) {
                return SyntaxError::older(self.start, self.end, word, instead);
            }
        }
        if self.is("=") {
            let mut error = self.expected("an operator");
            error.help = Some("equality is `==`".to_owned());
            return error;
        }
        self.expected("an operator or the end of the expression")
    }

    fn expression(&mut self) -> Tree {
        if self.nesting >= MAX_NESTING {
            let message = format!("the expression is nested more than {MAX_NESTING} deep");
            return Err(SyntaxError::new(self.start, self.end, message));
        }
        self.nesting += 1;
        let condition = self.terms("||", SyntaxKind::Or)?;
        let tree = if self.accept("?")? {
            let then = self.expression()?;
            self.expect(":")?;
            let otherwise = self.expression()?;
            let (start, end) = (condition.start, otherwise.end);
            let parts = Box::new([condition, then, otherwise]);
            Syntax::of(start, end, SyntaxKind::Conditional(parts))?
        } else {
            condition
        };
        self.nesting -= 1;
        Ok(tree)
    }

    /// Terms joined by `||`, or by `&&` inside of it. Many of them are one node, so that they do not nest.
    fn terms(&mut self, symbol: &str, kind: fn(Vec<Syntax>) -> SyntaxKind) -> Tree {
        let term = |parser: &mut Self| match symbol {
            "||" => parser.terms("&&", SyntaxKind::And),
            _ => parser.binary(1),
        };
        let first = term(self)?;
        if !self.is(symbol) {
            return Ok(first);
        }
        let mut terms = vec![first];
        while self.accept(symbol)? {
            terms.push(term(self)?);
        }
        Syntax::of(terms[0].start, self.last_end, kind(terms))
    }

    fn operator(&self) -> Option<(u8, BinaryOperator)> {
        let row = OPERATORS
            .iter()
            .find(|(symbol, _, _)| self.is(symbol) || (*symbol == "in" && self.is_word("in")));
        row.map(|(_, precedence, operator)| (*precedence, *operator))
    }

    fn binary(&mut self, least: u8) -> Tree {
        let mut left = if least > 3 {
            return self.unary();
        } else {
            self.binary(least + 1)?
        };
        while let Some((precedence, operator)) = self.operator() {
            if precedence != least {
                break;
            }
            self.advance()?;
            let right = self.binary(least + 1)?;
            let (start, end) = (left.start, right.end);
            let pair = Box::new((left, right));
            left = Syntax::of(start, end, SyntaxKind::Binary(operator, pair))?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Tree {
        let symbol = if self.is("!") { "!" } else { "-" };
        let mut starts = Vec::new();
        while self.is(symbol) {
            starts.push(self.start);
            self.advance()?;
        }
        // The smallest number has no positive one: its sign belongs to the literal.
        let mut sign = None;
        if symbol == "-" && self.is_number() {
            sign = starts.pop();
        } else if symbol == "!" && self.is("-") {
            sign = Some(self.start);
            self.advance()?;
            if !self.is_number() {
                return Err(self.expected("a number"));
            }
        }
        let mut tree = self.member(sign)?;
        for start in starts.into_iter().rev() {
            let end = tree.end;
            let inner = Box::new(tree);
            let kind = match symbol {
                "!" => SyntaxKind::Not(inner),
                _ => SyntaxKind::Negate(inner),
            };
            tree = Syntax::of(start, end, kind)?;
        }
        Ok(tree)
    }

    /// A primary and what follows it: fields, calls and indices.
    fn member(&mut self, sign: Option<usize>) -> Tree {
        let mut tree = self.primary(sign)?;
        loop {
            let start = tree.start;
            if self.accept(".")? {
                let is_name = self.is_field_name();
                let (true, ExpressionToken::Name(name, _)) = (is_name, self.advance()?) else {
                    let message = "the name of a field is missing after the `.`";
                    return Err(SyntaxError::new(start, self.last_end, message));
                };
                let kind = if self.accept("(")? {
                    let arguments = self.list(")")?;
                    SyntaxKind::Call(Some(Box::new(tree)), name, arguments)
                } else {
                    SyntaxKind::Select(Box::new(tree), name)
                };
                tree = Syntax::of(start, self.last_end, kind)?;
            } else if self.accept("[")? {
                let index = self.expression()?;
                self.expect("]")?;
                let kind = SyntaxKind::Index(Box::new((tree, index)));
                tree = Syntax::of(start, self.last_end, kind)?;
            } else {
                return Ok(tree);
            }
        }
    }

    /// Expressions up to the closing bracket; a comma may stand after the last of a list.
    fn list(&mut self, close: &str) -> Result<Vec<Syntax>, SyntaxError> {
        let mut elements = Vec::new();
        while !self.accept(close)? {
            elements.push(self.expression()?);
            if !self.is(close) {
                self.expect(",")?;
                if close == ")" && self.is(close) {
                    return Err(self.expected("an argument"));
                }
            }
        }
        Ok(elements)
    }

    fn primary(&mut self, sign: Option<usize>) -> Tree {
        let start = sign.unwrap_or(self.start);
        if self.token == ExpressionToken::End {
            return Err(self.expected("a value"));
        }
        let is_outer = self.accept(".")?;
        if is_outer && !self.is_field_name() {
            return Err(self.expected("a name"));
        }
        let place = (self.start, self.end);
        let is_negative = sign.is_some();
        let kind = match self.advance()? {
            ExpressionToken::Name(name, is_quoted) => {
                let mut named = self.name(start, name, is_quoted)?;
                if let (true, SyntaxKind::Name(name)) = (is_outer, &named.kind) {
                    named.kind = SyntaxKind::Outer(name.clone());
                }
                return Ok(named);
            }
            ExpressionToken::Integer(digits) => match integer(&digits, is_negative) {
                Some(number) => SyntaxKind::Literal(FlowValue::Integer(number)),
                None => return Err(too_large(place)),
            },
            ExpressionToken::Unsigned(digits) => match unsigned(&digits) {
                Some(number) => SyntaxKind::Literal(FlowValue::Unsigned(number)),
                None => return Err(too_large(place)),
            },
            ExpressionToken::Double(number) if !number.is_finite() => return Err(too_large(place)),
            ExpressionToken::Double(number) => {
                SyntaxKind::Literal(FlowValue::Double(if is_negative {
                    -number
                } else {
                    number
                }))
            }
            ExpressionToken::String(text) => SyntaxKind::Literal(FlowValue::String(text.into())),
            ExpressionToken::Bytes(bytes) => SyntaxKind::Literal(FlowValue::Bytes(bytes.into())),
            ExpressionToken::Symbol("(") => {
                let mut inner = self.expression()?;
                self.expect(")")?;
                inner.start = start;
                inner.end = self.last_end;
                return Ok(inner);
            }
            ExpressionToken::Symbol("[") => SyntaxKind::List(self.list("]")?),
            ExpressionToken::Symbol("{") => SyntaxKind::Map(self.entries()?),
            ExpressionToken::Symbol(symbol) => {
                let message = format!("expected a value, found `{symbol}`");
                return Err(SyntaxError::new(place.0, place.1, message));
            }
            ExpressionToken::End => return Err(self.expected("a value")),
        };
        Syntax::of(start, self.last_end, kind)
    }

    fn name(&mut self, start: usize, name: String, is_quoted: bool) -> Tree {
        let end = self.last_end;
        if !is_quoted {
            let literal = match name.as_str() {
                "true" => Some(FlowValue::Boolean(true)),
                "false" => Some(FlowValue::Boolean(false)),
                "null" => Some(FlowValue::Null),
                _ => None,
            };
            if let Some(literal) = literal {
                return Syntax::of(start, end, SyntaxKind::Literal(literal));
            }
            let is_operand = matches!(
                self.token,
                ExpressionToken::Name(_, _) | ExpressionToken::Symbol("(")
            );
            if name == "not" && is_operand && !self.is_word("in") {
                return Err(SyntaxError::older(start, end, "not", "`!`"));
            }
            if name == "in" || RESERVED.split_whitespace().any(|word| word == name) {
                let message = format!("the word `{name}` is reserved; put it in backquotes");
                return Err(SyntaxError::new(start, end, message));
            }
        }
        let kind = if self.accept("(")? {
            let arguments = self.list(")")?;
            SyntaxKind::Call(None, name, arguments)
        } else {
            SyntaxKind::Name(name)
        };
        Syntax::of(start, self.last_end, kind)
    }

    fn entries(&mut self) -> Result<Vec<(Syntax, Syntax)>, SyntaxError> {
        let mut entries = Vec::new();
        while !self.accept("}")? {
            let key = self.expression()?;
            self.expect(":")?;
            entries.push((key, self.expression()?));
            if !self.is("}") {
                self.expect(",")?;
            }
        }
        Ok(entries)
    }
}

fn too_large((start, end): (usize, usize)) -> SyntaxError {
    SyntaxError::new(start, end, "the number has more than 64 bits")
}

fn unsigned(digits: &str) -> Option<u64> {
    match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => digits.parse().ok(),
    }
}

fn integer(digits: &str, is_negative: bool) -> Option<i64> {
    let number = i128::from(unsigned(digits)?);
    i64::try_from(if is_negative { -number } else { number }).ok()
}
