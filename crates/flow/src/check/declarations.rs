//! Names of the deployment: schemas, lookups, transforms, tables and processes.

use std::collections::BTreeMap;

use super::FlowChecker;
use super::expansion::PATTERN;
use crate::Span;
use crate::plan::{
    ConstraintPlan, FieldPlan, FieldType, LiteralPlan, LookupPlan, PatternPlan, SchemaPlan,
    has_fitting_default,
};
use crate::syntax::{MAX_FIELDS, SyntaxNode as Node};

/// A declared name.
#[derive(Clone, Copy)]
pub(super) struct Declaration<'t> {
    /// The label of its node: `process`, `schema`, `lookup`, `transform` or `decision`.
    pub(super) kind: &'static str,
    pub(super) node: Node<'t>,
}

impl Declaration<'_> {
    /// Whether a part of it could not be read.
    pub(super) fn is_broken(&self) -> bool {
        self.node.tree().is_broken(self.node)
    }
}

/// The kind of a declaration as messages name it.
pub(super) fn kind_text(kind: &str) -> &str {
    match kind {
        "decision" => "decision table",
        kind => kind,
    }
}

impl<'t> FlowChecker<'t> {
    /// Collects all names, and the shapes of schemas and lookups.
    pub(super) fn declarations(&mut self) {
        for node in self.trees.iter().flat_map(|tree| tree.root().children()) {
            let (name, kind) = (node.child("name"), node.label());
            let text = name.name();
            if let Some(first) = self.names.get(&text).copied() {
                let (was, is) = (kind_text(first.kind), kind_text(kind));
                let message = format!("`{text}` is declared twice: as {was} and as {is}");
                self.found("TG0101", name, message).also = Some(first.node.child("name").span());
                continue;
            }
            if self.registered.has(&text) {
                let message = format!("`{text}` is registered in Rust, too");
                self.found("TG0106", name, message);
            }
            self.names.insert(text, Declaration { kind, node });
        }
        for (name, Declaration { kind, node }) in self.names.clone() {
            if kind == "schema" {
                let schema = self.schema(node);
                self.plan.schemas.insert(name, schema);
            } else if kind == "lookup" {
                let (key, fields) = (node.path_names("key"), self.fields(node));
                self.plan.lookups.insert(name, LookupPlan { key, fields });
            }
        }
    }

    fn schema(&mut self, node: Node<'t>) -> SchemaPlan {
        let fields = self.fields(node);
        let kinds: BTreeMap<&str, &FieldType> = fields
            .iter()
            .map(|field| (field.name.as_str(), &field.kind))
            .collect();
        for path in node.paths("key").chain(node.get("time")) {
            let name = path.name();
            let kind = kinds.get(name.as_str()).copied();
            if kind.is_none() && !node.tree().is_broken(node) && !self.is_silent("TG0301", path) {
                let names = fields.iter().map(|field| field.name.clone());
                self.unknown("TG0301", path, "field", names.collect());
            }
            let is_time = kind.is_none_or(|kind| *kind == FieldType::Timestamp);
            if path.label() == "time" && !is_time {
                self.found("TG0303", path, format!("`{name}` is not a timestamp"));
            }
        }
        SchemaPlan {
            version: node.get("version").map(Node::unquoted),
            key: node.path_names("key"),
            time: node.get("time").map(Node::name),
            fields,
        }
    }

    fn fields(&mut self, node: Node<'t>) -> Vec<FieldPlan> {
        let mut fields = Vec::new();
        for field in node.all("field") {
            if fields.len() == MAX_FIELDS {
                self.too_many_fields(field.span());
                break;
            }
            fields.push(self.field(field));
        }
        fields
    }

    /// Each step looks at all fields of its record, so their number has a limit.
    pub(super) fn too_many_fields(&mut self, span: Span) {
        let message = format!("the record has more than {MAX_FIELDS} fields, the limit `fields`");
        self.found("TG0016", span, message);
    }

