//! Transforms, rules and tables at the place of their use.

use std::collections::BTreeSet;

use super::FlowChecker;
use super::declarations::{Declaration, kind_text, paths};
use crate::Span;
use crate::expression::ExpressionScope;
use crate::plan::{
    AssignPlan, BodyPlan, CheckPlan, LiteralPlan, PlanExpression, RowPlan, SchemaPlan, TablePlan,
    TargetPlan, TransformPlan, TrimPlan, object_type,
};
use crate::syntax::{MAX_FIELDS, SyntaxNode};
use crate::value::{FlowType, ObjectType};

/// A transform, and the record that it makes.
pub(super) struct UsedTransform {
    pub(super) plan: TransformPlan,
    pub(super) record: ObjectType,
    /// The values of the only result of a table, where all are literals.
    pub(super) values: Option<Vec<LiteralPlan>>,
    /// Whether it may fail in a way that a retry mends.
    pub(super) is_registered: bool,
}

impl<'t> FlowChecker<'t> {
    /// The transform, table or rule that `node` names, applied to records of `scope`.
    pub(super) fn using(
        &mut self,
        node: SyntaxNode<'t>,
        scope: &ExpressionScope,
    ) -> Option<UsedTransform> {
        let name = node.name();
        if let Some(declared) = self.names.get(&name).copied() {
            self.used.insert(name.clone());
            return match declared.kind {
                "transform" => Some(self.transform(name, declared.node, scope)),
                "decision" => Some(self.table(name, declared.node, scope)),
                kind => {
                    let message = format!(
                        "`{name}` is a {}, and a transform or table is needed",
                        kind_text(kind)
                    );
                    self.found("TG0107", node.span(), message);
                    None
                }
            };
        }
        let registered = self.registered.transforms.get(&name);
        if registered.is_some() || self.registered.rules.contains(&name) {
            let record = registered.and_then(|transform| transform.output.clone());
            return Some(UsedTransform {
                plan: TransformPlan {
                    name,
                    body: BodyPlan::Registered,
                },
                record: record.unwrap_or_else(ObjectType::open),
                values: None,
                is_registered: true,
            });
        }
        if !scope.record.is_open && scope.record.field(&name).is_some() {
            let message = format!("`{name}` is a field, and a transform or table is needed");
            self.found("TG0107", node.span(), message).help =
                Some(format!("write `route by {name}` to route by a field"));
            return None;
        }
        let declared = self
            .names
            .iter()
            .filter(|(_, declared)| ["transform", "decision"].contains(&declared.kind));
        let mut names: Vec<String> = declared.map(|(name, _)| name.clone()).collect();
        names.extend(
            self.registered
                .transforms
                .keys()
                .chain(&self.registered.rules)
                .cloned(),
        );
        self.unknown(
            "TG0102",
            node.span(),
            ("transform or table", &name),
            names.iter().map(String::as_str),
        );
        None
    }

    /// Checks the transforms and tables that no process uses, by themselves.
    pub(super) fn unused_transforms(&mut self) {
        for (name, declared) in self.names.clone() {
            if self.used.contains(&name) {
                continue;
            }
            let scope = ExpressionScope {
                functions: self.registered.functions.clone(),
                ..ExpressionScope::dynamic()
            };
            match declared.kind {
                "transform" => drop(self.transform(name, declared.node, &scope)),
                "decision" => drop(self.table(name, declared.node, &scope)),
                _ => {}
            }
        }
    }

    /// The schema that a node names.
    pub(super) fn schema_of(
        &mut self,
        node: Option<SyntaxNode<'t>>,
    ) -> Option<(String, SchemaPlan)> {
        let node = node?;
        let name = node.name();
        // A schema with a part that could not be read may have any field.
        let declared = self.names.get(&name);
        if declared.is_some_and(Declaration::is_broken) {
            return None;
        }
        if let Some(schema) = self.plan.schemas.get(&name) {
            return Some((name, schema.clone()));
        }
        if let Some(declared) = self.names.get(&name) {
            let message = format!(
                "`{name}` is a {}, and a schema is needed",
                kind_text(declared.kind)
            );
            self.found("TG0107", node.span(), message);
        } else {
            let names: Vec<String> = self.plan.schemas.keys().cloned().collect();
            self.unknown(
                "TG0102",
                node.span(),
                ("schema", &name),
                names.iter().map(String::as_str),
            );
        }
        None
    }

