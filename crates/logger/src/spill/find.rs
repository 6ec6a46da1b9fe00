//! Looks for one event in a spill directory.

use std::path::Path;

use serde_json::{Value, json};
use tidegate_core::books::Place;
use tidegate_core::env::Disk;
use tidegate_core::{EventId, EventLocation};

use super::inspect::{Role, WalkItem, WalkedLine, walk};
use super::{SpillDirectory, SpillError};

/// Looks for an event in a spill directory, in the order in which events pass through its files:
/// the last sighting says where it is. Empty when it is not there: it was never spilled, or the
/// file in which it was delivered is gone.
///
/// It takes no lock and writes nothing, so it can run beside a logger.
///
/// ```
/// use tidegate_core::{EventId, env::system::SystemDisk};
/// use tidegate_logger::spill::find;
/// let dir = tempfile::tempdir()?;
/// assert!(find(&SystemDisk, dir.path(), EventId::from_u128(7))?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The directory or a file in it cannot be read.
pub fn find(disk: &dyn Disk, dir: &Path, id: EventId) -> Result<Vec<EventLocation>, SpillError> {
    let (name, text) = (SpillDirectory::name_of(dir), id.to_string());
    let mut sightings = Vec::new();
    walk(disk, dir, &mut |seen| {
        if let Some(line) = &seen.line
            && is_about(line, id, &text)
        {
            sightings.push(sighting(&name, &seen, line));
        }
    })?;
    // A line of the snapshot is replayed also when its event was refused.
    let is_set_aside = sightings
        .iter()
        .any(|sighting: &EventLocation| sighting.place == Place::DeadLettered);
    for sighting in &mut sightings {
        if is_set_aside && sighting.place == Place::Delivered {
            sighting.place = Place::Spilled;
        }
    }
    Ok(sightings)
}

/// Whether a line is the event, or cannot be read and names it.
fn is_about(line: &WalkedLine<'_>, id: EventId, text: &str) -> bool {
    match &line.line {
        Some(readable) => readable.id == id,
        None => line
            .raw
            .bytes
            .windows(text.len())
            .any(|part| part.eq_ignore_ascii_case(text.as_bytes())),
    }
}

fn sighting(component: &str, seen: &WalkItem<'_>, line: &WalkedLine<'_>) -> EventLocation {
    let is_readable = line.line.is_some();
    let place = match seen.role {
        // Replayed and unreadable: replay has set it aside.
        Role::Replay if line.is_replayed && !is_readable => Place::DeadLettered,
        Role::Replay if line.is_replayed => Place::Delivered,
        Role::Active | Role::Sealed | Role::Replay => Place::Spilled,
        Role::Corrupt | Role::Rejected => Place::DeadLettered,
    };
    let refusal: Value = if seen.role == Role::Rejected {
        serde_json::from_slice(line.raw.bytes).unwrap_or_default()
    } else {
        Value::Null
    };
    let mut details = json!({
        "file": seen.file,
        "line": line.raw.number,
        "offset": line.raw.offset,
        "is_readable": is_readable,
        "rejected_at": refusal["rejectedAt"],
        "code": refusal["code"],
        "message": refusal["message"],
        "status": refusal["status"],
    });
    if let Some(details) = details.as_object_mut() {
        details.retain(|_, value| !value.is_null());
    }
    let attempts = refusal["attempts"].as_u64();
    EventLocation {
        at: refusal["rejectedAt"].as_str().map(str::to_owned),
        attempts: attempts.and_then(|attempts| u32::try_from(attempts).ok()),
        ..EventLocation::new(component, place, details)
    }
}
