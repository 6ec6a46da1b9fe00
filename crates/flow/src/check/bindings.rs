//! Bindings: whether the configuration has everything that the flows name.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use tidegate_config::{Config, Problem, nearest};

use super::{CheckedFlows, NamedPlace, UnbuiltStatement};
use crate::plan::{OperatorPlan, ProcessPlan};
use crate::{Diagnostic, Span};

/// Types of bindings that this build has not.
const NOT_BUILT: [(&str, &str); 3] = [
    ("lookups", "mongodb"),
    ("checkpoints", "s3"),
    ("state-backends", "remote"),
];

/// The names that the configuration binds.
///
/// ```
/// use tidegate_config::{Inputs, load};
/// use tidegate_flow::check::Bindings;
/// let config = load(&Inputs::of_text("tidegate.yaml", "streams: {orders: {partitions: 3}}")).config;
/// assert_eq!(Bindings::from_config(&config).streams["orders"].partitions, Some(3));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bindings {
    /// The streams.
    pub streams: BTreeMap<String, StreamBinding>,
    /// The lookups, checkpoints and state backends: the section, the name, and the type.
    pub others: Vec<LookupBinding>,
    /// The pauses after checkpoints in milliseconds, by the name of the binding.
    pub pauses: BTreeMap<String, u64>,
    /// Processes that must not be exactly once, because `resources` says so.
    pub weaker: Vec<String>,
    /// The state backend that `resources` names for a process.
    pub backends: BTreeMap<String, String>,
    /// Where sections and bindings stand, by their path: the source of the configuration, and the bytes.
    pub places: BTreeMap<String, (usize, Range<usize>)>,
}

impl Bindings {
    /// The bindings of a configuration.
    #[must_use]
    pub fn from_config(config: &Config) -> Self {
        let streams = config.names("streams").into_iter().map(|name| {
            let key = |key: &str| format!("streams.\"{name}\".{key}");
            let partitions = config.integer(&key("partitions"));
            let origin = config.origin(&format!("streams.\"{name}\""));
            let binding = StreamBinding {
                cluster: config.text(&key("cluster")).unwrap_or("default").to_owned(),
                partitions: partitions.and_then(|count| u32::try_from(count).ok()),
                origin: origin.map_or(String::new(), |origin| origin.to_string()),
            };
            (name.to_owned(), binding)
        });
        let mut others = Vec::new();
        for section in ["lookups", "checkpoints", "state-backends"] {
            for name in config.names(section) {
                let kind = config.text(&format!("{section}.\"{name}\".type"));
                others.push(LookupBinding {
                    section: section.to_owned(),
                    name: name.to_owned(),
                    kind: kind.unwrap_or_default().to_owned(),
                });
            }
        }
        let pauses = config.names("checkpoints").into_iter().filter_map(|name| {
            let pause = config.duration(&format!("checkpoints.\"{name}\".min-pause"))?;
            Some((name.to_owned(), u64::try_from(pause.as_millis()).ok()?))
        });
        let weaker = config.names("resources").into_iter().filter(|name| {
            let delivery = config.text(&format!("resources.\"{name}\".delivery"));
            delivery.is_some_and(|delivery| delivery != "exactly-once")
        });
        let backends = config.names("resources").into_iter().filter_map(|name| {
            let backend = config.text(&format!("resources.\"{name}\".state-backend"))?;
            Some((name.to_owned(), backend.to_owned()))
        });
        let mut places = BTreeMap::new();
        let sections = [
            "streams",
            "lookups",
            "checkpoints",
            "state-backends",
            "resources",
        ];
        for section in sections {
            let names = config.names(section).into_iter();
            let paths =
                names.map(|name| (format!("{section}.{name}"), format!("{section}.\"{name}\"")));
            for (shown, path) in paths.chain([(section.to_owned(), section.to_owned())]) {
                places.extend(config.place(&path).map(|place| (shown, place)));
            }
        }
        Self {
            places,
            streams: streams.collect(),
            others,
            pauses: pauses.collect(),
            backends: backends.collect(),
            weaker: weaker.map(str::to_owned).collect(),
        }
    }

    /// The place of a path, or the beginning of the configuration. Its sources follow the flows.
    fn place(&self, path: &str, flows: &CheckedFlows) -> Span {
        let (source, range) = self.places.get(path).cloned().unwrap_or_default();
        let [source, start, end] =
            [source, range.start, range.end].map(|at| u32::try_from(at).unwrap_or(u32::MAX));
        Span::new(flows.sources.saturating_add(source), start, end)
    }

    fn origin(&self, stream: &str) -> &str {
        let binding = self.streams.get(stream);
        binding.map_or("", |binding| &binding.origin)
    }
}

