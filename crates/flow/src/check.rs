//! The checker: trees in, a plan or diagnostics out.
//!
//! Declarations are collected first, over all files of a deployment. Then each process is walked once in the order of
//! its text: what is wrong is written down, and what is right becomes a part of the plan.

mod bindings;
mod blocks;
mod combine;
mod declarations;
mod expansion;
mod expressions;
mod process;
mod registered;
mod route;
mod steps;
mod transforms;

use std::collections::{BTreeMap, BTreeSet};

use tidegate_config::nearest;

use crate::plan::{FlowPlan, PLAN_VERSION};
use crate::syntax::{MAX_DIAGNOSTICS, SyntaxNode, SyntaxTree, parse};
use crate::value::paths::last_name;
use crate::value::{FlowType, ObjectType};
use crate::{Diagnostic, Span};
pub use bindings::{Bindings, LookupBinding, StreamBinding, check_bindings, problem_code};
use declarations::{Declaration, kind_text};
use expansion::ExpansionBudget;
pub use expansion::MAX_EXPANSION;
pub use registered::{Registered, RegisteredTransform};

/// Windows that one record may belong to.
pub const MAX_WINDOWS: u64 = 1_000;
/// Attempts that a retry may make, the first one included.
pub const MAX_ATTEMPTS: u64 = 1_000;

/// The result of a check.
#[derive(Debug, Clone)]
pub struct CheckedFlows {
    /// The plan; none where a diagnostic is an error.
    pub plan: Option<FlowPlan>,
    /// Everything that was found, in the order of the files.
    pub diagnostics: Vec<Diagnostic>,
    /// Where streams, lookups and the like are named, for the check of their bindings.
    pub places: Vec<NamedPlace>,
    /// Statements that the runtime does nothing with yet: [`check_bindings`] warns about them, as the model runs them.
    pub unbuilt: Vec<UnbuiltStatement>,
    /// The number of texts; those of the configuration are counted after them.
    pub sources: u32,
}

/// A name that the configuration binds, and where the flow uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPlace {
    /// The section of the configuration: `streams`, `lookups`, `checkpoints` or `state-backends`.
    pub section: &'static str,
    /// The name.
    pub name: String,
    /// The process.
    pub process: String,
    /// The place in the flow.
    pub span: Span,
}

/// A statement that the runtime does nothing with yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnbuiltStatement {
    /// The process.
    pub process: String,
    /// The statement.
    pub statement: &'static str,
    /// The reason, or the work that is done instead.
    pub why: &'static str,
    /// Its place in the flow.
    pub span: Span,
}

/// Checks the texts of all files of a deployment, which share one namespace.
///
/// ```
/// use tidegate_flow::check::{Registered, check_flows};
/// let flows = check_flows(&["process copy receive a emit to b end"], &Registered::default());
/// assert!(flows.plan.unwrap().processes.contains_key("copy"));
/// let flows = check_flows(&["process copy receive a end"], &Registered::default());
/// assert_eq!(flows.diagnostics[0].code, "TG0202");
/// ```
#[must_use]
pub fn check_flows(texts: &[&str], registered: &Registered) -> CheckedFlows {
    let mut trees: Vec<SyntaxTree> = Vec::new();
    let mut diagnostics = Vec::new();
    for (source, text) in texts.iter().enumerate() {
        let (tree, found) = parse(text, u32::try_from(source).unwrap_or(u32::MAX));
        diagnostics.extend(found);
        trees.push(tree);
    }
    let mut checker = FlowChecker {
        registered,
        trees: &trees,
        names: BTreeMap::new(),
        plan: FlowPlan {
            version: PLAN_VERSION,
            ..FlowPlan::default()
        },
        used: BTreeSet::new(),
        diagnostics,
        errors: 0,
        state_keys: BTreeMap::new(),
        used_state: BTreeSet::new(),
        outer: None,
        budget: ExpansionBudget::of(texts.iter().map(|text| text.len()).sum()),
        places: Vec::new(),
        unbuilt: Vec::new(),
    };
    checker.declarations();
    checker.processes();
    checker.state_keys.clear();
    checker.unused_transforms();
    let FlowChecker {
        plan,
        mut diagnostics,
        places,
        unbuilt,
        ..
    } = checker;
    diagnostics.sort_by(|a, b| (a.span, a.code, &a.message).cmp(&(b.span, b.code, &b.message)));
    diagnostics.dedup();
    cap(&mut diagnostics);
    let has_error = diagnostics.iter().any(Diagnostic::is_error);
    CheckedFlows {
        plan: (!has_error).then_some(plan),
        diagnostics,
        places,
        unbuilt,
        sources: u32::try_from(texts.len()).unwrap_or(u32::MAX),
    }
}

