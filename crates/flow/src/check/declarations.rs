//! Names of the deployment: schemas, lookups, transforms, tables and processes.

use regex::Regex;

use super::FlowChecker;
use crate::Span;
use crate::plan::{ConstraintPlan, FieldPlan, FieldType, LiteralPlan, LookupPlan, SchemaPlan};
use crate::syntax::{MAX_FIELDS, SyntaxNode};

/// A declared name.
#[derive(Clone, Copy)]
pub(super) struct Declaration<'t> {
    /// The label of its node: `process`, `schema`, `lookup`, `transform` or `decision`.
    pub(super) kind: &'static str,
    pub(super) node: SyntaxNode<'t>,
    /// The node of its name.
    name: SyntaxNode<'t>,
}

impl Declaration<'_> {
    /// Whether a part of it could not be read.
    pub(super) fn is_broken(&self) -> bool {
        self.node.tree().is_broken(self.node)
    }
}

/// The kind of a declaration as messages name it.
pub(super) fn kind_text(kind: &str) -> &str {
    if kind == "decision" {
        "decision table"
    } else {
        kind
    }
}

impl<'t> FlowChecker<'t> {
    /// Collects all names, and the shapes of schemas and lookups.
    pub(super) fn declarations(&mut self) {
        for tree in self.trees {
            for node in tree.root().children() {
                let Some(name) = node.get("name") else {
                    continue;
                };
                let text = name.name();
                if let Some(first) = self.names.get(&text) {
                    let also = first.name.span();
                    let message = format!(
                        "`{text}` is declared twice: as {} and as {}",
                        kind_text(first.kind),
                        kind_text(node.label())
                    );
                    self.found("TG0101", name.span(), message).also = Some(also);
                    continue;
                }
                if self.registered.has(&text) {
                    self.found(
                        "TG0106",
                        name.span(),
                        format!("`{text}` is registered in Rust, too"),
                    );
                }
                self.names.insert(
                    text,
                    Declaration {
                        kind: node.label(),
                        node,
                        name,
                    },
                );
            }
        }
        for (name, declaration) in self.names.clone() {
            let node = declaration.node;
            match declaration.kind {
                "schema" => {
                    let schema = self.schema(node);
                    self.plan.schemas.insert(name, schema);
                }
                "lookup" => {
                    let (key, fields) = (paths(node, "key"), self.fields(node));
                    self.plan.lookups.insert(name, LookupPlan { key, fields });
                }
                _ => {}
            }
        }
    }

    fn schema(&mut self, node: SyntaxNode<'t>) -> SchemaPlan {
        let fields = self.fields(node);
        let keys = node.get("key").into_iter().flat_map(|key| key.all("path"));
        for path in keys.chain(node.get("time")) {
            let name = path.name();
            if !fields.iter().any(|field| field.name == name) && !node.tree().is_broken(node) {
                let names = fields.iter().map(|field| field.name.as_str());
                self.unknown("TG0301", path.span(), ("field", &name), names);
            }
        }
        if let Some(time) = node.get("time") {
            let field = fields.iter().find(|field| field.name == time.name());
            if field.is_some_and(|field| field.kind != FieldType::Timestamp) {
                self.found(
                    "TG0303",
                    time.span(),
                    format!("`{}` is not a timestamp", time.name()),
                );
            }
        }
        SchemaPlan {
            version: node.get("version").map(SyntaxNode::unquoted),
            key: paths(node, "key"),
            time: node.get("time").map(SyntaxNode::name),
            fields,
        }
    }

    fn fields(&mut self, node: SyntaxNode<'t>) -> Vec<FieldPlan> {
        let mut fields = Vec::new();
        for field in node.all("field") {
            if fields.len() == MAX_FIELDS {
                self.too_many_fields(field.span());
                break;
            }
            fields.extend(self.field(field));
        }
        fields
    }

    /// Each step looks at all fields of its record, so their number has a limit.
    pub(super) fn too_many_fields(&mut self, span: Span) {
        let message = format!("the record has more than {MAX_FIELDS} fields, the limit `fields`");
        self.found("TG0016", span, message);
    }

