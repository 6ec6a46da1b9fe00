//! Expressions at their places in a flow.

use std::sync::Arc;

use super::FlowChecker;
use crate::Span;
use crate::expression::{ExpressionScope, check, parse};
use crate::plan::PlanExpression;
use crate::syntax::SyntaxNode;
use crate::value::{FlowType, ObjectType};

impl FlowChecker<'_> {
    /// Compiles the expression of a node. Its type is dynamic where it has a mistake, so that nothing else is said.
    pub(super) fn expression(
        &mut self,
        node: SyntaxNode<'_>,
        scope: &ExpressionScope,
    ) -> (PlanExpression, FlowType) {
        if self.is_full() {
            return (PlanExpression::default(), FlowType::Dynamic);
        }
        let (text, span) = (node.source_text(), node.span());
        let compiled = parse(&text, span).and_then(|expression| check(&expression, scope));
        let text = node.canonical_text();
        match compiled {
            Ok(checked) => {
                let kind = checked.kind().clone();
                (
                    PlanExpression {
                        text,
                        checked: Some(Arc::new(checked)),
                    },
                    kind,
                )
            }
            Err(found) => {
                self.errors += found.len();
                self.diagnostics.extend(found);
                (
                    PlanExpression {
                        text,
                        checked: None,
                    },
                    FlowType::Dynamic,
                )
            }
        }
    }

    /// The same for a condition.
    pub(super) fn condition(
        &mut self,
        node: SyntaxNode<'_>,
        scope: &ExpressionScope,
    ) -> PlanExpression {
        let (expression, kind) = self.expression(node, scope);
        self.expect(node.span(), &kind, &FlowType::Boolean, "a condition");
        expression
    }

    /// Compiles a text that we put together from parts of `node`; a mistake is one of the whole node.
    pub(super) fn composed(
        &mut self,
        text: String,
        node: SyntaxNode<'_>,
        scope: &ExpressionScope,
    ) -> PlanExpression {
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let compiled =
            parse(&text, Span::new(0, 0, length)).and_then(|expression| check(&expression, scope));
        match compiled {
            Ok(checked) => {
                self.expect(
                    node.span(),
                    checked.kind(),
                    &FlowType::Boolean,
                    "a condition",
                );
                PlanExpression {
                    text,
                    checked: Some(Arc::new(checked)),
                }
            }
            Err(found) => {
                for mut diagnostic in found {
                    diagnostic.span = node.span();
                    self.diagnostics.push(diagnostic);
                }
                PlanExpression {
                    text,
                    checked: None,
                }
            }
        }
    }

    /// Says so where a type does not fit its place.
    pub(super) fn expect(&mut self, span: Span, kind: &FlowType, wanted: &FlowType, place: &str) {
        if !kind.fits(wanted) {
            self.found(
                "TG0305",
                span,
                format!("{place} must be {wanted}, and this is {kind}"),
            );
        }
    }

    /// The type of a path into a record; says so where the record is known and has no such field.
    pub(super) fn path(&mut self, node: SyntaxNode<'_>, record: &ObjectType) -> FlowType {
        let name = node.name();
        match path_type(record, &name) {
            Some(kind) => kind,
            None => {
                let names = record.fields.keys().map(String::as_str);
                self.unknown("TG0301", node.span(), ("field", &name), names);
                FlowType::Dynamic
            }
        }
    }

    /// Checks all paths of a list of fields.
    pub(super) fn all_paths(&mut self, node: SyntaxNode<'_>, label: &str, record: &ObjectType) {
        for path in node
            .get(label)
            .into_iter()
            .flat_map(|fields| fields.all("path"))
        {
            self.path(path, record);
        }
    }
}

/// The type of a path into a record; none where the record has no such field.
pub(super) fn path_type(record: &ObjectType, path: &str) -> Option<FlowType> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let kind = record.field(first)?;
    if rest.is_empty() {
        return Some(kind);
    }
    if let FlowType::Object(object) = &kind {
        return path_type(object, rest);
    }
    let FlowType::Map(of) = kind else {
        return Some(FlowType::Dynamic);
    };
    Some((*of).clone())
}

/// The last name of a path, which is what a key field is called in a result.
pub(super) fn last_name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}
