//! Schemas of what other crates write as JSON. They are never built: they say in the OpenAPI
//! document what the types of the same names look like on the wire.

#![expect(dead_code, reason = "only the derived schemas are used")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

/// The accounts of all components of a process.
#[derive(ToSchema)]
pub(crate) struct Ledger {
    /// The components, in the order of their names.
    components: Vec<Component>,
    /// Whether the account of each of them is.
    balanced: bool,
}

/// The account of one component.
#[derive(ToSchema)]
pub(crate) struct Component {
    /// Its name, unique within the process.
    name: String,
    /// What kind it is.
    #[schema(example = "logger")]
    kind: String,
    /// Where its events are.
    account: Account,
}

/// How many events of a component are where: `accepted` is the sum of all others.
#[derive(ToSchema)]
pub(crate) struct Account {
    /// All events it ever took on.
    accepted: i64,
    /// Durable, waiting for their turn.
    queued: i64,
    /// Being sent or handled, or in a memory queue.
    in_flight: i64,
    /// In a tier or a back-off.
    retrying: i64,
    /// Durably behind an earlier record of their key.
    parked: i64,
    /// On disk, waiting for replay.
    spilled: i64,
    /// Given up on and kept.
    dead_lettered: i64,
    /// Arrived.
    delivered: i64,
    /// Gone: the `total`, and the number by reason.
    lost: BTreeMap<String, i64>,
}