    /// The scope inside of a declaration with an `input`: its fields, which the record must have.
    fn input_scope(&mut self, node: SyntaxNode<'t>, scope: &ExpressionScope) -> ExpressionScope {
        let Some((name, schema)) = self.schema_of(node.get("input")) else {
            return scope.clone();
        };
        let missing = schema
            .fields
            .iter()
            .find(|field| field.is_required() && scope.record.field(&field.name).is_none());
        if let (Some(field), Some(input)) = (missing, node.get("input")) {
            let message = format!(
                "the record has no field `{}`, which `{name}` requires",
                field.name
            );
            self.found("TG0301", input.span(), message);
        }
        ExpressionScope {
            record: object_type(&schema.fields),
            ..scope.clone()
        }
    }

    fn transform(
        &mut self,
        name: String,
        node: SyntaxNode<'t>,
        outer: &ExpressionScope,
    ) -> UsedTransform {
        let mut scope = self.input_scope(node, outer);
        let checks = self.checks(node, &scope);
        let output = self.schema_of(node.get("output"));
        let trim = node.get("trim").map(|trim| match trim.word() {
            "keep" => TrimPlan::Keep(paths(trim, "fields")),
            _ => TrimPlan::Drop(paths(trim, "fields")),
        });
        let output_name = output.as_ref().map(|(name, _)| name.clone());
        let body = if let Some(each) = node.get("each") {
            let (list, kind) = self.expression(each, &scope);
            self.expect(
                each.span(),
                &kind,
                &FlowType::list(FlowType::Dynamic),
                "the value of `each`",
            );
            scope.record = ObjectType::open();
            BodyPlan::Each {
                checks,
                each: list,
                trim: trim.clone(),
                output: output_name,
            }
        } else {
            let assignments = node
                .get("apply")
                .map_or(Vec::new(), |apply| self.assignments(apply, &mut scope));
            BodyPlan::Apply {
                checks,
                assignments,
                trim: trim.clone(),
                output: output_name,
            }
        };
        if let Some(fields) = node.get("trim") {
            self.all_paths(fields, "fields", &scope.record);
        }
        match &trim {
            Some(TrimPlan::Keep(keep)) => {
                scope.record.fields.retain(|field, _| {
                    keep.iter()
                        .any(|path| path.split('.').next() == Some(field))
                });
                let missing: Vec<&String> = keep
                    .iter()
                    .filter(|name| !scope.record.fields.contains_key(*name))
                    .collect();
                for name in missing {
                    scope.record.fields.insert(name.clone(), FlowType::Dynamic);
                }
                scope.record.is_open = false;
            }
            Some(TrimPlan::Drop(dropped)) => scope
                .record
                .fields
                .retain(|field, _| !dropped.contains(field)),
            None => {}
        }
        if let (Some((name, schema)), Some(at)) = (output, node.get("output")) {
            self.fits_schema(
                at.span(),
                &scope.record,
                (&name, &schema),
                node.get("apply"),
            );
            scope.record = object_type(&schema.fields);
        }
        let is_registered = false;
        UsedTransform {
            plan: TransformPlan { name, body },
            record: scope.record,
            values: None,
            is_registered,
        }
    }

    /// Whether a record can hold a schema. A field of the wrong type is shown where it is assigned.
    pub(super) fn fits_schema(
        &mut self,
        span: Span,
        record: &ObjectType,
        (name, schema): (&str, &SchemaPlan),
        apply: Option<SyntaxNode<'t>>,
    ) {
        for field in &schema.fields {
            let wanted = field.kind.to_flow_type();
            match record.field(&field.name) {
                Some(kind) if !kind.fits(&wanted) => {
                    let mut assigned = apply.into_iter().flat_map(|apply| apply.all("assign"));
                    let assigned = assigned.find(|assign| {
                        assign
                            .get("target")
                            .is_some_and(|target| target.name() == field.name)
                    });
                    let span = assigned.map_or(span, SyntaxNode::span);
                    let message = format!(
                        "`{}` is {kind}, and `{name}` has it as {wanted}",
                        field.name
                    );
                    self.found("TG0306", span, message);
                }
                None if field.is_required() => {
                    let message = format!(
                        "`{name}` requires the field `{}`, which is never set",
                        field.name
                    );
                    self.found("TG0307", span, message);
                }
                Some(_) | None => {}
            }
        }
    }

