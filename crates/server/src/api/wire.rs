//! Schemas of what other crates write as JSON. They are never built: they say in the OpenAPI
//! document what the types of the same names, without `Schema`, look like on the wire.

#![expect(dead_code, reason = "only the derived schemas are used")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

/// How a part, or the whole, is doing.
#[derive(ToSchema)]
#[schema(as = HealthStatus, rename_all = "UPPERCASE")]
pub(crate) enum HealthStatusSchema {
    /// It works.
    Up,
    /// It works, but something is wrong that should not stay so. It still counts as ready.
    Degraded,
    /// It does not work.
    Down,
}

/// The accounts of all components of a process.
#[derive(ToSchema)]
#[schema(as = Ledger)]
pub(crate) struct LedgerSchema {
    /// The components, in the order of their names.
    components: Vec<ComponentAccountSchema>,
    /// Whether the account of each of them is.
    balanced: bool,
}

/// The account of one component.
#[derive(ToSchema)]
#[schema(as = ComponentAccount)]
pub(crate) struct ComponentAccountSchema {
    /// Its name, unique within the process.
    name: String,
    /// Its kind.
    #[schema(example = "logger")]
    kind: String,
    /// Where its events are.
    account: AccountSchema,
}

/// The events that a component has accepted.
#[derive(ToSchema)]
#[schema(as = AcceptedEvents)]
pub(crate) struct AcceptedEventsSchema {
    /// Its name.
    name: String,
    /// Its kind.
    #[schema(example = "topic")]
    kind: String,
    /// The numbers that never fall.
    figures: Vec<AcceptedFigureSchema>,
}

/// The events of one bucket.
#[derive(ToSchema)]
#[schema(as = AcceptedFigure)]
pub(crate) struct AcceptedFigureSchema {
    /// The bucket.
    #[schema(example = "m29384932")]
    b: String,
    /// How many.
    n: i64,
    /// The wrapping 128-bit sum of their ids, in hex.
    s: String,
}

/// How many events of a component are where: `accepted` is the sum of all others.
#[derive(ToSchema)]
#[schema(as = Account)]
pub(crate) struct AccountSchema {
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

/// The result of the audit of all components.
#[derive(ToSchema)]
#[schema(as = Audit)]
pub(crate) struct AuditSchema {
    /// The components.
    components: Vec<AuditedSchema>,
    /// How many events of all of them are not accounted for.
    unaccounted: u64,
}

/// The result of the audit of one component.
#[derive(ToSchema)]
#[schema(as = Audited)]
pub(crate) struct AuditedSchema {
    /// Its name.
    name: String,
    /// Its kind.
    #[schema(example = "topic")]
    kind: String,
    /// Where its events are by the books.
    books: AccountSchema,
    /// Where its events were found.
    recount: AccountSchema,
    /// The events that retention and clean-up took away.
    removed: AccountSchema,
    /// Events of which nobody can tell any more whether they are all there.
    unverifiable: u64,
    /// Events that are missing, or are there and should not be.
    unaccounted: u64,
    /// Which ones, as far as the sums tell.
    missing: Vec<DiscrepancySchema>,
    /// Where its delivered events went; left out where it delivered none.
    paths: Option<Vec<AuditedPathSchema>>,
    /// Everything else that is not as it should be; left out where there is nothing.
    findings: Option<Vec<AuditFindingSchema>>,
    /// Things to know that are no finding; left out where there are none.
    notes: Option<Vec<String>>,
}

/// Something that is not as it should be, and that by itself is no certain loss.
#[derive(ToSchema)]
#[schema(as = AuditFinding)]
pub(crate) struct AuditFindingSchema {
    /// The stable code.
    #[schema(example = "log.torn")]
    code: String,
    /// The description, for people.
    message: String,
    /// The event that it is about, where that is known.
    id: Option<String>,
}

/// The delivered events of a component, beside those that their receiver has.
#[derive(ToSchema)]
#[schema(as = AuditedPath)]
pub(crate) struct AuditedPathSchema {
    /// The kind of component that the events were delivered to.
    #[schema(example = "event-log")]
    kind: String,
    /// The component that has them; null where none was found.
    to: Option<String>,
    /// The id under which it keeps them.
    origin: Option<String>,
    /// Events that were compared.
    compared: u64,
    /// Events that could not be.
    not_compared: u64,
    /// Why not: `no-receiver`, `no-origin`, `older-than-origin`, `topic-gone` or `more-received`.
    reason: Option<String>,
    /// Delivered events that the receiver does not have.
    missing: Vec<DiscrepancySchema>,
}

/// Events that the books expect in a place and the recount does not find there, or the reverse.
#[derive(ToSchema)]
#[schema(as = Discrepancy)]
pub(crate) struct DiscrepancySchema {
    /// The bucket of the events.
    #[schema(example = "m29384932")]
    bucket: String,
    /// The place that differs.
    #[schema(example = "queued")]
    place: String,
    /// How many are missing; negative for events that are there and should not be.
    count: i64,
    /// Which event it is, where the sums tell.
    id: Option<String>,
}

/// Where an event is now, and where it was seen on its way.
#[derive(ToSchema)]
#[schema(as = EventTrace)]
pub(crate) struct EventTraceSchema {
    /// The event.
    id: String,
    /// The place that it is in.
    #[schema(example = "queued")]
    place: String,
    /// The component that has it.
    component: String,
    /// Since when, as far as anything tells; else when it was born.
    at: Option<String>,
    /// How often it was tried, where that was written down.
    attempts: Option<u32>,
    /// Where it was seen, in the order in which it passed there.
    history: Vec<EventLocationSchema>,
}

/// Where a component has seen an event. Further keys say where exactly, in the words of the component: a
/// file and its line, a partition and an offset.
#[derive(ToSchema)]
#[schema(as = EventLocation)]
pub(crate) struct EventLocationSchema {
    /// The component, by its name in the books.
    component: String,
    /// The place of the event there.
    place: String,
    /// The places that it may be in, where they are several.
    among: Option<Vec<String>>,
    /// Since when, as far as anything tells.
    at: Option<String>,
    /// How often it was tried, where that was written down.
    attempts: Option<u32>,
}
