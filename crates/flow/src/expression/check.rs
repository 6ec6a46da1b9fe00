//! Types and names of an expression.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "any other type is refused, also one that is added later"
)]

mod calls;
mod operations;

use std::sync::Arc;

use tidegate_config::nearest;

use self::operations::{common, constant_list, constant_map, mixed_help, result_of};
use super::evaluate::Evaluator;
use super::node::{ExpressionNode as Node, FieldPath};
use super::parser::{BinaryOperator, Syntax, SyntaxKind};
use super::scope::{METADATA, MetadataName};
use super::{EvaluationFailure, Expression, ExpressionBindings, ExpressionScope, StepBudget};
use crate::value::{FieldPosition, FlowType, FlowValue, JsonRecord, ObjectType};
use crate::{Diagnostic, Span};

/// Findings of one expression.
const MAX_FINDINGS: usize = 20;

/// The names of types, for `type(x) == int`.
pub(super) const TYPE_NAMES: [(&str, FlowType); 11] = [
    ("bool", FlowType::Boolean),
    ("int", FlowType::Integer),
    ("uint", FlowType::Unsigned),
    ("double", FlowType::Double),
    ("decimal", FlowType::Decimal),
    ("string", FlowType::String),
    ("bytes", FlowType::Bytes),
    ("timestamp", FlowType::Timestamp),
    ("duration", FlowType::Duration),
    ("null_type", FlowType::Null),
    ("type", FlowType::Type),
];

/// An expression whose names and types are right, ready to be evaluated.
#[derive(Debug, Clone)]
pub struct CheckedExpression {
    root: Node,
    kind: FlowType,
}

impl CheckedExpression {
    /// The type of its values.
    #[must_use]
    pub fn kind(&self) -> &FlowType {
        &self.kind
    }

    /// The value for one record.
    ///
    /// # Errors
    /// There is none; the failure says why and has a code.
    pub fn evaluate<'a>(
        &'a self,
        bindings: &ExpressionBindings<'a>,
        budget: &mut StepBudget,
    ) -> Result<FlowValue<'a>, Box<EvaluationFailure>> {
        Evaluator::new(*bindings, budget).run(&self.root)
    }

    /// The JSON text of a field of the record, where the expression is nothing but its name.
    ///
    /// An assignment copies it, so that numbers keep all of their digits.
    #[must_use]
    pub fn raw_field<'a>(&self, record: &'a JsonRecord) -> Option<&'a str> {
        match &self.root {
            Node::Field(path) if path.kind == FlowType::Dynamic => {
                let mut raw = record.raw(&path.name)?;
                for (name, _) in &path.below {
                    raw = crate::value::member(raw, name)?;
                }
                Some(raw)
            }
            _ => None,
        }
    }
}

/// Checks the names and types of an expression.
///
/// # Errors
/// All that is wrong: TG0301 for a name, TG0305 for a type, TG0105 for a state, TG0012 for a function or pattern.
pub fn check(
    expression: &Expression,
    scope: &ExpressionScope,
) -> Result<CheckedExpression, Vec<Diagnostic>> {
    let mut checker = Checker {
        scope,
        span: expression.span,
        locals: Vec::new(),
        findings: Vec::new(),
    };
    let (root, kind) = checker.node(&expression.tree);
    if checker.findings.is_empty() {
        Ok(CheckedExpression { root, kind })
    } else {
        checker.findings.truncate(MAX_FINDINGS);
        Err(checker.findings)
    }
}

type Typed = (Node, FlowType);

/// Stands for a part that is wrong, so that one mistake is one finding.
const WRONG: Typed = (Node::Constant(FlowValue::Null), FlowType::Dynamic);

struct Checker<'s> {
    scope: &'s ExpressionScope,
    span: Span,
    locals: Vec<(String, FlowType)>,
    findings: Vec<Diagnostic>,
}

