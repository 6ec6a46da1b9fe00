//! The route step.

use std::collections::BTreeSet;

use super::declarations::{fits_type, literal};
use super::process::{FlowStream, ProcessChecker};
use super::transforms::UsingPlace;
use crate::plan::{
    ArmPlan, BodyPlan, ConstraintPlan, FieldType, LiteralPlan, OperatorPlan, OtherwisePlan,
    SelectorPlan,
};
use crate::syntax::SyntaxNode as Node;
use crate::value::{FlowType, ObjectType};

/// The knowledge about the values that a route sees.
enum RouteValues {
    Anything,
    OfType(FieldType),
    /// These, as JSON.
    OneOf(BTreeSet<String>),
}

impl RouteValues {
    fn has(&self, value: &LiteralPlan) -> bool {
        match self {
            Self::Anything => true,
            Self::OfType(kind) => fits_type(value, kind),
            Self::OneOf(all) => all.contains(&value.to_json()),
        }
    }

    fn one_of(values: &[LiteralPlan]) -> Self {
        Self::OneOf(values.iter().map(LiteralPlan::to_json).collect())
    }
}

impl<'t> ProcessChecker<'_, 't> {
    pub(super) fn route(&mut self, node: Node<'t>, stream: &FlowStream) -> Option<OperatorPlan> {
        let (selector, values) = self.selector(node, stream);
        let mut arms: Vec<ArmPlan> = Vec::new();
        let mut given: BTreeSet<String> = BTreeSet::new();
        let scope = self.scope(&stream.record);
        for arm in node.all("arm") {
            let when = arm.get("condition");
            let when = when.map(|condition| self.flows.condition(condition, &scope));
            let value = arm.get("value").map(literal);
            if let Some(value) = &value {
                let text = value.to_json();
                let is_repeated = !given.insert(text.clone());
                let at = arm.child("value");
                if !values.has(value) {
                    self.found("TG0308", at, format!("the value is never {text}"));
                } else if is_repeated {
                    self.found("TG0308", at, format!("the arm for {text} is given twice"));
                }
            }
            let stream = self.sink(arm.child("stream"));
            arms.push(ArmPlan {
                when,
                value,
                stream,
            });
        }
        let otherwise = match node.get("otherwise") {
            None => OtherwisePlan::Fail,
            Some(otherwise) => match otherwise.get("stream") {
                Some(stream) => OtherwisePlan::To(self.sink(stream)),
                None if otherwise.has("continue") => OtherwisePlan::Continue,
                None => {
                    self.loses(otherwise);
                    OtherwisePlan::Skip
                }
            },
        };
        self.has_ended = otherwise != OtherwisePlan::Continue;
        Some(OperatorPlan::Route {
            selector: selector?,
            arms,
            otherwise,
        })
    }

    fn selector(
        &mut self,
        node: Node<'t>,
        stream: &FlowStream,
    ) -> (Option<SelectorPlan>, RouteValues) {
        if let Some(path) = node.get("by") {
            self.flows.path(path, &stream.record);
            let name = path.name();
            let field = stream.fields.iter().find(|field| field.name == name);
            let mut values = field.map_or(RouteValues::Anything, |field| {
                RouteValues::OfType(field.kind.clone())
            });
            for constraint in field.into_iter().flat_map(|field| &field.constraints) {
                if let ConstraintPlan::Values(listed) = constraint {
                    values = RouteValues::one_of(listed);
                }
            }
            return (Some(SelectorPlan::Field(name)), values);
        }
        let Some(rule) = node.get("using") else {
            return (Some(SelectorPlan::When), RouteValues::Anything);
        };
        let Some(used) = self.using(rule, &stream.record, UsingPlace::Route) else {
            return (None, RouteValues::Anything);
        };
        let has_arms = node.has("arm");
        let name = rule.name();
        if let BodyPlan::Table(table) = &used.plan.body {
            let count = table.results.len();
            let has_target = table.results.iter().any(|result| result == "target");
            if has_arms && count != 1 {
                let message = format!("`{name}` has {count} results, and a route needs one");
                self.found("TG0107", rule, message);
            } else if !has_arms && !has_target {
                let message = format!("`{name}` has no result `target`, so the route needs values");
                self.found("TG0107", rule, message);
            }
            for value in used.values.iter().flatten().filter(|_| !has_arms) {
                if let LiteralPlan::Text(stream) = value {
                    self.add_sink(stream);
                }
            }
        }
        let values = used.values;
        let values = values.map_or(RouteValues::Anything, |values| RouteValues::one_of(&values));
        let selector = match has_arms {
            true => SelectorPlan::Rule(used.plan),
            false => SelectorPlan::Target(used.plan),
        };
        (Some(selector), values)
    }

    /// The record that metrics see: the one that flows at the end.
    pub(super) fn last_record(&self) -> ObjectType {
        let mut record = self.current_record();
        // Before the last step the record had other fields, and metrics also see what left there.
        let mut steps = self.plan.steps.iter();
        record.is_open |= steps.any(|step| matches!(step.operator, OperatorPlan::Window { .. }));
        record.fields.retain(|_, kind| *kind != FlowType::Null);
        record
    }
}
