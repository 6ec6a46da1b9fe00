//! A process: its settings, its inputs and the order of its statements.

use std::collections::{BTreeMap, BTreeSet};

use super::declarations::Declaration;
use super::expansion::{KEPT, LOOK};
use super::expressions::path_type;
use super::transforms::{UsedTransform, UsingPlace};
use super::{FlowChecker, NamedPlace, UnbuiltStatement};
use crate::expression::ExpressionScope;
use crate::plan::{
    CompletionPlan, FieldPlan, HoldInputPlan, LedgerPlace, ModePlan, OperatorPlan, ParallelismPlan,
    ProcessPlan, SchemaPlan, SinkPlan, SourcePlan, StatePlan, TimePlan, TopicKind, TopicPlan,
    TrimPlan, ways_out,
};
use crate::syntax::{MAX_STATEMENTS, SyntaxNode as Node};
use crate::value::paths::last_name;
use crate::value::{FlowType, ObjectType};
use crate::{Diagnostic, Span};

/// Findings about a statement that is missing, which may stand in a part that could not be read.
const BY_OTHER_STATEMENTS: [&str; 8] = [
    "TG0203", "TG0204", "TG0401", "TG0402", "TG0403", "TG0405", "TG0504", "TG0505",
];

/// The fields of every completion; the type of the first is that of the field that it is taken from.
const COMPLETION_FIELDS: [(&str, FlowType); 7] = [
    ("correlation_id", FlowType::Dynamic),
    ("transaction_id", FlowType::String),
    ("status", FlowType::String),
    ("target_system", FlowType::String),
    ("target_id", FlowType::String),
    ("timestamp", FlowType::Timestamp),
    ("error_details", FlowType::String),
];

/// The records that flow at a place of a process.
#[derive(Clone)]
pub(super) struct FlowStream {
    pub(super) record: ObjectType,
    /// The fields that they are partitioned by, where that is known.
    pub(super) key: Option<Vec<String>>,
    /// The declared fields, where their schema is known.
    pub(super) fields: Vec<FieldPlan>,
    pub(super) span: Span,
}

impl FlowStream {
    /// Records of no declared schema.
    pub(super) fn new(record: ObjectType, key: Option<Vec<String>>, span: Span) -> Self {
        Self {
            record,
            key,
            fields: Vec::new(),
            span,
        }
    }
}

/// The options of an `emit`: the schema, the fanout and the key.
pub(super) type EmitOptions = (Option<String>, Option<String>, Vec<String>);

/// The step that an `aggregate using` would belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Aggregable {
    Nothing,
    /// The window with this index among the steps.
    Window(usize),
    Hold,
}

/// The walk through one process.
pub(super) struct ProcessChecker<'c, 't> {
    pub(super) flows: &'c mut FlowChecker<'t>,
    pub(super) node: Node<'t>,
    pub(super) name: String,
    pub(super) plan: ProcessPlan,
    pub(super) streams: BTreeMap<String, FlowStream>,
    /// Streams that no step has taken yet.
    pub(super) live: Vec<String>,
    /// Whether a route has sent every record away.
    pub(super) has_ended: bool,
    /// Whether the inputs were not combined, which is said once.
    pub(super) is_uncombined: bool,
    pub(super) states: Option<BTreeMap<String, FlowType>>,
    /// The streams of the plan that are written to, by their index.
    sinks: BTreeMap<String, usize>,
    pub(super) route_targets: BTreeSet<String>,
    /// The options of each stream that is emitted to, and where they were given first.
    pub(super) emit_options: BTreeMap<String, (EmitOptions, Span)>,
    pub(super) aggregable: Aggregable,
    /// Whether a part could not be read, which may have set any field.
    pub(super) is_broken: bool,
    /// Whether Rust takes part, which may fail transiently.
    pub(super) has_registered: bool,
}

impl<'t> FlowChecker<'t> {
    /// Checks all processes.
    pub(super) fn processes(&mut self) {
        for (name, Declaration { kind, node }) in self.names.clone() {
            if kind != "process" || self.is_exhausted() {
                continue;
            }
            let checker = ProcessChecker {
                flows: self,
                node,
                name: name.clone(),
                plan: ProcessPlan::default(),
                streams: BTreeMap::new(),
                live: Vec::new(),
                has_ended: false,
                is_uncombined: false,
                states: None,
                sinks: BTreeMap::new(),
                route_targets: BTreeSet::new(),
                emit_options: BTreeMap::new(),
                aggregable: Aggregable::Nothing,
                is_broken: node.tree().is_broken(node),
                has_registered: false,
            };
            let plan = checker.check();
            self.plan.processes.insert(name, plan);
        }
    }
}

