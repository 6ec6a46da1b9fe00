//! The steps that work on one stream of records.

use std::collections::BTreeSet;

use super::declarations::Declaration;
use super::expansion::{KEPT, LOOK};
use super::expressions::path_type;
use super::process::{Aggregable, EmitOptions, FlowStream, ProcessChecker};
use super::transforms::UsingPlace;
use super::{FlowChecker, MAX_WINDOWS};
use crate::plan::{
    AggregatePlan, FieldType, LeavePlan, OnFailurePlan, OnSuccessPlan, OperatorPlan, StateKind,
    StatePlan, StepPlan, WindowShape, object_type,
};
use crate::syntax::SyntaxNode as Node;
use crate::value::paths::last_name;
use crate::value::{FlowType, ObjectType};

/// How long `deduplicate` remembers a key by default.
const DEDUPLICATE_MS: u64 = 24 * 3_600_000;

impl<'t> ProcessChecker<'_, 't> {
    /// The stream that steps work on, if there is one.
    fn current(&self) -> Option<(String, FlowStream)> {
        let name = self.live.last()?;
        Some((name.clone(), self.streams.get(name)?.clone()))
    }

    /// The record that flows at the end; anything where there is none.
    pub(super) fn current_record(&self) -> ObjectType {
        let current = self.current();
        current.map_or_else(ObjectType::open, |(_, stream)| stream.record)
    }

    pub(super) fn push(
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

    pub(super) fn step(&mut self, node: Node<'t>) {
        if ["join", "merge", "await", "hold"].contains(&node.word()) {
            return self.combine(node);
        }
        let Some((name, mut stream)) = self.flowing(node) else {
            return;
        };
        let before = self.aggregable;
        // A hold may be filtered or enriched before it is aggregated; a window is made from its records at once.
        if before != Aggregable::Hold {
            self.aggregable = Aggregable::Nothing;
        }
        let mut scope = self.scope(&stream.record);
        let (mut state, mut key) = (None, Vec::new());
        let operator = match node.word() {
            "filter" => Some(OperatorPlan::Filter {
                condition: self.flows.condition(node.child("filter"), &scope),
            }),
            "validate_input" => Some(OperatorPlan::Validate {
                checks: self.flows.checks(node, &scope),
            }),
            "enrich" => self.enrich(node, &mut stream),
            "transform" if node.has("using") => self.transform(node, &mut stream),
            "transform" => {
                let assignments = self.flows.assignments(node, &mut scope);
                stream.record = scope.record;
                // The schema says nothing about a field that was set since.
                let set = node
                    .all("assign")
                    .map(|assign| assign.child("target").name());
                let set: BTreeSet<String> = set.collect();
                stream.fields.retain(|field| !set.contains(&field.name));
                Some(OperatorPlan::Assign { assignments })
            }
            "deduplicate" => {
                key = self.flows.all_paths(node, "by", &stream.record);
                let window = node.get("window");
                let window_ms = window.map_or(DEDUPLICATE_MS, |window| self.above_zero(window));
                let id = format!("deduplicate/{}", key.join(","));
                let kind = StateKind::Deduplicate;
                state = Some(self.step_state(node, id, kind, &key, window_ms, &[]));
                Some(OperatorPlan::Deduplicate {
                    by: key.clone(),
                    window_ms,
                    on_duplicate: node.get("leave").map(|leave| self.leave(leave)),
                })
            }
            "window" => {
                let (operator, id);
                (operator, id, key) = self.window(node, &mut stream);
                state = Some(id);
                self.aggregable = Aggregable::Window(self.plan.steps.len());
                Some(operator)
            }
            "aggregate" => self.aggregate(node, before, &mut stream),
            _ => self.route(node, &stream),
        };
        if node.word() != "aggregate" {
            self.check_window_has_result(node, before);
        }
        let mut streams = vec![(name, stream)];
        let repartition = self.rekey_all(&mut streams, &key);
        let Some((name, stream)) = streams.pop() else {
            return;
        };
        self.insert_stream(name.clone(), stream);
        if let Some(operator) = operator {
            self.push(vec![name.clone()], name, state, repartition, operator);
        }
    }

    /// The one stream that flows at a statement; says so where there is none or more than one.
    fn flowing(&mut self, node: Node<'t>) -> Option<(String, FlowStream)> {
        let word = node.word();
        if self.has_ended {
            let message =
                format!("no record reaches this `{word}`: the route before sends all of them away");
            self.found("TG0204", node.head(), message);
            return None;
        }
        let (name, mut stream) = self.current()?;
        if self.live.len() > 1 {
            if !self.is_uncombined && !self.node.tree().is_broken(self.node) {
                let live = self.live.join(", ");
                let message = format!("`{word}` needs one stream, and {live} are not combined yet");
                self.found("TG0203", node.head(), message);
            }
            self.is_uncombined = true;
            // One of them stands for all, so that the rest of the process is checked, too.
            stream.record = ObjectType::open();
        }
        Some((name, stream))
    }

    /// The topics that the inputs of a step pass, because it has another key.
    pub(super) fn rekey_all(
        &self,
        inputs: &mut [(String, FlowStream)],
        key: &[String],
    ) -> Vec<String> {
        let mut topics = Vec::new();
        for (name, stream) in inputs {
            if stream.key.as_deref() != Some(key) && !key.is_empty() {
                topics.push(format!("{}-{name}-by-{}", self.name, key.join("-")));
                stream.key = Some(key.to_vec());
            }
        }
        topics
    }

    /// A state of a step, with its timer.
    pub(super) fn step_state(
        &mut self,
        node: Node<'t>,
        id: String,
        kind: StateKind,
        key: &[String],
        timer_ms: u64,
        streams: &[&FlowStream],
    ) -> String {
        let fields = streams.iter().flat_map(|stream| stream.fields.clone());
        let fields: Vec<_> = fields.collect();
        let likely = FieldType::Object(fields.clone()).likely_bytes();
        self.flows.pay(node.head(), fields.len() * KEPT);
        let bytes = likely.max(if streams.is_empty() { 0 } else { 64 });
        let bytes = bytes.saturating_add(64);
        let mut state = StatePlan::new(id, kind, key.to_vec(), bytes);
        state.timer_ms = Some(timer_ms);
        state.fields = fields;
        self.add_state(state, node.head())
    }

    /// Where a record leaves; a loss by declaration is told about.
    pub(super) fn leave(&mut self, node: Node<'t>) -> LeavePlan {
        match (node.word(), node.get("stream")) {
            ("emit", Some(stream)) => LeavePlan::Emit(self.sink(stream)),
            ("dead_letter", Some(stream)) => LeavePlan::DeadLetter(self.sink(stream)),
            _ => {
                self.loses(node);
                LeavePlan::Skip
            }
        }
    }

    fn enrich(&mut self, node: Node<'t>, stream: &mut FlowStream) -> Option<OperatorPlan> {
        let on = self.flows.all_paths(node, "on", &stream.record);
        let answer = self.flows.lookup_answer(node.child("lookup"))?;
        let lookup = self.bound("lookups", node.child("lookup"));
        let select = self.flows.all_paths(node, "select", &answer);
        let mut selected: Vec<(String, FlowType)> = Vec::new();
        for path in node.paths("select") {
            let name = path.name();
            self.flows.new_name(path, &selected);
            let kind = path_type(&answer, &name).unwrap_or(FlowType::Dynamic);
            selected.push((last_name(&name).to_owned(), kind));
        }
        stream.record.fields.extend(selected.iter().cloned());
        let names: BTreeSet<&String> = selected.iter().map(|(name, _)| name).collect();
        stream.fields.retain(|field| !names.contains(&field.name));
        self.flows.pay(node.span(), answer.fields.len() * LOOK);
        if select.is_empty() {
            let answer = FlowType::Object(answer.into());
            stream.record.fields.insert(lookup.clone(), answer);
        }
        Some(OperatorPlan::Enrich { lookup, on, select })
    }

    fn transform(&mut self, node: Node<'t>, stream: &mut FlowStream) -> Option<OperatorPlan> {
        let used = self.using(node.child("using"), &stream.record, UsingPlace::Transform);
        let on_failure = node.get("on_failure").map(|failure| {
            let mut scope = self.scope(&stream.record);
            let inlines = failure.all("inline");
            let assigned = inlines.flat_map(|inline| self.flows.assignments(inline, &mut scope));
            OnFailurePlan {
                assignments: assigned.collect(),
                leave: failure.get("leave").map(|leave| self.leave(leave)),
            }
        });
        // An unknown transform has been told about; its result may be anything.
        let record = used.as_ref().map(|used| used.record.clone());
        let mut scope = self.scope(&record.unwrap_or_else(ObjectType::open));
        let mut on_success = Vec::new();
        for also in node.child("on_success").children() {
            on_success.push(match also.get("stream") {
                Some(stream) => {
                    let name = self.sink(stream);
                    self.one_way_to_emit(also, &name);
                    self.check_schema(also, &scope.record, &name);
                    OnSuccessPlan::Emit(name)
                }
                None => OnSuccessPlan::Assign(self.flows.assignments(also, &mut scope)),
            });
        }
        stream.record = scope.record;
        stream.fields.clear();
        Some(OperatorPlan::Transform {
            transform: used?.plan,
            on_success,
            on_failure,
        })
    }

    /// The window step; its result replaces the record.
    fn window(
        &mut self,
        node: Node<'t>,
        stream: &mut FlowStream,
    ) -> (OperatorPlan, String, Vec<String>) {
        let shape_node = node.child("shape");
        let size_ms = self.above_zero(shape_node.child("size"));
        let shape = match shape_node.word() {
            "sliding" => {
                let every = shape_node.child("every");
                let every_ms = self.above_zero(every);
                if every_ms > size_ms {
                    let message =
                        "`every` is longer than the window: records between two are in none";
                    self.found("TG0404", every, message);
                }
                if size_ms.div_ceil(every_ms.max(1)) > MAX_WINDOWS {
                    let message = format!(
                        "a record would be in more than {MAX_WINDOWS} windows, the limit `windows`"
                    );
                    self.found("TG0016", every, message);
                }
                WindowShape::Sliding { size_ms, every_ms }
            }
            "session" => WindowShape::Session { gap_ms: size_ms },
            _ => WindowShape::Tumbling { size_ms },
        };
        let mut key = self.flows.all_paths(node, "key", &stream.record);
        if key.is_empty() {
            key.clone_from(&self.plan.partition_by);
        }
        if key.is_empty() {
            self.found("TG0402", node.head(), "this window has no key");
        }
        let time = self.plan.time.clone();
        for clause in node.all("lateness").chain(node.all("late")) {
            if time.is_none() {
                self.found("TG0403", clause, "without event time no record is late");
            }
        }
        let lateness = node.get("lateness").map(Node::millis);
        let lateness = lateness.or(time.as_ref().map(|time| time.lateness_ms));
        let lateness_ms = lateness.unwrap_or(0);
        let late = node.get("late").map(|late| self.sink(late));
        let late = late.or(time.as_ref().and_then(|time| time.late.clone()));
        if time.is_some() && late.is_none() {
            let message = "records that come too late for this window go to the dead letter stream";
            self.found("TG0406", node.head(), message);
        }
        let mut result: Vec<(String, FlowType)> = Vec::new();
        for path in &key {
            let kind = path_type(&stream.record, path).unwrap_or(FlowType::Dynamic);
            let name = last_name(path);
            if result.iter().any(|(other, _)| other == name) {
                let message = format!("two key fields are `{name}` in the result");
                self.found("TG0101", node.head(), message);
            }
            result.push((name.to_owned(), kind));
        }
        let aggregates = self.aggregates(node.child("aggregate"), &stream.record, &mut result);
        let names: Vec<&str> = aggregates.iter().map(|one| one.name.as_str()).collect();
        let results = match names.as_slice() {
            [] => "using".to_owned(),
            names => names.join(","),
        };
        let id = format!("window/{}/{results}", key.join(","));
        let timer = size_ms.saturating_add(lateness_ms);
        let id = self.step_state(node, id, StateKind::Window, &key, timer, &[stream]);
        self.made_by(&id, made_by(shape, &aggregates));
        if aggregates.is_empty() {
            let record = FlowType::Object(stream.record.clone().into());
            result.push(("records".to_owned(), FlowType::list(record)));
        }
        for (name, kind) in [
            ("window_start", FlowType::Timestamp),
            ("window_end", FlowType::Timestamp),
            ("revision", FlowType::Integer),
        ] {
            if result.iter().any(|(other, _)| other == name) {
                let message =
                    format!("`{name}` is a key field or an aggregate, and a window sets it");
                self.found("TG0101", node.head(), message);
            }
            result.push((name.to_owned(), kind));
        }
        stream.record = ObjectType::closed(result);
        stream.fields = Vec::new();
        let operator = OperatorPlan::Window {
            shape,
            key: key.clone(),
            lateness_ms,
            late,
            aggregates,
            using: None,
        };
        (operator, id, key)
    }

    /// The aggregates of a window, each of which adds a field to the result.
    fn aggregates(
        &mut self,
        node: Node<'t>,
        record: &ObjectType,
        result: &mut Vec<(String, FlowType)>,
    ) -> Vec<AggregatePlan> {
        let scope = self.scope(record);
        let mut aggregates = Vec::new();
        for node in node.all("agg") {
            let name = node.child("name").name();
            let function = node.get("function").map_or("count", Node::word);
            let (of, kind) = match node.get("of") {
                Some(of) => {
                    let (expression, kind) = self.flows.expression(of, &scope);
                    if ["sum", "avg"].contains(&function) {
                        let place = format!("`{function}`");
                        self.flows.expect_number(of, &kind, &place);
                    }
                    (Some(expression), kind)
                }
                None => (None, FlowType::Integer),
            };
            let kind = match function {
                "collect" => FlowType::list(kind),
                "avg" if kind == FlowType::Integer => FlowType::Double,
                _ => kind,
            };
            if result.iter().any(|(other, _)| *other == name) {
                let message = format!("the result has a field `{name}` already");
                self.found("TG0101", node.child("name"), message);
            }
            result.push((name.clone(), kind));
            aggregates.push(AggregatePlan {
                function: function.to_owned(),
                of,
                name,
            });
        }
        aggregates
    }

    /// Says so where a window has neither aggregates nor a transform right behind it.
    pub(super) fn check_window_has_result(&mut self, node: Node<'t>, window: Aggregable) {
        let Aggregable::Window(at) = window else {
            return;
        };
        if let OperatorPlan::Window {
            aggregates,
            using: None,
            ..
        } = &self.plan.steps[at].operator
            && aggregates.is_empty()
        {
            let windows = self.node.all("step").filter(|step| step.word() == "window");
            let before = windows.take_while(|step| step.span() < node.span()).last();
            let window = before.unwrap_or(node).head();
            self.found("TG0401", window, "this window has no aggregate");
        }
    }

    fn aggregate(
        &mut self,
        node: Node<'t>,
        after: Aggregable,
        stream: &mut FlowStream,
    ) -> Option<OperatorPlan> {
        self.aggregable = Aggregable::Nothing;
        if after == Aggregable::Nothing {
            let message = "there is neither a window nor a hold right before";
            self.found("TG0405", node.head(), message);
            return None;
        }
        let used = self.using(node.child("using"), &stream.record, UsingPlace::Aggregate);
        let record = used.as_ref().map(|used| used.record.clone());
        stream.record = record.unwrap_or_else(ObjectType::open);
        let plan = used?.plan;
        let Aggregable::Window(at) = after else {
            return Some(OperatorPlan::Aggregate { using: plan });
        };
        if let OperatorPlan::Window { using, .. } = &mut self.plan.steps[at].operator {
            *using = Some(plan);
        }
        None
    }

    /// An `emit`: a step, or only the options of a route target.
    pub(super) fn emit(&mut self, node: Node<'t>) {
        let is_options = self.route_targets.contains(&node.child("stream").name());
        let flowing = match is_options {
            true => self.current(),
            false => self.flowing(node),
        };
        let stream = self.sink(node.child("stream"));
        self.check_window_has_result(node, self.aggregable);
        self.aggregable = Aggregable::Nothing;
        let record = flowing.as_ref().map(|(_, stream)| stream.record.clone());
        let record = record.unwrap_or_else(ObjectType::open);
        let key = self.flows.all_paths(node, "key", &record);
        self.one_way_to_emit(node, &stream);
        self.check_schema(node, &record, &stream);
        if let Some(sink) = self.sink_plan(&stream) {
            let fanout = node.get("fanout").map(|fanout| fanout.word().to_owned());
            sink.fanout = fanout.or(sink.fanout.take());
            if !key.is_empty() {
                sink.key = key;
            }
        }
        if let (false, Some((name, _))) = (is_options, flowing) {
            let operator = OperatorPlan::Emit { stream };
            self.push(vec![name.clone()], name, None, Vec::new(), operator);
        }
    }

    /// A stream has one schema, fanout and key, whichever statement emits to it.
    fn one_way_to_emit(&mut self, node: Node<'t>, stream: &str) {
        let options: EmitOptions = (
            node.get("schema").map(Node::name),
            node.get("fanout").map(|fanout| fanout.word().to_owned()),
            node.path_names("key"),
        );
        let new = (options, node.head());
        let first = self
            .emit_options
            .entry(stream.to_owned())
            .or_insert(new.clone());
        if first.0 != new.0 {
            let also = first.1;
            let message = format!("`{stream}` is emitted to with other options before");
            let found = self.found("TG0013", new.1, message);
            found.also = Some(also);
            found.help = Some("give all of them the same schema, fanout and key".to_owned());
        }
    }

    /// Checks the record that is emitted against the schema of the statement.
    fn check_schema(&mut self, node: Node<'t>, record: &ObjectType, stream: &str) {
        let Some((name, schema)) = self.flows.schema_of(node.get("schema")) else {
            return;
        };
        let at = node.child("schema").span();
        self.flows.fits_schema(at, record, (&name, &schema), None);
        if let Some(sink) = self.sink_plan(stream) {
            sink.schema = Some(name);
        }
    }
}

