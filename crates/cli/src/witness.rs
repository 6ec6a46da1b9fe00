//! The witness file: what had been accepted at some time, kept where the components are not.
//!
//! Its format is `docs/formats/witness.md`. A file that cannot be read is never written over: it may be the
//! only proof of a loss.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidegate_core::books::{AcceptedEvents, WitnessLoss, next_witness, witness_losses};
use tidegate_core::env::{Clock, Disk, Env, OpenMode};
use tidegate_core::{Component, Failure, iso_time};

use crate::report::{ErrorReport, Exit};

/// How the first line of a file begins; the checksum of the rest stands behind it.
const HEADER: &str = "tidegate-witness 1 crc32c=";
/// No witness of ours is larger.
const MAX_FILE: u64 = 256 * 1024 * 1024;

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Witness {
    /// The time at which it was written.
    pub(crate) at: String,
    /// The components that it knows.
    pub(crate) components: Vec<AcceptedEvents>,
}

impl Witness {
    /// How many events it knows of.
    pub(crate) fn count(&self) -> u64 {
        self.components.iter().map(AcceptedEvents::count).sum()
    }
}

/// The place of a witness.
#[derive(Debug, Clone)]
pub(crate) struct WitnessFile {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
}

impl WitnessFile {
    /// The file at this path, whether or not it is there.
    pub(crate) fn at(path: &Path, env: &Env) -> Self {
        Self {
            path: path.to_owned(),
            disk: Arc::clone(&env.disk),
            clock: Arc::clone(&env.clock),
        }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file beside it that has the numbers of today, while those of the witness stand against them.
    pub(crate) fn newer(&self) -> PathBuf {
        self.with_suffix(".new")
    }

    fn with_suffix(&self, suffix: &str) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(suffix);
        PathBuf::from(name)
    }

