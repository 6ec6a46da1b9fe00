//! Types and names of an expression.

use std::sync::Arc;

use regex::RegexBuilder;
use tidegate_config::nearest;

use super::evaluate::{EvaluationResult, Evaluator};
use super::functions::{CallStyle, FUNCTIONS, Function, FunctionRow, MACROS, contains};
use super::node::{FieldPath, Loop, LoopKind, Node};
use super::parser::{BinaryOperator, Syntax, SyntaxKind};
use super::scope::{METADATA, MetadataName};
use super::{
    EvaluationFailure, Expression, ExpressionBindings, ExpressionScope, NoHost, RecordMetadata,
    StepBudget,
};
use crate::value::{FlowType, FlowValue, JsonRecord, MapKey, ObjectType, ValueMap};
use crate::{Diagnostic, Span};

/// Bytes that a compiled pattern may take.
pub(super) const MAX_PATTERN_BYTES: usize = 256 * 1024;
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
    ) -> Result<FlowValue<'a>, EvaluationFailure> {
        let mut evaluator = Evaluator::new(*bindings, budget);
        evaluator.run(&self.root).map_err(|failure| *failure)
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

    fn wrong_type(&mut self, at: &Syntax, message: String, help: Option<&str>) -> Typed {
        self.found("TG0305", at, message, help.map(str::to_owned));
        WRONG
    }

    fn unknown_field(&mut self, at: &Syntax, name: &str, fields: &ObjectType) -> Typed {
        let names = fields.fields.keys().map(String::as_str);
        let near = nearest(name, names.chain(METADATA.map(|(name, _)| name)));
        let help = near.map(|near| format!("did you mean `{near}`?"));
        self.found("TG0301", at, format!("there is no field `{name}`"), help);
        WRONG
    }

    fn node(&mut self, syntax: &Syntax) -> Typed {
        match &syntax.kind {
            SyntaxKind::Literal(value) => (Node::Constant(value.clone()), value.kind()),
            SyntaxKind::Name(name) => self.name(syntax, name),
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
                let kind = common([then_kind, other_kind].into_iter());
                (
                    Node::Conditional(Box::new([condition, then, otherwise])),
                    kind,
                )
            }
            SyntaxKind::List(elements) => {
                let typed: Vec<Typed> = elements.iter().map(|e| self.node(e)).collect();
                let kind = FlowType::list(common(typed.iter().map(|(_, kind)| kind.clone())));
                let nodes: Vec<Node> = typed.into_iter().map(|(node, _)| node).collect();
                (constant_list(&nodes).unwrap_or(Node::List(nodes)), kind)
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
        if let Some(slot) = self.locals.iter().rposition(|(local, _)| local == name) {
            return (Node::Local(slot), self.locals[slot].1.clone());
        }
        if name == "record" {
            let record = Arc::new(self.scope.record.clone());
            return (Node::Record(Arc::clone(&record)), FlowType::Object(record));
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
            self.found(
                "TG0105",
                syntax,
                message,
                Some("a field of that name is `record.state`".into()),
            );
            return WRONG;
        }
        let is_declared = self.scope.record.fields.contains_key(name);
        if !is_declared {
            let named = TYPE_NAMES.into_iter().find(|(known, _)| *known == name);
            if let Some((name, _)) = named {
                return (Node::Constant(FlowValue::Type(name)), FlowType::Type);
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
            is_declared: scope.record.fields.contains_key(name),
            below: Vec::new(),
            kind: kind.clone(),
        };
        (Node::Field(Box::new(path)), kind)
    }

    fn select(&mut self, syntax: &Syntax, operand: &Syntax, name: &str) -> Typed {
        if let (SyntaxKind::Name(word), Some(states)) = (&operand.kind, &self.scope.state)
            && word == "state"
            && !self.locals.iter().any(|(local, _)| local == "state")
        {
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
            node => Node::Select(Box::new(node), name.to_owned()),
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
            FlowType::Boolean
            | FlowType::Integer
            | FlowType::Unsigned
            | FlowType::Double
            | FlowType::Decimal
            | FlowType::String
            | FlowType::Bytes
            | FlowType::Timestamp
            | FlowType::Duration
            | FlowType::List(_)
            | FlowType::Type => {
                self.wrong_type(syntax, format!("{kind} has no field `{name}`"), None);
                None
            }
        }
    }

    fn index(&mut self, syntax: &Syntax, operand: &Syntax, index: &Syntax) -> Typed {
        let (node, kind) = self.node(operand);
        let (index_node, index_kind) = self.node(index);
        let is_key = matches!(
            index_kind,
            FlowType::String | FlowType::Boolean | FlowType::Integer | FlowType::Unsigned
        );
        let (element, fits) = match &kind {
            FlowType::List(element) => ((**element).clone(), index_kind.is_number()),
            FlowType::Map(value) => ((**value).clone(), is_key),
            FlowType::Object(_) | FlowType::Dynamic => {
                (FlowType::Dynamic, is_key || index_kind.is_number())
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
            let is_key = matches!(
                key_kind,
                FlowType::String
                    | FlowType::Boolean
                    | FlowType::Integer
                    | FlowType::Unsigned
                    | FlowType::Dynamic
            );
            if !is_key {
                self.wrong_type(key, format!("{key_kind} cannot be the key of a map"), None);
            }
            let (value, kind) = self.node(value);
            nodes.push((key_node, value));
            kinds.push(kind);
        }
        let kind = FlowType::map(common(kinds.into_iter()));
        (constant_map(&nodes).unwrap_or(Node::Map(nodes)), kind)
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
            let mixes = |one: &FlowType, other: &FlowType| {
                (a == *one && b == *other) || (a == *other && b == *one)
            };
            let help = if mixes(&FlowType::Decimal, &FlowType::Double) {
                Some("a double is not exact; write the number as `decimal(\"0.10\")`")
            } else if a.is_number() && b.is_number() {
                Some("convert one of them, for instance by `double(x)`")
            } else {
                None
            };
            return self.wrong_type(syntax, message, help);
        };
        (
            Node::Binary(operator, Box::new((left_node, right_node))),
            kind,
        )
    }

    fn call(
        &mut self,
        syntax: &Syntax,
        target: Option<&Syntax>,
        name: &str,
        arguments: &[Syntax],
    ) -> Typed {
        if let (None, "has") = (target, name) {
            return self.has(syntax, arguments);
        }
        if let (Some(range), true) = (target, MACROS.contains(&name)) {
            return self.comprehension(syntax, range, name, arguments);
        }
        if let (None, Some(signature)) = (target, self.scope.functions.get(name)) {
            let typed: Vec<Typed> = arguments.iter().map(|a| self.node(a)).collect();
            let fits = typed.len() == signature.parameters.len()
                && typed
                    .iter()
                    .zip(&signature.parameters)
                    .all(|((_, a), b)| a.fits(b));
            let nodes = typed.iter().map(|(node, _)| node.clone()).collect();
            if !fits {
                let wanted = listed(signature.parameters.iter());
                let found = listed(typed.iter().map(|(_, kind)| kind));
                let message = format!("`{name}` takes ({wanted}), not ({found})");
                return self.wrong_type(syntax, message, None);
            }
            return (
                Node::Registered(name.to_owned(), nodes),
                signature.result.clone(),
            );
        }
        let typed: Vec<Typed> = target
            .into_iter()
            .chain(arguments)
            .map(|a| self.node(a))
            .collect();
        let is_named = |row: &&FunctionRow| {
            let has_style = match row.style {
                CallStyle::Both => true,
                CallStyle::Global => target.is_none(),
                CallStyle::Method => target.is_some(),
            };
            row.name == name && has_style
        };
        let rows: Vec<&FunctionRow> = FUNCTIONS.iter().filter(is_named).collect();
        let row = rows.iter().find(|row| {
            row.parameters.len() == typed.len()
                && row
                    .parameters
                    .iter()
                    .zip(&typed)
                    .all(|(set, (_, kind))| contains(*set, kind))
        });
        match row {
            Some(row) => self.built_in(syntax, row, typed),
            None if rows.is_empty() => self.unknown_function(syntax, target.is_some(), name),
            None => {
                let found = listed(typed.iter().map(|(_, kind)| kind));
                let is_double = matches!(typed.as_slice(), [(_, FlowType::Double)]);
                let help = (name == "decimal" && is_double).then_some(
                    "a double is not exact; give the digits as text: `decimal(\"0.10\")`",
                );
                self.wrong_type(syntax, format!("`{name}` does not take ({found})"), help)
            }
        }
    }

    fn unknown_function(&mut self, syntax: &Syntax, is_method: bool, name: &str) -> Typed {
        let built_in = FUNCTIONS.iter().map(|row| row.name).chain(MACROS);
        let registered = self.scope.functions.keys().map(String::as_str);
        let help = match nearest(name, built_in.chain(registered)) {
            Some(near) if near != name => Some(format!("did you mean `{near}`?")),
            Some(_) if is_method => Some(format!("it is called as `{name}(x)`")),
            Some(_) => Some(format!("it is called as `x.{name}()`")),
            None => None,
        };
        let help = match name {
            "lookup" => Some("write the step `enrich using NAME on …`".to_owned()),
            _ => help,
        };
        self.found(
            "TG0012",
            syntax,
            format!("there is no function `{name}`"),
            help,
        );
        WRONG
    }

    fn built_in(&mut self, syntax: &Syntax, row: &FunctionRow, typed: Vec<Typed>) -> Typed {
        let kind = row.result.clone();
        let mut nodes: Vec<Node> = typed.into_iter().map(|(node, _)| node).collect();
        if row.function == Function::ToDecimal
            && let [Node::Field(path)] = nodes.as_mut_slice()
            && path.kind == FlowType::Dynamic
        {
            // The digits are still there: they are read as a decimal and never as a double.
            path.kind = FlowType::Decimal;
            return (nodes.remove(0), kind);
        }
        if let (Function::Matches, [_, Node::Constant(FlowValue::String(pattern))]) =
            (row.function, nodes.as_slice())
        {
            return match RegexBuilder::new(pattern)
                .size_limit(MAX_PATTERN_BYTES)
                .build()
            {
                Ok(regex) => (Node::Matches(Box::new(nodes.remove(0)), regex), kind),
                Err(error) => {
                    let message =
                        format!("the pattern is not a regular expression: {}", short(&error));
                    self.found("TG0012", syntax, message, None);
                    WRONG
                }
            };
        }
        let is_conversion = matches!(
            row.function,
            Function::ToDecimal | Function::ToTimestamp | Function::ToDuration
        );
        if is_conversion && matches!(nodes.as_slice(), [Node::Constant(_)]) {
            let node = Node::Call(row.function, nodes);
            return match constant(&node) {
                Ok(value) => (Node::Constant(value), kind),
                Err(failure) => {
                    self.found("TG0012", syntax, failure.message, None);
                    WRONG
                }
            };
        }
        (Node::Call(row.function, nodes), kind)
    }

    fn has(&mut self, syntax: &Syntax, arguments: &[Syntax]) -> Typed {
        let [
            Syntax {
                kind: SyntaxKind::Select(operand, name),
                ..
            },
        ] = arguments
        else {
            let help = Some("write `has(record.field)`".to_owned());
            self.found(
                "TG0012",
                syntax,
                "`has` needs one field, with a dot".to_owned(),
                help,
            );
            return WRONG;
        };
        let (node, kind) = self.node(operand);
        if self.field_of(&arguments[0], &kind, name).is_none() {
            return WRONG;
        }
        (Node::Has(Box::new(node), name.clone()), FlowType::Boolean)
    }

    fn comprehension(
        &mut self,
        syntax: &Syntax,
        range: &Syntax,
        name: &str,
        arguments: &[Syntax],
    ) -> Typed {
        let (variable, filter, body) = match (name, arguments) {
            (_, [variable, body]) => (variable, None, body),
            ("map", [variable, filter, body]) => (variable, Some(filter), body),
            _ => {
                let message = format!("`{name}` takes a name and an expression");
                self.found("TG0012", syntax, message, None);
                return WRONG;
            }
        };
        let SyntaxKind::Name(variable_name) = &variable.kind else {
            let message = format!("the first argument of `{name}` is the name of a variable");
            self.found("TG0012", variable, message, None);
            return WRONG;
        };
        let (range_node, range_kind) = self.node(range);
        let element = match &range_kind {
            FlowType::List(element) => (**element).clone(),
            FlowType::Map(_) | FlowType::Object(_) | FlowType::Dynamic => FlowType::Dynamic,
            other => {
                let message = format!("`{name}` needs a list or a map, this is {other}");
                return self.wrong_type(range, message, None);
            }
        };
        self.locals.push((variable_name.clone(), element.clone()));
        let filter = filter.map(|filter| self.condition(filter, "the filter of `map`"));
        let (kind, body, result) = match name {
            "map" => {
                let (body, kind) = self.node(body);
                (LoopKind::Map, body, FlowType::list(kind))
            }
            "filter" => (
                LoopKind::Filter,
                self.condition(body, "`filter`"),
                FlowType::list(element),
            ),
            "all" => (
                LoopKind::All,
                self.condition(body, "`all`"),
                FlowType::Boolean,
            ),
            "exists" => (
                LoopKind::Exists,
                self.condition(body, "`exists`"),
                FlowType::Boolean,
            ),
            _ => (
                LoopKind::ExistsOne,
                self.condition(body, "`exists_one`"),
                FlowType::Boolean,
            ),
        };
        self.locals.pop();
        let range = range_node;
        (
            Node::Loop(Box::new(Loop {
                kind,
                range,
                filter,
                body,
            })),
            result,
        )
    }
}

fn listed<'k>(kinds: impl Iterator<Item = &'k FlowType>) -> String {
    let names: Vec<String> = kinds.map(FlowType::to_string).collect();
    names.join(", ")
}

