//! Looks for one event in a spill directory.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tidegate_core::EventId;
use tidegate_core::books::Place;
use tidegate_core::env::Disk;

use super::SpillError;
use super::inspect::{Role, Seen, SeenLine, walk};

/// Where an event was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Sighting {
    /// The place that this means.
    pub place: Place,
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
    /// The byte at which the line starts.
    pub offset: u64,
    /// Whether the line can be read; if not, it only names the id.
    pub is_readable: bool,
    /// When it was refused, for an event that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected_at: Option<String>,
    /// Why, as a code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Why, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The HTTP status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How often it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
}

/// What stands in a line of the rejected file beside the event.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Refusal {
    rejected_at: Option<String>,
    code: Option<String>,
    message: Option<String>,
    status: Option<u16>,
    attempts: Option<u32>,
}

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
pub fn find(disk: &dyn Disk, dir: &Path, id: EventId) -> Result<Vec<Sighting>, SpillError> {
    let text = id.to_string();
    let mut sightings = Vec::new();
    walk(disk, dir, &mut |seen| {
        if let Some(line) = &seen.line
            && is_about(line, id, &text)
        {
            sightings.push(sighting(&seen, line));
        }
    })?;
    // A line of the snapshot is settled also when its event was refused.
    let is_set_aside = sightings
        .iter()
        .any(|sighting: &Sighting| sighting.place == Place::DeadLettered);
    for sighting in &mut sightings {
        if is_set_aside && sighting.place == Place::Delivered {
            sighting.place = Place::Spilled;
        }
    }
    Ok(sightings)
}

/// Whether a line is the event, or cannot be read and names it.
fn is_about(line: &SeenLine<'_>, id: EventId, text: &str) -> bool {
    match &line.line {
        Some(readable) => readable.id == id,
        None => line
            .raw
            .windows(text.len())
            .any(|part| part.eq_ignore_ascii_case(text.as_bytes())),
    }
}

fn sighting(seen: &Seen<'_>, line: &SeenLine<'_>) -> Sighting {
    let is_readable = line.line.is_some();
    let place = match seen.role {
        // Settled and not to be read: replay has set it aside.
        Role::Replay if line.is_settled && !is_readable => Place::DeadLettered,
        Role::Replay if line.is_settled => Place::Delivered,
        Role::Active | Role::Sealed | Role::Replay => Place::Spilled,
        Role::Corrupt | Role::Rejected => Place::DeadLettered,
    };
    let refusal: Refusal = if seen.role == Role::Rejected {
        serde_json::from_slice(line.raw).unwrap_or_default()
    } else {
        Refusal::default()
    };
    Sighting {
        place,
        file: seen.file.to_owned(),
        line: line.number,
        offset: line.offset,
        is_readable,
        rejected_at: refusal.rejected_at,
        code: refusal.code,
        message: refusal.message,
        status: refusal.status,
        attempts: refusal.attempts,
    }
}
