//! The value of a checked expression for one record.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a value of any other type is refused, also of one that is added later"
)]

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use super::arithmetic::arithmetic;
use super::functions::Function;
use super::node::{ExpressionNode, FieldPath, Loop, LoopKind};
use super::parser::BinaryOperator;
use super::scope::MetadataName;
use super::{EvaluationFailure, ExpressionBindings, StepBudget, library};
use crate::value::{FlowType, FlowValue, MapKey, ObjectType, ValueError, ValueMap, member};

pub(super) type EvaluationResult<T> = Result<T, Box<EvaluationFailure>>;

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
    pub(super) fn run(&mut self, root: &'a ExpressionNode) -> EvaluationResult<FlowValue<'a>> {
        let value = self.value(root)?;
        // Lists share their parts, so a short expression can stand for a value of any size when it is written down.
        self.weigh(&value)?;
        Ok(value)
    }

    fn weigh(&mut self, value: &FlowValue<'_>) -> EvaluationResult<()> {
        match value {
            FlowValue::List(values) => {
                self.budget.spend(values.len())?;
                values.iter().try_for_each(|value| self.weigh(value))
            }
            FlowValue::Map(entries) => {
                self.budget.spend(entries.len())?;
                entries.values().try_for_each(|value| self.weigh(value))
            }
            FlowValue::Null
            | FlowValue::Boolean(_)
            | FlowValue::Integer(_)
            | FlowValue::Unsigned(_)
            | FlowValue::Double(_)
            | FlowValue::Decimal(_)
            | FlowValue::String(_)
            | FlowValue::Bytes(_)
            | FlowValue::Timestamp(_)
            | FlowValue::Duration(_)
            | FlowValue::Type(_) => Ok(()),
        }
    }

    /// Pays for so many elements or bytes.
    pub(super) fn pay(&mut self, size: usize) -> EvaluationResult<()> {
        self.budget.spend(size / PER_STEP)
    }

    pub(super) fn value(&mut self, node: &'a ExpressionNode) -> EvaluationResult<FlowValue<'a>> {
        self.budget.spend(1)?;
        match node {
            ExpressionNode::Constant(value) => Ok(borrowed(value)),
            ExpressionNode::Field(path) => self.field(path),
            ExpressionNode::And(terms) => self.logic(terms, false),
            ExpressionNode::Or(terms) => self.logic(terms, true),
            ExpressionNode::Binary(operator, pair) => self.binary(*operator, &pair.0, &pair.1),
            ExpressionNode::Call(function, arguments) => self.call(*function, arguments),
            ExpressionNode::Local(slot) => Ok(self.locals[*slot].clone()),
            _ => self.rare_value(node),
        }
    }

    /// The nodes that are not in the way of most records; apart, because they need a large frame.
    #[inline(never)]
    fn rare_value(&mut self, node: &'a ExpressionNode) -> EvaluationResult<FlowValue<'a>> {
        match node {
            ExpressionNode::Record(fields) => self.record(fields),
            ExpressionNode::Metadata(name) => self.metadata(*name),
            ExpressionNode::State(name) => self.bindings.host.state(name),
            ExpressionNode::Select(operand, name) => {
                let value = self.value(operand)?;
                match &value {
                    FlowValue::Map(entries) => {
                        let key = MapKey::String(Cow::Borrowed(name));
                        entries.get(&key).cloned().ok_or_else(|| missing(name))
                    }
                    other => Err(no_field(other, name)),
                }
            }
            ExpressionNode::Has(operand, name) => self.has(operand, name),
            ExpressionNode::Index(pair) => self.index(&pair.0, &pair.1),
            ExpressionNode::Not(inner) => Ok(FlowValue::Boolean(!self.boolean(inner)?)),
            ExpressionNode::Negate(inner) => negate(&self.value(inner)?),
            ExpressionNode::Conditional(parts) => {
                let [condition, then, otherwise] = &**parts;
                let is_true = self.boolean(condition)?;
                self.value(if is_true { then } else { otherwise })
            }
            ExpressionNode::Matches(operand, regex) => {
                let text = self.text(operand)?;
                self.pay(text.len())?;
                Ok(FlowValue::Boolean(regex.is_match(&text)))
            }
            ExpressionNode::Registered(name, arguments) => {
                let arguments = self.values(arguments)?;
                self.bindings.host.call(name, &arguments)
            }
            ExpressionNode::List(nodes) => Ok(FlowValue::list(self.values(nodes)?)),
            ExpressionNode::Map(nodes) => self.map(nodes),
            ExpressionNode::Loop(parts) => self.repeat(parts),
            ExpressionNode::Constant(_)
            | ExpressionNode::Field(_)
            | ExpressionNode::And(_)
            | ExpressionNode::Or(_)
            | ExpressionNode::Binary(..)
            | ExpressionNode::Call(..)
            | ExpressionNode::Local(_) => self.value(node),
        }
    }

    pub(super) fn values(
        &mut self,
        nodes: &'a [ExpressionNode],
    ) -> EvaluationResult<Vec<FlowValue<'a>>> {
        nodes.iter().map(|node| self.value(node)).collect()
    }

    fn boolean(&mut self, node: &'a ExpressionNode) -> EvaluationResult<bool> {
        match self.value(node)? {
            FlowValue::Boolean(yes) => Ok(yes),
            other => Err(EvaluationFailure::kind(format!(
                "a boolean is needed, this is {}",
                other.kind()
            ))),
        }
    }

    pub(super) fn text(&mut self, node: &'a ExpressionNode) -> EvaluationResult<Cow<'a, str>> {
        match self.value(node)? {
            FlowValue::String(text) => Ok(text),
            other => Err(EvaluationFailure::kind(format!(
                "a string is needed, this is {}",
                other.kind()
            ))),
        }
    }

    fn field(&mut self, path: &'a FieldPath) -> EvaluationResult<FlowValue<'a>> {
        let Some(mut raw) = self.bindings.record.raw_at(&path.name, &path.position) else {
            return match path.is_declared && path.below.is_empty() {
                true => Ok(FlowValue::Null),
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
                None if *is_declared && at + 1 == path.below.len() => return Ok(FlowValue::Null),
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

    fn record(&mut self, fields: &ObjectType) -> EvaluationResult<FlowValue<'a>> {
        let mut entries = ValueMap::new();
        for (name, raw) in self.bindings.record.fields() {
            self.pay(raw.len())?;
            let kind = fields.field(&name).unwrap_or(FlowType::Dynamic);
            let value = FlowValue::from_json(raw, &kind).map_err(|error| invalid(&name, &error))?;
            entries.insert(MapKey::String(name), value);
        }
        Ok(FlowValue::Map(Arc::new(entries)))
    }

    fn metadata(&self, name: MetadataName) -> EvaluationResult<FlowValue<'a>> {
        let metadata = self.bindings.metadata;
        Ok(match name {
            MetadataName::Key => metadata
                .key
                .as_deref()
                .map_or(FlowValue::Null, FlowValue::text),
            MetadataName::Id => FlowValue::text(&metadata.id),
            MetadataName::Topic => FlowValue::text(&metadata.topic),
            MetadataName::Partition => FlowValue::Integer(metadata.partition),
            MetadataName::Offset => FlowValue::Integer(metadata.offset),
            MetadataName::Timestamp => FlowValue::Timestamp(metadata.timestamp),
            MetadataName::Headers => {
                let headers = metadata.headers.iter();
                FlowValue::map(headers.map(|(name, value)| (name.as_str(), FlowValue::text(value))))
            }
            MetadataName::Route => self.bindings.route.map_or(FlowValue::Null, FlowValue::text),
        })
    }

    fn has(&mut self, operand: &'a ExpressionNode, name: &str) -> EvaluationResult<FlowValue<'a>> {
        if let ExpressionNode::Record(_) = operand {
            let is_there = self.bindings.record.raw(name).is_some();
            return Ok(FlowValue::Boolean(is_there));
        }
        match self.value(operand)? {
            FlowValue::Map(entries) => {
                let key = MapKey::String(Cow::Borrowed(name));
                Ok(FlowValue::Boolean(entries.contains_key(&key)))
            }
            other => Err(no_field(&other, name)),
        }
    }

    fn index(
        &mut self,
        operand: &'a ExpressionNode,
        index: &'a ExpressionNode,
    ) -> EvaluationResult<FlowValue<'a>> {
        let value = self.value(operand)?;
        let index = self.value(index)?;
        match &value {
            FlowValue::List(values) => {
                let Some(MapKey::Number(at)) = MapKey::searched(&index) else {
                    let message = format!("{} is no index of a list", index.kind());
                    return Err(EvaluationFailure::kind(message));
                };
                let found = usize::try_from(at).ok().and_then(|at| values.get(at));
                found.cloned().ok_or_else(|| {
                    let message =
                        format!("the list has {} elements, not one at {at}", values.len());
                    EvaluationFailure::new("expr.index", message)
                })
            }
            FlowValue::Map(entries) => {
                let Some(key) = MapKey::searched(&index) else {
                    let message = format!("{} cannot be the key of a map", index.kind());
                    return Err(EvaluationFailure::kind(message));
                };
                let shown = || missing(&index.to_text().unwrap_or_default());
                entries.get(&key).cloned().ok_or_else(shown)
            }
            other => Err(EvaluationFailure::kind(format!(
                "{} has no elements",
                other.kind()
            ))),
        }
    }

    /// `&&` and `||`: one term that decides is enough, whatever fails beside it.
    fn logic(
        &mut self,
        terms: &'a [ExpressionNode],
        decides: bool,
    ) -> EvaluationResult<FlowValue<'a>> {
        let mut failed = None;
        for term in terms {
            match self.boolean(term) {
                Ok(yes) if yes == decides => return Ok(FlowValue::Boolean(decides)),
                Ok(_) => {}
                Err(failure) if self.budget.is_exhausted => return Err(failure),
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        failed.map_or(Ok(FlowValue::Boolean(!decides)), Err)
    }

    fn binary(
        &mut self,
        operator: BinaryOperator,
        left: &'a ExpressionNode,
        right: &'a ExpressionNode,
    ) -> EvaluationResult<FlowValue<'a>> {
        use BinaryOperator as Op;
        let a = self.value(left)?;
        let computed;
        // A constant is looked at where it stands, without another reference to it.
        let b = if let ExpressionNode::Constant(constant) = right {
            constant
        } else {
            computed = self.value(right)?;
            &computed
        };
        let is = |a: &FlowValue<'_>, b: &FlowValue<'_>, wanted: fn(Ordering) -> bool| {
            Ok(FlowValue::Boolean(a.order(b)?.is_some_and(wanted)))
        };
        match operator {
            Op::Equal => Ok(FlowValue::Boolean(self.equal(&a, b)?)),
            Op::NotEqual => Ok(FlowValue::Boolean(!self.equal(&a, b)?)),
            Op::Less => is(&a, b, Ordering::is_lt),
            Op::LessOrEqual => is(&a, b, Ordering::is_le),
            Op::Greater => is(&a, b, Ordering::is_gt),
            Op::GreaterOrEqual => is(&a, b, Ordering::is_ge),
            Op::In => match b {
                FlowValue::List(values) => self.is_in(&a, values),
                FlowValue::Map(entries) => match MapKey::searched(&a) {
                    Some(key) => Ok(FlowValue::Boolean(entries.contains_key(&key))),
                    // A number with a fraction could be a key and is none.
                    None if a.kind().is_number() => Ok(FlowValue::Boolean(false)),
                    None => {
                        let message = format!("{} cannot be the key of a map", a.kind());
                        Err(EvaluationFailure::kind(message))
                    }
                },
                other => Err(EvaluationFailure::kind(format!(
                    "`in` needs a list or a map, this is {}",
                    other.kind()
                ))),
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

    fn is_in(
        &mut self,
        value: &FlowValue<'_>,
        list: &[FlowValue<'_>],
    ) -> EvaluationResult<FlowValue<'a>> {
        self.pay(list.len())?;
        if let FlowValue::String(text) = value {
            let is_there = |element: &FlowValue<'_>| matches!(element, FlowValue::String(other) if other == text);
            return Ok(FlowValue::Boolean(list.iter().any(is_there)));
        }
        for element in list {
            if self.equal(value, element)? {
                return Ok(FlowValue::Boolean(true));
            }
        }
        Ok(FlowValue::Boolean(false))
    }

    fn map(
        &mut self,
        nodes: &'a [(ExpressionNode, ExpressionNode)],
    ) -> EvaluationResult<FlowValue<'a>> {
        let mut entries = ValueMap::with_capacity(nodes.len());
        for (key, value) in nodes {
            let key = self.value(key)?;
            let Some(key) = MapKey::of(&key) else {
                let message = format!("{} cannot be the key of a map", key.kind());
                return Err(EvaluationFailure::kind(message));
            };
            let value = self.value(value)?;
            if entries.insert(key, value).is_some() {
                return Err(EvaluationFailure::kind("a key of the map is repeated"));
            }
        }
        Ok(FlowValue::Map(Arc::new(entries)))
    }

    fn repeat(&mut self, parts: &'a Loop) -> EvaluationResult<FlowValue<'a>> {
        let range = self.value(&parts.range)?;
        let elements = match range {
            FlowValue::List(values) => values,
            FlowValue::Map(entries) => Arc::new(entries.keys().map(MapKey::to_value).collect()),
            other => {
                let message = format!("a list or a map is needed, this is {}", other.kind());
                return Err(EvaluationFailure::kind(message));
            }
        };
        let depth = self.locals.len();
        let result = self.turns(parts, &elements);
        // A failure may be absorbed by `||`, so the variables are put back in order here.
        self.locals.truncate(depth);
        result
    }

    fn turns(
        &mut self,
        parts: &'a Loop,
        elements: &[FlowValue<'a>],
    ) -> EvaluationResult<FlowValue<'a>> {
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
                    Ok(yes) if yes == decides => return Ok(FlowValue::Boolean(decides)),
                    Ok(_) => {}
                    Err(failure) if self.budget.is_exhausted => return Err(failure),
                    Err(failure) => {
                        // The variables of loops in the body are left behind by its failure.
                        failed = failed.or(Some(failure));
                    }
                },
            }
            self.locals.pop();
        }
        match parts.kind {
            LoopKind::Map | LoopKind::Filter => Ok(FlowValue::list(kept)),
            LoopKind::ExistsOne => Ok(FlowValue::Boolean(matches == 1)),
            LoopKind::All | LoopKind::Exists => {
                failed.map_or(Ok(FlowValue::Boolean(!decides)), Err)
            }
        }
    }

    fn call(
        &mut self,
        function: Function,
        nodes: &'a [ExpressionNode],
    ) -> EvaluationResult<FlowValue<'a>> {
        match (function, nodes) {
            (Function::StartsWith, [text, ExpressionNode::Constant(FlowValue::String(part))]) => {
                let text = self.text(text)?;
                Ok(FlowValue::Boolean(text.starts_with(&**part)))
            }
            (Function::StartsWith, [text, part]) => {
                let (text, part) = (self.text(text)?, self.text(part)?);
                Ok(FlowValue::Boolean(text.starts_with(&*part)))
            }
            (Function::EndsWith, [text, part]) => {
                let (text, part) = (self.text(text)?, self.text(part)?);
                Ok(FlowValue::Boolean(text.ends_with(&*part)))
            }
            (Function::Contains, [text, part]) => {
                let (text, part) = (self.text(text)?, self.text(part)?);
                self.pay(text.len())?;
                Ok(FlowValue::Boolean(text.contains(&*part)))
            }
            _ => {
                let arguments = self.values(nodes)?;
                library::apply(self, function, &arguments)
            }
        }
    }
}

fn no_field(value: &FlowValue<'_>, name: &str) -> Box<EvaluationFailure> {
    match value {
        FlowValue::Null => {
            EvaluationFailure::new("expr.missing", format!("null has no field `{name}`"))
        }
        other => EvaluationFailure::kind(format!("{} has no field `{name}`", other.kind())),
    }
}

/// A constant without a copy of its text.
fn borrowed<'a>(value: &'a FlowValue<'static>) -> FlowValue<'a> {
    match value {
        FlowValue::String(text) => FlowValue::String(Cow::Borrowed(text)),
        FlowValue::Bytes(bytes) => FlowValue::Bytes(Cow::Borrowed(bytes)),
        other => other.clone(),
    }
}

fn negate<'a>(value: &FlowValue<'_>) -> EvaluationResult<FlowValue<'a>> {
    let overflow =
        || EvaluationFailure::new("expr.overflow", "the number is too large to be negated");
    match value {
        FlowValue::Integer(number) => number
            .checked_neg()
            .map(FlowValue::Integer)
            .ok_or_else(overflow),
        FlowValue::Double(number) => Ok(FlowValue::Double(-number)),
        FlowValue::Decimal(number) => Ok(FlowValue::Decimal(-*number)),
        FlowValue::Duration(length) => length
            .checked_neg()
            .map(FlowValue::Duration)
            .ok_or_else(overflow),
        other => Err(EvaluationFailure::kind(format!(
            "`-` does not take {}",
            other.kind()
        ))),
    }
}