impl<'t> ProcessChecker<'_, 't> {
    fn check(mut self) -> ProcessPlan {
        let statements = self.node.children().count();
        if statements > MAX_STATEMENTS {
            let message = format!(
                "the process has more than {MAX_STATEMENTS} statements, the limit `statements`"
            );
            self.found("TG0016", self.node.child("name"), message);
            return self.plan;
        }
        self.check_given_once();
        // Records that cannot be decoded go there, whatever the handlers say.
        self.place(
            "streams",
            format!("{}_dlq", self.name),
            self.node.child("name"),
        );
        self.declare_state();
        self.settings();
        for receive in self.node.all("receive") {
            self.receive(receive);
            if self.flows.is_exhausted() {
                return self.plan;
            }
        }
        self.partition_and_time();
        self.holds_and_their_inputs();
        self.route_targets = self.node.all("step").flat_map(targets).collect();
        for statement in self.node.children() {
            match statement.label() {
                "step" => self.step(statement),
                "output" if statement.word() == "emit" => self.emit(statement),
                _ => {}
            }
            if self.flows.is_exhausted() {
                return self.plan;
            }
        }
        let outputs = self.node.all("output");
        for output in outputs.filter(|output| output.word() == "on") {
            self.completion(output);
        }
        self.blocks();
        self.whole();
        if self.is_broken {
            let span = self.node.span();
            self.flows
                .diagnostics
                .retain(|Diagnostic { code, span: at, .. }| {
                    let is_inside = at.source == span.source && at.start >= span.start;
                    !(is_inside && at.end <= span.end && BY_OTHER_STATEMENTS.contains(code))
                });
        }
        self.plan.ways_out = ways_out(&self.name, &self.plan);
        self.topics();
        self.plan
    }

    pub(super) fn found(
        &mut self,
        code: &'static str,
        at: impl Into<Span>,
        message: impl Into<String>,
    ) -> &mut Diagnostic {
        self.flows.found(code, at, message)
    }

    /// A way out that loses records.
    pub(super) fn loses(&mut self, node: Node<'t>) {
        let message = "records that take this way are lost by declaration";
        self.found("TG0607", node, message);
    }

    /// Keeps the records that flow under a name from here on.
    pub(super) fn insert_stream(&mut self, name: String, mut stream: FlowStream) {
        let is_new = !self.streams.contains_key(&name);
        let units = if is_new { KEPT } else { LOOK };
        self.flows.admit(stream.span, &mut stream.record, units);
        stream.record.is_open |= self.is_broken;
        self.streams.insert(name, stream);
    }

    fn place(&mut self, section: &'static str, name: String, node: Node<'t>) {
        self.flows.places.push(NamedPlace {
            section,
            name,
            process: self.name.clone(),
            span: node.span(),
        });
    }

    /// Writes down that the configuration must bind a name.
    pub(super) fn bound(&mut self, section: &'static str, node: Node<'t>) -> String {
        self.place(section, node.name(), node);
        node.name()
    }

    /// A stream that is written to.
    pub(super) fn sink(&mut self, node: Node<'t>) -> String {
        let stream = self.bound("streams", node);
        let mut sources = self.plan.sources.iter();
        if sources.any(|source| source.stream == stream) {
            let message = format!("the process also receives `{stream}`");
            self.found("TG0209", node, message);
        }
        self.add_sink(&stream);
        stream
    }

    /// Adds a stream to the plan that is written to, once.
    pub(super) fn add_sink(&mut self, stream: &str) {
        let next = self.plan.sinks.len();
        let at = self.sinks.entry(stream.to_owned()).or_insert(next);
        if *at == next {
            self.plan.sinks.push(SinkPlan {
                stream: stream.to_owned(),
                ..SinkPlan::default()
            });
        }
    }

    /// The options of a stream that is written to.
    pub(super) fn sink_plan(&mut self, stream: &str) -> Option<&mut SinkPlan> {
        let at = self.sinks.get(stream)?;
        self.plan.sinks.get_mut(*at)
    }

    /// The names that expressions about records of this shape may use.
    pub(super) fn scope(&self, record: &ObjectType) -> ExpressionScope {
        ExpressionScope {
            record: record.clone(),
            state: self.states.clone(),
            functions: self.flows.registered.functions.clone(),
            has_route: false,
        }
    }

    /// The transform, table or rule that a node names, applied to records of this shape.
    pub(super) fn using(
        &mut self,
        node: Node<'t>,
        record: &ObjectType,
        place: UsingPlace,
    ) -> Option<UsedTransform> {
        let scope = self.scope(record);
        let used = self.flows.using(node, &scope, place)?;
        self.has_registered |= used.is_registered;
        Some(used)
    }

    /// The length of a duration, which must not be zero.
    pub(super) fn above_zero(&mut self, node: Node<'t>) -> u64 {
        if node.millis() == 0 {
            self.found("TG0404", node, "this duration must be longer than zero");
        }
        node.millis()
    }

    /// Adds a state, whose id must be new in the process.
    pub(super) fn add_state(&mut self, state: StatePlan, span: Span) -> String {
        let id = state.id.clone();
        if self.plan.state.iter().any(|other| other.id == id) {
            let message =
                format!("the process has a state `{id}` already: two steps would share it");
            self.found("TG0101", span, message);
        } else {
            self.plan.state.push(state);
        }
        id
    }

    /// Writes down how the values of a state are made.
    pub(super) fn made_by(&mut self, id: &str, made_by: String) {
        let mut states = self.plan.state.iter_mut();
        if let Some(state) = states.find(|state| state.id == id) {
            state.made_by = Some(made_by);
        }
    }

    /// A statement that the runtime does nothing with yet.
    pub(super) fn unbuilt(&mut self, statement: &'static str, why: &'static str, node: Node<'t>) {
        self.flows.unbuilt.push(UnbuiltStatement {
            process: self.name.clone(),
            statement,
            why,
            span: node.span(),
        });
    }

    fn check_given_once(&mut self) {
        let mut seen: BTreeMap<String, Span> = BTreeMap::new();
        for statement in self.node.children() {
            let is_on = statement.word() == "on";
            // The name of a process is a statement of one word, and may be `on`, which has been told about.
            let words = statement.words().into_iter();
            let shown: Vec<&str> = words.take(if is_on { 2 } else { 1 }).collect();
            let shown = shown.join(" ");
            let key = match statement.label() {
                "setting" | "block" => shown.clone(),
                "output" if is_on => format!("{shown} {}", statement.has("failure")),
                _ => continue,
            };
            if let Some(first) = seen.get(&key).copied() {
                let message = format!("`{shown}` is given twice");
                self.found("TG0013", statement.head(), message).also = Some(first);
            } else {
                seen.insert(key, statement.head());
            }
        }
    }

    fn setting(&self, word: &str) -> Option<Node<'t>> {
        let mut settings = self.node.all("setting");
        settings.find(|setting| setting.word() == word)
    }

    fn settings(&mut self) {
        if let Some(setting) = self.setting("parallelism") {
            // One that does not fit has been told about.
            let tasks = setting.child("count").int().unwrap_or(1);
            if tasks == 0 {
                self.found("TG0003", setting, "a process has at least one task");
            }
            let is_hint = setting.has("hint");
            self.plan.parallelism = Some(ParallelismPlan { tasks, is_hint });
        }
        if let Some(mode) = self.setting("mode").map(|setting| setting.child("mode")) {
            self.plan.mode = match mode.word() {
                "batch" => ModePlan::Batch,
                "micro_batch" => ModePlan::MicroBatch(self.above_zero(mode.child("every"))),
                _ => ModePlan::Stream,
            };
        }
    }

    fn receive(&mut self, node: Node<'t>) {
        let stream_node = node.get("stream").unwrap_or(node.child("alias"));
        let alias_node = node.get("alias").unwrap_or(stream_node);
        let (stream, alias) = (self.bound("streams", stream_node), alias_node.name());
        if let Some(first) = self.streams.get(&alias).map(|first| first.span) {
            let message = format!("the alias `{alias}` is declared twice");
            self.found("TG0101", alias_node, message).also = Some(first);
            return;
        }
        // An unknown schema has been told about; its fields may be anything.
        let schema = self.flows.schema_of(node.get("schema"));
        let (schema_name, schema) = schema.unzip();
        let mut record = schema
            .as_ref()
            .map_or_else(ObjectType::open, SchemaPlan::record);
        let schema = schema.unwrap_or_default();
        let scope = self.scope(&record);
        let filter = node.get("filter");
        let filter = filter.map(|filter| self.flows.condition(filter, &scope));
        let names = self.flows.all_paths(node, "project", &record);
        let project = node.get("project").map(|_| match node.has("except") {
            true => TrimPlan::Except(names),
            false => TrimPlan::Keep(names),
        });
        if let Some(project) = &project {
            project.trim_type(&mut record);
        }
        let key = self.flows.all_paths(node, "on", &record);
        let hold = node.get("store").or_else(|| node.get("match"));
        self.plan.sources.push(SourcePlan {
            alias: alias.clone(),
            stream,
            schema: schema_name,
            time: schema.time,
            project,
            filter,
            hold: hold.map(|hold| HoldInputPlan {
                hold: hold.name(),
                key,
                is_marker: node.has("marker"),
            }),
            repartition: None,
        });
        self.live.push(alias.clone());
        let key = (!schema.key.is_empty()).then_some(schema.key);
        let mut stream = FlowStream::new(record, key, alias_node.span());
        stream.fields = schema.fields;
        self.insert_stream(alias, stream);
    }

    fn partition_and_time(&mut self) {
        if let Some(setting) = self.setting("partition") {
            let key = setting.path_names("fields");
            let units = key.len() * self.plan.sources.len() * KEPT;
            self.flows.pay(setting.span(), units);
            if self.flows.is_exhausted() {
                return;
            }
            for source in &mut self.plan.sources {
                let alias = &source.alias;
                let Some(stream) = self.streams.get_mut(alias) else {
                    continue;
                };
                for path in setting.paths("fields") {
                    let name = path.name();
                    if path_type(&stream.record, &name).is_none() {
                        let message = format!("the input `{alias}` has no field `{name}`");
                        self.flows.found("TG0302", path, message);
                    }
                }
                if stream.key.as_ref() != Some(&key) {
                    let topic = format!("{}-{alias}-by-{}", self.name, key.join("-"));
                    source.repartition = Some(topic);
                }
                stream.key = Some(key.clone());
            }
            self.plan.partition_by = key;
        }
        let has_schema_time = self.plan.sources.iter().any(|source| source.time.is_some());
        let setting = self.setting("time");
        if setting.is_none() && !has_schema_time {
            return;
        }
        let field = setting.map(|setting| setting.child("path"));
        for (source, path) in self.plan.sources.iter_mut().zip(field.iter().cycle()) {
            let name = path.name();
            source.time = Some(name.clone());
            let kind = match self.streams.get(&source.alias) {
                Some(stream) => self.flows.path(*path, &stream.record),
                None => FlowType::Dynamic,
            };
            if !kind.fits(&FlowType::Timestamp) {
                let message = format!("`{name}` is {kind}, and event time needs a timestamp");
                self.flows.found("TG0303", *path, message);
            }
        }
        let millis = |label: &str| setting.map_or(0, |setting| setting.child(label).millis());
        let late = setting.and_then(|setting| setting.get("late"));
        self.plan.time = Some(TimePlan {
            field: field.map(Node::name),
            watermark_delay_ms: millis("delay"),
            lateness_ms: millis("lateness"),
            late: late.map(|late| self.sink(late)),
        });
    }

    /// Checks that concern the process as a whole.
    fn whole(&mut self) {
        let name = self.node.child("name");
        // A part that could not be read may have what is missing.
        let is_broken = self.node.tree().is_broken(self.node);
        if self.plan.sources.is_empty() && !is_broken {
            let message = format!("the process `{}` receives nothing", self.name);
            self.found("TG0201", name, message);
        }
        let mut statements = self.node.children();
        let has_output = statements.any(|node| ["emit", "route"].contains(&node.word()));
        if !has_output && !is_broken {
            let message = format!("the process `{}` neither emits nor routes", self.name);
            self.found("TG0202", name, message);
        }
        let mut steps = self.plan.steps.iter();
        let has_emit = steps.any(|step| matches!(step.operator, OperatorPlan::Emit { .. }));
        // A stream that a route writes to may refuse, too, but no commit of it is told about.
        let outputs = self.node.all("output");
        let untold = outputs
            .filter(|output| output.word() == "on")
            .find(|output| {
                let is_told = if output.has("failure") {
                    has_output
                } else {
                    has_emit
                };
                !is_told && !is_broken
            });
        if let Some(untold) = untold {
            let message = "there is no output whose commit could be told about";
            self.found("TG0208", untold.head(), message);
        }
        if self.live.len() > 1 && !self.is_uncombined && !is_broken {
            for unused in self.live.clone() {
                let stream = self.streams.get(&unused);
                let span = stream.map_or(name.span(), |stream| stream.span);
                let message = format!("`{unused}` is never combined with the other inputs");
                self.found("TG0206", span, message);
            }
        }
        if self.plan.mode == ModePlan::Batch {
            let waits = ["window", "await", "hold"];
            let mut steps = self.node.all("step");
            let step = steps.find(|step| waits.contains(&step.word()));
            let time = self.setting("time");
            if let Some(node) = step.or_else(|| time?.get("delay")) {
                let message = "a batch ends with its input, so nothing can wait for more";
                self.found("TG0207", node.head(), message);
            }
        }
    }

    fn topics(&mut self) {
        let plan = &self.plan;
        let ways = plan.ways_out.iter();
        let dead = ways.filter(|way| way.place == LedgerPlace::DeadLettered);
        let sources = plan.sources.iter();
        let passed = sources.filter_map(|source| source.repartition.as_ref());
        let passed = passed.chain(plan.steps.iter().flat_map(|step| &step.repartition));
        let changelog = format!("{}-changelog", self.name);
        let changelog = (!plan.state.is_empty()).then_some(&changelog);
        let topics = passed.map(|name| (TopicKind::Repartition, name));
        let topics = topics.chain(changelog.map(|name| (TopicKind::Changelog, name)));
        let dead = dead.filter_map(|way| Some((TopicKind::DeadLetter, way.stream.as_ref()?)));
        let topics: BTreeSet<TopicPlan> = topics
            .chain(dead)
            .map(|(kind, name)| TopicPlan {
                kind,
                name: name.clone(),
            })
            .collect();
        self.plan.topics = topics.into_iter().collect();
    }

    fn completion(&mut self, node: Node<'t>) {
        let correlation = node.child("correlation");
        let record = self.current_record();
        if path_type(&record, &correlation.name()).is_none() {
            let name = correlation.name();
            let message = format!("the output has no field `{name}` to correlate by");
            self.found("TG0208", correlation, message);
        }
        let include = self.flows.all_paths(node, "include", &record);
        let of = |path: &str| path_type(&record, path).unwrap_or(FlowType::Dynamic);
        let mut fields: Vec<(String, FlowType)> = COMPLETION_FIELDS
            .map(|(name, kind)| (name.to_owned(), kind))
            .into();
        fields[0].1 = of(&correlation.name());
        for path in node.paths("include") {
            let name = last_name(&path.name()).to_owned();
            if fields.iter().any(|(other, _)| *other == name) {
                let message = format!("a completion has a field `{name}` already");
                self.found("TG0101", path, message);
            }
            fields.push((name, of(&path.name())));
        }
        let schema = self.flows.schema_of(node.get("schema"));
        if let Some((name, schema)) = &schema {
            let (at, told) = (node.child("schema").span(), ObjectType::closed(fields));
            self.flows.fits_schema(at, &told, (name, schema), None);
        }
        let completion = CompletionPlan {
            on_failure: node.has("failure"),
            include,
            stream: self.sink(node.child("stream")),
            correlation: correlation.name(),
            schema: schema.map(|(name, _)| name),
        };
        self.plan.completions.push(completion);
    }
}

/// The streams that a step routes to.
fn targets(step: Node<'_>) -> Vec<String> {
    let arms = step.all("arm").chain(step.get("otherwise"));
    let streams = arms.filter_map(|arm| arm.get("stream"));
    streams.map(Node::name).collect()
}
