//! The steps that make one stream of several: join, merge, await and hold.

use std::collections::{BTreeMap, BTreeSet};

use super::expressions::path_type;
use super::process::{Aggregable, FlowStream, ProcessChecker};
use super::transforms::UsingPlace;
use crate::plan::{CompletePlan, HoldInputPlan, JoinKind, OperatorPlan, StateKind};
use crate::syntax::SyntaxNode as Node;
use crate::value::paths::last_name;
use crate::value::{FlowType, ObjectType};

/// A stream and its name.
type Input = (String, FlowStream);

fn names_of(inputs: &[Input]) -> Vec<String> {
    inputs.iter().map(|(alias, _)| alias.clone()).collect()
}

impl<'t> ProcessChecker<'_, 't> {
    pub(super) fn combine(&mut self, node: Node<'t>) {
        self.check_window_has_result(node, self.aggregable);
        self.aggregable = Aggregable::Nothing;
        match node.word() {
            "merge" => self.merge(node),
            "hold" => self.hold(node),
            _ => self.pair(node),
        }
    }

    /// Takes a stream by the name of a node, which no step has taken yet.
    fn take(&mut self, node: Node<'t>) -> Option<(String, FlowStream)> {
        let name = node.name();
        let Some(stream) = self.streams.get(&name).cloned() else {
            let names = self.streams.keys().cloned().collect();
            self.flows.unknown("TG0103", node, "input", names);
            return None;
        };
        let Some(at) = self.live.iter().position(|live| *live == name) else {
            let message = format!("`{name}` is used by an earlier step already");
            self.found("TG0206", node, message);
            return None;
        };
        self.live.remove(at);
        Some((name, stream))
    }

    /// Continues with the result of a step, under its `into` name or one from its inputs.
    fn result(&mut self, node: Node<'t>, inputs: &[String], stream: FlowStream) -> String {
        let into = node.child("into").name();
        if let Some(first) = self.streams.get(&into).map(|first| first.span) {
            let message = format!("`{into}` is declared twice");
            self.found("TG0101", node.child("into"), message).also = Some(first);
        }
        let name = match into.is_empty() {
            true => inputs.join("+"),
            false => into,
        };
        self.live.push(name.clone());
        self.insert_stream(name.clone(), stream);
        name
    }

    /// The key fields of a result, taken from the first input; each must be in all inputs, with one type.
    fn keys(&mut self, node: Node<'t>, label: &str, inputs: &[Input]) -> Vec<(String, FlowType)> {
        let mut keys = Vec::new();
        for path in node.paths(label) {
            let name = path.name();
            let mut first: Option<FlowType> = None;
            for (alias, stream) in inputs {
                let kind = path_type(&stream.record, &name);
                let message = match (&kind, &first) {
                    (None, _) => Some(format!("the key `{name}` is not a field of `{alias}`")),
                    (Some(kind), Some(other)) if !kind.fits(other) => Some(format!(
                        "the key `{name}` is {other} in one input and {kind} in `{alias}`"
                    )),
                    _ => None,
                };
                if let Some(message) = message {
                    self.found("TG0304", path, message);
                } else if first.is_none() || first == Some(FlowType::Dynamic) {
                    first = kind;
                }
                if *alias == last_name(&name) {
                    let message = format!(
                        "`{alias}` is a key field and an alias: both would be one field of the result"
                    );
                    self.found("TG0101", path, message);
                }
            }
            let kind = first.unwrap_or(FlowType::Dynamic);
            self.flows.new_name(path, &keys);
            keys.push((last_name(&name).to_owned(), kind));
        }
        keys
    }

    /// `join` and `await`: two inputs become pairs.
    fn pair(&mut self, node: Node<'t>) {
        let (word, is_await) = (node.word(), node.word() == "await");
        let (left, right) = (node.child("left"), node.child("right"));
        if left.name() == right.name() {
            let code = if is_await { "TG0501" } else { "TG0205" };
            self.found(code, right, format!("`{word}` needs two different inputs"));
            return;
        }
        let taken = [self.take(left), self.take(right)];
        let span = node.head();
        let timeout_ms = self.above_zero(node.child(if is_await { "timeout" } else { "within" }));
        let on_timeout = node.get("leave").map(|leave| self.leave(leave));
        let [Some(left_input), Some(right_input)] = taken else {
            // Which input was meant is not known, so the rest is checked against anything.
            let stream = FlowStream::new(ObjectType::open(), None, span);
            self.live.clear();
            self.result(node, &[left.name(), right.name()], stream);
            return;
        };
        let mut both = vec![left_input, right_input];
        let mut fields = self.keys(node, "on", &both);
        for (alias, stream) in &both {
            let side = FlowType::Object(stream.record.clone().into());
            fields.push((alias.clone(), side));
        }
        if is_await {
            let made = ["correlation_latency", "reason", "waited_duration"];
            self.made_fields(node, &made, &fields);
            fields.push(("correlation_latency".to_owned(), FlowType::Integer));
        }
        let on = node.path_names("on");
        let repartition = self.rekey_all(&mut both, &on);
        let (kind, join) = match (is_await, node.child("type").word()) {
            (true, _) => (StateKind::Await, JoinKind::Inner),
            (_, "left") => (StateKind::Join, JoinKind::Left),
            (_, "right") => (StateKind::Join, JoinKind::Right),
            (_, "outer") => (StateKind::Join, JoinKind::Outer),
            _ => (StateKind::Join, JoinKind::Inner),
        };
        // Only the first input of an await waits.
        let kept = both.iter().take(if is_await { 1 } else { 2 });
        let kept: Vec<&FlowStream> = kept.map(|(_, stream)| stream).collect();
        let inputs = names_of(&both);
        let id = format!("{word}/{}", inputs.join("/"));
        let state = self.step_state(node, id, kind, &on, timeout_ms, &kept);
        if !is_await {
            let of_type = node.get("type").map_or("inner", Node::word);
            self.made_by(&state, of_type.to_owned());
        }
        let stream = FlowStream::new(ObjectType::closed(fields), Some(on.clone()), span);
        let output = self.result(node, &inputs, stream);
        let operator = match on_timeout {
            Some(on_timeout) => OperatorPlan::Await {
                on,
                timeout_ms,
                on_timeout,
            },
            None => OperatorPlan::Join {
                on,
                within_ms: timeout_ms,
                join,
            },
        };
        self.push(inputs, output, Some(state), repartition, operator);
    }

    fn merge(&mut self, node: Node<'t>) {
        let mut seen = BTreeSet::new();
        let mut streams = Vec::<Input>::new();
        for input in node.all("input") {
            let name = input.name();
            if !seen.insert(name.clone()) {
                self.found("TG0205", input, format!("`{name}` is merged with itself"));
                continue;
            }
            streams.extend(self.take(input));
        }
        // Fields that all inputs have with one type are known; the others are there or not.
        let first = streams.first().map(|(_, stream)| stream.clone());
        let first = first.unwrap_or(FlowStream::new(ObjectType::open(), None, node.head()));
        let (mut record, mut key) = (first.record, first.key);
        for (_, stream) in &streams {
            let fields = &stream.record.fields;
            record
                .fields
                .retain(|name, kind| fields.get(name) == Some(kind));
            key = key.filter(|key| stream.key.as_ref() == Some(key));
        }
        record.is_open |= streams.iter().any(|(_, stream)| {
            stream.record.is_open || stream.record.fields.len() != record.fields.len()
        });
        let inputs = names_of(&streams);
        let output = self.result(node, &inputs, FlowStream::new(record, key, node.head()));
        self.push(inputs, output, None, Vec::new(), OperatorPlan::Merge);
    }

    /// Connects holds with the inputs that feed them, wherever they stand.
    pub(super) fn holds_and_their_inputs(&mut self) {
        let steps = self.node.all("step").filter(|step| step.word() == "hold");
        let mut holds: BTreeMap<String, Node<'t>> = BTreeMap::new();
        for hold in steps {
            let alias = hold.child("name");
            let name = hold.get("buffer").unwrap_or(alias);
            if hold.has("buffer") {
                let mut sources = self.plan.sources.iter_mut();
                if let Some(source) = sources.find(|source| source.alias == alias.name()) {
                    source.hold = Some(HoldInputPlan {
                        hold: name.name(),
                        key: hold.path_names("keyed"),
                        is_marker: false,
                    });
                } else {
                    let names = self.streams.keys().cloned().collect();
                    self.flows.unknown("TG0103", alias, "input", names);
                }
            }
            if holds.insert(name.name(), hold).is_some() {
                let message = format!("the hold `{}` is declared twice", name.name());
                self.found("TG0101", name, message);
            }
        }
        for receive in self.node.all("receive") {
            let Some(buffer) = receive.get("store").or_else(|| receive.get("match")) else {
                continue;
            };
            let name = buffer.name();
            let Some(hold) = holds.get(&name) else {
                if holds.is_empty() && !self.node.tree().is_skipped(&name) {
                    let message = format!("there is no `hold {name}` in this process");
                    self.found("TG0504", buffer, message);
                } else {
                    let names = holds.keys().cloned().collect();
                    self.flows.unknown("TG0104", buffer, "hold", names);
                }
                continue;
            };
            let completes = hold.child("complete").has("marker");
            if let Some(marker) = receive.get("marker").filter(|_| !completes) {
                let message = format!("`hold {name}` is not completed by a marker");
                self.found("TG0505", marker, message);
            }
            let sources = self.plan.sources.iter_mut();
            for input in sources.filter_map(|source| source.hold.as_mut()) {
                if input.hold == name && input.key.is_empty() {
                    input.key = hold.path_names("keyed");
                }
            }
        }
    }

    fn hold(&mut self, node: Node<'t>) {
        let name_node = node.get("buffer").unwrap_or(node.child("name"));
        let name = name_node.name();
        let mut streams = Vec::<Input>::new();
        let mut has_marker = false;
        for source in &self.plan.sources {
            let feeds = source.hold.as_ref().filter(|hold| hold.hold == name);
            if let (Some(input), Some(stream)) = (feeds, self.streams.get(&source.alias)) {
                has_marker |= input.is_marker;
                streams.push((source.alias.clone(), stream.clone()));
            }
        }
        if streams.is_empty() && !self.node.tree().is_broken(self.node) {
            self.found("TG0504", name_node, format!("no input feeds `hold {name}`"));
        }
        let inputs = names_of(&streams);
        self.live.retain(|live| !inputs.contains(live));
        let key = node.path_names("keyed");
        let mut fields = self.keys(node, "keyed", &streams);
        for (alias, stream) in &streams {
            let record = FlowType::Object(stream.record.clone().into());
            fields.push((alias.clone(), FlowType::list(record)));
        }
        self.made_fields(node, &["count", "reason"], &fields);
        fields.push(("count".to_owned(), FlowType::Integer));
        let is_on_timeout = node.has("on_timeout");
        if is_on_timeout {
            fields.push(("reason".to_owned(), FlowType::String));
        }
        if let Some(extra) = node.get("extra") {
            let message = "the timeout completes this hold, so it takes no action";
            self.found("TG0506", extra, message);
        }
        let record = ObjectType::closed(fields);
        let complete = match node.get("complete") {
            _ if is_on_timeout => CompletePlan::Timeout,
            None => {
                let message =
                    format!("`hold {name}` never completes: every entry takes the timeout action");
                self.found("TG0508", node.head(), message);
                CompletePlan::Never
            }
            Some(complete) => self.completion_of(complete, &record, has_marker),
        };
        let timeout_ms = self.above_zero(node.child("timeout"));
        let on_timeout = node.get("leave").map(|leave| self.leave(leave));
        let repartition = self.rekey_all(&mut streams, &key);
        let kept: Vec<&FlowStream> = streams.iter().map(|(_, stream)| stream).collect();
        let mut buffers = self.state_decls("buffer");
        let buffer = buffers.find(|buffer| buffer.child("name").name() == name);
        let order = buffer.map(|buffer| self.order_of(buffer.child("type"), &streams));
        let (id, kind) = (format!("hold/{name}"), StateKind::Hold(order));
        let state = self.step_state(node, id, kind, &key, timeout_ms, &kept);
        let stream = FlowStream::new(record, Some(key.clone()), node.head());
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

    /// The order in which a buffer hands over its records; their priority is a field of one of the inputs.
    fn order_of(&mut self, node: Node<'t>, streams: &[Input]) -> String {
        let Some(path) = node.get("by") else {
            return node.word().to_owned();
        };
        let name = path.name();
        let mut records = streams.iter().map(|(_, stream)| &stream.record);
        if !records.any(|record| path_type(record, &name).is_some()) {
            let record = streams.first().map(|(_, stream)| stream.record.clone());
            self.flows
                .path(path, &record.unwrap_or_else(ObjectType::open));
        }
        format!("priority by {name}")
    }

    /// Says so where a step makes a field of a name that a key or an input has already.
    fn made_fields(&mut self, node: Node<'t>, made: &[&str], fields: &[(String, FlowType)]) {
        for name in made {
            if fields.iter().any(|(other, _)| other == name) {
                let message =
                    format!("`{name}` is a key field or an alias, and this step sets such a field");
                self.found("TG0101", node.head(), message);
            }
        }
    }

    fn completion_of(
        &mut self,
        node: Node<'t>,
        record: &ObjectType,
        has_marker: bool,
    ) -> CompletePlan {
        if let Some(marker) = node.get("marker") {
            if !has_marker {
                let message = "no input of this hold is received `as marker`";
                self.found("TG0505", marker, message);
            }
            return CompletePlan::Marker;
        }
        if let Some(rule) = node.get("rule") {
            let used = self.using(rule, record, UsingPlace::Complete);
            return used.map_or(CompletePlan::Never, |used| CompletePlan::Rule(used.plan));
        }
        CompletePlan::Count(node.child("count").int().unwrap_or(1))
    }
}
