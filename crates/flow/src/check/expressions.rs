//! Expressions at their places in a flow.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the fields of any other type are not known"
)]

use std::sync::Arc;

use super::FlowChecker;
use super::expansion::{EXPRESSION, EXPRESSION_BYTE, KEPT, PATTERN};
use crate::Span;
use crate::expression::{ExpressionScope as Scope, check, parse};
use crate::plan::PlanExpression;
use crate::syntax::SyntaxNode as Node;
use crate::value::{FlowType, ObjectType};

impl FlowChecker<'_> {
    /// Compiles the expression of a node. Its type is dynamic where it has a mistake, so that nothing else is said.
    pub(super) fn expression(
        &mut self,
        node: Node<'_>,
        scope: &Scope,
    ) -> (PlanExpression, FlowType) {
        if self.is_full() {
            return (PlanExpression::default(), FlowType::Dynamic);
        }
        self.state_uses(node, scope);
        let source = node.source_text();
        self.pay_for(&source, node.span(), scope);
        if self.is_exhausted() {
            return (PlanExpression::default(), FlowType::Dynamic);
        }
        let (mut checked, mut kind) = (None, FlowType::Dynamic);
        let parsed = parse(&source, node.span());
        match parsed.and_then(|expression| check(&expression, scope)) {
            Ok(right) => {
                kind = right.kind().clone();
                checked = Some(Arc::new(right));
            }
            Err(found) => {
                self.errors += found.len();
                self.diagnostics.extend(found);
            }
        }
        let text = node.canonical_text();
        (PlanExpression { text, checked }, kind)
    }

    /// Checks the states that an expression names.
    fn state_uses(&mut self, node: Node<'_>, scope: &Scope) {
        if self.state_keys.is_empty() || scope.state.is_none() {
            return;
        }
        let words = node.words();
        for (at, three) in words.windows(3).enumerate() {
            let is_field = at > 0 && words[at - 1] == ".";
            if three[0] == "state" && three[1] == "." && !is_field {
                self.state_use(node, three[2].trim_matches('`'), scope);
            }
        }
    }

    /// A state is kept by fields of the record, so the record must have them where the state is read or set.
    pub(super) fn state_use(&mut self, node: Node<'_>, name: &str, scope: &Scope) {
        let Some(keys) = self.state_keys.get(name).cloned() else {
            return;
        };
        self.used_state.insert(name.to_owned());
        let has = |record: &ObjectType, key: &str| path_type(record, key).is_some();
        let outer = self.outer.clone();
        let is_missing = |key: &&String| {
            !has(&scope.record, key) && !outer.as_ref().is_some_and(|outer| has(outer, key))
        };
        if let Some(key) = keys.iter().find(is_missing) {
            let message =
                format!("`state.{name}` is kept by `{key}`, which the record has not here");
            self.found("TG0301", node, message);
        }
    }

    /// Pays for the tree of an expression, its patterns, and the types of the whole record where it names that.
    fn pay_for(&mut self, text: &str, span: Span, scope: &Scope) {
        let patterns = text.matches("matches").count();
        let records = text.matches("record").count();
        let units = [
            EXPRESSION,
            text.len().saturating_mul(EXPRESSION_BYTE),
            patterns.saturating_mul(PATTERN),
            records.saturating_mul(scope.record.fields.len() * KEPT),
        ];
        self.pay(span, units.into_iter().fold(0, usize::saturating_add));
    }

    /// The same for a condition.
    pub(super) fn condition(&mut self, node: Node<'_>, scope: &Scope) -> PlanExpression {
        let (expression, kind) = self.expression(node, scope);
        self.expect(node.span(), &kind, &FlowType::Boolean, "a condition");
        expression
    }

    /// Compiles a condition that we put together from parts of `node`; a mistake is one of the whole node.
    pub(super) fn composed(
        &mut self,
        text: String,
        node: Node<'_>,
        scope: &Scope,
    ) -> PlanExpression {
        self.state_uses(node, scope);
        self.pay_for(&text, node.span(), scope);
        if self.is_exhausted() {
            return PlanExpression::default();
        }
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let parsed = parse(&text, Span::new(0, 0, length));
        let mut checked = None;
        match parsed.and_then(|expression| check(&expression, scope)) {
            Ok(right) => {
                self.expect(node.span(), right.kind(), &FlowType::Boolean, "a condition");
                checked = Some(Arc::new(right));
            }
            Err(found) => {
                for mut diagnostic in found {
                    diagnostic.span = node.span();
                    self.diagnostics.push(diagnostic);
                }
            }
        }
        PlanExpression { text, checked }
    }

    /// Says so where a type does not fit its place.
    pub(super) fn expect(&mut self, span: Span, kind: &FlowType, wanted: &FlowType, place: &str) {
        if !kind.fits(wanted) {
            let message = format!("{place} must be {wanted}, and this is {kind}");
            self.found("TG0305", span, message);
        }
    }

    /// Says so where a value is no number.
    pub(super) fn expect_number(&mut self, node: Node<'_>, kind: &FlowType, place: &str) {
        if !kind.is_number() && *kind != FlowType::Dynamic {
            let message = format!("{place} needs a number, and this is {kind}");
            self.found("TG0305", node, message);
        }
    }

    /// The type of a path into a record; says so where the record is known and has no such field.
    pub(super) fn path(&mut self, node: Node<'_>, record: &ObjectType) -> FlowType {
        path_type(record, &node.name()).unwrap_or_else(|| {
            if self.is_silent("TG0301", node) {
                return FlowType::Dynamic;
            }
            let names = record.fields.keys().cloned().collect();
            self.unknown("TG0301", node, "field", names);
            FlowType::Dynamic
        })
    }

    /// Checks all paths of a list of fields, and gives their names.
    pub(super) fn all_paths(
        &mut self,
        node: Node<'_>,
        label: &str,
        record: &ObjectType,
    ) -> Vec<String> {
        for path in node.paths(label) {
            self.path(path, record);
        }
        node.path_names(label)
    }
}

/// The type of a path into a record; none where the record has no such field.
pub(super) fn path_type(record: &ObjectType, path: &str) -> Option<FlowType> {
    let Some((first, rest)) = path.split_once('.') else {
        return record.field(path);
    };
    match record.field(first)? {
        FlowType::Object(object) => path_type(&object, rest),
        FlowType::Map(of) => Some((*of).clone()),
        _ => Some(FlowType::Dynamic),
    }
}
