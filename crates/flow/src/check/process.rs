//! A process: its settings, its inputs and the order of its statements.

use std::collections::{BTreeMap, BTreeSet};

use super::declarations::paths;
use super::expressions::path_type;
use super::{FlowChecker, NamedPlace};
use crate::expression::ExpressionScope;
use crate::plan::{
    CompletionPlan, FieldPlan, HoldInputPlan, ModePlan, ParallelismPlan, ProcessPlan, ProjectPlan,
    SinkPlan, SourcePlan, StatePlan, TimePlan, TopicKind, TopicPlan, object_type, ways_out,
};
use crate::syntax::SyntaxNode;
use crate::value::{FlowType, ObjectType};
use crate::{Diagnostic, Span};

/// Findings about a statement that is missing, which may stand in a part that could not be read.
const BY_OTHER_STATEMENTS: [&str; 8] = [
    "TG0203", "TG0204", "TG0401", "TG0402", "TG0403", "TG0405", "TG0504", "TG0505",
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
    pub(super) node: SyntaxNode<'t>,
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
    pub(super) route_targets: BTreeSet<String>,
    pub(super) aggregable: Aggregable,
    /// Whether a part could not be read, which may have set any field.
    pub(super) is_broken: bool,
    /// Whether Rust takes part, which may fail transiently.
    pub(super) has_registered: bool,
}