    /// The `require` clauses of a node.
    pub(super) fn checks(
        &mut self,
        node: SyntaxNode<'t>,
        scope: &ExpressionScope,
    ) -> Vec<CheckPlan> {
        let mut checks = Vec::new();
        for check in node.all("check") {
            if let (Some(condition), Some(message)) = (check.get("condition"), check.get("message"))
            {
                let require = self.condition(condition, scope);
                checks.push(CheckPlan {
                    require,
                    message: message.unquoted(),
                });
            }
        }
        checks
    }

    /// The assignments of a node, each of which changes the scope of the next.
    pub(super) fn assignments(
        &mut self,
        node: SyntaxNode<'t>,
        scope: &mut ExpressionScope,
    ) -> Vec<AssignPlan> {
        let mut assignments = Vec::new();
        for assign in node.all("assign") {
            let (Some(target), Some(value)) = (assign.get("target"), assign.get("value")) else {
                continue;
            };
            let (value, kind) = self.expression(value, scope);
            let target = self.target(target, &kind, scope);
            assignments.push(AssignPlan { target, value });
        }
        assignments
    }

    fn target(
        &mut self,
        node: SyntaxNode<'t>,
        kind: &FlowType,
        scope: &mut ExpressionScope,
    ) -> TargetPlan {
        let key = node.get("key").map(|key| self.expression(key, scope).0);
        if let (Some(name), Some(states)) = (node.get("state"), scope.state.as_ref()) {
            let text = name.name();
            match states.get(&text).cloned() {
                None => {
                    let names: Vec<String> = states.keys().cloned().collect();
                    self.unknown(
                        "TG0105",
                        name.span(),
                        ("state", &text),
                        names.iter().map(String::as_str),
                    );
                }
                Some(FlowType::Map(of)) if key.is_some() => {
                    self.expect(node.span(), kind, &of, "the value")
                }
                Some(wanted) => self.expect(node.span(), kind, &wanted, &format!("`state.{text}`")),
            }
            return TargetPlan::State { name: text, key };
        }
        if key.is_some() {
            let message = "there is no `state` block, so `state` has no entries to set";
            self.found("TG0105", node.span(), message);
            return TargetPlan::Field(String::new());
        }
        let path = node
            .get("path")
            .map_or_else(|| node.name(), SyntaxNode::name);
        if path.starts_with('_') {
            self.found(
                "TG0014",
                node.span(),
                format!("`{path}` begins with `_`: such names are metadata of the record"),
            );
        }
        let first = path.split('.').next().unwrap_or(&path);
        if scope.record.fields.len() >= MAX_FIELDS && !scope.record.fields.contains_key(first) {
            self.too_many_fields(node.span());
            return TargetPlan::Field(path);
        }
        match path.split_once('.') {
            None => drop(scope.record.fields.insert(path.clone(), kind.clone())),
            // A field inside of another one makes that one an object of which we know no more.
            Some((first, _)) => {
                let outer = scope
                    .record
                    .fields
                    .entry(first.to_owned())
                    .or_insert(FlowType::Dynamic);
                if !matches!(
                    outer,
                    FlowType::Object(_) | FlowType::Map(_) | FlowType::Dynamic
                ) {
                    *outer = FlowType::Dynamic;
                } else if let FlowType::Object(object) = outer {
                    let mut object = (**object).clone();
                    object.is_open = true;
                    *outer = FlowType::Object(std::sync::Arc::new(object));
                }
            }
        }
        TargetPlan::Field(path)
    }