/// Keeps so many diagnostics of each file, errors first. The last error says that there are more.
fn cap(diagnostics: &mut Vec<Diagnostic>) {
    let mut errors: BTreeMap<u32, usize> = BTreeMap::new();
    diagnostics.retain_mut(|diagnostic| {
        if !diagnostic.is_error() {
            return true;
        }
        let count = errors.entry(diagnostic.span.source).or_default();
        *count += 1;
        if *count == MAX_DIAGNOSTICS {
            let message = format!(
                "only {MAX_DIAGNOSTICS} findings of a file are listed, the limit `diagnostics`"
            );
            *diagnostic = Diagnostic::new("TG0016", diagnostic.span, message);
        }
        *count <= MAX_DIAGNOSTICS
    });
    diagnostics.retain(|diagnostic| {
        let count = errors.entry(diagnostic.span.source).or_default();
        *count += usize::from(!diagnostic.is_error());
        diagnostic.is_error() || *count <= MAX_DIAGNOSTICS
    });
}

struct FlowChecker<'t> {
    registered: &'t Registered,
    trees: &'t [SyntaxTree],
    names: BTreeMap<String, Declaration<'t>>,
    plan: FlowPlan,
    /// Transforms and tables that a process uses, so that the others are checked by themselves.
    used: BTreeSet<String>,
    diagnostics: Vec<Diagnostic>,
    /// Errors among them, of the checker itself.
    errors: usize,
    /// The key fields of each local state of the process that is checked.
    state_keys: BTreeMap<String, Vec<String>>,
    /// The states among them that an expression names.
    used_state: BTreeSet<String>,
    /// The record that a transform with an `input` gets, which has more fields than it may name.
    outer: Option<ObjectType>,
    budget: ExpansionBudget,
    places: Vec<NamedPlace>,
    unbuilt: Vec<UnbuiltStatement>,
}

impl FlowChecker<'_> {
    fn found(
        &mut self,
        code: &'static str,
        at: impl Into<Span>,
        message: impl Into<String>,
    ) -> &mut Diagnostic {
        let diagnostic = Diagnostic::new(code, at.into(), message);
        self.errors += usize::from(diagnostic.is_error());
        self.diagnostics.push(diagnostic);
        let last = self.diagnostics.len() - 1;
        &mut self.diagnostics[last]
    }

    /// Whether more errors were found than are shown.
    const fn is_full(&self) -> bool {
        self.errors > MAX_DIAGNOSTICS * self.trees.len()
    }

    /// Whether nothing more is to be said about a name. A suggestion would be the work of many names.
    fn is_silent(&mut self, code: &'static str, node: SyntaxNode<'_>) -> bool {
        if self.is_full() {
            self.found(code, node, "");
        }
        self.is_full() || self.is_exhausted()
    }

    /// There is nothing of the name of a node; the nearest of these names is advice.
    fn unknown(&mut self, code: &'static str, node: SyntaxNode<'_>, what: &str, names: Names) {
        let name = node.name();
        if self.is_silent(code, node) {
            return;
        }
        // A name that stands in a part that could not be read may be declared there.
        if self.trees.iter().any(|tree| tree.is_skipped(&name)) {
            return;
        }
        let near = nearest(&name, names.iter().take(MAX_NAMES).map(String::as_str));
        let help = near.map(|near| format!("did you mean `{near}`?"));
        let message = format!("there is no {what} `{name}`");
        self.found(code, node, message).help = help;
    }

    /// Says so where the last name of a path is that of another field of a result.
    fn new_name(&mut self, path: SyntaxNode<'_>, others: &[(String, FlowType)]) {
        let name = path.name();
        let last = last_name(&name);
        if others.iter().any(|(other, _)| other == last) {
            let message = format!("the result has a field `{last}` already");
            self.found("TG0101", path, message);
        }
    }

    /// A name of another kind than its place needs.
    fn wrong_kind(&mut self, node: SyntaxNode<'_>, kind: &str, needed: &str) -> &mut Diagnostic {
        let kind = kind_text(kind);
        let article = |word: &str| {
            if word.starts_with(['a', 'e', 'i', 'o']) {
                "an"
            } else {
                "a"
            }
        };
        let message = format!(
            "`{}` is {} {kind}, and {} {needed} is needed",
            node.name(),
            article(kind),
            article(needed)
        );
        self.found("TG0107", node, message)
    }
}

/// Names that a suggestion is looked for among.
const MAX_NAMES: usize = 2_000;

/// Names that one could have meant.
type Names = Vec<String>;