impl Checker<'_> {
    fn found(&mut self, code: &'static str, at: &Syntax, message: String, help: Option<String>) {
        let mut found = Diagnostic::new(code, self.span.part(at.start, at.end), message);
        found.help = help;
        self.findings.push(found);
    }

    /// A mistake that is neither a name nor a type.
    fn wrong(&mut self, at: &Syntax, message: String, help: Option<String>) -> Typed {
        self.found("TG0012", at, message, help);
        WRONG
    }

    fn wrong_type(&mut self, at: &Syntax, message: String, help: Option<&str>) -> Typed {
        self.found("TG0305", at, message, help.map(str::to_owned));
        WRONG
    }

    fn unknown_field(&mut self, at: &Syntax, name: &str, fields: &ObjectType) -> Typed {
        // Past the limit nothing is shown, and a suggestion would be the work of many names.
        if self.findings.len() >= MAX_FINDINGS {
            return WRONG;
        }
        let names = fields.fields.keys().map(String::as_str);
        let near = nearest(name, names.chain(METADATA.map(|(name, _)| name)));
        let help = near.map(|near| format!("did you mean `{near}`?"));
        self.found("TG0301", at, format!("there is no field `{name}`"), help);
        WRONG
    }

    fn node(&mut self, syntax: &Syntax) -> Typed {
        match &syntax.kind {
            SyntaxKind::Literal(value) => (Node::Constant(value.clone()), value.kind()),
            SyntaxKind::Name(name) => {
                let mut locals = self.locals.iter();
                match locals.rposition(|(local, _)| local == name) {
                    Some(slot) => (Node::Local(slot), self.locals[slot].1.clone()),
                    None => self.name(syntax, name),
                }
            }
            SyntaxKind::Outer(name) => self.name(syntax, name),
            SyntaxKind::Select(operand, name) => self.select(syntax, operand, name),
            SyntaxKind::Index(pair) => self.index(syntax, &pair.0, &pair.1),
            SyntaxKind::Call(target, name, arguments) => {
                self.call(syntax, target.as_deref(), name, arguments)
            }
            SyntaxKind::Not(inner) => {
                let node = self.condition(inner, "`!`");
                (Node::Not(Box::new(node)), FlowType::Boolean)
            }
            SyntaxKind::Negate(inner) => {
                let (node, kind) = self.node(inner);
                let is_signed = matches!(
                    kind,
                    FlowType::Integer | FlowType::Double | FlowType::Decimal | FlowType::Dynamic
                );
                if !is_signed && kind != FlowType::Duration {
                    return self.wrong_type(syntax, format!("`-` does not take {kind}"), None);
                }
                (Node::Negate(Box::new(node)), kind)
            }
            SyntaxKind::And(terms) => {
                let nodes = terms.iter().map(|term| self.condition(term, "`&&`"));
                (Node::And(nodes.collect()), FlowType::Boolean)
            }
            SyntaxKind::Or(terms) => {
                let nodes = terms.iter().map(|term| self.condition(term, "`||`"));
                (Node::Or(nodes.collect()), FlowType::Boolean)
            }
            SyntaxKind::Binary(operator, pair) => self.binary(syntax, *operator, &pair.0, &pair.1),
            SyntaxKind::Conditional(parts) => {
                let [condition, then, otherwise] = &**parts;
                let condition = self.condition(condition, "the condition before `?`");
                let (then, then_kind) = self.node(then);
                let (otherwise, other_kind) = self.node(otherwise);
                let are_numbers = then_kind.is_number() && other_kind.is_number();
                if are_numbers && result_of(BinaryOperator::Add, &then_kind, &other_kind).is_none()
                {
                    let message = format!("`?` chooses between {then_kind} and {other_kind}");
                    let help = mixed_help(&then_kind, &other_kind);
                    return self.wrong_type(syntax, message, help);
                }
                let kind = common([then_kind, other_kind].into_iter());
                let parts = Box::new([condition, then, otherwise]);
                (Node::Conditional(parts), kind)
            }
            SyntaxKind::List(elements) => {
                let typed = elements.iter().map(|element| self.node(element));
                let (nodes, kinds): (Vec<_>, Vec<_>) = typed.unzip();
                let kind = FlowType::list(common(kinds.into_iter()));
                let node = constant_list(&nodes).unwrap_or(Node::List(nodes));
                (node, kind)
            }
            SyntaxKind::Map(entries) => self.map(entries),
        }
    }

    fn condition(&mut self, syntax: &Syntax, user: &str) -> Node {
        let (node, kind) = self.node(syntax);
        if !matches!(kind, FlowType::Boolean | FlowType::Dynamic) {
            let message = format!("{user} needs a boolean, this is {kind}");
            return self.wrong_type(syntax, message, None).0;
        }
        node
    }

    fn name(&mut self, syntax: &Syntax, name: &str) -> Typed {
        if name == "record" {
            let record = Arc::new(self.scope.record.clone());
            let node = Node::Record(Arc::clone(&record));
            return (node, FlowType::Object(record));
        }
        if let Some((_, metadata)) = METADATA.iter().find(|(known, _)| *known == name) {
            if *metadata == MetadataName::Route && !self.scope.has_route {
                let message = "`_route` is known in metrics only".to_owned();
                self.found("TG0301", syntax, message, None);
                return WRONG;
            }
            return (Node::Metadata(*metadata), metadata.kind());
        }
        if name == "state" && self.scope.state.is_some() {
            let message = "`state` alone is no value; write `state.NAME`".to_owned();
            let help = "a field of that name is `record.state`".to_owned();
            self.found("TG0105", syntax, message, Some(help));
            return WRONG;
        }
        let is_declared = self.scope.record.fields.contains_key(name);
        if !is_declared {
            let named = TYPE_NAMES.into_iter().find(|(known, _)| *known == name);
            if let Some((name, _)) = named {
                let name = FlowValue::Type(name);
                return (Node::Constant(name), FlowType::Type);
            }
        }
        self.record_field(syntax, name)
    }

    fn record_field(&mut self, syntax: &Syntax, name: &str) -> Typed {
        let scope = self.scope;
        let Some(kind) = scope.record.field(name) else {
            return self.unknown_field(syntax, name, &scope.record);
        };
        let path = FieldPath {
            name: name.to_owned(),
            position: FieldPosition::default(),
            is_declared: scope.record.fields.contains_key(name),
            below: Vec::new(),
            kind: kind.clone(),
        };
        (Node::Field(Box::new(path)), kind)
    }

    fn select(&mut self, syntax: &Syntax, operand: &Syntax, name: &str) -> Typed {
        let is_local = |name: &str| self.locals.iter().any(|(local, _)| local == name);
        let is_state = match &operand.kind {
            SyntaxKind::Name(word) => word == "state" && !is_local(word),
            SyntaxKind::Outer(word) => word == "state",
            _ => false,
        };
        if let (true, Some(states)) = (is_state, &self.scope.state) {
            let Some(kind) = states.get(name) else {
                let near = nearest(name, states.keys().map(String::as_str));
                let help = near.map(|near| format!("did you mean `{near}`?"));
                self.found(
                    "TG0105",
                    syntax,
                    format!("there is no state `{name}`"),
                    help,
                );
                return WRONG;
            };
            return (Node::State(name.to_owned()), kind.clone());
        }
        let (node, kind) = self.node(operand);
        if matches!(node, Node::Record(_)) {
            return self.record_field(syntax, name);
        }
        let Some((selected, is_declared)) = self.field_of(syntax, &kind, name) else {
            return WRONG;
        };
        let node = match node {
            Node::Field(mut path) => {
                path.below.push((name.to_owned(), is_declared));
                path.kind = selected.clone();
                Node::Field(path)
            }
            node => Node::Select(Box::new(node), name.to_owned(), is_declared),
        };
        (node, selected)
    }

    /// The type of a field of a value, and whether it is declared.
    fn field_of(
        &mut self,
        syntax: &Syntax,
        kind: &FlowType,
        name: &str,
    ) -> Option<(FlowType, bool)> {
        match kind {
            FlowType::Dynamic | FlowType::Null => Some((FlowType::Dynamic, false)),
            FlowType::Map(value) => Some(((**value).clone(), false)),
            FlowType::Object(fields) => match fields.field(name) {
                Some(kind) => Some((kind, fields.fields.contains_key(name))),
                None => {
                    self.unknown_field(syntax, name, fields);
                    None
                }
            },
            _ => {
                self.wrong_type(syntax, format!("{kind} has no field `{name}`"), None);
                None
            }
        }
    }

    fn index(&mut self, syntax: &Syntax, operand: &Syntax, index: &Syntax) -> Typed {
        let (node, kind) = self.node(operand);
        let (index_node, index_kind) = self.node(index);
        let (element, fits) = match &kind {
            FlowType::List(element) => ((**element).clone(), index_kind.is_number()),
            FlowType::Map(value) => ((**value).clone(), index_kind.is_key()),
            FlowType::Object(_) | FlowType::Dynamic => {
                let fits = index_kind.is_key() || index_kind.is_number();
                (FlowType::Dynamic, fits)
            }
            other => {
                let message = format!("{other} has no elements");
                return self.wrong_type(syntax, message, None);
            }
        };
        if !fits && index_kind != FlowType::Dynamic {
            let message = format!("{index_kind} is no index of {kind}");
            return self.wrong_type(index, message, None);
        }
        (Node::Index(Box::new((node, index_node))), element)
    }

    fn map(&mut self, entries: &[(Syntax, Syntax)]) -> Typed {
        let mut nodes = Vec::new();
        let mut kinds = Vec::new();
        for (key, value) in entries {
            let (key_node, key_kind) = self.node(key);
            if !key_kind.is_key() {
                self.wrong_type(key, format!("{key_kind} cannot be the key of a map"), None);
            }
            let (value, kind) = self.node(value);
            nodes.push((key_node, value));
            kinds.push(kind);
        }
        let kind = FlowType::map(common(kinds.into_iter()));
        let node = constant_map(&nodes).unwrap_or(Node::Map(nodes));
        (node, kind)
    }

    fn binary(
        &mut self,
        syntax: &Syntax,
        operator: BinaryOperator,
        left: &Syntax,
        right: &Syntax,
    ) -> Typed {
        let (left_node, a) = self.node(left);
        let (right_node, b) = self.node(right);
        let Some(kind) = result_of(operator, &a, &b) else {
            let symbol = operator.symbol();
            let message = format!("`{symbol}` does not take {a} and {b}");
            return self.wrong_type(syntax, message, mixed_help(&a, &b));
        };
        let pair = Box::new((left_node, right_node));
        (Node::Binary(operator, pair), kind)
    }
}
