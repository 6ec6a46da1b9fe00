//! Suggestions for a key that does not exist.

use crate::keys::{Key, KeyKind, Part, camel, every, relaxed};
use crate::path::KeyPath;

/// The advice about an unknown key.
pub(crate) struct KeySuggestion {
    pub(crate) hint: Option<String>,
    /// The key that was probably meant takes a secret.
    pub(crate) is_secret: bool,
    /// The parts that were probably meant.
    pub(crate) parts: Vec<Part>,
}

/// Keys a section may have to be listed in full.
const MAX_LISTED: usize = 13;
/// Other places that are named for a misplaced key.
const MAX_PLACES: usize = 3;

/// KeySuggestion for `written`, which is not one of `keys`.
pub(crate) fn unknown(keys: &'static [Key], written: &str, path: &KeyPath) -> KeySuggestion {
    let mut names: Vec<(String, &'static Key)> = Vec::new();
    for key in keys {
        names.extend(key.names().into_iter().map(|(name, _)| (name, key)));
    }
    let near = nearest(written, names.iter().map(|(name, _)| name.as_str()));
    if let Some((name, key)) = names.iter().find(|(name, _)| near == Some(name)) {
        // Somebody who writes camel case gets the suggestion in camel case.
        let has_capitals = written.contains(char::is_uppercase) && !written.contains(['-', '_']);
        let name = if has_capitals {
            camel(name)
        } else {
            name.clone()
        };
        return KeySuggestion {
            hint: Some(format!("did you mean `{name}`?")),
            is_secret: key.kind == KeyKind::Secret,
            parts: Part::of_section(key.name).into_iter().collect(),
        };
    }
    let elsewhere = places(written, path);
    if let Some((_, is_secret)) = elsewhere.first() {
        let places: Vec<String> = elsewhere
            .iter()
            .take(MAX_PLACES)
            .map(|(place, _)| format!("`{place}`"))
            .collect();
        return KeySuggestion {
            hint: Some(format!(
                "did you mean to put it under {}?",
                places.join(" or ")
            )),
            is_secret: *is_secret,
            parts: elsewhere
                .iter()
                .filter_map(|(place, _)| Part::of_section(place.split('.').next()?))
                .collect(),
        };
    }
    let few = !keys.is_empty() && keys.len() <= MAX_LISTED;
    let hint = few.then(|| {
        let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
        format!("the keys here are {}", names.join(", "))
    });
    KeySuggestion {
        hint,
        is_secret: false,
        parts: Vec::new(),
    }
}

/// The sections that have a key of this name, those of the same part first.
fn places(written: &str, path: &KeyPath) -> Vec<(String, bool)> {
    let own = path.to_string();
    let own = own.split('.').next().unwrap_or_default();
    let mut found: Vec<(String, bool)> = Vec::new();
    for listed in every() {
        let place = match listed.section.as_str() {
            "" => "the top of the file".to_owned(),
            section => section.to_owned(),
        };
        let is_new = !found.iter().any(|(other, _)| *other == place);
        if is_new && listed.key.unit_of(written).is_some() {
            found.push((place, listed.key.kind == KeyKind::Secret));
        }
    }
    let is_own = |place: &str| place.split('.').next() == Some(own);
    if found.iter().any(|(place, _)| is_own(place)) {
        found.retain(|(place, _)| is_own(place));
    }
    found
}

/// The name nearest to `written`, if it is near enough to be a slip.
pub fn nearest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = relaxed(written);
    let limit = (wanted.chars().count() / 3).clamp(1, 4);
    names
        .map(|name| (distance(&wanted, &relaxed(name)), name))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Names longer than this are nobody's slip of a key, and comparing them would take long.
const MAX_COMPARED: usize = 80;

/// Insertions, deletions, replacements and swaps of neighbors that lead from one to the other.
fn distance(a: &str, b: &str) -> usize {
    if a.chars().count().max(b.chars().count()) > MAX_COMPARED {
        return usize::MAX;
    }
    strsim::osa_distance(a, b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;

    #[test]
    fn distance_counts_slips() {
        for (a, b, expect) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("abc", "acb", 1),
            ("abc", "ab", 1),
        ] {
            assert_eq!(distance(a, b), expect, "{a} {b}");
        }
        assert_eq!(distance("concurency", "concurrency"), 1);
    }

    #[test]
    fn a_misplaced_key_is_sent_to_its_section() {
        let path = KeyPath::default().name("eventlog");
        let KeyKind::Section(keys) = keys::find(keys::ROOT, "eventlog").unwrap().key.kind else {
            panic!("eventlog is a section")
        };
        let advice = unknown(keys, "spilloverPath", &path);
        assert_eq!(
            advice.hint.unwrap(),
            "did you mean to put it under `eventlog.async`?"
        );
    }
}
