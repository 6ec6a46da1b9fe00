//! The blocks of a process: errors, state, metrics, checkpoints, pressure.

use std::collections::BTreeMap;

use rust_decimal::Decimal;

use super::MAX_ATTEMPTS;
use super::process::ProcessChecker;
use crate::Span;
use crate::plan::{
    BackoffPlan, CheckpointPlan, FailureKind, FieldType, HandlerPlan, LeavePlan, MetricKind,
    MetricPlan, RetryPlan, SlowPlan, StateKind, StatePlan, TtlPlan,
};
use crate::syntax::SyntaxNode as Node;
use crate::value::{FlowType, ObjectType};

/// Defaults of a retry, as the handlers of a stage have them.
const RETRY: RetryPlan = RetryPlan {
    attempts: 3,
    delay_ms: 100,
    backoff: BackoffPlan::Exponential,
    max_delay_ms: 30_000,
};

impl<'t> ProcessChecker<'_, 't> {
    /// The parts with this label of the blocks that begin with a word.
    fn parts(
        &self,
        word: &'static str,
        label: &'static str,
    ) -> impl Iterator<Item = Node<'t>> + use<'t> {
        let blocks = self.node.all("block");
        let blocks = blocks.filter(move |block| block.word() == word);
        blocks.flat_map(move |block| block.all(label))
    }

    /// The declarations of the state block that begin with this word.
    pub(super) fn state_decls(
        &self,
        word: &'static str,
    ) -> impl Iterator<Item = Node<'t>> + use<'t> {
        let decls = self.parts("state", "decl");
        decls.filter(move |decl| decl.word() == word)
    }

    /// The names of state, before anything reads them.
    pub(super) fn declare_state(&mut self) {
        self.flows.state_keys.clear();
        self.flows.used_state.clear();
        let mut states: BTreeMap<String, FlowType> = BTreeMap::new();
        let mut spans: BTreeMap<String, Span> = BTreeMap::new();
        for decl in self.parts("state", "decl") {
            let node = decl.get("name").unwrap_or(decl.child("uses"));
            let name = node.name();
            if let Some(first) = spans.insert(name.clone(), node.span()) {
                let message = format!("the state `{name}` is declared twice");
                self.found("TG0101", node, message).also = Some(first);
                continue;
            }
            let registered = self.flows.registered.state.get(&name);
            let kind = match decl.child("type").word() {
                _ if decl.has("uses") => registered.cloned().unwrap_or(FlowType::Dynamic),
                "counter" => FlowType::Integer,
                "map" => FlowType::map(FlowType::Dynamic),
                "list" => FlowType::list(FlowType::Dynamic),
                _ => FlowType::Dynamic,
            };
            if decl.word() != "buffer" {
                states.insert(name.clone(), kind);
            }
            if decl.word() == "local" {
                let keys = decl.path_names("keyed");
                self.flows.state_keys.insert(name, keys);
            }
        }
        let mut blocks = self.node.all("block");
        let has_block = blocks.any(|block| block.word() == "state");
        self.states = has_block.then_some(states);
    }

    pub(super) fn blocks(&mut self) {
        self.handlers();
        self.metrics();
        self.state();
        for block in self.node.all("block") {
            match block.word() {
                "checkpoint" => self.checkpoint(block),
                "when" => self.slow(block),
                _ => {}
            }
        }
    }

    fn state(&mut self) {
        for decl in self.state_decls("uses") {
            let node = decl.child("uses");
            let name = node.name();
            if !self.flows.registered.state.contains_key(&name) {
                self.bound("state-backends", node);
            }
            let why = "it is kept like local state, and no backend is asked";
            self.unbuilt("uses", why, node);
            let state = StatePlan::new(format!("uses/{name}"), StateKind::Uses, Vec::new(), 64);
            self.add_state(state, node.span());
        }
        for decl in self.state_decls("local") {
            let (name, kind) = (decl.child("name"), decl.child("type").word());
            let has_event_time = self.plan.time.is_some();
            let ttl = decl.get("ttl").map(|node| {
                let clock = node.get("clock").map(|clock| clock.word() == "event_time");
                let since = match node.child("since").word() {
                    "sliding" => "access",
                    "absolute" => "creation",
                    _ => "write",
                };
                let is_event_time = clock.unwrap_or(has_event_time);
                if is_event_time && !has_event_time {
                    self.found("TG0403", node, "without `time by` there is no event time");
                }
                TtlPlan {
                    since: since.to_owned(),
                    after_ms: self.above_zero(node.child("after")),
                    is_event_time,
                }
            });
            // Where an expression names it, its key was checked there.
            let record = match self.flows.used_state.contains(&name.name()) {
                true => ObjectType::open(),
                false => self.last_record(),
            };
            let key = self.flows.all_paths(decl, "keyed", &record);
            let values = if ["map", "list"].contains(&kind) {
                8
            } else {
                1
            };
            let bytes = 48 + FieldType::String.likely_bytes() * values;
            let kind = StateKind::Local(kind.to_owned());
            let mut state = StatePlan::new(format!("state/{}", name.name()), kind, key, bytes);
            state.ttl = ttl;
            let cleanup = decl.get("cleanup");
            state.cleanup = cleanup.map(|cleanup| cleanup.word().to_owned());
            self.add_state(state, name.span());
        }
        let states = self.plan.state.iter();
        let holds = states.filter_map(|state| state.id.strip_prefix("hold/"));
        let holds: Vec<String> = holds.map(str::to_owned).collect();
        for buffer in self.state_decls("buffer") {
            let name = buffer.child("name");
            if !holds.contains(&name.name()) {
                self.flows.unknown("TG0104", name, "hold", holds.clone());
            }
        }
    }

    /// One handler per kind of failure: the declared one, or the default.
    fn handlers(&mut self) {
        for (failure, word) in FailureKind::ALL {
            let mut retry = (failure == FailureKind::Lookup).then_some(RETRY);
            let mut leave: Option<LeavePlan> = None;
            let mut is_declared = false;
            for handler in self.parts("on", "handler") {
                if handler.child("failure").word() != word {
                    continue;
                }
                if leave.is_some() || (is_declared && handler.has("retry")) {
                    let message = format!("an earlier handler takes every {word} failure");
                    self.found("TG0601", handler, message);
                    continue;
                }
                if let Some(node) = handler.get("retry") {
                    retry = Some(self.retry(node, failure));
                    leave = node.get("then").map(|then| self.leave(then));
                } else {
                    retry = retry.filter(|_| is_declared);
                    leave = Some(self.leave(handler.child("leave")));
                }
                is_declared = true;
            }
            let default = || LeavePlan::DeadLetter(format!("{}_dlq", self.name));
            let leave = leave.unwrap_or_else(default);
            self.plan.handlers.push(HandlerPlan {
                failure,
                retry,
                leave,
                is_declared,
            });
        }
    }

    fn retry(&mut self, node: Node<'t>, failure: FailureKind) -> RetryPlan {
        let attempts = node.child("attempts").int().unwrap_or(1);
        if attempts == 0 {
            let message = "the first attempt is always made, so there is at least one";
            self.found("TG0602", node.child("attempts"), message);
        }
        if attempts > MAX_ATTEMPTS {
            let message = format!("more than {MAX_ATTEMPTS} attempts, the limit `attempts`");
            self.found("TG0016", node.child("attempts"), message);
        }
        if failure != FailureKind::Lookup && !self.has_registered {
            let message = "nothing here fails transiently, so the retry is skipped";
            self.found("TG0606", node.head(), message);
        }
        let waits = ["delay", "backoff", "max_delay"];
        if let Some(wait) = waits.iter().find_map(|label| node.get(label)) {
            let why = "the attempts follow each other at once";
            self.unbuilt("the wait of a retry", why, wait);
        }
        let millis = |label: &str, or: u64| node.get(label).map_or(or, Node::millis);
        RetryPlan {
            attempts,
            delay_ms: millis("delay", RETRY.delay_ms),
            backoff: match node.child("backoff").word() {
                "linear" => BackoffPlan::Linear,
                "fixed" => BackoffPlan::Fixed,
                _ => BackoffPlan::Exponential,
            },
            max_delay_ms: millis("max_delay", RETRY.max_delay_ms),
        }
    }

    fn metrics(&mut self) {
        let mut scope = self.scope(&self.last_record());
        scope.has_route = true;
        for node in self.parts("metrics", "metric") {
            let (word, name) = (node.word(), node.child("name").name());
            if self.plan.metrics.iter().any(|metric| metric.name == name) {
                let message = format!("the metric `{name}` is declared twice");
                self.found("TG0101", node.child("name"), message);
            }
            let expression = node.get("expr").map(|expr| {
                if ["counter", "rate"].contains(&word) {
                    return self.flows.condition(expr, &scope);
                }
                let (expression, kind) = self.flows.expression(expr, &scope);
                self.flows.expect_number(expr, &kind, &format!("a {word}"));
                expression
            });
            let buckets: Vec<Node<'t>> = node.all("bucket").collect();
            let bound = |bucket: &Node<'t>| bucket.word().parse::<Decimal>().ok();
            let mut pairs = buckets.windows(2);
            if let Some(pair) = pairs.find(|pair| bound(&pair[0]) >= bound(&pair[1])) {
                let message = "each bound must be larger than the one before";
                self.found("TG0605", pair[1], message);
            }
            let kind = match word {
                "gauge" => MetricKind::Gauge,
                "rate" => {
                    let window = node.get("window");
                    let window_ms = window.map_or(60_000, |window| self.above_zero(window));
                    MetricKind::Rate { window_ms }
                }
                "histogram" => {
                    let buckets = buckets.iter().map(|bucket| bucket.word().to_owned());
                    let buckets = buckets.collect();
                    MetricKind::Histogram { buckets }
                }
                _ => MetricKind::Counter,
            };
            self.plan.metrics.push(MetricPlan {
                name,
                kind,
                expression,
            });
        }
    }

    fn checkpoint(&mut self, node: Node<'t>) {
        let mut plan = CheckpointPlan {
            every_ms: None,
            ..CheckpointPlan::default()
        };
        for trigger in node.all("trigger") {
            let every = trigger.get("every").map(Node::millis);
            let records = trigger.get("records").and_then(Node::int);
            if every.is_some_and(|every| every < 1_000) || records == Some(0) {
                let message = "a checkpoint comes after 1 second or 1 record at the earliest";
                self.found("TG0604", trigger, message);
            }
            // Of two triggers the first to come counts.
            plan.every_ms = plan.every_ms.into_iter().chain(every).min();
            plan.records = plan.records.into_iter().chain(records).min();
        }
        let why = "`checkpoints` does not say where they are kept";
        self.unbuilt("checkpoint every", why, node);
        if let Some(to) = node.get("to") {
            plan.to = self.bound("checkpoints", to);
        }
        self.plan.checkpoint = plan;
    }

    fn slow(&mut self, node: Node<'t>) {
        let strategy = node.child("strategy");
        let alert_ms = node.get("alert").map(|alert| self.above_zero(alert));
        if strategy.word() != "block" {
            self.unbuilt("when slow strategy", "the input waits", strategy);
        }
        if let Some(alert) = node.get("alert") {
            self.unbuilt("alert after", "nobody is told", alert);
        }
        self.plan.slow = match (strategy.word(), alert_ms) {
            ("drop", alert_ms) => SlowPlan::Drop { alert_ms },
            ("sample", alert_ms) => {
                let rate = strategy.child("rate").word().to_owned();
                let share = rate.parse::<Decimal>().unwrap_or_default();
                if share <= Decimal::ZERO || share > Decimal::ONE {
                    let message = "the share that is kept is above 0 and at most 1";
                    self.found("TG0603", strategy, message);
                    return;
                }
                SlowPlan::Sample { rate, alert_ms }
            }
            (_, Some(alert_ms)) => SlowPlan::BlockAlert { alert_ms },
            (_, None) => SlowPlan::Block,
        };
        if strategy.word() != "block" {
            self.loses(strategy);
        }
    }
}