    /// Reads it; none where there is no file yet.
    pub(crate) fn read(&self) -> Result<Option<Witness>, ErrorReport> {
        let bytes = match self.disk.read(&self.path, MAX_FILE) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.unreadable(&error.to_string())),
        };
        match decode(&bytes) {
            Ok(witness) => Ok(Some(witness)),
            Err(why) => Err(self.unreadable(why)),
        }
    }

    fn unreadable(&self, why: &str) -> ErrorReport {
        let message = format!("cannot read the witness `{}`: {why}", self.path.display());
        ErrorReport::new("witness.unreadable", message)
            .with_hint(
                "it is left as it is, for it may prove a loss; put a copy of it back, or move it away to \
                 begin with a new one",
            )
            .with_exit(Exit::Findings)
    }

    /// Puts a witness of these components in its place.
    pub(crate) fn write(&self, components: Vec<AcceptedEvents>) -> Result<(), ErrorReport> {
        self.write_to(&self.path, components)?;
        self.remove(&self.newer())
    }

    /// Writes the numbers of today beside it.
    pub(crate) fn write_newer(&self, components: Vec<AcceptedEvents>) -> Result<(), ErrorReport> {
        self.write_to(&self.newer(), components)
    }

    fn write_to(&self, to: &Path, components: Vec<AcceptedEvents>) -> Result<(), ErrorReport> {
        let now_ms = self.clock.now_ms();
        let components = components.into_iter().map(|one| one.folded(now_ms));
        let witness = Witness {
            at: iso_time(now_ms).unwrap_or_default(),
            components: components.collect(),
        };
        let written = || -> io::Result<()> {
            let temporary = self.with_suffix(".tmp");
            // An earlier process may have ended while it wrote.
            match self.disk.remove(&temporary) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            let mut file = self.disk.open(&temporary, OpenMode::CreateNew)?;
            file.write_at(0, &encode(&witness)?)?;
            file.sync()?;
            drop(file);
            self.disk.replace(&temporary, to)
        };
        written().map_err(|error| {
            let doing = format!("cannot write the witness `{}`", to.display());
            ErrorReport::of("witness.unwritable", &doing, &error)
                .with_hint("its directory must be there, and this user must be able to write to it")
        })
    }

    fn remove(&self, path: &Path) -> Result<(), ErrorReport> {
        match self.disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let doing = format!("cannot remove `{}`", path.display());
                Err(ErrorReport::of("witness.unwritable", &doing, &error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn encode(witness: &Witness) -> io::Result<Vec<u8>> {
    let mut body = serde_json::to_vec(witness)?;
    body.push(b'\n');
    let mut bytes = format!("{HEADER}{:08x}\n", crc32c::crc32c(&body)).into_bytes();
    bytes.extend(body);
    Ok(bytes)
}

fn decode(bytes: &[u8]) -> Result<Witness, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is no text")?;
    let (header, body) = text.split_once('\n').ok_or("it is cut")?;
    let crc = header
        .strip_prefix(HEADER)
        .ok_or("its first line is not that of a witness of version 1")?;
    let crc = u32::from_str_radix(crc, 16).map_err(|_| "its checksum is no number")?;
    if crc32c::crc32c(body.as_bytes()) != crc {
        return Err("its checksum does not fit: it is cut or damaged");
    }
    serde_json::from_str(body).map_err(|_| "its content is not that of a witness")
}

/// The components of a witness that somebody looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WitnessScope {
    /// All of them: what is not there any more is gone.
    Everything,
    /// Components of these kinds and names; without names, of these kinds.
    Only(Vec<(tidegate_core::books::ComponentKind, Option<String>)>),
}

impl WitnessScope {
    /// Whether a component was looked at.
    pub(crate) fn covers(&self, one: &AcceptedEvents) -> bool {
        match self {
            Self::Everything => true,
            Self::Only(parts) => parts.iter().any(|(kind, name)| {
                *kind == one.kind && name.as_ref().is_none_or(|name| *name == one.name)
            }),
        }
    }
}

/// A witness beside the components of today.
#[derive(Debug)]
pub(crate) struct WitnessComparison {
    /// The events that the witness knows of and the components do not know any more.
    pub(crate) losses: Vec<WitnessLoss>,
    /// How many events were compared.
    pub(crate) compared: u64,
    /// Components that nobody looked at.
    pub(crate) skipped: Vec<String>,
    /// The next witness.
    pub(crate) next: Vec<AcceptedEvents>,
}

impl WitnessComparison {
    /// How many events are lost.
    pub(crate) fn lost(&self) -> u64 {
        self.losses.iter().map(|one| one.count).sum()
    }
}

/// Holds the numbers of today against those of the witness.
pub(crate) fn compare(
    earlier: Option<&Witness>,
    now: Vec<AcceptedEvents>,
    scope: &WitnessScope,
) -> WitnessComparison {
    let earlier = earlier.map_or(&[][..], |witness| &witness.components);
    let (looked_at, skipped): (Vec<_>, Vec<_>) = earlier.iter().cloned().partition(|one| {
        let is_there = |other: &AcceptedEvents| other.kind == one.kind && other.name == one.name;
        scope.covers(one) || now.iter().any(is_there)
    });
    WitnessComparison {
        losses: witness_losses(&looked_at, &now),
        compared: looked_at.iter().map(AcceptedEvents::count).sum(),
        skipped: skipped.into_iter().map(|one| one.name).collect(),
        next: next_witness(earlier, now, |one| scope.covers(one)),
    }
}

/// The numbers of all components, one after the other.
pub(crate) async fn accepted_by(
    components: &[Arc<dyn Component>],
) -> Result<Vec<AcceptedEvents>, Failure> {
    let mut all = Vec::new();
    for component in components {
        all.extend(component.accepted().await?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use tidegate_core::EventId;
    use tidegate_core::books::{Books, ComponentKind, Place};

    use super::*;

    fn accepted(name: &str, kind: ComponentKind) -> AcceptedEvents {
        let mut books = Books::default();
        books.move_one(EventId::from_u128(7), None, Some(Place::Queued));
        AcceptedEvents::of(name, kind, &books)
    }

    fn witness() -> Witness {
        Witness {
            at: "2026-05-01T12:00:00Z".to_owned(),
            components: vec![accepted("orders", ComponentKind::Topic)],
        }
    }

    #[test]
    fn damage_to_any_byte_of_a_witness_is_noticed() {
        let bytes = encode(&witness()).unwrap();
        assert_eq!(decode(&bytes), Ok(witness()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            // The case of a checksum's letters says nothing.
            assert!(decode(&damaged).is_err(), "byte {at}");
            assert!(decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_component_out_of_scope_is_no_loss_and_is_carried_over() {
        let kind = ComponentKind::Logger;
        let known = [accepted("logger:a", kind), accepted("logger:b", kind)];
        let known = Witness {
            components: known.to_vec(),
            ..witness()
        };
        let a = WitnessScope::Only(vec![(kind, Some("logger:a".to_owned()))]);
        let found = compare(Some(&known), Vec::new(), &a);
        assert_eq!((found.lost(), found.compared), (1, 1));
        assert_eq!(found.skipped, ["logger:b"]);
        assert_eq!(found.next, known.components[1..]);
        let found = compare(Some(&known), Vec::new(), &WitnessScope::Everything);
        assert_eq!((found.lost(), found.skipped.len()), (2, 0));
    }
}