    fn table(
        &mut self,
        name: String,
        node: SyntaxNode<'t>,
        outer: &ExpressionScope,
    ) -> UsedTransform {
        let scope = self.input_scope(node, outer);
        let head = node.get("head");
        let columns: Vec<SyntaxNode<'t>> = head
            .into_iter()
            .flat_map(|head| head.all("column"))
            .collect();
        for column in &columns {
            self.expression(*column, &scope);
        }
        let results: Vec<String> = head
            .into_iter()
            .flat_map(|head| head.all("result"))
            .map(SyntaxNode::name)
            .collect();
        let mut kinds: Vec<Option<FlowType>> = vec![None; results.len()];
        let mut rows = Vec::new();
        let mut values = Some(Vec::new());
        let mut has_catch_all = false;
        for row in node.all("row") {
            let cells: Vec<SyntaxNode<'t>> = row.all("cell").collect();
            let thens: Vec<SyntaxNode<'t>> = row.all("result").collect();
            if (cells.len(), thens.len()) != (columns.len(), results.len()) {
                let message = format!(
                    "this row has {} conditions and {} results, and the head has {} and {}",
                    cells.len(),
                    thens.len(),
                    columns.len(),
                    results.len()
                );
                self.found("TG0309", row.span(), message);
                continue;
            }
            has_catch_all |= cells.iter().all(|cell| cell.has("any"));
            let when = columns
                .iter()
                .zip(&cells)
                .filter_map(|(column, cell)| self.cell(*column, *cell, &scope))
                .collect();
            let mut then = Vec::new();
            for (node, seen) in thens.iter().zip(&mut kinds) {
                let (expression, kind) = self.expression(*node, &scope);
                values = values
                    .filter(|_| results.len() == 1)
                    .and_then(|values| with_literal(values, *node));
                *seen = Some(match seen.take() {
                    Some(other) if other != kind => FlowType::Dynamic,
                    Some(_) | None => kind,
                });
                then.push(expression);
            }
            rows.push(RowPlan { when, then });
        }
        if let (false, Some(name)) = (has_catch_all, node.get("name")) {
            self.found(
                "TG0311",
                name.span(),
                format!("`{}` has no row for everything else", name.name()),
            );
        }
        let collect_all = node
            .get("policy")
            .is_some_and(|policy| policy.word() == "collect_all");
        let mut record = outer.record.clone();
        for (result, kind) in results.iter().zip(kinds) {
            let kind = kind.unwrap_or(FlowType::Dynamic);
            record.fields.insert(
                result.clone(),
                if collect_all {
                    FlowType::list(kind)
                } else {
                    kind
                },
            );
        }
        let body = BodyPlan::Table(TablePlan {
            collect_all,
            results,
            rows,
        });
        UsedTransform {
            plan: TransformPlan { name, body },
            record,
            values,
            is_registered: false,
        }
    }

    /// The condition of a cell; none where everything fits.
    fn cell(
        &mut self,
        column: SyntaxNode<'t>,
        cell: SyntaxNode<'t>,
        scope: &ExpressionScope,
    ) -> Option<PlanExpression> {
        let head = column.canonical_text();
        if cell.has("any") {
            return None;
        }
        if let (Some(from), Some(to)) = (cell.get("from"), cell.get("to")) {
            let (from, to) = (from.words().concat(), to.words().concat());
            return Some(self.composed(
                format!("({head}) >= {from} && ({head}) <= {to}"),
                cell,
                scope,
            ));
        }
        let (operator, value) = match (cell.get("operator"), cell.get("in"), cell.get("expr")) {
            (_, Some(list), _) => ("in", list),
            (Some(operator), _, Some(value)) => (operator.word(), value),
            (None, _, Some(value)) if value.is_in_parentheses() => {
                return Some(self.condition(value, scope));
            }
            (_, _, value) => ("==", value?),
        };
        Some(self.composed(
            format!("({head}) {operator} ({})", value.canonical_text()),
            cell,
            scope,
        ))
    }
}

/// The values with one more, if the node is a literal.
fn with_literal(mut values: Vec<LiteralPlan>, node: SyntaxNode<'_>) -> Option<Vec<LiteralPlan>> {
    let is_literal =
        node.words().len() == 1 && (node.is_text() || ["true", "false"].contains(&node.word()));
    if !is_literal {
        return None;
    }
    values.push(super::declarations::literal(node));
    Some(values)
}

/// The results that a table can give to a route, without repeats.
pub(super) fn distinct(values: &[LiteralPlan]) -> BTreeSet<String> {
    values.iter().map(LiteralPlan::to_json).collect()
}
