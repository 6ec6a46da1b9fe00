//! The names that Rust brings: transforms, rules, functions, lookups and state.

use std::collections::{BTreeMap, BTreeSet};

use crate::expression::FunctionSignature;
use crate::value::{FlowType, ObjectType};

/// The names that an application registers, with their types.
///
/// ```
/// use tidegate_flow::check::{Registered, RegisteredTransform, check_flows};
/// let mut registered = Registered::default();
/// registered.transforms.insert("score".to_owned(), RegisteredTransform::default());
/// let flows = check_flows(&["process p receive a transform using score emit to b end"], &registered);
/// assert!(flows.plan.is_some());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Registered {
    /// Transforms.
    pub transforms: BTreeMap<String, RegisteredTransform>,
    /// Rules, which answer a route or complete a hold.
    pub rules: BTreeSet<String>,
    /// Functions of expressions.
    pub functions: BTreeMap<String, FunctionSignature>,
    /// Lookups, with the fields of their answers.
    pub lookups: BTreeMap<String, ObjectType>,
    /// State.
    pub state: BTreeMap<String, FlowType>,
}

/// A transform in Rust.
#[derive(Debug, Clone, Default)]
pub struct RegisteredTransform {
    /// The fields of its results; unknown without them.
    pub output: Option<ObjectType>,
}

impl Registered {
    /// Whether a transform, rule or lookup of this name is registered.
    pub(super) fn has(&self, name: &str) -> bool {
        self.kinds(name).next().is_some()
    }

    /// The kinds of things that are registered under a name.
    pub(super) fn kinds(&self, name: &str) -> impl Iterator<Item = &'static str> + use<> {
        let kinds = [
            ("transform", self.transforms.contains_key(name)),
            ("rule", self.rules.contains(name)),
            ("lookup", self.lookups.contains_key(name)),
        ];
        let there = kinds.into_iter().filter(|(_, is_there)| *is_there);
        there.map(|(kind, _)| kind)
    }
}
