//! Calls of functions and macros.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "any other type is refused, also one that is added later"
)]

use tidegate_config::nearest;

use super::operations::{constant, listed, short};
use super::{Checker, Typed, WRONG};
use crate::expression::functions::{FUNCTIONS, FunctionRow, MACROS};
use crate::expression::library::pattern;
use crate::expression::node::{ExpressionNode as Node, Loop, LoopKind};
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
        let all = target.into_iter().chain(arguments);
        let (nodes, kinds): (Vec<_>, Vec<_>) = all.map(|a| self.node(a)).unzip();
        let found = listed(&kinds);
        if let (None, Some(signature)) = (target, self.scope.functions.get(name)) {
            let mut pairs = kinds.iter().zip(&signature.parameters);
            let is_full = kinds.len() == signature.parameters.len();
            if !is_full || !pairs.all(|(kind, wanted)| kind.fits(wanted)) {
                let wanted = listed(&signature.parameters);
                let message = format!("`{name}` takes ({wanted}), not ({found})");
                return self.wrong_type(syntax, message, None);
            }
            let call = Node::Registered(name.to_owned(), nodes);
            return (call, signature.result.clone());
        }
        let is_method = target.is_some();
        let mut rows = FUNCTIONS
            .iter()
            .filter(|row| row.is_called(name, is_method));
        let Some(first) = rows.next() else {
            return self.unknown_function(syntax, is_method, name);
        };
        let mut rows = std::iter::once(first).chain(rows);
        if let Some(row) = rows.find(|row| row.takes(kinds.iter())) {
            return self.built_in(syntax, row, nodes);
        }
        let is_double = name == "decimal" && kinds == [FlowType::Double];
        let help = "a double is not exact; give the digits as text: `decimal(\"0.10\")`";
        let message = format!("`{name}` does not take ({found})");
        self.wrong_type(syntax, message, is_double.then_some(help))
    }

    fn unknown_function(&mut self, syntax: &Syntax, is_method: bool, name: &str) -> Typed {
        let built_in = FUNCTIONS.iter().map(|row| row.name);
        let built_in = built_in.chain(MACROS).chain(["has"]);
        let registered = self.scope.functions.keys().map(String::as_str);
        let help = match nearest(name, built_in.chain(registered)) {
            _ if name == "lookup" => Some("write the step `enrich using NAME on …`".to_owned()),
            Some(near) if near != name => Some(format!("did you mean `{near}`?")),
            Some(_) if is_method => Some(format!("it is called as `{name}(x)`")),
            Some(_) => Some(format!("it is called as `x.{name}()`")),
            None => None,
        };
        self.wrong(syntax, format!("there is no function `{name}`"), help)
    }

    fn built_in(
        &mut self,
        syntax: &Syntax,
        row: &'static FunctionRow,
        mut nodes: Vec<Node>,
    ) -> Typed {
        let kind = row.result.clone();
        match (row.name, nodes.as_mut_slice()) {
            ("decimal", [Node::Field(path)]) if path.kind == FlowType::Dynamic => {
                // The digits are still there: they are read as a decimal and never as a double.
                path.kind = FlowType::Decimal;
                (nodes.remove(0), kind)
            }
            ("matches", [_, Node::Constant(FlowValue::String(written))]) => {
                match pattern(written) {
                    Ok(regex) => {
                        let text = Box::new(nodes.remove(0));
                        (Node::Matches(text, regex), kind)
                    }
                    Err(error) => {
                        let error = short(&error);
                        let message = format!("the pattern is not a regular expression: {error}");
                        self.wrong(syntax, message, None)
                    }
                }
            }
            ("decimal" | "timestamp" | "duration", [Node::Constant(_)]) => {
                match constant(&Node::Call(row, nodes)) {
                    Ok(value) => (Node::Constant(value), kind),
                    Err(failure) => self.wrong(syntax, failure.message, None),
                }
            }
            _ => (Node::Call(row, nodes), kind),
        }
    }

    fn has(&mut self, syntax: &Syntax, arguments: &[Syntax]) -> Typed {
        if let [field] = arguments
            && let SyntaxKind::Select(operand, name) = &field.kind
        {
            let (node, kind) = self.node(operand);
            if self.field_of(field, &kind, name).is_none() {
                return WRONG;
            }
            let has = Node::Has(Box::new(node), name.clone());
            return (has, FlowType::Boolean);
        }
        let help = Some("write `has(record.field)`".to_owned());
        let message = "`has` needs one field, with a dot".to_owned();
        self.wrong(syntax, message, help)
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
                return self.wrong(syntax, message, None);
            }
        };
        let SyntaxKind::Name(variable_name) = &variable.kind else {
            let message = format!("the first argument of `{name}` is the name of a variable");
            return self.wrong(variable, message, None);
        };
        let (range_node, range_kind) = self.node(range);
        let element = match &range_kind {
            FlowType::List(element) => (**element).clone(),
            kind if kind.has_fields() => FlowType::Dynamic,
            other => {
                let message = format!("`{name}` needs a list or a map, this is {other}");
                return self.wrong_type(range, message, None);
            }
        };
        self.locals.push((variable_name.clone(), element.clone()));
        let filter = filter.map(|filter| self.condition(filter, "the filter of `map`"));
        let (kind, user, result) = match name {
            "map" => (LoopKind::Map, "", FlowType::Dynamic),
            "filter" => (LoopKind::Filter, "`filter`", FlowType::list(element)),
            "all" => (LoopKind::All, "`all`", FlowType::Boolean),
            "exists" => (LoopKind::Exists, "`exists`", FlowType::Boolean),
            _ => (LoopKind::ExistsOne, "`exists_one`", FlowType::Boolean),
        };
        let (body, result) = match kind {
            LoopKind::Map => {
                let (body, kind) = self.node(body);
                (body, FlowType::list(kind))
            }
            _ => (self.condition(body, user), result),
        };
        self.locals.pop();
        let parts = Loop {
            kind,
            range: range_node,
            filter,
            body,
        };
        (Node::Loop(Box::new(parts)), result)
    }
}
