//! The steps that make one stream of several: join, merge, await and hold.

use std::collections::BTreeMap;

use super::declarations::paths;
use super::expressions::{last_name, path_type};
use super::process::{Aggregable, FlowStream, ProcessChecker};
use crate::plan::{CompletePlan, HoldInputPlan, JoinKind, OperatorPlan, StateKind, StepPlan};
use crate::syntax::SyntaxNode;
use crate::value::{FlowType, ObjectType};

impl<'t> ProcessChecker<'_, 't> {
    pub(super) fn combine(&mut self, node: SyntaxNode<'t>) {
        let before = self.aggregable;
        self.check_window_has_result(node, before);
        self.aggregable = Aggregable::Nothing;
        match node.word() {
            "merge" => self.merge(node),
            "hold" => self.hold(node),
            _ => self.pair(node),
        }
    }

    /// Takes a stream by the name of a node, which no step has taken yet.
    fn take(&mut self, node: SyntaxNode<'t>) -> Option<(String, FlowStream)> {
        let name = node.name();
        let Some(stream) = self.streams.get(&name).cloned() else {
            let names: Vec<String> = self.streams.keys().cloned().collect();
            self.flows.unknown(
                "TG0103",
                node.span(),
                ("input", &name),
                names.iter().map(String::as_str),
            );
            return None;
        };
        if !self.live.contains(&name) {
            self.found(
                "TG0206",
                node.span(),
                format!("`{name}` is used by an earlier step already"),
            );
            return None;
        }
        self.live.retain(|other| *other != name);
        Some((name, stream))
    }

    /// Continues with the result of a step, under its `into` name or one from its inputs.
    fn result(&mut self, node: SyntaxNode<'t>, inputs: &[String], stream: FlowStream) -> String {
        let name = match node.get("into") {
            Some(into) => {
                if let Some(first) = self.streams.get(&into.name()) {
                    let also = Some(first.span);
                    self.found(
                        "TG0101",
                        into.span(),
                        format!("`{}` is declared twice", into.name()),
                    )
                    .also = also;
                }
                into.name()
            }
            None => inputs.join("+"),
        };
        self.live.push(name.clone());
        self.insert_stream(name.clone(), stream);
        name
    }

    fn push(
        &mut self,
        inputs: Vec<String>,
        output: String,
        state: Option<String>,
        repartition: Vec<String>,
        operator: OperatorPlan,
    ) {
        self.plan.steps.push(StepPlan {
            inputs,
            output,
            state,
            repartition,
            operator,
        });
    }

    /// The key fields of a result, taken from the first input; each must be in all inputs, with one type.
    fn keys(
        &mut self,
        fields: SyntaxNode<'t>,
        inputs: &[(String, FlowStream)],
    ) -> Vec<(String, FlowType)> {
        let mut keys = Vec::new();
        for path in fields.all("path") {
            let name = path.name();
            let mut first: Option<FlowType> = None;
            for (alias, stream) in inputs {
                match (path_type(&stream.record, &name), first.clone()) {
                    (None, _) => {
                        let message = format!("the key `{name}` is not a field of `{alias}`");
                        self.found("TG0304", path.span(), message);
                    }
                    (Some(kind), Some(other)) if !kind.fits(&other) => {
                        let message = format!(
                            "the key `{name}` is {other} in one input and {kind} in `{alias}`"
                        );
                        self.found("TG0304", path.span(), message);
                    }
                    (Some(kind), _) => {
                        first = first
                            .filter(|first| *first != FlowType::Dynamic)
                            .or(Some(kind))
                    }
                }
                if *alias == last_name(&name) {
                    let message = format!(
                        "`{alias}` is a key field and an alias: both would be one field of the result"
                    );
                    self.found("TG0101", path.span(), message);
                }
            }
            keys.push((
                last_name(&name).to_owned(),
                first.unwrap_or(FlowType::Dynamic),
            ));
        }
        keys
    }

    /// `join` and `await`: two inputs become pairs.
    fn pair(&mut self, node: SyntaxNode<'t>) {
        let is_await = node.word() == "await";
        let (Some(left_node), Some(right_node)) = (node.get("left"), node.get("right")) else {
            return;
        };
        if left_node.name() == right_node.name() {
            let code = if is_await { "TG0501" } else { "TG0205" };
            let message = format!("`{}` needs two different inputs", node.word());
            self.found(code, right_node.span(), message);
            return;
        }
        let (left, right) = (self.take(left_node), self.take(right_node));
        let span = node.head();
        let timeout_ms = self.above_zero(node.get(if is_await { "timeout" } else { "within" }));
        let on_timeout = node.get("leave").map(|leave| self.leave(leave));
        let (Some((left, left_stream)), Some((right, right_stream))) = (left, right) else {
            // Which input was meant is not known, so the rest is checked against anything.
            self.live
                .retain(|name| ![left_node.name(), right_node.name()].contains(name));
            let stream = FlowStream {
                record: ObjectType::open(),
                key: None,
                fields: Vec::new(),
                span,
            };
            self.live.clear();
            self.result(node, &[left_node.name(), right_node.name()], stream);
            return;
        };
        let inputs = vec![left.clone(), right.clone()];
        let mut both = [(left.clone(), left_stream), (right.clone(), right_stream)];
        let mut fields = node.get("on").map_or(Vec::new(), |on| self.keys(on, &both));
        for (alias, stream) in &both {
            fields.push((
                alias.clone(),
                FlowType::Object(stream.record.clone().into()),
            ));
        }
        if is_await {
            fields.push(("correlation_latency".to_owned(), FlowType::Integer));
        }
        let on = paths(node, "on");
        let mut repartition = Vec::new();
        for (alias, stream) in &mut both {
            self.rekey(alias, stream, &on, &mut repartition);
        }
        let kind = if is_await {
            StateKind::Await
        } else {
            StateKind::Join
        };
        // Only the first input of an await waits.
        let kept: Vec<&FlowStream> = both
            .iter()
            .take(if is_await { 1 } else { 2 })
            .map(|(_, stream)| stream)
            .collect();
        let id = format!("{}/{left}/{right}", node.word());
        let state = self.step_state(node, id, kind, &on, timeout_ms, &kept);
        let operator = match on_timeout {
            Some(on_timeout) => OperatorPlan::Await {
                on: on.clone(),
                timeout_ms,
                on_timeout,
            },
            None => OperatorPlan::Join {
                on: on.clone(),
                within_ms: timeout_ms,
                join: match node.get("type").map_or("inner", SyntaxNode::word) {
                    "left" => JoinKind::Left,
                    "right" => JoinKind::Right,
                    "outer" => JoinKind::Outer,
                    _ => JoinKind::Inner,
                },
            },
        };
        let stream = FlowStream {
            record: ObjectType::closed(fields),
            key: Some(on),
            fields: Vec::new(),
            span,
        };
        let output = self.result(node, &inputs, stream);
        self.push(inputs, output, Some(state), repartition, operator);
    }

    fn merge(&mut self, node: SyntaxNode<'t>) {
        let mut seen = Vec::new();
        let mut streams = Vec::new();
        for input in node.all("input") {
            if seen.contains(&input.name()) {
                self.found(
                    "TG0205",
                    input.span(),
                    format!("`{}` is merged with itself", input.name()),
                );
                continue;
            }
            seen.push(input.name());
            streams.extend(self.take(input));
        }
        // Fields that all inputs have with one type are known; the others are there or not.
        let mut record = streams
            .first()
            .map_or_else(ObjectType::open, |(_, stream)| stream.record.clone());
        for (_, stream) in streams.iter().skip(1) {
            record
                .fields
                .retain(|name, kind| stream.record.fields.get(name) == Some(kind));
            record.is_open |=
                stream.record.is_open || stream.record.fields.len() != record.fields.len();
        }
        record.is_open |= streams
            .iter()
            .any(|(_, stream)| stream.record.fields.len() != record.fields.len());
        let key = streams.first().and_then(|(_, stream)| stream.key.clone());
        let key = key.filter(|key| {
            streams
                .iter()
                .all(|(_, stream)| stream.key.as_ref() == Some(key))
        });
        let inputs: Vec<String> = streams.into_iter().map(|(name, _)| name).collect();
        let stream = FlowStream {
            record,
            key,
            fields: Vec::new(),
            span: node.head(),
        };
        let output = self.result(node, &inputs, stream);
        self.push(inputs, output, None, Vec::new(), OperatorPlan::Merge);
    }

    /// Connects holds with the inputs that feed them, wherever they stand.
    pub(super) fn holds_and_their_inputs(&mut self) {
        let steps = self.node.all("step").filter(|step| step.word() == "hold");
        let mut holds: BTreeMap<String, SyntaxNode<'t>> = BTreeMap::new();
        for hold in steps {
            let Some(name) = hold.get("buffer").or_else(|| hold.get("name")) else {
                continue;
            };
            if hold.has("buffer")
                && let Some(alias) = hold.get("name")
            {
                match self
                    .plan
                    .sources
                    .iter_mut()
                    .find(|source| source.alias == alias.name())
                {
                    Some(source) => {
                        let (key, hold) = (paths(hold, "keyed"), name.name());
                        source.hold = Some(HoldInputPlan {
                            hold,
                            key,
                            is_marker: false,
                        });
                    }
                    None => {
                        let names: Vec<String> = self.streams.keys().cloned().collect();
                        self.flows.unknown(
                            "TG0103",
                            alias.span(),
                            ("input", &alias.name()),
                            names.iter().map(String::as_str),
                        );
                    }
                }
            }
            if holds.insert(name.name(), hold).is_some() {
                self.found(
                    "TG0101",
                    name.span(),
                    format!("the hold `{}` is declared twice", name.name()),
                );
            }
        }
        for receive in self.node.all("receive") {
            let Some(buffer) = receive.get("store").or_else(|| receive.get("match")) else {
                continue;
            };
            let name = buffer.name();
            let Some(hold) = holds.get(&name) else {
                if holds.is_empty() && !self.node.tree().is_skipped(&name) {
                    self.found(
                        "TG0504",
                        buffer.span(),
                        format!("there is no `hold {name}` in this process"),
                    );
                } else {
                    self.flows.unknown(
                        "TG0104",
                        buffer.span(),
                        ("hold", &name),
                        holds.keys().map(String::as_str),
                    );
                }
                continue;
            };
            let completes = hold
                .get("complete")
                .is_some_and(|complete| complete.has("marker"));
            if let Some(marker) = receive.get("marker").filter(|_| !completes) {
                self.found(
                    "TG0505",
                    marker.span(),
                    format!("`hold {name}` is not completed by a marker"),
                );
            }
            let key = paths(*hold, "keyed");
            for source in &mut self.plan.sources {
                if let Some(input) = source
                    .hold
                    .as_mut()
                    .filter(|input| input.hold == name && input.key.is_empty())
                {
                    input.key.clone_from(&key);
                }
            }
        }
    }

    fn hold(&mut self, node: SyntaxNode<'t>) {
        let Some(name_node) = node.get("buffer").or_else(|| node.get("name")) else {
            return;
        };
        let name = name_node.name();
        let feeds = self
            .plan
            .sources
            .iter()
            .filter(|source| source.hold.as_ref().is_some_and(|hold| hold.hold == name));
        let sources: Vec<(String, HoldInputPlan)> = feeds
            .filter_map(|source| Some((source.alias.clone(), source.hold.clone()?)))
            .collect();
        if sources.is_empty() && !self.node.tree().is_broken(self.node) {
            self.found(
                "TG0504",
                name_node.span(),
                format!("no input feeds `hold {name}`"),
            );
        }
        let inputs: Vec<String> = sources.iter().map(|(alias, _)| alias.clone()).collect();
        self.live.retain(|live| !inputs.contains(live));
        let mut streams: Vec<(String, FlowStream)> = Vec::new();
        for alias in &inputs {
            streams.extend(
                self.streams
                    .get(alias)
                    .map(|stream| (alias.clone(), stream.clone())),
            );
        }
        let key = paths(node, "keyed");
        let mut fields = node
            .get("keyed")
            .map_or(Vec::new(), |keyed| self.keys(keyed, &streams));
        for (alias, stream) in &streams {
            fields.push((
                alias.clone(),
                FlowType::list(FlowType::Object(stream.record.clone().into())),
            ));
        }
        fields.push(("count".to_owned(), FlowType::Integer));
        let is_on_timeout = node.has("on_timeout");
        if is_on_timeout {
            fields.push(("reason".to_owned(), FlowType::String));
        }
        if let Some(extra) = node.get("extra") {
            self.found(
                "TG0506",
                extra.span(),
                "the timeout completes this hold, so it takes no action",
            );
        }
        let record = ObjectType::closed(fields);
        let complete = match node.get("complete") {
            _ if is_on_timeout => CompletePlan::Timeout,
            None => {
                self.found(
                    "TG0508",
                    node.head(),
                    format!("`hold {name}` never completes: every entry takes the timeout action"),
                );
                CompletePlan::Never
            }
            Some(complete) => self.completion_of(complete, &record, &sources),
        };
        let timeout_ms = self.above_zero(node.get("timeout"));
        let on_timeout = node.get("leave").map(|leave| self.leave(leave));
        let mut repartition = Vec::new();
        for (alias, stream) in &mut streams {
            self.rekey(alias, stream, &key, &mut repartition);
        }
        let kept: Vec<&FlowStream> = streams.iter().map(|(_, stream)| stream).collect();
        let order = self.buffer_order(&name);
        let state = self.step_state(
            node,
            format!("hold/{name}"),
            StateKind::Hold(order),
            &key,
            timeout_ms,
            &kept,
        );
        let stream = FlowStream {
            record,
            key: Some(key.clone()),
            fields: Vec::new(),
            span: node.head(),
        };
        let output = self.result(node, std::slice::from_ref(&name), stream);
        let operator = OperatorPlan::Hold {
            hold: name,
            key,
            complete,
            timeout_ms,
            on_timeout,
        };
        self.push(inputs, output, Some(state), repartition, operator);
        self.aggregable = Aggregable::Hold;
    }

    fn completion_of(
        &mut self,
        node: SyntaxNode<'t>,
        record: &ObjectType,
        sources: &[(String, HoldInputPlan)],
    ) -> CompletePlan {
        if let Some(marker) = node.get("marker") {
            if !sources.iter().any(|(_, input)| input.is_marker) {
                self.found(
                    "TG0505",
                    marker.span(),
                    "no input of this hold is received `as marker`",
                );
            }
            return CompletePlan::Marker;
        }
        if let Some(rule) = node.get("rule") {
            let scope = self.scope(record);
            return match self.flows.using(rule, &scope) {
                Some(used) => {
                    self.has_registered |= used.is_registered;
                    CompletePlan::Rule(used.plan)
                }
                None => CompletePlan::Never,
            };
        }
        CompletePlan::Count(node.get("count").and_then(SyntaxNode::int).unwrap_or(1))
    }

    /// The order of the declared buffer of a hold.
    fn buffer_order(&self, hold: &str) -> Option<String> {
        let mut buffers = self.state_decls("buffer");
        let buffer =
            buffers.find(|buffer| buffer.get("name").is_some_and(|name| name.name() == hold))?;
        Some(buffer.get("type")?.words().join(" "))
    }
}
