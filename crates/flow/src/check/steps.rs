//! The steps that work on one stream of records.

use super::FlowChecker;
use super::declarations::{Declaration, kind_text, paths};
use super::process::{Aggregable, FlowStream, ProcessChecker};
use crate::plan::{
    AggregatePlan, FieldType, LeavePlan, OnFailurePlan, OnSuccessPlan, OperatorPlan, StateKind,
    StatePlan, StepPlan, WindowShape, object_type,
};
use crate::syntax::SyntaxNode;
use crate::value::{FlowType, ObjectType};

/// How long `deduplicate` remembers a key by default.
const DEDUPLICATE_MS: u64 = 24 * 3_600_000;

impl<'t> ProcessChecker<'_, 't> {
    /// The stream that steps work on, if there is one.
    pub(super) fn current(&self) -> Option<(String, FlowStream)> {
        let name = self.live.last()?;
        Some((name.clone(), self.streams.get(name)?.clone()))
    }

    pub(super) fn step(&mut self, node: SyntaxNode<'t>) {
        match node.word() {
            "join" | "merge" | "await" | "hold" => return self.combine(node),
            _ => {}
        }
        let Some((name, mut stream)) = self.flowing(node) else {
            return;
        };
        let is_aggregate = node.word() == "aggregate";
        let before = self.aggregable;
        // A hold may be filtered or enriched before it is aggregated; a window is made from its records at once.
        if before != Aggregable::Hold {
            self.aggregable = Aggregable::Nothing;
        }
        let mut state = None;
        let mut repartition = Vec::new();
        let operator = match node.word() {
            "filter" => self.filter(node, &stream),
            "validate_input" => {
                let scope = self.scope(&stream.record);
                Some(OperatorPlan::Validate {
                    checks: self.flows.checks(node, &scope),
                })
            }
            "enrich" => self.enrich(node, &mut stream),
            "transform" if node.has("using") => self.transform(node, &mut stream),
            "transform" => {
                let mut scope = self.scope(&stream.record);
                let assignments = self.flows.assignments(node, &mut scope);
                stream.record = scope.record;
                // The schema says nothing about a field that was set since.
                let targets = node.all("assign").filter_map(|assign| assign.get("target"));
                let set: Vec<String> = targets.map(SyntaxNode::name).collect();
                stream.fields.retain(|field| !set.contains(&field.name));
                Some(OperatorPlan::Assign { assignments })
            }
            "deduplicate" => {
                let by = paths(node, "by");
                self.flows.all_paths(node, "by", &stream.record);
                let window_ms = if node.has("window") {
                    self.above_zero(node.get("window"))
                } else {
                    DEDUPLICATE_MS
                };
                let id = format!("deduplicate/{}", by.join(","));
                state =
                    Some(self.step_state(node, id, StateKind::Deduplicate, &by, window_ms, &[]));
                self.rekey(&name, &mut stream, &by, &mut repartition);
                let on_duplicate = node.get("leave").map(|leave| self.leave(leave));
                Some(OperatorPlan::Deduplicate {
                    by,
                    window_ms,
                    on_duplicate,
                })
            }
            "window" => {
                let (operator, id, key) = self.window(node, &mut stream);
                state = Some(id);
                self.rekey(&name, &mut stream, &key, &mut repartition);
                self.aggregable = Aggregable::Window(self.plan.steps.len());
                Some(operator)
            }
            "aggregate" => self.aggregate(node, before, &mut stream),
            _ => self.route(node, &stream),
        };
        if !is_aggregate {
            self.check_window_has_result(node, before);
        }
        self.insert_stream(name.clone(), stream);
        if let Some(operator) = operator {
            self.plan.steps.push(StepPlan {
                inputs: vec![name.clone()],
                output: name,
                state,
                repartition,
                operator,
            });
        }
    }

    /// The one stream that flows at a statement; says so where there is none or more than one.
    fn flowing(&mut self, node: SyntaxNode<'t>) -> Option<(String, FlowStream)> {
        if self.has_ended {
            let message = format!(
                "no record reaches this `{}`: the route before sends all of them away",
                node.word()
            );
            self.found("TG0204", node.head(), message);
            return None;
        }
        if self.live.len() > 1 {
            if !self.is_uncombined && !self.node.tree().is_broken(self.node) {
                let message = format!(
                    "`{}` needs one stream, and {} are not combined yet",
                    node.word(),
                    self.live.join(", ")
                );
                self.found("TG0203", node.head(), message);
            }
            self.is_uncombined = true;
            // One of them stands for all, so that the rest of the process is checked, too.
            let (name, mut stream) = self.current()?;
            stream.record = ObjectType::open();
            return Some((name, stream));
        }
        self.current()
    }

    /// Writes down which inputs of a step pass a repartition topic, because it has another key.
    pub(super) fn rekey(
        &self,
        name: &str,
        stream: &mut FlowStream,
        key: &[String],
        topics: &mut Vec<String>,
    ) {
        if stream.key.as_deref() != Some(key) && !key.is_empty() {
            topics.push(format!("{}-{name}-by-{}", self.name, key.join("-")));
            stream.key = Some(key.to_vec());
        }
    }

    /// A state of a step, with its timer.
    pub(super) fn step_state(
        &mut self,
        node: SyntaxNode<'t>,
        id: String,
        kind: StateKind,
        key: &[String],
        timer_ms: u64,
        streams: &[&FlowStream],
    ) -> String {
        let fields: Vec<_> = streams
            .iter()
            .flat_map(|stream| stream.fields.clone())
            .collect();
        let entry_bytes = 64
            + FieldType::Object(fields.clone())
                .likely_bytes()
                .max(if streams.is_empty() { 0 } else { 64 });
        let state = StatePlan {
            id,
            kind,
            key: key.to_vec(),
            ttl: None,
            cleanup: None,
            timer_ms: Some(timer_ms),
            fields,
            entry_bytes,
        };
        self.add_state(state, node.head())
    }

    /// Where a record leaves; a loss by declaration is told about.
    pub(super) fn leave(&mut self, node: SyntaxNode<'t>) -> LeavePlan {
        match (node.word(), node.get("stream")) {
            ("emit", Some(stream)) => LeavePlan::Emit(self.sink(stream)),
            ("dead_letter", Some(stream)) => LeavePlan::DeadLetter(self.sink(stream)),
            _ => {
                self.found(
                    "TG0607",
                    node.span(),
                    "records that take this way are lost by declaration",
                );
                LeavePlan::Skip
            }
        }
    }

    fn filter(&mut self, node: SyntaxNode<'t>, stream: &FlowStream) -> Option<OperatorPlan> {
        let scope = self.scope(&stream.record);
        Some(OperatorPlan::Filter {
            condition: self.flows.condition(node.get("filter")?, &scope),
        })
    }

    fn enrich(&mut self, node: SyntaxNode<'t>, stream: &mut FlowStream) -> Option<OperatorPlan> {
        let lookup = node.get("lookup")?;
        self.flows.all_paths(node, "on", &stream.record);
        let answer = self.flows.lookup_answer(lookup)?;
        let name = self.bound("lookups", lookup);
        self.flows.all_paths(node, "select", &answer);
        let select = paths(node, "select");
        for field in &select {
            let kind = answer.field(field).unwrap_or(FlowType::Dynamic);
            stream.record.fields.insert(field.clone(), kind);
            stream.fields.retain(|declared| declared.name != *field);
        }
        if select.is_empty() {
            stream
                .record
                .fields
                .insert(name.clone(), FlowType::Object(answer.into()));
        }
        Some(OperatorPlan::Enrich {
            lookup: name,
            on: paths(node, "on"),
            select,
        })
    }

    fn transform(&mut self, node: SyntaxNode<'t>, stream: &mut FlowStream) -> Option<OperatorPlan> {
        let scope = self.scope(&stream.record);
        let used = self.flows.using(node.get("using")?, &scope);
        let on_failure = node.get("on_failure").map(|failure| {
            let mut scope = scope.clone();
            let assignments = failure
                .all("inline")
                .flat_map(|inline| self.flows.assignments(inline, &mut scope))
                .collect();
            OnFailurePlan {
                assignments,
                leave: failure.get("leave").map(|leave| self.leave(leave)),
            }
        });
        let mut on_success = Vec::new();
        // An unknown transform has been told about; its result may be anything.
        let record = used
            .as_ref()
            .map_or_else(ObjectType::open, |used| used.record.clone());
        let mut scope = self.scope(&record);
        for also in node
            .get("on_success")
            .into_iter()
            .flat_map(SyntaxNode::children)
        {
            on_success.push(match also.get("stream") {
                Some(stream) => {
                    let name = self.sink(stream);
                    self.check_schema(also, &scope.record, &name);
                    OnSuccessPlan::Emit(name)
                }
                None => OnSuccessPlan::Assign(self.flows.assignments(also, &mut scope)),
            });
        }
        stream.record = scope.record;
        stream.fields.clear();
        let used = used?;
        self.has_registered |= used.is_registered;
        Some(OperatorPlan::Transform {
            transform: used.plan,
            on_success,
            on_failure,
        })
    }

    /// The window step; its result replaces the record.
    fn window(
        &mut self,
        node: SyntaxNode<'t>,
        stream: &mut FlowStream,
    ) -> (OperatorPlan, String, Vec<String>) {
        let shape_node = node.get("shape");
        let size_ms = self.above_zero(shape_node.and_then(|shape| shape.get("size")));
        let shape = match shape_node.map_or("", SyntaxNode::word) {
            "sliding" => {
                let every = shape_node.and_then(|shape| shape.get("every"));
                let every_ms = self.above_zero(every);
                if let Some(every) = every.filter(|_| every_ms > size_ms) {
                    self.found(
                        "TG0404",
                        every.span(),
                        "`every` is longer than the window: records between two are in none",
                    );
                }
                WindowShape::Sliding { size_ms, every_ms }
            }
            "session" => WindowShape::Session { gap_ms: size_ms },
            _ => WindowShape::Tumbling { size_ms },
        };
        self.flows.all_paths(node, "key", &stream.record);
        let mut key = paths(node, "key");
        if key.is_empty() {
            key.clone_from(&self.plan.partition_by);
        }
        if key.is_empty() {
            self.found("TG0402", node.head(), "this window has no key");
        }
        let time = self.plan.time.clone();
        for clause in [node.get("lateness"), node.get("late")]
            .into_iter()
            .flatten()
        {
            if time.is_none() {
                self.found(
                    "TG0403",
                    clause.span(),
                    "without event time no record is late",
                );
            }
        }
        let lateness_ms = node.get("lateness").map(SyntaxNode::millis);
        let lateness_ms = lateness_ms
            .or(time.as_ref().map(|time| time.lateness_ms))
            .unwrap_or(0);
        let late = node
            .get("late")
            .map(|late| self.sink(late))
            .or(time.as_ref().and_then(|time| time.late.clone()));
        if time.is_some() && late.is_none() {
            self.found(
                "TG0406",
                node.head(),
                "records that come too late for this window go to the dead letter stream",
            );
        }
        let scope = self.scope(&stream.record);
        let mut result: Vec<(String, FlowType)> = Vec::new();
        for path in &key {
            let kind =
                super::expressions::path_type(&stream.record, path).unwrap_or(FlowType::Dynamic);
            result.push((super::expressions::last_name(path).to_owned(), kind));
        }
        let mut aggregates = Vec::new();
        for node in node
            .get("aggregate")
            .into_iter()
            .flat_map(|aggregate| aggregate.all("agg"))
        {
            let Some(name) = node.get("name") else {
                continue;
            };
            let function = node.get("function").map_or("count", SyntaxNode::word);
            let (of, kind) = match node.get("of") {
                Some(of) => {
                    let (expression, kind) = self.flows.expression(of, &scope);
                    let is_number = kind.is_number() || kind == FlowType::Dynamic;
                    if ["sum", "avg"].contains(&function) && !is_number {
                        let message = format!("`{function}` needs a number, and this is {kind}");
                        self.found("TG0305", of.span(), message);
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
            if result.iter().any(|(other, _)| *other == name.name()) {
                self.found(
                    "TG0101",
                    name.span(),
                    format!("the result has a field `{}` already", name.name()),
                );
            }
            result.push((name.name(), kind));
            aggregates.push(AggregatePlan {
                function: function.to_owned(),
                of,
                name: name.name(),
            });
        }
        let names: Vec<&str> = aggregates
            .iter()
            .map(|aggregate| aggregate.name.as_str())
            .collect();
        let id = format!(
            "window/{}/{}",
            key.join(","),
            if names.is_empty() {
                "using".to_owned()
            } else {
                names.join(",")
            }
        );
        let timer = size_ms.saturating_add(lateness_ms);
        let id = self.step_state(node, id, StateKind::Window, &key, timer, &[stream]);
        if aggregates.is_empty() {
            result.push((
                "records".to_owned(),
                FlowType::list(FlowType::Object(stream.record.clone().into())),
            ));
        }
        result.extend(
            ["window_start", "window_end"].map(|name| (name.to_owned(), FlowType::Timestamp)),
        );
        result.push(("revision".to_owned(), FlowType::Integer));
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

    /// Says so where a window has neither aggregates nor a transform right behind it.
    pub(super) fn check_window_has_result(&mut self, node: SyntaxNode<'t>, window: Aggregable) {
        if let Aggregable::Window(at) = window
            && let Some(OperatorPlan::Window {
                aggregates,
                using: None,
                ..
            }) = self.plan.steps.get(at).map(|step| &step.operator)
            && aggregates.is_empty()
        {
            let windows = self.node.all("step").filter(|step| step.word() == "window");
            let before = windows.take_while(|step| step.span() < node.span()).last();
            self.found(
                "TG0401",
                before.unwrap_or(node).head(),
                "this window has no aggregate",
            );
        }
    }

    fn aggregate(
        &mut self,
        node: SyntaxNode<'t>,
        after: Aggregable,
        stream: &mut FlowStream,
    ) -> Option<OperatorPlan> {
        let name = node.get("using")?;
        self.aggregable = Aggregable::Nothing;
        if after == Aggregable::Nothing {
            self.found(
                "TG0405",
                node.head(),
                "there is neither a window nor a hold right before",
            );
            return None;
        }
        let scope = self.scope(&stream.record);
        let used = self.flows.using(name, &scope);
        stream.record = used
            .as_ref()
            .map_or_else(ObjectType::open, |used| used.record.clone());
        let used = used?;
        self.has_registered |= used.is_registered;
        let Aggregable::Window(at) = after else {
            return Some(OperatorPlan::Aggregate { using: used.plan });
        };
        if let Some(OperatorPlan::Window { using, .. }) =
            self.plan.steps.get_mut(at).map(|step| &mut step.operator)
        {
            *using = Some(used.plan);
        }
        None
    }

    /// An `emit`: a step, or only the options of a route target.
    pub(super) fn emit(&mut self, node: SyntaxNode<'t>) {
        let Some(stream_node) = node.get("stream") else {
            return;
        };
        let is_options = self.route_targets.contains(&stream_node.name());
        let flowing = if is_options {
            self.current()
        } else {
            self.flowing(node)
        };
        let stream = self.sink(stream_node);
        self.check_window_has_result(node, self.aggregable);
        self.aggregable = Aggregable::Nothing;
        let record = flowing
            .as_ref()
            .map_or_else(ObjectType::open, |(_, stream)| stream.record.clone());
        self.flows.all_paths(node, "key", &record);
        self.check_schema(node, &record, &stream);
        let key = paths(node, "key");
        if let Some(sink) = self
            .plan
            .sinks
            .iter_mut()
            .find(|sink| sink.stream == stream)
        {
            let fanout = node.get("fanout").map(|fanout| fanout.word().to_owned());
            sink.fanout = fanout.or(sink.fanout.take());
            if !key.is_empty() {
                sink.key = key;
            }
        }
        if let (false, Some((name, _))) = (is_options, flowing) {
            let (inputs, output) = (vec![name.clone()], name);
            let operator = OperatorPlan::Emit { stream };
            self.plan.steps.push(StepPlan {
                inputs,
                output,
                state: None,
                repartition: Vec::new(),
                operator,
            });
        }
    }

    /// Checks the record that is emitted against the schema of the statement.
    fn check_schema(&mut self, node: SyntaxNode<'t>, record: &ObjectType, stream: &str) {
        let Some(at) = node.get("schema") else { return };
        let Some((name, schema)) = self.flows.schema_of(Some(at)) else {
            return;
        };
        self.flows
            .fits_schema(at.span(), record, (&name, &schema), None);
        if let Some(sink) = self
            .plan
            .sinks
            .iter_mut()
            .find(|sink| sink.stream == stream)
        {
            sink.schema = Some(name);
        }
    }
}

impl<'t> FlowChecker<'t> {
    /// The fields of the answers of the lookup that a node names.
    fn lookup_answer(&mut self, node: SyntaxNode<'t>) -> Option<ObjectType> {
        let name = node.name();
        let declared = self.names.get(&name);
        if declared.is_some_and(Declaration::is_broken) {
            return Some(ObjectType::open());
        }
        if let Some(lookup) = self.plan.lookups.get(&name) {
            return Some(object_type(&lookup.fields));
        }
        if let Some(fields) = self.registered.lookups.get(&name) {
            return Some(fields.clone());
        }
        if let Some(declared) = self.names.get(&name) {
            let message = format!(
                "`{name}` is a {}, and a lookup is needed",
                kind_text(declared.kind)
            );
            self.found("TG0107", node.span(), message);
        } else {
            let names: Vec<String> = self
                .plan
                .lookups
                .keys()
                .chain(self.registered.lookups.keys())
                .cloned()
                .collect();
            self.unknown(
                "TG0102",
                node.span(),
                ("lookup", &name),
                names.iter().map(String::as_str),
            );
        }
        None
    }
}