/// How a window makes its values.
fn made_by(shape: WindowShape, aggregates: &[AggregatePlan]) -> String {
    let shape = match shape {
        WindowShape::Tumbling { size_ms } => format!("tumbling {size_ms} ms"),
        WindowShape::Sliding { size_ms, every_ms } => {
            format!("sliding {size_ms} ms every {every_ms} ms")
        }
        WindowShape::Session { gap_ms } => format!("session gap {gap_ms} ms"),
    };
    let aggregates = aggregates.iter().map(|aggregate| {
        let of = aggregate.of.as_ref().map_or("", |of| of.text.as_str());
        format!("{}({of}) as {}", aggregate.function, aggregate.name)
    });
    let aggregates: Vec<String> = aggregates.collect();
    match aggregates.as_slice() {
        [] => format!("{shape}: all records"),
        some => format!("{shape}: {}", some.join(", ")),
    }
}

impl<'t> FlowChecker<'t> {
    /// The fields of the answers of the lookup that a node names.
    fn lookup_answer(&mut self, node: Node<'t>) -> Option<ObjectType> {
        let name = node.name();
        let declared = self.names.get(&name).copied();
        if declared.as_ref().is_some_and(Declaration::is_broken) {
            return Some(ObjectType::open());
        }
        if let Some(lookup) = self.plan.lookups.get(&name) {
            return Some(object_type(&lookup.fields));
        }
        if let Some(fields) = self.registered.lookups.get(&name) {
            return Some(fields.clone());
        }
        let kind = declared.map(|declared| declared.kind);
        if let Some(kind) = kind.or_else(|| self.registered.kinds(&name).next()) {
            self.wrong_kind(node, kind, "lookup");
        } else if !self.is_silent("TG0102", node) {
            let registered = self.registered.lookups.keys();
            let names = self.plan.lookups.keys().chain(registered);
            let names = names.cloned().collect();
            self.unknown("TG0102", node, "lookup", names);
        }
        None
    }
}