impl<'t> FlowChecker<'t> {
    /// Checks all processes.
    pub(super) fn processes(&mut self) {
        let declared: Vec<_> = self
            .names
            .iter()
            .filter(|(_, declared)| declared.kind == "process")
            .collect();
        let declared: Vec<(String, SyntaxNode<'t>)> = declared
            .into_iter()
            .map(|(name, d)| (name.clone(), d.node))
            .collect();
        for (name, node) in declared {
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
                route_targets: BTreeSet::new(),
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
        self.check_given_once();
        // Records that cannot be decoded go there, whatever the handlers say.
        if let Some(name) = self.node.get("name") {
            let (process, stream) = (self.name.clone(), format!("{}_dlq", self.name));
            self.flows.places.push(NamedPlace {
                section: "streams",
                name: stream,
                process,
                span: name.span(),
            });
        }
        self.declare_state();
        self.settings();
        for receive in self.node.all("receive") {
            self.receive(receive);
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
        }
        for output in self
            .node
            .all("output")
            .filter(|output| output.word() == "on")
        {
            self.completion(output);
        }
        self.blocks();
        self.whole();
        if self.is_broken {
            let span = self.node.span();
            let is_inside = |found: &Diagnostic| {
                found.span.source == span.source
                    && found.span.start >= span.start
                    && found.span.end <= span.end
            };
            let is_missing = |found: &Diagnostic| BY_OTHER_STATEMENTS.contains(&found.code);
            self.flows
                .diagnostics
                .retain(|found| !(is_missing(found) && is_inside(found)));
        }
        self.topics();
        self.plan.ways_out = ways_out(&self.name, &self.plan);
        self.plan
    }

    pub(super) fn found(
        &mut self,
        code: &'static str,
        span: Span,
        message: impl Into<String>,
    ) -> &mut Diagnostic {
        self.flows.found(code, span, message)
    }

    /// Keeps the records that flow under a name from here on.
    pub(super) fn insert_stream(&mut self, name: String, mut stream: FlowStream) {
        stream.record.is_open |= self.is_broken;
        self.streams.insert(name, stream);
    }

    /// Writes down that the configuration must bind a name.
    pub(super) fn bound(&mut self, section: &'static str, node: SyntaxNode<'t>) -> String {
        let name = node.name();
        let process = self.name.clone();
        self.flows.places.push(NamedPlace {
            section,
            name: name.clone(),
            process,
            span: node.span(),
        });
        name
    }

    /// A stream that is written to.
    pub(super) fn sink(&mut self, node: SyntaxNode<'t>) -> String {
        let stream = self.bound("streams", node);
        if self
            .plan
            .sources
            .iter()
            .any(|source| source.stream == stream)
        {
            self.found(
                "TG0209",
                node.span(),
                format!("the process also receives `{stream}`"),
            );
        }
        if !self.plan.sinks.iter().any(|sink| sink.stream == stream) {
            self.plan.sinks.push(SinkPlan {
                stream: stream.clone(),
                ..SinkPlan::default()
            });
        }
        stream
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

    /// The length of a duration, which must not be zero.
    pub(super) fn above_zero(&mut self, node: Option<SyntaxNode<'t>>) -> u64 {
        let Some(node) = node else { return 0 };
        if node.millis() == 0 {
            self.found(
                "TG0404",
                node.span(),
                "this duration must be longer than zero",
            );
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

    fn check_given_once(&mut self) {
        let mut seen: Vec<(String, Span)> = Vec::new();
        for statement in self.node.children() {
            let words = statement.words();
            let is_on = statement.word() == "on";
            let key = match statement.label() {
                "setting" | "block" if !is_on => statement.word().to_owned(),
                "block" => "on error".to_owned(),
                "output" if is_on => format!("on commit {}", statement.has("failure")),
                _ => continue,
            };
            match seen.iter().find(|(other, _)| *other == key) {
                Some((_, first)) => {
                    let shown = words
                        .get(..if is_on { 2 } else { 1 })
                        .unwrap_or_default()
                        .join(" ");
                    let also = Some(*first);
                    self.found(
                        "TG0013",
                        statement.head(),
                        format!("`{shown}` is given twice"),
                    )
                    .also = also;
                }
                None => seen.push((key, statement.head())),
            }
        }
    }

    fn setting(&self, word: &str) -> Option<SyntaxNode<'t>> {
        self.node
            .all("setting")
            .find(|setting| setting.word() == word)
    }

    fn settings(&mut self) {
        if let Some(setting) = self.setting("parallelism") {
            let tasks = setting.get("count").and_then(SyntaxNode::int).unwrap_or(0);
            if tasks == 0 {
                self.found("TG0003", setting.span(), "a process has at least one task");
            }
            self.plan.parallelism = Some(ParallelismPlan {
                tasks,
                is_hint: setting.has("hint"),
            });
        }
        if let Some(mode) = self.setting("mode").and_then(|setting| setting.get("mode")) {
            self.plan.mode = match mode.word() {
                "batch" => ModePlan::Batch,
                "micro_batch" => ModePlan::MicroBatch(self.above_zero(mode.get("every"))),
                _ => ModePlan::Stream,
            };
        }
    }

    fn receive(&mut self, node: SyntaxNode<'t>) {
        let Some(stream_node) = node.get("stream").or_else(|| node.get("alias")) else {
            return;
        };
        let alias_node = node.get("alias").unwrap_or(stream_node);
        let (stream, alias) = (self.bound("streams", stream_node), alias_node.name());
        if let Some(first) = self.streams.get(&alias) {
            let also = Some(first.span);
            self.found(
                "TG0101",
                alias_node.span(),
                format!("the alias `{alias}` is declared twice"),
            )
            .also = also;
            return;
        }
        let schema = self.flows.schema_of(node.get("schema"));
        let fields = schema
            .as_ref()
            .map_or(Vec::new(), |(_, schema)| schema.fields.clone());
        // An unknown schema has been told about; its fields may be anything.
        let mut record = schema
            .as_ref()
            .map_or_else(ObjectType::open, |(_, schema)| object_type(&schema.fields));
        let filter = node.get("filter").map(|filter| {
            let scope = self.scope(&record);
            self.flows.condition(filter, &scope)
        });
        self.flows.all_paths(node, "project", &record);
        let project = node.get("project").map(|_| {
            let names = paths(node, "project");
            if node.has("except") {
                record.fields.retain(|field, _| !names.contains(field));
                return ProjectPlan::Except(names);
            }
            let kept = names.iter().map(|name| {
                let first = name.split('.').next().unwrap_or(name).to_owned();
                let kind = record.field(&first).unwrap_or(FlowType::Dynamic);
                (first, kind)
            });
            record = ObjectType::closed(kept.collect::<Vec<_>>());
            ProjectPlan::Keep(names)
        });
        let hold = node
            .get("store")
            .or_else(|| node.get("match"))
            .map(|hold| HoldInputPlan {
                hold: hold.name(),
                key: paths(node, "on"),
                is_marker: node.has("marker"),
            });
        self.flows.all_paths(node, "on", &record);
        let key = schema
            .as_ref()
            .map(|(_, schema)| schema.key.clone())
            .filter(|key| !key.is_empty());
        let time = schema.as_ref().and_then(|(_, schema)| schema.time.clone());
        self.plan.sources.push(SourcePlan {
            alias: alias.clone(),
            stream,
            schema: schema.map(|(name, _)| name),
            time,
            project,
            filter,
            hold,
            repartition: None,
        });
        self.live.push(alias.clone());
        self.insert_stream(
            alias,
            FlowStream {
                record,
                key,
                fields,
                span: alias_node.span(),
            },
        );
    }

    fn partition_and_time(&mut self) {
        if let Some(setting) = self.setting("partition") {
            let key = paths(setting, "fields");
            for source in &mut self.plan.sources {
                let Some(stream) = self.streams.get_mut(&source.alias) else {
                    continue;
                };
                for path in setting
                    .get("fields")
                    .into_iter()
                    .flat_map(|fields| fields.all("path"))
                {
                    if path_type(&stream.record, &path.name()).is_none() {
                        let message = format!(
                            "the input `{}` has no field `{}`",
                            source.alias,
                            path.name()
                        );
                        self.flows.found("TG0302", path.span(), message);
                    }
                }
                if stream.key.as_ref() != Some(&key) {
                    source.repartition = Some(format!(
                        "{}-{}-by-{}",
                        self.name,
                        source.alias,
                        key.join("-")
                    ));
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
        let field = setting.and_then(|setting| setting.get("path"));
        if let Some(path) = field {
            for source in &mut self.plan.sources {
                source.time = Some(path.name());
                let record = self
                    .streams
                    .get(&source.alias)
                    .map_or_else(ObjectType::open, |stream| stream.record.clone());
                let kind = self.flows.path(path, &record);
                if !kind.fits(&FlowType::Timestamp) {
                    let message = format!(
                        "`{}` is {kind}, and event time needs a timestamp",
                        path.name()
                    );
                    self.flows.found("TG0303", path.span(), message);
                }
            }
        }
        let millis = |label: &str| {
            setting
                .and_then(|setting| setting.get(label))
                .map_or(0, SyntaxNode::millis)
        };
        let late = setting.and_then(|setting| setting.get("late"));
        self.plan.time = Some(TimePlan {
            field: field.map(SyntaxNode::name),
            watermark_delay_ms: millis("delay"),
            lateness_ms: millis("lateness"),
            late: late.map(|late| self.sink(late)),
        });
    }

    /// Checks that concern the process as a whole.
    fn whole(&mut self) {
        let name = self
            .node
            .get("name")
            .map_or(Span::default(), SyntaxNode::span);
        // A part that could not be read may have what is missing.
        let is_broken = self.node.tree().is_broken(self.node);
        if self.plan.sources.is_empty() && !is_broken {
            self.found(
                "TG0201",
                name,
                format!("the process `{}` receives nothing", self.name.clone()),
            );
        }
        let statements = |word: &str| {
            self.node
                .children()
                .filter(|node| node.word() == word)
                .count()
        };
        let (emits, routes) = (statements("emit"), statements("route"));
        if emits + routes == 0 && !is_broken {
            let message = format!("the process `{}` neither emits nor routes", self.name);
            self.found("TG0202", name, message);
        }
        let commit = self.node.all("output").find(|output| output.word() == "on");
        if let (Some(commit), 0) = (commit, emits + routes) {
            self.found(
                "TG0208",
                commit.head(),
                "there is no output whose commit could be told about",
            );
        }
        if self.live.len() > 1 && !self.is_uncombined && !is_broken {
            for unused in self.live.clone() {
                let span = self.streams.get(&unused).map_or(name, |stream| stream.span);
                self.found(
                    "TG0206",
                    span,
                    format!("`{unused}` is never combined with the other inputs"),
                );
            }
        }
        if self.plan.mode == ModePlan::Batch {
            let waits = ["window", "await", "hold"];
            let step = self
                .node
                .all("step")
                .find(|step| waits.contains(&step.word()));
            let delay = self
                .setting("time")
                .and_then(|setting| setting.get("delay"));
            if let Some(node) = step.or(delay) {
                self.found(
                    "TG0207",
                    node.head(),
                    "a batch ends with its input, so nothing can wait for more",
                );
            }
        }
    }

    fn topics(&mut self) {
        let mut topics: BTreeSet<TopicPlan> = BTreeSet::new();
        let mut add = |kind, name: &str| {
            topics.insert(TopicPlan {
                kind,
                name: name.to_owned(),
            });
        };
        for topic in self
            .plan
            .sources
            .iter()
            .filter_map(|source| source.repartition.as_deref())
        {
            add(TopicKind::Repartition, topic);
        }
        for topic in self.plan.steps.iter().flat_map(|step| &step.repartition) {
            add(TopicKind::Repartition, topic);
        }
        if !self.plan.state.is_empty() {
            add(TopicKind::Changelog, &format!("{}-changelog", self.name));
        }
        for way in ways_out(&self.name, &self.plan) {
            if way.place == crate::plan::LedgerPlace::DeadLettered {
                add(
                    TopicKind::DeadLetter,
                    way.stream.as_deref().unwrap_or_default(),
                );
            }
        }
        self.plan.topics = topics.into_iter().collect();
    }

    fn completion(&mut self, node: SyntaxNode<'t>) {
        let Some((stream, correlation)) = node.get("stream").zip(node.get("correlation")) else {
            return;
        };
        let record = self
            .current()
            .map_or_else(ObjectType::open, |(_, stream)| stream.record);
        if path_type(&record, &correlation.name()).is_none() {
            let message = format!(
                "the output has no field `{}` to correlate by",
                correlation.name()
            );
            self.found("TG0208", correlation.span(), message);
        }
        self.flows.all_paths(node, "include", &record);
        let completion = CompletionPlan {
            on_failure: node.has("failure"),
            stream: self.sink(stream),
            correlation: correlation.name(),
            include: paths(node, "include"),
            schema: self
                .flows
                .schema_of(node.get("schema"))
                .map(|(name, _)| name),
        };
        self.plan.completions.push(completion);
    }
}

/// The streams that a step routes to.
fn targets(step: SyntaxNode<'_>) -> Vec<String> {
    let arms = step.all("arm").chain(step.get("otherwise"));
    arms.filter_map(|arm| arm.get("stream"))
        .map(SyntaxNode::name)
        .collect()
}
