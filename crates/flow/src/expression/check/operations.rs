//! The types of operations, and values that are known without a record.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "any other type is refused, also one that is added later"
)]

use std::sync::Arc;

use crate::expression::evaluate::{EvaluationResult, Evaluator};
use crate::expression::node::ExpressionNode as Node;
use crate::expression::parser::BinaryOperator;
use crate::expression::{
    EvaluationFailure, ExpressionBindings, NoHost, RecordMetadata, StepBudget,
};
use crate::value::{FlowType, FlowValue, JsonRecord, MapKey, ValueMap};

pub(super) fn listed(kinds: &[FlowType]) -> String {
    let names: Vec<String> = kinds.iter().map(FlowType::to_string).collect();
    names.join(", ")
}

pub(super) fn short(error: &regex::Error) -> String {
    // The text of the library has several lines; its last one says what is wrong.
    let text = error.to_string();
    let last = text.lines().next_back().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

/// The one type of all of them, or dynamic.
pub(super) fn common(mut kinds: impl Iterator<Item = FlowType>) -> FlowType {
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

/// Advice about two numbers whose types do not mix.
pub(super) fn mixed_help(a: &FlowType, b: &FlowType) -> Option<&'static str> {
    match (a, b) {
        (FlowType::Decimal, FlowType::Double) | (FlowType::Double, FlowType::Decimal) => {
            Some("a double is not exact; write the number as `decimal(\"0.10\")`")
        }
        (a, b) if a.is_number() && b.is_number() => {
            Some("convert one of them, for instance by `double(x)`")
        }
        _ => None,
    }
}

/// The type of an operation; none where the operator does not take these types.
pub(super) fn result_of(operator: BinaryOperator, a: &FlowType, b: &FlowType) -> Option<FlowType> {
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
            FlowType::Map(_) | FlowType::Object(_) => a.is_key().then_some(Boolean),
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

pub(super) fn constant_list(nodes: &[Node]) -> Option<Node> {
    let values = nodes
        .iter()
        .map(constant_value)
        .collect::<Option<Vec<_>>>()?;
    Some(Node::Constant(FlowValue::list(values)))
}

pub(super) fn constant_map(nodes: &[(Node, Node)]) -> Option<Node> {
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
pub(super) fn constant(node: &Node) -> EvaluationResult<FlowValue<'static>> {
    let (record, metadata) = (JsonRecord::default(), RecordMetadata::default());
    let bindings = ExpressionBindings::new(&record, &metadata, &NoHost);
    let mut budget = StepBudget::default();
    let value = Evaluator::new(bindings, &mut budget).run(node)?;
    Ok::<_, Box<EvaluationFailure>>(value.into_owned())
}
