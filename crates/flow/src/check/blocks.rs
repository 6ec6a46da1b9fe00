//! The blocks of a process: errors, state, metrics, checkpoints, pressure.

use std::collections::BTreeMap;

use super::declarations::paths;
use super::process::ProcessChecker;
use crate::plan::{
    BackoffPlan, CheckpointPlan, FailureKind, FieldType, HandlerPlan, LeavePlan, MetricKind,
    MetricPlan, RetryPlan, SlowPlan, StateKind, StatePlan, TtlPlan,
};
use crate::syntax::SyntaxNode;
use crate::value::FlowType;

/// Defaults of a retry, as the handlers of a stage have them.
const RETRY: RetryPlan = RetryPlan {
    attempts: 3,
    delay_ms: 100,
    backoff: BackoffPlan::Exponential,
    max_delay_ms: 30_000,
};

impl<'t> ProcessChecker<'_, 't> {
    fn block(&self, word: &'static str) -> impl Iterator<Item = SyntaxNode<'t>> + use<'t> {
        self.node
            .all("block")
            .filter(move |block| block.word() == word)
    }

    /// The declarations of the state block that begin with this word.
    pub(super) fn state_decls(
        &self,
        word: &'static str,
    ) -> impl Iterator<Item = SyntaxNode<'t>> + use<'t> {
        self.block("state")
            .flat_map(|block| block.all("decl"))
            .filter(move |decl| decl.word() == word)
    }

    /// The names of state, before anything reads them.
    pub(super) fn declare_state(&mut self) {
        if self.block("state").next().is_none() {
            return;
        }
        let mut states: BTreeMap<String, FlowType> = BTreeMap::new();
        let mut spans: BTreeMap<String, crate::Span> = BTreeMap::new();
        let decls = self.block("state").flat_map(|block| block.all("decl"));
        for decl in decls.collect::<Vec<_>>() {
            let Some(node) = decl.get("name").or_else(|| decl.get("uses")) else {
                continue;
            };
            let name = node.name();
            if let Some(first) = spans.insert(name.clone(), node.span()) {
                self.found(
                    "TG0101",
                    node.span(),
                    format!("the state `{name}` is declared twice"),
                )
                .also = Some(first);
                continue;
            }
            let kind = match decl.get("type").map_or("", SyntaxNode::word) {
                _ if decl.has("uses") => self
                    .flows
                    .registered
                    .state
                    .get(&name)
                    .cloned()
                    .unwrap_or(FlowType::Dynamic),
                "counter" => FlowType::Integer,
                "map" => FlowType::map(FlowType::Dynamic),
                "list" => FlowType::list(FlowType::Dynamic),
                _ => FlowType::Dynamic,
            };
            if decl.word() != "buffer" {
                states.insert(name, kind);
            }
        }
        self.states = Some(states);
    }

    pub(super) fn blocks(&mut self) {
        self.state();
        self.handlers();
        self.metrics();
        if let Some(node) = self.block("checkpoint").next() {
            self.checkpoint(node);
        }
        if let Some(node) = self.block("when").next() {
            self.slow(node);
        }
    }

    fn state(&mut self) {
        for decl in self.state_decls("uses").collect::<Vec<_>>() {
            let Some(node) = decl.get("uses") else {
                continue;
            };
            let name = node.name();
            if !self.flows.registered.state.contains_key(&name) {
                self.bound("state-backends", node);
            }
            let state = StatePlan {
                id: format!("uses/{name}"),
                kind: StateKind::Uses,
                key: Vec::new(),
                ttl: None,
                cleanup: None,
                timer_ms: None,
                fields: Vec::new(),
                entry_bytes: 64,
            };
            self.add_state(state, node.span());
        }
        for decl in self.state_decls("local").collect::<Vec<_>>() {
            let (Some(name), Some(kind)) = (decl.get("name"), decl.get("type")) else {
                continue;
            };
            let ttl = decl.get("ttl").map(|ttl| {
                let clock = ttl.get("clock").map(|clock| clock.word() == "event_time");
                let after = ttl.get("after");
                TtlPlan {
                    since: match ttl.get("since").map_or("", SyntaxNode::word) {
                        "sliding" => "access",
                        "absolute" => "creation",
                        _ => "write",
                    }
                    .to_owned(),
                    after_ms: self.above_zero(after),
                    is_event_time: clock.unwrap_or(self.plan.time.is_some()),
                }
            });
            if let (Some(true), None) = (ttl.as_ref().map(|ttl| ttl.is_event_time), &self.plan.time)
            {
                self.found(
                    "TG0403",
                    decl.get("ttl").unwrap_or(decl).span(),
                    "without `time by` there is no event time",
                );
            }
            let record = self.last_record();
            self.flows.all_paths(decl, "keyed", &record);
            let state = StatePlan {
                id: format!("state/{}", name.name()),
                kind: StateKind::Local(kind.word().to_owned()),
                key: paths(decl, "keyed"),
                ttl,
                cleanup: decl.get("cleanup").map(|cleanup| cleanup.word().to_owned()),
                timer_ms: None,
                fields: Vec::new(),
                entry_bytes: 48
                    + FieldType::String.likely_bytes()
                        * if ["map", "list"].contains(&kind.word()) {
                            8
                        } else {
                            1
                        },
            };
            self.add_state(state, name.span());
        }
        for buffer in self.state_decls("buffer").collect::<Vec<_>>() {
            let Some(name) = buffer.get("name") else {
                continue;
            };
            if !self
                .plan
                .state
                .iter()
                .any(|state| state.id == format!("hold/{}", name.name()))
            {
                let holds: Vec<String> = self
                    .plan
                    .state
                    .iter()
                    .filter_map(|state| state.id.strip_prefix("hold/").map(str::to_owned))
                    .collect();
                self.flows.unknown(
                    "TG0104",
                    name.span(),
                    ("hold", &name.name()),
                    holds.iter().map(String::as_str),
                );
            }
        }
    }

    /// One handler per kind of failure: the declared one, or the default.
    fn handlers(&mut self) {
        let declared: Vec<SyntaxNode<'t>> = self
            .block("on")
            .flat_map(|block| block.all("handler"))
            .collect();
        for (failure, word) in FailureKind::ALL {
            let mut retry = (failure == FailureKind::Lookup).then_some(RETRY);
            let mut leave: Option<LeavePlan> = None;
            let mut is_declared = false;
            for handler in &declared {
                if handler
                    .get("failure")
                    .is_none_or(|kind| kind.word() != word)
                {
                    continue;
                }
                let action = handler.get("retry").or_else(|| handler.get("leave"));
                if leave.is_some() || (is_declared && handler.has("retry")) {
                    let message = format!("an earlier handler takes every {word} failure");
                    self.found("TG0601", handler.span(), message);
                    continue;
                }
                if let Some(node) = handler.get("retry") {
                    retry = Some(self.retry(node, failure));
                    leave = node.get("then").map(|then| self.leave(then));
                } else {
                    if !is_declared {
                        retry = None;
                    }
                    leave = action.map(|action| self.leave(action));
                }
                is_declared = true;
            }
            let leave =
                leave.unwrap_or_else(|| LeavePlan::DeadLetter(format!("{}_dlq", self.name)));
            self.plan.handlers.push(HandlerPlan {
                failure,
                retry,
                leave,
                is_declared,
            });
        }
    }

    fn retry(&mut self, node: SyntaxNode<'t>, failure: FailureKind) -> RetryPlan {
        let attempts = node.get("attempts");
        let count = attempts.and_then(SyntaxNode::int).unwrap_or(1);
        if let Some(attempts) = attempts.filter(|_| count == 0) {
            self.found(
                "TG0602",
                attempts.span(),
                "the first attempt is always made, so there is at least one",
            );
        }
        if failure != FailureKind::Lookup && !self.has_registered {
            let message = "nothing here fails transiently, so the retry is skipped";
            self.found("TG0606", node.head(), message);
        }
        RetryPlan {
            attempts: count,
            delay_ms: node.get("delay").map_or(RETRY.delay_ms, SyntaxNode::millis),
            backoff: match node.get("backoff").map_or("exponential", SyntaxNode::word) {
                "linear" => BackoffPlan::Linear,
                "fixed" => BackoffPlan::Fixed,
                _ => BackoffPlan::Exponential,
            },
            max_delay_ms: node
                .get("max_delay")
                .map_or(RETRY.max_delay_ms, SyntaxNode::millis),
        }
    }

    fn metrics(&mut self) {
        let mut scope = self.scope(&self.last_record());
        scope.has_route = true;
        let metrics: Vec<SyntaxNode<'t>> = self
            .block("metrics")
            .flat_map(|block| block.all("metric"))
            .collect();
        for node in metrics {
            let Some(name) = node.get("name") else {
                continue;
            };
            if self
                .plan
                .metrics
                .iter()
                .any(|metric| metric.name == name.name())
            {
                self.found(
                    "TG0101",
                    name.span(),
                    format!("the metric `{}` is declared twice", name.name()),
                );
            }
            let is_condition = ["counter", "rate"].contains(&node.word());
            let expression = node.get("expr").map(|expr| {
                if is_condition {
                    return self.flows.condition(expr, &scope);
                }
                let (expression, kind) = self.flows.expression(expr, &scope);
                if !kind.is_number() && kind != FlowType::Dynamic {
                    let message = format!("a {} needs a number, and this is {kind}", node.word());
                    self.flows.found("TG0305", expr.span(), message);
                }
                expression
            });
            let buckets: Vec<SyntaxNode<'t>> = node.all("bucket").collect();
            let bound =
                |bucket: &SyntaxNode<'t>| bucket.word().parse::<rust_decimal::Decimal>().ok();
            if let Some(pair) = buckets
                .windows(2)
                .find(|pair| bound(&pair[0]) >= bound(&pair[1]))
            {
                self.found(
                    "TG0605",
                    pair[1].span(),
                    "each bound must be larger than the one before",
                );
            }
            let kind = match node.word() {
                "gauge" => MetricKind::Gauge,
                "rate" => {
                    let window = node.get("window");
                    MetricKind::Rate {
                        window_ms: window.map_or(60_000, |window| self.above_zero(Some(window))),
                    }
                }
                "histogram" => MetricKind::Histogram {
                    buckets: buckets
                        .iter()
                        .map(|bucket| bucket.word().to_owned())
                        .collect(),
                },
                _ => MetricKind::Counter,
            };
            self.plan.metrics.push(MetricPlan {
                name: name.name(),
                kind,
                expression,
            });
        }
    }

    fn checkpoint(&mut self, node: SyntaxNode<'t>) {
        let mut plan = CheckpointPlan {
            every_ms: None,
            ..CheckpointPlan::default()
        };
        for trigger in node.all("trigger") {
            let every = trigger.get("every").map(SyntaxNode::millis);
            let records = trigger.get("records").and_then(SyntaxNode::int);
            if every.is_some_and(|every| every < 1_000) || records == Some(0) {
                self.found(
                    "TG0604",
                    trigger.span(),
                    "a checkpoint comes after 1 second or 1 record at the earliest",
                );
            }
            plan.every_ms = plan.every_ms.or(every);
            plan.records = plan.records.or(records);
        }
        if let Some(to) = node.get("to") {
            plan.to = self.bound("checkpoints", to);
        }
        self.plan.checkpoint = plan;
    }

    fn slow(&mut self, node: SyntaxNode<'t>) {
        let Some(strategy) = node.get("strategy") else {
            return;
        };
        let alert_ms = node.get("alert").map(|alert| self.above_zero(Some(alert)));
        let mut is_loss = strategy.word() != "block";
        self.plan.slow = match (strategy.word(), alert_ms) {
            ("drop", alert_ms) => SlowPlan::Drop { alert_ms },
            ("sample", alert_ms) => {
                let rate = strategy.get("rate").map_or("", SyntaxNode::word).to_owned();
                let share = rate.parse::<rust_decimal::Decimal>().unwrap_or_default();
                if share <= rust_decimal::Decimal::ZERO || share > rust_decimal::Decimal::ONE {
                    self.found(
                        "TG0603",
                        strategy.span(),
                        "the share that is kept is above 0 and at most 1",
                    );
                    is_loss = false;
                }
                SlowPlan::Sample { rate, alert_ms }
            }
            (_, Some(alert_ms)) => SlowPlan::BlockAlert { alert_ms },
            (_, None) => SlowPlan::Block,
        };
        if is_loss {
            self.found(
                "TG0607",
                strategy.span(),
                "records that take this way are lost by declaration",
            );
        }
    }
}
