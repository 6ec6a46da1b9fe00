//! Transforms, rules and tables at the place of their use.

use std::sync::Arc;

use super::FlowChecker;
use super::declarations::{Declaration, literal};
use super::expansion::LOOK;
use crate::Span;
use crate::expression::ExpressionScope as Scope;
use crate::plan::{
    AssignPlan, BodyPlan, CheckPlan, FieldPlan, LiteralPlan, PlanExpression, RowPlan, SchemaPlan,
    TablePlan, TargetPlan, TransformPlan, TrimPlan,
};
use crate::syntax::{MAX_FIELDS, SyntaxNode as Node};
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

/// A statement with a `using`, which takes some kinds of things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsingPlace {
    Transform,
    Aggregate,
    Route,
    Complete,
}

impl UsingPlace {
    /// Whether it takes a declaration or registration of this kind.
    fn takes(self, kind: &str) -> bool {
        match self {
            Self::Transform => ["transform", "decision"].contains(&kind),
            Self::Aggregate => kind == "transform",
            Self::Route | Self::Complete => ["decision", "rule"].contains(&kind),
        }
    }

    /// The kinds that it takes, in words.
    const fn words(self) -> &'static str {
        match self {
            Self::Transform => "transform or table",
            Self::Aggregate => "transform",
            Self::Route | Self::Complete => "table or rule",
        }
    }
}