fn short(error: &regex::Error) -> String {
    // The text of the library has several lines; its last one says what is wrong.
    let text = error.to_string();
    let last = text.lines().next_back().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

/// The one type of all of them, or dynamic.
fn common(mut kinds: impl Iterator<Item = FlowType>) -> FlowType {
    let mut kind = match kinds.next() {
        Some(kind) => kind,
        None => return FlowType::Dynamic,
    };
    for next in kinds {
        if kind == FlowType::Null {
            kind = next;
        } else if next != FlowType::Null && kind != next {
            return FlowType::Dynamic;
        }
    }
    kind
}

/// The type of an operation; none where the operator does not take these types.
fn result_of(operator: BinaryOperator, a: &FlowType, b: &FlowType) -> Option<FlowType> {
    use BinaryOperator as Op;
    use FlowType::{
        Boolean, Bytes, Decimal, Double, Duration, Dynamic, Integer, Timestamp, Unsigned,
    };
    let are_exact =
        |a: &FlowType, b: &FlowType| !matches!((a, b), (Decimal, Double) | (Double, Decimal));
    let is_dynamic = *a == Dynamic || *b == Dynamic;
    let equal = |a: &FlowType, b: &FlowType| {
        a.fits(b) || (a.is_number() && b.is_number() && are_exact(a, b))
    };
    match operator {
        Op::Equal | Op::NotEqual => equal(a, b).then_some(Boolean),
        Op::In => match b {
            FlowType::List(element) => equal(a, element).then_some(Boolean),
            FlowType::Map(_) | FlowType::Object(_) => {
                let is_key = matches!(a, FlowType::String | Boolean | Integer | Unsigned | Dynamic);
                is_key.then_some(Boolean)
            }
            other => (*other == Dynamic).then_some(Boolean),
        },
        Op::Less | Op::LessOrEqual | Op::Greater | Op::GreaterOrEqual => {
            let has_order = |kind: &FlowType| {
                kind.is_number()
                    || matches!(
                        kind,
                        Boolean | FlowType::String | Bytes | Timestamp | Duration | Dynamic
                    )
            };
            let fits = is_dynamic || a == b || (a.is_number() && b.is_number() && are_exact(a, b));
            (fits && has_order(a) && has_order(b)).then_some(Boolean)
        }
        Op::Add | Op::Subtract | Op::Multiply | Op::Divide | Op::Remainder => {
            let joins = operator == Op::Add;
            let takes = |kind: &FlowType| match kind {
                Double => operator != Op::Remainder,
                Integer | Unsigned | Decimal | Dynamic => true,
                FlowType::String | Bytes | FlowType::List(_) => joins,
                Timestamp | Duration => joins || operator == Op::Subtract,
                Boolean
                | FlowType::Null
                | FlowType::Map(_)
                | FlowType::Object(_)
                | FlowType::Type => false,
            };
            if !takes(a) || !takes(b) {
                return None;
            }
            match (a, b) {
                (Decimal, Integer | Unsigned) | (Integer | Unsigned, Decimal) => Some(Decimal),
                (Timestamp, Duration) => Some(Timestamp),
                (Duration, Timestamp) if joins => Some(Timestamp),
                (Timestamp, Timestamp) => (!joins).then_some(Duration),
                (FlowType::List(a), FlowType::List(b)) => Some(FlowType::list(common(
                    [(**a).clone(), (**b).clone()].into_iter(),
                ))),
                (a, b) if is_dynamic => {
                    // Whole numbers and decimals stay exact, whatever the other one is.
                    let is_list = matches!((a, b), (FlowType::List(_), _) | (_, FlowType::List(_)));
                    Some(if is_list {
                        FlowType::list(Dynamic)
                    } else {
                        Dynamic
                    })
                }
                (a, b) => (a == b).then(|| a.clone()),
            }
        }
    }
}

fn constant_list(nodes: &[Node]) -> Option<Node> {
    let values = nodes
        .iter()
        .map(constant_value)
        .collect::<Option<Vec<_>>>()?;
    Some(Node::Constant(FlowValue::list(values)))
}

fn constant_map(nodes: &[(Node, Node)]) -> Option<Node> {
    let mut entries = ValueMap::new();
    for (key, value) in nodes {
        let is_new = entries
            .insert(MapKey::of(&constant_value(key)?)?, constant_value(value)?)
            .is_none();
        // A repeated key is a failure when it is evaluated.
        if !is_new {
            return None;
        }
    }
    Some(Node::Constant(FlowValue::Map(Arc::new(entries))))
}

fn constant_value(node: &Node) -> Option<FlowValue<'static>> {
    match node {
        Node::Constant(value) => Some(value.clone()),
        _ => None,
    }
}

/// The value of a node that reads nothing.
fn constant(node: &Node) -> EvaluationResult<FlowValue<'static>> {
    let (record, metadata) = (JsonRecord::default(), RecordMetadata::default());
    let bindings = ExpressionBindings::new(&record, &metadata, &NoHost);
    let mut budget = StepBudget::default();
    let value = Evaluator::new(bindings, &mut budget).run(node)?;
    Ok::<_, Box<EvaluationFailure>>(value.into_owned())
}
