//! How names are compared, and the second names of durations and sizes.

use super::{Key, KeyKind};

/// The form in which names are compared: `groupId`, `group_id` and `GROUP-ID` are one name.
pub(crate) fn relaxed(name: &str) -> String {
    name.chars()
        .filter(|c| !matches!(c, '-' | '_'))
        .flat_map(char::to_lowercase)
        .collect()
}

/// The camel case form of a kebab name.
pub(crate) fn camel(name: &str) -> String {
    let mut words = name.split('-');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}

/// The unit a name carries at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// None: the value carries it.
    InValue,
    /// `-ms`.
    Milliseconds,
    /// `-mb`.
    Mebibytes,
    /// `-bytes`.
    Bytes,
}

impl Unit {
    const fn suffix(self) -> &'static str {
        match self {
            Self::InValue => "",
            Self::Milliseconds => "-ms",
            Self::Mebibytes => "-mb",
            Self::Bytes => "-bytes",
        }
    }

    /// The units a name of this kind may carry.
    const fn of(kind: KeyKind) -> &'static [Self] {
        if matches!(kind, KeyKind::Duration { .. }) {
            &[Self::InValue, Self::Milliseconds]
        } else if matches!(kind, KeyKind::Size { .. }) {
            &[Self::InValue, Self::Mebibytes, Self::Bytes]
        } else {
            &[]
        }
    }
}

impl Key {
    /// The unit the documented name carries.
    pub(crate) fn unit(&self) -> Unit {
        let units = Unit::of(self.kind).iter().skip(1);
        units
            .copied()
            .find(|unit| self.name.ends_with(unit.suffix()))
            .unwrap_or(Unit::InValue)
    }

    /// The documented name without the unit it carries.
    pub(crate) fn stem(&self) -> &'static str {
        self.name
            .strip_suffix(self.unit().suffix())
            .unwrap_or(self.name)
    }

    /// Every name of the key, each with its unit, the documented one first: `delay-ms`, `delay`.
    pub(crate) fn names(&self) -> Vec<(String, Unit)> {
        let own = self.unit();
        let others = Unit::of(self.kind).iter().filter(|unit| **unit != own);
        let others = others.map(|unit| (format!("{}{}", self.stem(), unit.suffix()), *unit));
        std::iter::once((self.name.to_owned(), own))
            .chain(others)
            .collect()
    }

    /// The unit of `written`, if that is one of the names.
    pub(crate) fn unit_of(&self, written: &str) -> Option<Unit> {
        let wanted = relaxed(written);
        let mut names = self.names().into_iter();
        names.find_map(|(name, unit)| (relaxed(&name) == wanted).then_some(unit))
    }
}

/// A key found under one of its names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundKey {
    pub(crate) key: &'static Key,
    /// The unit of the name it was found under.
    pub(crate) unit: Unit,
}

/// The key that `written` means in this section.
pub(crate) fn find(keys: &'static [Key], written: &str) -> Option<FoundKey> {
    keys.iter().find_map(|key| {
        let unit = key.unit_of(written)?;
        Some(FoundKey { key, unit })
    })
}