/// Where a stream lives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamBinding {
    /// The cluster.
    pub cluster: String,
    /// The number of partitions, if it is given.
    pub partitions: Option<u32>,
    /// The place in the configuration.
    pub origin: String,
}

/// A binding with a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupBinding {
    /// The section: `lookups`, `checkpoints` or `state-backends`.
    pub section: String,
    /// The name that the flows use.
    pub name: String,
    /// The type.
    pub kind: String,
}

/// The code of a problem that the configuration itself has.
#[must_use]
pub fn problem_code(problem: &Problem) -> &'static str {
    if problem.message.contains("is not a key of") {
        "TG0702"
    } else if problem.message.contains("needs the variable") {
        "TG0706"
    } else {
        "config.invalid"
    }
}

/// Compares the names of the flows with the configuration.
///
/// ```
/// use tidegate_flow::check::{Bindings, Registered, check_bindings, check_flows};
/// let flows = check_flows(&["process copy receive a emit to b end"], &Registered::default());
/// let found = check_bindings(&flows, &Bindings::default());
/// let words: Vec<&str> = found.iter().map(|found| found.message.as_str()).collect();
/// assert_eq!(words[0], "`streams` of the configuration has no `copy_dlq`");
/// assert_eq!(words.len(), 3);
/// ```
#[must_use]
pub fn check_bindings(flows: &CheckedFlows, bindings: &Bindings) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut told: BTreeSet<(&str, &str)> = BTreeSet::new();
    for place in &flows.places {
        if told.insert((place.section, &place.name)) {
            found.extend(bound(place, bindings, flows));
        }
    }
    for (name, process) in flows.plan.iter().flat_map(|plan| &plan.processes) {
        let place = |stream: &str| {
            let mut places = flows.places.iter();
            let place = places.find(|place| {
                place.section == "streams" && place.process == *name && place.name == stream
            });
            place.map_or(Span::default(), |place| place.span)
        };
        let there = |stream: &str| bindings.place(&format!("streams.{stream}"), flows);
        found.extend(partitions(process, bindings, &place, &there));
        if !bindings.weaker.contains(name) {
            found.extend(clusters(process, bindings, &place, &there));
        }
    }
    found.extend(missing_backends(flows, bindings));
    let checkpoints = flows.unbuilt.iter();
    let checkpoints = checkpoints.filter(|unbuilt| unbuilt.statement == "checkpoint every");
    found.extend(checkpoints.filter_map(|checkpoint| pause(checkpoint, bindings, flows)));
    // A flow that is refused anyway needs no warning.
    if found.is_empty() {
        let unbuilt = flows.unbuilt.iter();
        let unbuilt = unbuilt.filter(|unbuilt| !is_kept(unbuilt, bindings, flows));
        found.extend(unbuilt.map(|unbuilt| {
            let UnbuiltStatement { statement, why, .. } = unbuilt;
            let message = format!("a stage does nothing with `{statement}` yet: {why}");
            Diagnostic::new("TG0710", unbuilt.span, message)
        }));
    }
    found.sort_by(|a, b| (a.span, a.code).cmp(&(b.span, b.code)));
    found
}

/// Whether it is a checkpoint that has a place to be kept in.
fn is_kept(unbuilt: &UnbuiltStatement, bindings: &Bindings, flows: &CheckedFlows) -> bool {
    let plan = flows.plan.as_ref();
    let process = plan.and_then(|plan| plan.processes.get(&unbuilt.process));
    unbuilt.statement == "checkpoint every"
        && process.is_some_and(|process| bindings.pauses.contains_key(&process.checkpoint.to))
}

/// State backends that `resources` names and that are not bound; the one named `default` needs no binding.
fn missing_backends(flows: &CheckedFlows, bindings: &Bindings) -> Vec<Diagnostic> {
    let named = bindings.backends.iter().filter(|(process, backend)| {
        let is_known = flows
            .plan
            .iter()
            .any(|plan| plan.processes.contains_key(*process));
        let mut bound = bindings
            .others
            .iter()
            .filter(|other| other.section == "state-backends");
        is_known && *backend != "default" && !bound.any(|other| other.name == **backend)
    });
    let found = named.map(|(process, backend)| {
        let place = flows.places.iter().find(|place| place.process == *process);
        let message = format!("`state-backends` of the configuration has no `{backend}`");
        let there = bindings.place(&format!("resources.{process}"), flows);
        Diagnostic::new(
            "TG0705",
            place.map_or(Span::default(), |place| place.span),
            message,
        )
        .also(there)
        .help(format!(
            "add `{backend}` to `state-backends` in the configuration"
        ))
    });
    found.collect()
}

