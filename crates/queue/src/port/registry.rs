//! Who handles what, over all processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::HandlerFilter;

/// Which handlers every type has, in all processes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Registry {
    /// Grows with every change.
    pub version: u64,
    /// The handlers by type.
    pub handlers: BTreeMap<String, BTreeSet<String>>,
}

impl Registry {
    /// The handlers of a type.
    pub fn of<'a>(&'a self, type_name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let handlers = self.handlers.get(type_name);
        handlers.into_iter().flatten().map(String::as_str)
    }
}

/// Which handlers an event with a row of its own still wants: `type:handler,handler`.
///
/// There are few different lanes. So a claimer finds its rows by the lanes it serves, and never looks
/// at those that wait for somebody else.
///
/// ```
/// use tidegate_queue::port::Lane;
/// let lane = Lane::new("OrderPlaced", ["stock", "mail"]);
/// assert_eq!(lane.to_string(), "OrderPlaced:mail,stock");
/// assert_eq!(Lane::parse("OrderPlaced:mail,stock"), lane);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// The type.
    pub type_name: String,
    /// The handlers that are not done; none when the type had no handlers.
    pub wanted: BTreeSet<String>,
}

impl Lane {
    /// The lane of a type and the handlers it still wants.
    pub fn new<'a>(type_name: &str, wanted: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            type_name: type_name.to_owned(),
            wanted: wanted.into_iter().map(str::to_owned).collect(),
        }
    }

    /// The lane written as `text`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let (type_name, wanted) = text.rsplit_once(':').unwrap_or((text, ""));
        Self::new(type_name, wanted.split(',').filter(|name| !name.is_empty()))
    }

    /// Whether a claimer that serves this has something to do for events of this lane.
    #[must_use]
    pub fn is_served_by(&self, filter: &HandlerFilter) -> bool {
        match filter {
            HandlerFilter::All => true,
            HandlerFilter::Handlers(mine) => match mine.get(&self.type_name) {
                // A lane without handlers is of a type that had none when its events were left.
                Some(mine) => self.wanted.is_empty() || !self.wanted.is_disjoint(mine),
                None => false,
            },
        }
    }
}

impl Lane {
    /// Whether everybody it wants was unregistered: a claimer that knows the type brings its events to
    /// their end, since nobody else will.
    #[must_use]
    pub fn is_left_to(&self, filter: &HandlerFilter, registry: &Registry) -> bool {
        let is_known = match filter {
            HandlerFilter::All => true,
            HandlerFilter::Handlers(mine) => mine.contains_key(&self.type_name),
        };
        let registered: BTreeSet<&str> = registry.of(&self.type_name).collect();
        let is_wanted = |handler: &String| registered.contains(handler.as_str());
        is_known && !self.wanted.iter().any(is_wanted)
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted: Vec<&str> = self.wanted.iter().map(String::as_str).collect();
        write!(f, "{}:{}", self.type_name, wanted.join(","))
    }
}