impl<'t> FlowChecker<'t> {
    /// The transform, table or rule that `node` names, applied to records of `scope`.
    pub(super) fn using(
        &mut self,
        node: Node<'t>,
        scope: &Scope,
        place: UsingPlace,
    ) -> Option<UsedTransform> {
        let name = node.name();
        self.pay(node.span(), scope.record.fields.len() * LOOK);
        if let Some(declared) = self.names.get(&name).copied() {
            if !place.takes(declared.kind) {
                self.wrong_kind(node, declared.kind, place.words());
                return None;
            }
            self.used.insert(name.clone());
            self.outer = declared.node.has("input").then(|| scope.record.clone());
            let used = match declared.kind {
                "transform" => self.transform(name, declared.node, scope),
                _ => self.table(name, declared.node, scope),
            };
            self.outer = None;
            return Some(used);
        }
        if self.registered.kinds(&name).any(|kind| place.takes(kind)) {
            let registered = self.registered.transforms.get(&name);
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
        if let Some(kind) = self.registered.kinds(&name).next() {
            self.wrong_kind(node, kind, place.words());
            return None;
        }
        if scope.record.fields.contains_key(&name) {
            let help = format!("write `route by {name}` to route by a field");
            let found = self.wrong_kind(node, "field", place.words());
            found.help = (place == UsingPlace::Route).then_some(help);
            return None;
        }
        if self.is_silent("TG0102", node) {
            return None;
        }
        let declared = self.names.iter();
        let declared = declared.filter(|(_, one)| place.takes(one.kind));
        let names = declared.map(|(name, _)| name);
        let registered = self.registered.transforms.keys();
        let names = names.chain(registered.filter(|_| place.takes("transform")));
        let rules = self.registered.rules.iter();
        let names = names.chain(rules.filter(|_| place.takes("rule")));
        let names = names.cloned().collect();
        self.unknown("TG0102", node, place.words(), names);
        None
    }

    /// Checks the transforms and tables that no process uses, by themselves.
    pub(super) fn unused_transforms(&mut self) {
        for (name, declared) in self.names.clone() {
            if self.used.contains(&name) || self.is_exhausted() {
                continue;
            }
            let scope = Scope {
                functions: self.registered.functions.clone(),
                ..Scope::dynamic()
            };
            match declared.kind {
                "transform" => drop(self.transform(name, declared.node, &scope)),
                "decision" => drop(self.table(name, declared.node, &scope)),
                _ => {}
            }
        }
    }

    /// The schema that a node names.
    pub(super) fn schema_of(&mut self, node: Option<Node<'t>>) -> Option<(String, SchemaPlan)> {
        let node = node?;
        let name = node.name();
        // A schema with a part that could not be read may have any field.
        let declared = self.names.get(&name).copied();
        if declared.as_ref().is_some_and(Declaration::is_broken) {
            return None;
        }
        if let Some(schema) = self.plan.schemas.get(&name) {
            let schema = schema.clone();
            self.pay(node.span(), schema.fields.len() * LOOK);
            return Some((name, schema));
        }
        if let Some(declared) = declared {
            self.wrong_kind(node, declared.kind, "schema");
        } else if !self.is_silent("TG0102", node) {
            let names = self.plan.schemas.keys().cloned().collect();
            self.unknown("TG0102", node, "schema", names);
        }
        None
    }

    /// The scope inside of a declaration with an `input`: its fields, which the record must have.
    fn input_scope(&mut self, node: Node<'t>, scope: &Scope) -> Scope {
        let Some((name, schema)) = self.schema_of(node.get("input")) else {
            return scope.clone();
        };
        let mut fields = schema.fields.iter();
        let is_missing = |field: &&FieldPlan| scope.record.field(&field.name).is_none();
        if let Some(field) = fields.find(|field| field.is_required() && is_missing(field)) {
            let field = &field.name;
            let message = format!("the record has no field `{field}`, which `{name}` requires");
            self.found("TG0301", node.child("input"), message);
        }
        Scope {
            record: schema.record(),
            ..scope.clone()
        }
    }

    fn transform(&mut self, name: String, node: Node<'t>, outer: &Scope) -> UsedTransform {
        let mut scope = self.input_scope(node, outer);
        let checks = self.checks(node, &scope);
        let declared = self.schema_of(node.get("output"));
        let trim = node.get("trim").map(|trim| match trim.word() {
            "keep" => TrimPlan::Keep(trim.path_names("fields")),
            _ => TrimPlan::Drop(trim.path_names("fields")),
        });
        let output = declared.as_ref().map(|(name, _)| name.clone());
        let body = if let Some(node) = node.get("each") {
            let (each, kind) = self.expression(node, &scope);
            let wanted = FlowType::list(FlowType::Dynamic);
            self.expect(node.span(), &kind, &wanted, "the value of `each`");
            scope.record = ObjectType::open();
            BodyPlan::Each {
                checks,
                each,
                trim: trim.clone(),
                output,
            }
        } else {
            let assignments = self.assignments(node.child("apply"), &mut scope);
            BodyPlan::Apply {
                checks,
                assignments,
                trim: trim.clone(),
                output,
            }
        };
        self.all_paths(node.child("trim"), "fields", &scope.record);
        if let Some(trim) = trim {
            trim.trim_type(&mut scope.record);
        }
        if let Some((name, schema)) = declared {
            let (at, apply) = (node.child("output").span(), node.get("apply"));
            self.fits_schema(at, &scope.record, (&name, &schema), apply);
            scope.record = schema.record();
        }
        UsedTransform {
            plan: TransformPlan { name, body },
            record: scope.record,
            values: None,
            is_registered: false,
        }
    }

    /// Whether a record can hold a schema. A field of the wrong type is shown where it is assigned.
    pub(super) fn fits_schema(
        &mut self,
        span: Span,
        record: &ObjectType,
        (name, schema): (&str, &SchemaPlan),
        apply: Option<Node<'t>>,
    ) {
        for FieldPlan {
            name: field,
            kind: wanted,
            ..
        } in &schema.fields
        {
            let wanted = wanted.to_flow_type();
            let Some(kind) = record.field(field) else {
                continue;
            };
            if !kind.fits(&wanted) {
                let mut assigned = apply.into_iter().flat_map(|apply| apply.all("assign"));
                let assigned = assigned.find(|assign| assign.child("target").name() == *field);
                let span = assigned.map_or(span, Node::span);
                let message = format!("`{field}` is {kind}, and `{name}` has it as {wanted}");
                self.found("TG0306", span, message);
            }
        }
        for field in schema.fields.iter().filter(|field| field.is_required()) {
            let field = &field.name;
            if record.field(field).is_none() {
                let message = format!("`{name}` requires the field `{field}`, which is never set");
                self.found("TG0307", span, message);
            }
        }
    }

    /// The `require` clauses of a node.
    pub(super) fn checks(&mut self, node: Node<'t>, scope: &Scope) -> Vec<CheckPlan> {
        let checks = node.all("check").map(|check| CheckPlan {
            require: self.condition(check.child("condition"), scope),
            message: check.child("message").unquoted(),
        });
        checks.collect()
    }

    /// The assignments of a node, each of which changes the scope of the next.
    pub(super) fn assignments(&mut self, node: Node<'t>, scope: &mut Scope) -> Vec<AssignPlan> {
        let assignments = node.all("assign").map(|assign| {
            let (value, kind) = self.expression(assign.child("value"), scope);
            let target = self.target(assign.child("target"), &kind, scope);
            AssignPlan { target, value }
        });
        assignments.collect()
    }

    fn target(&mut self, node: Node<'t>, kind: &FlowType, scope: &mut Scope) -> TargetPlan {
        let key = node.get("key").map(|key| self.expression(key, scope).0);
        if let (Some(name), Some(states)) = (node.get("state"), scope.state.as_ref()) {
            let text = name.name();
            let states = states.clone();
            self.state_use(node, &text, scope);
            match states.get(&text).cloned() {
                None => {
                    let names = states.keys().take(super::MAX_NAMES).cloned().collect();
                    self.unknown("TG0105", name, "state", names);
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
            self.found("TG0105", node, message);
            return TargetPlan::Field(String::new());
        }
        let path = node.get("path").unwrap_or(node).name();
        if path.starts_with('_') {
            let message =
                format!("`{path}` begins with `_`: such names are metadata of the record");
            self.found("TG0014", node, message);
        }
        let fields = &mut scope.record.fields;
        let first = path.split('.').next().unwrap_or(&path);
        if fields.len() >= MAX_FIELDS && !fields.contains_key(first) {
            self.too_many_fields(node.span());
        } else if first == path {
            let kind = self.admit_field(node.span(), kind);
            scope.record.fields.insert(path.clone(), kind);
        } else {
            // A field inside of another one makes that one an object of which we know no more.
            let outer = fields.entry(first.to_owned()).or_insert(FlowType::Dynamic);
            if let FlowType::Object(object) = outer {
                Arc::make_mut(object).is_open = true;
            } else if !matches!(outer, FlowType::Map(_)) {
                *outer = FlowType::Dynamic;
            }
        }
        TargetPlan::Field(path)
    }

    fn table(&mut self, name: String, node: Node<'t>, outer: &Scope) -> UsedTransform {
        let scope = self.input_scope(node, outer);
        let head = node.child("head");
        let columns: Vec<Node<'t>> = head.all("column").collect();
        for column in &columns {
            self.expression(*column, &scope);
        }
        let results: Vec<String> = head.all("result").map(Node::name).collect();
        let mut names: Vec<(String, FlowType)> = Vec::new();
        for result in head.all("result") {
            self.new_name(result, &names);
            names.push((result.name(), FlowType::Dynamic));
        }
        let wanted = (columns.len(), results.len());
        let mut kinds: Vec<Option<FlowType>> = vec![None; results.len()];
        let mut rows = Vec::new();
        let mut values = (results.len() == 1).then(Vec::new);
        let mut has_catch_all = false;
        for row in node.all("row") {
            let cells: Vec<Node<'t>> = row.all("cell").collect();
            let thens: Vec<Node<'t>> = row.all("result").collect();
            let found = (cells.len(), thens.len());
            if found != wanted {
                let message = format!(
                    "this row has {} conditions and {} results, and the head has {} and {}",
                    found.0, found.1, wanted.0, wanted.1
                );
                self.found("TG0309", row, message);
                continue;
            }
            has_catch_all |= cells.iter().all(|cell| cell.has("any"));
            let both = columns.iter().zip(&cells);
            let when = both.filter_map(|(column, cell)| self.cell(*column, *cell, &scope));
            let when = when.collect();
            let mut then = Vec::new();
            for (node, seen) in thens.iter().zip(&mut kinds) {
                let (expression, kind) = self.expression(*node, &scope);
                values = values.and_then(|values| with_literal(values, *node));
                *seen = Some(match seen.take() {
                    Some(other) if other != kind => FlowType::Dynamic,
                    Some(_) | None => kind,
                });
                then.push(expression);
            }
            rows.push(RowPlan { when, then });
        }
        if !has_catch_all {
            let message = format!("`{name}` has no row for everything else");
            self.found("TG0311", node.child("name"), message);
        }
        let collect_all = node.child("policy").word() == "collect_all";
        let mut record = outer.record.clone();
        for (result, kind) in results.iter().zip(kinds) {
            let mut kind = kind.unwrap_or(FlowType::Dynamic);
            if collect_all {
                kind = FlowType::list(kind);
            }
            let kind = self.admit_field(node.span(), &kind);
            record.fields.insert(result.clone(), kind);
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
    fn cell(&mut self, column: Node<'t>, cell: Node<'t>, scope: &Scope) -> Option<PlanExpression> {
        let head = column.canonical_text();
        let value = cell.child("expr");
        let text = match cell.children().next()?.label() {
            "any" => return None,
            "from" => {
                let [from, to] = ["from", "to"].map(|label| cell.child(label).words().concat());
                format!("({head}) >= {from} && ({head}) <= {to}")
            }
            "in" => format!("({head}) in ({})", cell.child("in").canonical_text()),
            "operator" => {
                let operator = cell.child("operator").word();
                format!("({head}) {operator} ({})", value.canonical_text())
            }
            _ if value.is_in_parentheses() => return Some(self.condition(value, scope)),
            _ => format!("({head}) == ({})", value.canonical_text()),
        };
        Some(self.composed(text, cell, scope))
    }
}

/// The values with one more, if the node is a literal.
fn with_literal(mut values: Vec<LiteralPlan>, node: Node<'_>) -> Option<Vec<LiteralPlan>> {
    let is_literal = node.is_text() || ["true", "false"].contains(&node.word());
    if node.words().len() != 1 || !is_literal {
        return None;
    }
    values.push(literal(node));
    Some(values)
}