/// A checkpoint that is wanted again before the pause after the last one is over.
fn pause(
    checkpoint: &UnbuiltStatement,
    bindings: &Bindings,
    flows: &CheckedFlows,
) -> Option<Diagnostic> {
    let process = flows.plan.as_ref()?.processes.get(&checkpoint.process)?;
    let (to, every) = (&process.checkpoint.to, process.checkpoint.every_ms?);
    let pause = *bindings.pauses.get(to)?;
    (every < pause).then(|| {
        let message = format!(
            "a checkpoint comes after {every} ms, and `checkpoints.{to}.min-pause` is {pause} ms"
        );
        let there = bindings.place(&format!("checkpoints.{to}"), flows);
        Diagnostic::new("TG0604", checkpoint.span, message).also(there)
    })
}

fn bound(place: &NamedPlace, bindings: &Bindings, flows: &CheckedFlows) -> Option<Diagnostic> {
    let NamedPlace {
        section,
        name,
        span,
        ..
    } = place;
    let others = bindings.others.iter();
    let others = others.filter(|other| other.section == *section);
    let mut names: Vec<(&str, &str)> = others
        .map(|other| (other.name.as_str(), other.kind.as_str()))
        .collect();
    if *section == "streams" {
        names.extend(bindings.streams.keys().map(|name| (name.as_str(), "")));
    }
    let Some((_, kind)) = names.iter().find(|(bound, _)| bound == name) else {
        let code = match *section {
            "streams" => "TG0701",
            "lookups" => "TG0703",
            _ => "TG0705",
        };
        let near = nearest(name, names.iter().map(|(name, _)| *name));
        let near = near.map(|near| format!("did you mean `{near}`?"));
        let add = || format!("add `{name}` to `{section}` in the configuration");
        let message = format!("`{section}` of the configuration has no `{name}`");
        let found = Diagnostic::new(code, *span, message).also(bindings.place(section, flows));
        return Some(found.help(near.unwrap_or_else(add)));
    };
    NOT_BUILT.contains(&(section, kind)).then(|| {
        let message =
            format!("`{section}.{name}` is of type `{kind}`, which this build does not have");
        let there = bindings.place(&format!("{section}.{name}"), flows);
        Diagnostic::new("TG0704", *span, message).also(there)
    })
}

/// Inputs of one step must have as many partitions as each other, unless they are repartitioned.
fn partitions(
    process: &ProcessPlan,
    bindings: &Bindings,
    place: &dyn Fn(&str) -> Span,
    there: &dyn Fn(&str) -> Span,
) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for step in &process.steps {
        let is_pair = matches!(
            step.operator,
            OperatorPlan::Join { .. } | OperatorPlan::Await { .. } | OperatorPlan::Hold { .. }
        );
        if !is_pair || !step.repartition.is_empty() {
            continue;
        }
        let sources = process
            .sources
            .iter()
            .filter(|source| step.inputs.contains(&source.alias) && source.repartition.is_none());
        let mut counts = sources.filter_map(|source| {
            let count = bindings.streams.get(&source.stream)?.partitions?;
            Some((source.stream.as_str(), count))
        });
        let first = counts.next();
        let other = counts.find(|(_, count)| Some(*count) != first.map(|(_, count)| count));
        if let (Some((first, one)), Some((stream, other))) = (first, other) {
            let (at, also) = (bindings.origin(first), bindings.origin(stream));
            let message = format!(
                "`{first}` has {one} partitions ({at}) and `{stream}` has {other} ({also})"
            );
            found.push(Diagnostic::new("TG0707", place(stream), message).also(there(stream)));
        }
    }
    found
}

/// Exactly-once needs inputs and outputs of one cluster.
fn clusters(
    process: &ProcessPlan,
    bindings: &Bindings,
    place: &dyn Fn(&str) -> Span,
    there: &dyn Fn(&str) -> Span,
) -> Vec<Diagnostic> {
    let cluster = |stream: &str| Some(bindings.streams.get(stream)?.cluster.as_str());
    let mut sources = process.sources.iter();
    let home = sources.find_map(|source| cluster(&source.stream));
    let streams = process.sinks.iter().map(|sink| sink.stream.as_str());
    let is_away =
        |stream: &&str| home.is_some() && cluster(stream).is_some_and(|c| Some(c) != home);
    let away = streams.filter(is_away).map(|stream| {
        let origin = bindings.origin(stream);
        let message = format!(
            "`{stream}` is in another cluster than the input ({origin}), so it cannot commit with the epoch"
        );
        let found = Diagnostic::new("TG0708", place(stream), message).also(there(stream));
        found.help("say `delivery: at-least-once` in `resources`")
    });
    away.collect()
}
