//! Calls of functions and macros.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "any other type is refused, also one that is added later"
)]

use regex::RegexBuilder;
use tidegate_config::nearest;

use super::operations::{constant, listed, short};
use super::{Checker, MAX_PATTERN_BYTES, Typed, WRONG};
use crate::expression::functions::{CallStyle, FUNCTIONS, Function, FunctionRow, MACROS, contains};
use crate::expression::node::{ExpressionNode, Loop, LoopKind};
use crate::expression::parser::{Syntax, SyntaxKind};
use crate::value::{FlowType, FlowValue};

impl Checker<'_> {
    pub(super) fn call(
        &mut self,
        syntax: &Syntax,
        target: Option<&Syntax>,
        name: &str,
        arguments: &[Syntax],
    ) -> Typed {
        if let (None, "has") = (target, name) {
            return self.has(syntax, arguments);
        }
        if let (Some(range), true) = (target, MACROS.contains(&name)) {
            return self.comprehension(syntax, range, name, arguments);
        }
        if let (None, Some(signature)) = (target, self.scope.functions.get(name)) {
            let typed: Vec<Typed> = arguments.iter().map(|a| self.node(a)).collect();
            let fits = typed.len() == signature.parameters.len()
                && typed
                    .iter()
                    .zip(&signature.parameters)
                    .all(|((_, a), b)| a.fits(b));
            let nodes = typed.iter().map(|(node, _)| node.clone()).collect();
            if !fits {
                let wanted = listed(signature.parameters.iter());
                let found = listed(typed.iter().map(|(_, kind)| kind));
                let message = format!("`{name}` takes ({wanted}), not ({found})");
                return self.wrong_type(syntax, message, None);
            }
            return (
                ExpressionNode::Registered(name.to_owned(), nodes),
                signature.result.clone(),
            );
        }
        let typed: Vec<Typed> = target
            .into_iter()
            .chain(arguments)
            .map(|a| self.node(a))
            .collect();
        let is_named = |row: &&FunctionRow| {
            let has_style = match row.style {
                CallStyle::Both => true,
                CallStyle::Global => target.is_none(),
                CallStyle::Method => target.is_some(),
            };
            row.name == name && has_style
        };
        let rows: Vec<&FunctionRow> = FUNCTIONS.iter().filter(is_named).collect();
        let row = rows.iter().find(|row| {
            row.parameters.len() == typed.len()
                && row
                    .parameters
                    .iter()
                    .zip(&typed)
                    .all(|(set, (_, kind))| contains(*set, kind))
        });
        match row {
            Some(row) => self.built_in(syntax, row, typed),
            None if rows.is_empty() => self.unknown_function(syntax, target.is_some(), name),
            None => {
                let found = listed(typed.iter().map(|(_, kind)| kind));
                let is_double = matches!(typed.as_slice(), [(_, FlowType::Double)]);
                let help = (name == "decimal" && is_double).then_some(
                    "a double is not exact; give the digits as text: `decimal(\"0.10\")`",
                );
                self.wrong_type(syntax, format!("`{name}` does not take ({found})"), help)
            }
        }
    }

    fn unknown_function(&mut self, syntax: &Syntax, is_method: bool, name: &str) -> Typed {
        let built_in = FUNCTIONS.iter().map(|row| row.name).chain(MACROS);
        let registered = self.scope.functions.keys().map(String::as_str);
        let help = match nearest(name, built_in.chain(registered)) {
            Some(near) if near != name => Some(format!("did you mean `{near}`?")),
            Some(_) if is_method => Some(format!("it is called as `{name}(x)`")),
            Some(_) => Some(format!("it is called as `x.{name}()`")),
            None => None,
        };
        let help = match name {
            "lookup" => Some("write the step `enrich using NAME on …`".to_owned()),
            _ => help,
        };
        self.found(
            "TG0012",
            syntax,
            format!("there is no function `{name}`"),
            help,
        );
        WRONG
    }

    fn built_in(&mut self, syntax: &Syntax, row: &FunctionRow, typed: Vec<Typed>) -> Typed {
        let kind = row.result.clone();
        let mut nodes: Vec<ExpressionNode> = typed.into_iter().map(|(node, _)| node).collect();
        if row.function == Function::ToDecimal
            && let [ExpressionNode::Field(path)] = nodes.as_mut_slice()
            && path.kind == FlowType::Dynamic
        {
            // The digits are still there: they are read as a decimal and never as a double.
            path.kind = FlowType::Decimal;
            return (nodes.remove(0), kind);
        }
        if let (Function::Matches, [_, ExpressionNode::Constant(FlowValue::String(pattern))]) =
            (row.function, nodes.as_slice())
        {
            return match RegexBuilder::new(pattern)
                .size_limit(MAX_PATTERN_BYTES)
                .build()
            {
                Ok(regex) => (
                    ExpressionNode::Matches(Box::new(nodes.remove(0)), regex),
                    kind,
                ),
                Err(error) => {
                    let message =
                        format!("the pattern is not a regular expression: {}", short(&error));
                    self.found("TG0012", syntax, message, None);
                    WRONG
                }
            };
        }
        let is_conversion = matches!(
            row.function,
            Function::ToDecimal | Function::ToTimestamp | Function::ToDuration
        );
        if is_conversion && matches!(nodes.as_slice(), [ExpressionNode::Constant(_)]) {
            let node = ExpressionNode::Call(row.function, nodes);
            return match constant(&node) {
                Ok(value) => (ExpressionNode::Constant(value), kind),
                Err(failure) => {
                    self.found("TG0012", syntax, failure.message, None);
                    WRONG
                }
            };
        }
        (ExpressionNode::Call(row.function, nodes), kind)
    }

    fn has(&mut self, syntax: &Syntax, arguments: &[Syntax]) -> Typed {
        let [
            Syntax {
                kind: SyntaxKind::Select(operand, name),
                ..
            },
        ] = arguments
        else {
            let help = Some("write `has(record.field)`".to_owned());
            self.found(
                "TG0012",
                syntax,
                "`has` needs one field, with a dot".to_owned(),
                help,
            );
            return WRONG;
        };
        let (node, kind) = self.node(operand);
        if self.field_of(&arguments[0], &kind, name).is_none() {
            return WRONG;
        }
        (
            ExpressionNode::Has(Box::new(node), name.clone()),
            FlowType::Boolean,
        )
    }

    fn comprehension(
        &mut self,
        syntax: &Syntax,
        range: &Syntax,
        name: &str,
        arguments: &[Syntax],
    ) -> Typed {
        let (variable, filter, body) = match (name, arguments) {
            (_, [variable, body]) => (variable, None, body),
            ("map", [variable, filter, body]) => (variable, Some(filter), body),
            _ => {
                let message = format!("`{name}` takes a name and an expression");
                self.found("TG0012", syntax, message, None);
                return WRONG;
            }
        };
        let SyntaxKind::Name(variable_name) = &variable.kind else {
            let message = format!("the first argument of `{name}` is the name of a variable");
            self.found("TG0012", variable, message, None);
            return WRONG;
        };
        let (range_node, range_kind) = self.node(range);
        let element = match &range_kind {
            FlowType::List(element) => (**element).clone(),
            FlowType::Map(_) | FlowType::Object(_) | FlowType::Dynamic => FlowType::Dynamic,
            other => {
                let message = format!("`{name}` needs a list or a map, this is {other}");
                return self.wrong_type(range, message, None);
            }
        };
        self.locals.push((variable_name.clone(), element.clone()));
        let filter = filter.map(|filter| self.condition(filter, "the filter of `map`"));
        let (kind, body, result) = match name {
            "map" => {
                let (body, kind) = self.node(body);
                (LoopKind::Map, body, FlowType::list(kind))
            }
            "filter" => (
                LoopKind::Filter,
                self.condition(body, "`filter`"),
                FlowType::list(element),
            ),
            "all" => (
                LoopKind::All,
                self.condition(body, "`all`"),
                FlowType::Boolean,
            ),
            "exists" => (
                LoopKind::Exists,
                self.condition(body, "`exists`"),
                FlowType::Boolean,
            ),
            _ => (
                LoopKind::ExistsOne,
                self.condition(body, "`exists_one`"),
                FlowType::Boolean,
            ),
        };
        self.locals.pop();
        let range = range_node;
        (
            ExpressionNode::Loop(Box::new(Loop {
                kind,
                range,
                filter,
                body,
            })),
            result,
        )
    }
}
