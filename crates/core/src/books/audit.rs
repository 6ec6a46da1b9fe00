//! The result of an audit, as it is shown and sent.

use serde::{Deserialize, Serialize};

use super::{Account, AuditedPath, Books, ComponentKind, Discrepancy};
use crate::EventId;

/// The verdict of an audit, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditVerdict {
    /// Every event is accounted for, and nothing is damaged.
    Clean,
    /// Something is damaged or cannot be proven, and no event is certainly gone.
    Findings,
    /// Events are gone, or cannot be read where they are kept.
    Loss,
}

/// The result of the audit of all components.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Audit {
    /// The components, in the order in which they were audited.
    pub components: Vec<Audited>,
    /// How many events of all of them are not accounted for.
    pub unaccounted: u64,
}

impl Audit {
    /// The audit of these components.
    #[must_use]
    pub fn new(components: Vec<Audited>) -> Self {
        Self {
            unaccounted: components.iter().map(|audited| audited.unaccounted).sum(),
            components,
        }
    }

    /// The worst verdict of its components.
    #[must_use]
    pub fn verdict(&self) -> AuditVerdict {
        let verdicts = self.components.iter().map(Audited::verdict);
        verdicts.max().unwrap_or(AuditVerdict::Clean)
    }
}

/// Something that is not as it should be, and that by itself is no certain loss.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AuditFinding {
    /// The stable code.
    pub code: String,
    /// The description, for people.
    pub message: String,
    /// The event that it is about, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<EventId>,
}

impl AuditFinding {
    /// A finding that is about no event, or about one that nobody knows.
    #[must_use]
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
            id: None,
        }
    }

    /// The same, about this event.
    #[must_use]
    pub fn about(mut self, id: Option<EventId>) -> Self {
        self.id = id;
        self
    }
}