    fn field(&mut self, node: SyntaxNode<'t>) -> Option<FieldPlan> {
        let (name, kind) = (node.get("field")?.name(), node.get("type")?);
        let mut field = FieldPlan {
            name,
            kind: self.field_type(kind),
            optional: false,
            default: None,
            constraints: Vec::new(),
        };
        for modifier in node.all("modifier") {
            let span = modifier.span();
            let mut fits = true;
            let constraint = match modifier.word() {
                "optional" => {
                    field.optional = true;
                    continue;
                }
                "default" => {
                    field.default = modifier.get("default").map(literal);
                    fits = field
                        .default
                        .iter()
                        .all(|value| fits_type(value, &field.kind));
                    None
                }
                "range" => {
                    let bounds = modifier.get("from").zip(modifier.get("to"));
                    bounds.map(|(from, to)| {
                        let (from, to) = (from.words().concat(), to.words().concat());
                        fits = is_number(&field.kind) && number(&from) <= number(&to);
                        ConstraintPlan::Range(from, to)
                    })
                }
                "length" => {
                    let bounds = modifier
                        .get("from")
                        .and_then(SyntaxNode::int)
                        .zip(modifier.get("to").and_then(SyntaxNode::int));
                    bounds.map(|(from, to)| {
                        fits = field.kind == FieldType::String && from <= to;
                        ConstraintPlan::Length(from, to)
                    })
                }
                "pattern" => modifier.get("pattern").map(|pattern| {
                    let pattern = pattern.unquoted();
                    fits = field.kind == FieldType::String && Regex::new(&pattern).is_ok();
                    ConstraintPlan::Pattern(pattern)
                }),
                _ => {
                    let values: Vec<LiteralPlan> = modifier.all("value").map(literal).collect();
                    fits = values.iter().all(|value| fits_type(value, &field.kind));
                    Some(ConstraintPlan::Values(values))
                }
            };
            field.constraints.extend(constraint);
            if !fits {
                let message = format!(
                    "this `{}` does not fit the type of `{}`",
                    modifier.word(),
                    field.name
                );
                self.found("TG0310", span, message);
            }
        }
        Some(field)
    }

    fn field_type(&mut self, node: SyntaxNode<'t>) -> FieldType {
        let mut of = || {
            node.get("of")
                .map_or(FieldType::Json, |of| self.field_type(of))
        };
        match node.word() {
            "string" => FieldType::String,
            "integer" => FieldType::Integer,
            "double" => FieldType::Double,
            "boolean" => FieldType::Boolean,
            "date" => FieldType::Date,
            "timestamp" => FieldType::Timestamp,
            "uuid" => FieldType::Uuid,
            "bytes" => FieldType::Bytes,
            "decimal" => self.decimal(node),
            "list" => FieldType::List(Box::new(of())),
            "map" => FieldType::Map(Box::new(of())),
            "object" => FieldType::Object(self.fields(node)),
            _ => FieldType::Json,
        }
    }

    fn decimal(&mut self, node: SyntaxNode<'t>) -> FieldType {
        let digits = |label: &str| node.get(label)?.word().parse::<u32>().ok();
        let both = digits("precision").zip(digits("scale"));
        let is_given = node.has("precision");
        let fits = both
            .is_some_and(|(precision, scale)| (1..=28).contains(&precision) && scale <= precision);
        if is_given && !fits {
            let message =
                "a decimal has 1 to 28 digits, and at most as many of them behind the point";
            self.found("TG0310", node.span(), message);
        }
        FieldType::Decimal(both)
    }
}

/// The names of a list of fields under a label.
pub(super) fn paths(node: SyntaxNode<'_>, label: &str) -> Vec<String> {
    node.get(label).map_or(Vec::new(), |fields| {
        fields.all("path").map(SyntaxNode::name).collect()
    })
}

/// A literal of the text.
pub(super) fn literal(node: SyntaxNode<'_>) -> LiteralPlan {
    match node.word() {
        "true" => LiteralPlan::Boolean(true),
        "false" => LiteralPlan::Boolean(false),
        _ if node.is_text() => LiteralPlan::Text(node.unquoted()),
        _ => LiteralPlan::Number(node.words().concat()),
    }
}

fn number(text: &str) -> Option<rust_decimal::Decimal> {
    text.parse().ok()
}

const fn is_number(kind: &FieldType) -> bool {
    matches!(
        kind,
        FieldType::Integer | FieldType::Double | FieldType::Decimal(_)
    )
}

/// Whether a literal can be a value of a type.
pub(super) fn fits_type(literal: &LiteralPlan, kind: &FieldType) -> bool {
    match literal {
        LiteralPlan::Boolean(_) => matches!(kind, FieldType::Boolean | FieldType::Json),
        LiteralPlan::Number(digits) => {
            let is_whole = !digits.contains('.');
            let is_exact = !matches!(kind, FieldType::Decimal(_)) || number(digits).is_some();
            kind == &FieldType::Json
                || (is_number(kind) && is_exact && (is_whole || *kind != FieldType::Integer))
        }
        LiteralPlan::Text(text) => match kind {
            FieldType::Timestamp => text.parse::<jiff::Timestamp>().is_ok(),
            FieldType::Date => text.parse::<jiff::civil::Date>().is_ok(),
            FieldType::Uuid => text.parse::<uuid::Uuid>().is_ok(),
            FieldType::Decimal(_) => number(text).is_some(),
            FieldType::String | FieldType::Bytes | FieldType::Json => true,
            FieldType::Integer | FieldType::Double | FieldType::Boolean => false,
            FieldType::List(_) | FieldType::Map(_) | FieldType::Object(_) => false,
        },
    }
}
