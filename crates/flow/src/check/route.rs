//! The route step.

use super::declarations::{fits_type, literal};
use super::process::{FlowStream, ProcessChecker};
use super::transforms::distinct;
use crate::plan::{
    ArmPlan, BodyPlan, ConstraintPlan, FieldType, LiteralPlan, OperatorPlan, OtherwisePlan,
    SelectorPlan,
};
use crate::syntax::SyntaxNode;
use crate::value::{FlowType, ObjectType};

/// The knowledge about the values that a route sees.
enum RouteValues {
    Anything,
    OfType(FieldType),
    OneOf(Vec<LiteralPlan>),
}

impl<'t> ProcessChecker<'_, 't> {
    pub(super) fn route(
        &mut self,
        node: SyntaxNode<'t>,
        stream: &FlowStream,
    ) -> Option<OperatorPlan> {
        let (selector, values) = self.selector(node, stream);
        let mut arms = Vec::new();
        let mut seen: Vec<String> = Vec::new();
        for arm in node.all("arm") {
            let scope = self.scope(&stream.record);
            let when = arm
                .get("condition")
                .map(|condition| self.flows.condition(condition, &scope));
            let value = arm.get("value").map(|value| {
                let written = literal(value);
                self.arm_value(value, &written, &values, &mut seen);
                written
            });
            let stream = self.sink(arm.get("stream")?);
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
                    self.found(
                        "TG0607",
                        otherwise.span(),
                        "records that take this way are lost by declaration",
                    );
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

    fn arm_value(
        &mut self,
        node: SyntaxNode<'t>,
        value: &LiteralPlan,
        values: &RouteValues,
        seen: &mut Vec<String>,
    ) {
        let text = value.to_json();
        let is_possible = match values {
            RouteValues::Anything => true,
            RouteValues::OfType(kind) => fits_type(value, kind),
            RouteValues::OneOf(all) => distinct(all).contains(&text),
        };
        if !is_possible {
            self.found("TG0308", node.span(), format!("the value is never {text}"));
        } else if seen.contains(&text) {
            self.found(
                "TG0308",
                node.span(),
                format!("the arm for {text} is given twice"),
            );
        }
        seen.push(text);
    }

    fn selector(
        &mut self,
        node: SyntaxNode<'t>,
        stream: &FlowStream,
    ) -> (Option<SelectorPlan>, RouteValues) {
        if let Some(path) = node.get("by") {
            self.flows.path(path, &stream.record);
            let field = stream.fields.iter().find(|field| field.name == path.name());
            let listed = field
                .into_iter()
                .flat_map(|field| &field.constraints)
                .find_map(|constraint| match constraint {
                    ConstraintPlan::Values(values) => Some(values.clone()),
                    ConstraintPlan::Range(..)
                    | ConstraintPlan::Length(..)
                    | ConstraintPlan::Pattern(_) => None,
                });
            let values = match (listed, field) {
                (Some(values), _) => RouteValues::OneOf(values),
                (None, Some(field)) => RouteValues::OfType(field.kind.clone()),
                (None, None) => RouteValues::Anything,
            };
            return (Some(SelectorPlan::Field(path.name())), values);
        }
        let Some(rule) = node.get("using") else {
            return (Some(SelectorPlan::When), RouteValues::Anything);
        };
        let scope = self.scope(&stream.record);
        let Some(used) = self.flows.using(rule, &scope) else {
            return (None, RouteValues::Anything);
        };
        self.has_registered |= used.is_registered;
        let has_arms = node.has("arm");
        if let BodyPlan::Table(table) = &used.plan.body {
            let has_target = table.results.iter().any(|result| result == "target");
            if has_arms && table.results.len() != 1 {
                let message = format!(
                    "`{}` has {} results, and a route needs one",
                    rule.name(),
                    table.results.len()
                );
                self.found("TG0107", rule.span(), message);
            } else if !has_arms && !has_target {
                let message = format!(
                    "`{}` has no result `target`, so the route needs values",
                    rule.name()
                );
                self.found("TG0107", rule.span(), message);
            }
            if let (false, Some(values)) = (has_arms, &used.values) {
                for value in values {
                    if let LiteralPlan::Text(stream) = value {
                        self.plan.sinks.push(crate::plan::SinkPlan {
                            stream: stream.clone(),
                            ..Default::default()
                        });
                    }
                }
            }
        } else if !matches!(used.plan.body, BodyPlan::Registered) {
            self.found(
                "TG0107",
                rule.span(),
                format!(
                    "`{}` is a transform, and a table or rule is needed",
                    rule.name()
                ),
            );
        }
        let values = used
            .values
            .map_or(RouteValues::Anything, RouteValues::OneOf);
        let selector = if has_arms {
            SelectorPlan::Rule(used.plan)
        } else {
            SelectorPlan::Target(used.plan)
        };
        (Some(selector), values)
    }

    /// The record that metrics see: the one that flows at the end.
    pub(super) fn last_record(&self) -> ObjectType {
        let mut record = self
            .current()
            .map_or_else(ObjectType::open, |(_, stream)| stream.record);
        // Before the last step the record had other fields, and metrics also see what left there.
        if self
            .plan
            .steps
            .iter()
            .any(|step| matches!(step.operator, OperatorPlan::Window { .. }))
        {
            record.is_open = true;
        }
        record.fields.retain(|_, kind| *kind != FlowType::Null);
        record
    }
}