/// The result of the audit of one component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audited {
    /// Its name, unique within the audit.
    pub name: String,
    /// Its kind.
    pub kind: ComponentKind,
    /// Where its events are by the books.
    pub books: Account,
    /// Where its events were found.
    pub recount: Account,
    /// The events that retention and clean-up took away, by their place.
    pub removed: Account,
    /// Events of which nobody can tell any more whether they are all there.
    pub unverifiable: u64,
    /// Events that are missing, or are there and should not be. Those that its receiver misses are included.
    pub unaccounted: u64,
    /// Which ones, as far as the sums tell.
    pub missing: Vec<Discrepancy>,
    /// Where its delivered events went, and which of them are not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<AuditedPath>,
    /// Everything else that is not as it should be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<AuditFinding>,
    /// Things to know that are no finding, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Audited {
    /// The result of a comparison of books with a recount.
    ///
    /// ```
    /// use tidegate_core::EventId;
    /// use tidegate_core::books::{Audited, Books, ComponentKind, Place, difference};
    /// let mut books = Books::default();
    /// books.move_one(EventId::from_u128(7), None, Some(Place::Queued));
    /// let recount = Books::default();
    /// let missing = difference(&books, &recount);
    /// let audited = Audited::new("orders".to_owned(), ComponentKind::Topic, &books, &recount, missing);
    /// assert_eq!(audited.unaccounted, 1);
    /// ```
    #[must_use]
    pub fn new(
        name: String,
        kind: ComponentKind,
        books: &Books,
        recount: &Books,
        missing: Vec<Discrepancy>,
    ) -> Self {
        // Events that were exchanged for others differ in their sum alone; at least one is missing.
        let counts = missing.iter().map(|one| one.count.unsigned_abs().max(1));
        Self {
            name,
            kind,
            books: books.account(),
            recount: recount.account(),
            removed: books.removed(),
            unverifiable: 0,
            unaccounted: counts.sum(),
            missing,
            paths: Vec::new(),
            findings: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The verdict for this component. Events that are in another place than the books say, or twice, are a finding: they
    /// are there.
    #[must_use]
    pub fn verdict(&self) -> AuditVerdict {
        let surplus: Vec<EventId> = self
            .missing
            .iter()
            .filter(|one| one.count == -1)
            .filter_map(|one| one.id)
            .collect();
        let is_elsewhere = |one: &Discrepancy| {
            one.count < 0 || (one.count == 1 && one.id.is_some_and(|id| surplus.contains(&id)))
        };
        let is_path_whole = |path: &AuditedPath| path.unaccounted() == 0;
        if !self.missing.iter().all(is_elsewhere) || !self.paths.iter().all(is_path_whole) {
            return AuditVerdict::Loss;
        }
        match self.unaccounted == 0 && self.findings.is_empty() {
            true => AuditVerdict::Clean,
            false => AuditVerdict::Findings,
        }
    }

    /// Adds a path that its delivered events took.
    pub fn add_path(&mut self, path: AuditedPath) {
        self.unaccounted += path.unaccounted();
        self.paths.push(path);
    }

    /// The same, with findings.
    #[must_use]
    pub fn with_findings(mut self, findings: impl IntoIterator<Item = AuditFinding>) -> Self {
        self.findings.extend(findings);
        self
    }

    /// The same, with things to know that are no finding.
    #[must_use]
    pub fn with_notes(mut self, notes: impl IntoIterator<Item = String>) -> Self {
        self.notes.extend(notes);
        self
    }

    /// The same, with events of which nobody can tell any more.
    #[must_use]
    pub fn unverifiable(mut self, count: u64) -> Self {
        self.unverifiable = count;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::{Place, difference};

    #[test]
    fn an_audit_reads_back_from_what_it_wrote() {
        let mut books = Books::default();
        let id = EventId::from_u128(0x019a_8f3e_5c00_7abc_8def_0123_4567_89ab);
        books.move_one(id, None, Some(Place::Queued));
        let missing = difference(&books, &Books::default());
        let kind = ComponentKind::Topic;
        let audited = Audited::new(
            "orders".to_owned(),
            kind,
            &books,
            &Books::default(),
            missing,
        );
        let audit = Audit::new(vec![audited.unverifiable(2)]);
        let text = serde_json::to_string(&audit).unwrap();
        assert_eq!(serde_json::from_str::<Audit>(&text).unwrap(), audit);
        assert_eq!(
            (audit.unaccounted, audit.components[0].missing[0].id),
            (1, Some(id))
        );
    }

    #[test]
    fn a_loss_outweighs_findings_and_findings_outweigh_silence() {
        let audited = |missing| {
            let (kind, books) = (ComponentKind::Topic, Books::default());
            Audited::new("orders".to_owned(), kind, &books, &books, missing)
        };
        // An id says when it was born; a sum that does not is nobody's id.
        let id = EventId::from_u128((0x019a_8f3e_5c00 << 80) | (7 << 76) | (0b10 << 62) | 7);
        let gone = || {
            let mut books = Books::default();
            books.move_one(id, None, Some(Place::Queued));
            difference(&books, &Books::default())
        };
        let finding = || [AuditFinding::new("line.corrupt", "a line cannot be read")];
        let twice = || {
            let mut found = Books::default();
            found.move_one(id, None, Some(Place::Delivered));
            difference(&Books::default(), &found)
        };
        let moved = || [gone(), twice()].concat();
        for (missing, findings, verdict) in [
            (twice(), false, AuditVerdict::Findings),
            (moved(), false, AuditVerdict::Findings),
            (Vec::new(), false, AuditVerdict::Clean),
            (Vec::new(), true, AuditVerdict::Findings),
            (gone(), false, AuditVerdict::Loss),
            (gone(), true, AuditVerdict::Loss),
        ] {
            let findings = finding().into_iter().filter(|_| findings);
            let audit = Audit::new(vec![audited(missing).with_findings(findings)]);
            assert_eq!(audit.verdict(), verdict);
        }
    }
}