    fn field(&mut self, node: Node<'t>) -> FieldPlan {
        let mut field = FieldPlan {
            name: node.child("field").name(),
            kind: self.field_type(node.child("type")),
            optional: false,
            default: None,
            constraints: Vec::new(),
        };
        let kind = field.kind.clone();
        let mut are_right = true;
        for modifier in node.all("modifier") {
            let bounds = ["from", "to"].map(|label| modifier.child(label).words().concat());
            let (fits, constraint) = match modifier.word() {
                "optional" => {
                    field.optional = true;
                    (true, None)
                }
                "default" => {
                    let default = literal(modifier.child("default"));
                    let fits = fits_type(&default, &kind);
                    field.default = Some(default);
                    (fits, None)
                }
                "range" => {
                    let [from, to] = bounds;
                    let fits = is_number(&kind) && number(&from) <= number(&to);
                    (fits, Some(ConstraintPlan::Range(from, to)))
                }
                "length" => {
                    let [from, to] = bounds.map(|bound| bound.parse().ok());
                    let fits = kind == FieldType::String && from <= to;
                    let bounds = from.zip(to);
                    (
                        fits,
                        bounds.map(|(from, to)| ConstraintPlan::Length(from, to)),
                    )
                }
                "pattern" => {
                    let pattern = modifier.child("pattern").unquoted();
                    let pattern = self.pattern(modifier, pattern);
                    let fits = kind == FieldType::String && pattern.is_some();
                    (fits, pattern.map(ConstraintPlan::Pattern))
                }
                _ => {
                    let values: Vec<LiteralPlan> = modifier.all("value").map(literal).collect();
                    let fits = values.iter().all(|value| fits_type(value, &kind));
                    (fits, Some(ConstraintPlan::Values(values)))
                }
            };
            field.constraints.extend(constraint);
            if !fits {
                let (word, name) = (modifier.word(), &field.name);
                let message = format!("this `{word}` does not fit the type of `{name}`");
                self.found("TG0310", modifier, message);
                are_right = false;
            }
        }
        if are_right && !has_fitting_default(&field) {
            let message = format!("`{}` may not have its default as a value", field.name);
            self.found("TG0310", node, message);
        }
        field
    }

    /// The pattern of a modifier; none where it is no regular expression.
    fn pattern(&mut self, modifier: Node<'t>, text: String) -> Option<PatternPlan> {
        self.pay(modifier.span(), PATTERN);
        if self.is_exhausted() {
            return Some(PatternPlan::default());
        }
        match PatternPlan::new(text) {
            Ok(pattern) => Some(pattern),
            Err(regex::Error::CompiledTooBig(bytes)) => {
                let message = format!(
                    "the pattern has more than {bytes} bytes when it is compiled, the limit `pattern`"
                );
                self.found("TG0016", modifier, message);
                Some(PatternPlan::default())
            }
            Err(_) => None,
        }
    }

    fn field_type(&mut self, node: Node<'t>) -> FieldType {
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
            "list" => FieldType::List(Box::new(self.field_type(node.child("of")))),
            "map" => FieldType::Map(Box::new(self.field_type(node.child("of")))),
            "object" => FieldType::Object(self.fields(node)),
            _ => FieldType::Json,
        }
    }

    fn decimal(&mut self, node: Node<'t>) -> FieldType {
        let digits = |label: &str| node.get(label)?.word().parse::<u32>().ok();
        let both = digits("precision").zip(digits("scale"));
        let fits = both.is_some_and(|(all, scale)| (1..=28).contains(&all) && scale <= all);
        if node.has("precision") && !fits {
            let message =
                "a decimal has 1 to 28 digits, and at most as many of them behind the point";
            self.found("TG0310", node, message);
        }
        FieldType::Decimal(both)
    }
}

/// A literal of the text.
pub(super) fn literal(node: Node<'_>) -> LiteralPlan {
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
            let fits = is_number(kind) && is_exact && (is_whole || *kind != FieldType::Integer);
            fits || *kind == FieldType::Json
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
