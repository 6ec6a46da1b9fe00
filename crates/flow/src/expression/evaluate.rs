//! The value of a checked expression for one record.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a value of any other type is refused, also of one that is added later"
)]

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use super::arithmetic::arithmetic;
use super::functions::{FunctionRow, FunctionWork};
use super::node::{ExpressionNode as Node, FieldPath, Loop, LoopKind};
use super::parser::BinaryOperator;
use super::scope::MetadataName;
use super::{EvaluationFailure, ExpressionBindings, StepBudget, library};
use crate::value::{FlowType, FlowValue, MapKey, ObjectType, ValueError, ValueMap, member};

use FlowValue as V;

pub(super) type EvaluationResult<T> = Result<T, Box<EvaluationFailure>>;
pub(super) type Evaluated<'a> = EvaluationResult<FlowValue<'a>>;

/// Elements or bytes of text that cost one step.
const PER_STEP: usize = 16;

pub(super) struct Evaluator<'a, 'b> {
    pub(super) bindings: ExpressionBindings<'a>,
    pub(super) budget: &'b mut StepBudget,
    /// The variables of the open macros, innermost last.
    locals: Vec<FlowValue<'a>>,
}

fn missing(name: &str) -> Box<EvaluationFailure> {
    EvaluationFailure::new("expr.missing", format!("there is no `{name}`"))
}

/// A value of another type than its place needs.
fn needed(wanted: &str, value: &FlowValue<'_>) -> Box<EvaluationFailure> {
    EvaluationFailure::kind(format!("{wanted} is needed, this is {}", value.kind()))
}

/// A field that is not of its declared type.
fn invalid(name: &str, error: &ValueError) -> Box<EvaluationFailure> {
    EvaluationFailure::new("schema.invalid", format!("the field `{name}`: {error}"))
}

impl<'a, 'b> Evaluator<'a, 'b> {
    pub(super) fn new(bindings: ExpressionBindings<'a>, budget: &'b mut StepBudget) -> Self {
        Self {
            bindings,
            budget,
            locals: Vec::new(),
        }
    }

    /// The value of the whole expression.
    pub(super) fn run(&mut self, root: &'a Node) -> Evaluated<'a> {
        let value = self.value(root)?;
        // Lists share their parts, so a short expression can stand for a value of any size when it is written down.
        self.weigh(&value)?;
        Ok(value)
    }

    fn weigh(&mut self, value: &FlowValue<'_>) -> EvaluationResult<()> {
        match value {
            V::List(values) => {
                self.budget.spend(values.len())?;
                values.iter().try_for_each(|value| self.weigh(value))
            }
            V::Map(entries) => {
                self.budget.spend(entries.len())?;
                entries.values().try_for_each(|value| self.weigh(value))
            }
            _ => Ok(()),
        }
    }

    /// Pays for so many elements or bytes.
    pub(super) fn pay(&mut self, size: usize) -> EvaluationResult<()> {
        self.budget.spend(size / PER_STEP)
    }

    pub(super) fn value(&mut self, node: &'a Node) -> Evaluated<'a> {
        self.budget.spend(1)?;
        match node {
            Node::Constant(value) => Ok(borrowed(value)),
            Node::Field(path) => self.field(path),
            Node::And(terms) => self.logic(terms, false),
            Node::Or(terms) => self.logic(terms, true),
            Node::Binary(operator, pair) => self.binary(*operator, &pair.0, &pair.1),
            Node::Call(row, arguments) => self.call(row, arguments),
            Node::Local(slot) => Ok(self.locals[*slot].clone()),
            _ => self.rare_value(node),
        }
    }

    /// The nodes that are not in the way of most records; apart, because they need a large frame.
    #[inline(never)]
    fn rare_value(&mut self, node: &'a Node) -> Evaluated<'a> {
        match node {
            Node::Record(fields) => self.record(fields),
            Node::Metadata(name) => self.metadata(*name),
            Node::State(name) => self.bindings.host.state(name),
            Node::Select(operand, name, is_declared) => {
                let value = self.value(operand)?;
                let V::Map(entries) = &value else {
                    return Err(no_field(&value, name));
                };
                let found = entries.get(&MapKey::String(Cow::Borrowed(name)));
                match found {
                    Some(found) => Ok(found.clone()),
                    None if *is_declared => Ok(V::Null),
                    None => Err(missing(name)),
                }
            }
            Node::Has(operand, name) => self.has(operand, name),
            Node::Index(pair) => self.index(&pair.0, &pair.1),
            Node::Not(inner) => Ok(V::Boolean(!self.boolean(inner)?)),
            Node::Negate(inner) => negate(&self.value(inner)?),
            Node::Conditional(parts) => {
                let [condition, then, otherwise] = &**parts;
                let is_true = self.boolean(condition)?;
                self.value(if is_true { then } else { otherwise })
            }
            Node::Matches(operand, regex) => {
                let text = self.text(operand)?;
                self.pay(text.len())?;
                Ok(V::Boolean(regex.is_match(&text)))
            }
            Node::Registered(name, arguments) => {
                let arguments = self.values(arguments)?;
                self.bindings.host.call(name, &arguments)
            }
            Node::List(nodes) => Ok(V::list(self.values(nodes)?)),
            Node::Map(nodes) => self.map(nodes),
            Node::Loop(parts) => self.repeat(parts),
            Node::Constant(_)
            | Node::Field(_)
            | Node::And(_)
            | Node::Or(_)
            | Node::Binary(..)
            | Node::Call(..)
            | Node::Local(_) => self.value(node),
        }
    }

    pub(super) fn values(&mut self, nodes: &'a [Node]) -> EvaluationResult<Vec<FlowValue<'a>>> {
        nodes.iter().map(|node| self.value(node)).collect()
    }

    fn boolean(&mut self, node: &'a Node) -> EvaluationResult<bool> {
        match self.value(node)? {
            V::Boolean(yes) => Ok(yes),
            other => Err(needed("a boolean", &other)),
        }
    }

    pub(super) fn text(&mut self, node: &'a Node) -> EvaluationResult<Cow<'a, str>> {
        match self.value(node)? {
            V::String(text) => Ok(text),
            other => Err(needed("a string", &other)),
        }
    }

    fn field(&mut self, path: &'a FieldPath) -> Evaluated<'a> {
        let Some(mut raw) = self.bindings.record.raw_at(&path.name, &path.position) else {
            return match path.is_declared && path.below.is_empty() {
                true => Ok(V::Null),
                false => Err(missing(&path.name)),
            };
        };
        for (at, (name, is_declared)) in path.below.iter().enumerate() {
            self.pay(raw.len())?;
            if !raw.starts_with('{') {
                let kind = FlowValue::from_json(raw, &FlowType::Dynamic)?;
                return Err(no_field(&kind, name));
            }
            raw = match member(raw, name) {
                Some(found) => found,
                None if *is_declared && at + 1 == path.below.len() => return Ok(V::Null),
                None => return Err(missing(name)),
            };
        }
        if matches!(raw.as_bytes().first(), Some(b'{' | b'[')) {
            self.pay(raw.len())?;
        }
        FlowValue::from_json(raw, &path.kind).map_err(|error| {
            let name = path.below.last().map_or(&path.name, |(name, _)| name);
            invalid(name, &error)
        })
    }

    fn record(&mut self, fields: &ObjectType) -> Evaluated<'a> {
        let mut entries = ValueMap::new();
        for (name, raw) in self.bindings.record.fields() {
            self.pay(raw.len())?;
            let kind = fields.field(&name).unwrap_or(FlowType::Dynamic);
            let value = FlowValue::from_json(raw, &kind).map_err(|error| invalid(&name, &error))?;
            entries.insert(MapKey::String(name), value);
        }
        Ok(V::Map(Arc::new(entries)))
    }

    fn metadata(&self, name: MetadataName) -> Evaluated<'a> {
        let metadata = self.bindings.metadata;
        Ok(match name {
            MetadataName::Key => metadata.key.as_deref().map_or(V::Null, V::text),
            MetadataName::Id => V::text(&metadata.id),
            MetadataName::Topic => V::text(&metadata.topic),
            MetadataName::Partition => V::Integer(metadata.partition),
            MetadataName::Offset => V::Integer(metadata.offset),
            MetadataName::Timestamp => V::Timestamp(metadata.timestamp),
            MetadataName::Headers => {
                let headers = metadata.headers.iter();
                V::map(headers.map(|(name, value)| (name.as_str(), V::text(value))))
            }
            MetadataName::Route => self.bindings.route.map_or(V::Null, V::text),
        })
    }

    fn has(&mut self, operand: &'a Node, name: &str) -> Evaluated<'a> {
        if let Node::Record(_) = operand {
            let is_there = self.bindings.record.raw(name).is_some();
            return Ok(V::Boolean(is_there));
        }
        match self.value(operand)? {
            V::Map(entries) => {
                let key = MapKey::String(Cow::Borrowed(name));
                Ok(V::Boolean(entries.contains_key(&key)))
            }
            other => Err(no_field(&other, name)),
        }
    }

    fn index(&mut self, operand: &'a Node, index: &'a Node) -> Evaluated<'a> {
        let value = self.value(operand)?;
        let index = self.value(index)?;
        match &value {
            V::List(values) => {
                let Some(MapKey::Number(at)) = MapKey::searched(&index) else {
                    return Err(needed("an index", &index));
                };
                let found = usize::try_from(at).ok().and_then(|at| values.get(at));
                found.cloned().ok_or_else(|| {
                    let message =
                        format!("the list has {} elements, not one at {at}", values.len());
                    EvaluationFailure::new("expr.index", message)
                })
            }
            V::Map(entries) => {
                let Some(key) = MapKey::searched(&index) else {
                    return Err(needed("a key", &index));
                };
                let shown = || missing(&index.to_text().unwrap_or_default());
                entries.get(&key).cloned().ok_or_else(shown)
            }
            other => Err(needed("a list or a map", other)),
        }
    }

    /// `&&` and `||`: one term that decides is enough, whatever fails beside it.
    fn logic(&mut self, terms: &'a [Node], decides: bool) -> Evaluated<'a> {
        let mut failed = None;
        for term in terms {
            match self.boolean(term) {
                Ok(yes) if yes == decides => return Ok(V::Boolean(decides)),
                Ok(_) => {}
                Err(failure) if self.budget.is_exhausted => return Err(failure),
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        failed.map_or(Ok(V::Boolean(!decides)), Err)
    }

    fn binary(
        &mut self,
        operator: BinaryOperator,
        left: &'a Node,
        right: &'a Node,
    ) -> Evaluated<'a> {
        use BinaryOperator as Op;
        let a = self.value(left)?;
        let computed;
        // A constant is looked at where it stands, without another reference to it.
        let b = if let Node::Constant(constant) = right {
            constant
        } else {
            computed = self.value(right)?;
            &computed
        };
        let is = |a: &FlowValue<'_>, b: &FlowValue<'_>, wanted: fn(Ordering) -> bool| {
            Ok(V::Boolean(a.order(b)?.is_some_and(wanted)))
        };
        match operator {
            Op::Equal => Ok(V::Boolean(self.equal(&a, b)?)),
            Op::NotEqual => Ok(V::Boolean(!self.equal(&a, b)?)),
            Op::Less => is(&a, b, Ordering::is_lt),
            Op::LessOrEqual => is(&a, b, Ordering::is_le),
            Op::Greater => is(&a, b, Ordering::is_gt),
            Op::GreaterOrEqual => is(&a, b, Ordering::is_ge),
            Op::In => match b {
                V::List(values) => self.is_in(&a, values),
                V::Map(entries) => match MapKey::searched(&a) {
                    Some(key) => Ok(V::Boolean(entries.contains_key(&key))),
                    // A number with a fraction could be a key and is none.
                    None if a.kind().is_number() => Ok(V::Boolean(false)),
                    None => Err(needed("a key", &a)),
                },
                other => Err(needed("a list or a map", other)),
            },
            Op::Add | Op::Subtract | Op::Multiply | Op::Divide | Op::Remainder => {
                let b = b.clone();
                arithmetic(self, operator, a, b)
            }
        }
    }

    fn equal(&mut self, a: &FlowValue<'_>, b: &FlowValue<'_>) -> EvaluationResult<bool> {
        let budget = &mut *self.budget;
        a.equals(b, &mut |pairs| budget.spend(pairs))
    }

    fn is_in(&mut self, value: &FlowValue<'_>, list: &[FlowValue<'_>]) -> Evaluated<'a> {
        self.pay(list.len())?;
        if let V::String(text) = value {
            let is_there =
                |element: &FlowValue<'_>| matches!(element, V::String(other) if other == text);
            return Ok(V::Boolean(list.iter().any(is_there)));
        }
        for element in list {
            if self.equal(value, element)? {
                return Ok(V::Boolean(true));
            }
        }
        Ok(V::Boolean(false))
    }

    fn map(&mut self, nodes: &'a [(Node, Node)]) -> Evaluated<'a> {
        let mut entries = ValueMap::with_capacity(nodes.len());
        for (key, value) in nodes {
            let key = self.value(key)?;
            let Some(key) = MapKey::of(&key) else {
                return Err(needed("a key", &key));
            };
            let value = self.value(value)?;
            if entries.insert(key, value).is_some() {
                return Err(EvaluationFailure::kind("a key of the map is repeated"));
            }
        }
        Ok(V::Map(Arc::new(entries)))
    }

    fn repeat(&mut self, parts: &'a Loop) -> Evaluated<'a> {
        let range = self.value(&parts.range)?;
        let elements = match range {
            V::List(values) => values,
            V::Map(entries) => Arc::new(entries.keys().map(MapKey::to_value).collect()),
            other => return Err(needed("a list or a map", &other)),
        };
        let depth = self.locals.len();
        let result = self.turns(parts, &elements);
        // A failure may be absorbed by `||`, so the variables are put back in order here.
        self.locals.truncate(depth);
        result
    }

    fn turns(&mut self, parts: &'a Loop, elements: &[FlowValue<'a>]) -> Evaluated<'a> {
        let mut kept = Vec::new();
        let mut matches = 0_usize;
        let mut failed = None;
        let decides = parts.kind == LoopKind::Exists;
        for element in elements {
            self.budget.spend(1)?;
            self.locals.push(element.clone());
            let is_taken = match &parts.filter {
                Some(filter) => self.boolean(filter)?,
                None => true,
            };
            match parts.kind {
                LoopKind::Map if is_taken => kept.push(self.value(&parts.body)?),
                LoopKind::Map => {}
                LoopKind::Filter => {
                    if self.boolean(&parts.body)? {
                        kept.push(element.clone());
                    }
                }
                LoopKind::ExistsOne => matches += usize::from(self.boolean(&parts.body)?),
                LoopKind::All | LoopKind::Exists => match self.boolean(&parts.body) {
                    Ok(yes) if yes == decides => return Ok(V::Boolean(decides)),
                    Ok(_) => {}
                    Err(failure) if self.budget.is_exhausted => return Err(failure),
                    Err(failure) => failed = failed.or(Some(failure)),
                },
            }
            self.locals.pop();
        }
        match parts.kind {
            LoopKind::Map | LoopKind::Filter => Ok(V::list(kept)),
            LoopKind::ExistsOne => Ok(V::Boolean(matches == 1)),
            LoopKind::All | LoopKind::Exists => failed.map_or(Ok(V::Boolean(!decides)), Err),
        }
    }

    fn call(&mut self, row: &FunctionRow, nodes: &'a [Node]) -> Evaluated<'a> {
        let (FunctionWork::Text(test), [text, part]) = (row.work, nodes) else {
            let arguments = self.values(nodes)?;
            return library::apply(self, row, &arguments);
        };
        let text = self.text(text)?;
        self.pay(text.len())?;
        Ok(V::Boolean(match part {
            Node::Constant(V::String(part)) => test(&text, part),
            part => {
                let part = self.text(part)?;
                test(&text, &part)
            }
        }))
    }
}

fn no_field(value: &FlowValue<'_>, name: &str) -> Box<EvaluationFailure> {
    match value {
        V::Null => EvaluationFailure::new("expr.missing", format!("null has no field `{name}`")),
        other => EvaluationFailure::kind(format!("{} has no field `{name}`", other.kind())),
    }
}

/// A constant without a copy of its text.
fn borrowed<'a>(value: &'a FlowValue<'static>) -> FlowValue<'a> {
    match value {
        V::String(text) => V::String(Cow::Borrowed(text)),
        V::Bytes(bytes) => V::Bytes(Cow::Borrowed(bytes)),
        other => other.clone(),
    }
}

fn negate<'a>(value: &FlowValue<'_>) -> Evaluated<'a> {
    let overflow =
        || EvaluationFailure::new("expr.overflow", "the number is too large to be negated");
    let negated = match value {
        V::Integer(number) => number.checked_neg().map(V::Integer),
        V::Double(number) => Some(V::Double(-number)),
        V::Decimal(number) => Some(V::Decimal(-*number)),
        V::Duration(length) => length.checked_neg().map(V::Duration),
        other => return Err(needed("a number", other)),
    };
    negated.ok_or_else(overflow)
}
