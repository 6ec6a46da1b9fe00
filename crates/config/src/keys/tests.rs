use std::collections::BTreeSet;

use super::*;
use crate::read::preset;

/// Visits every section of the table.
fn sections(keys: &'static [Key], visit: &mut impl FnMut(&'static [Key])) {
    visit(keys);
    for key in keys {
        let mut kind = &key.kind;
        while let Kind::List(each) | Kind::Map { each, .. } = kind {
            kind = each;
        }
        if let Kind::Section(inner) = kind {
            sections(inner, visit);
        }
    }
}

#[test]
fn no_two_names_of_a_section_read_the_same() {
    sections(ROOT, &mut |keys| {
        let mut seen = BTreeSet::new();
        for key in keys {
            let twins = twin_names(key).into_iter().map(|(name, _)| name);
            for name in twins.chain([key.name.to_owned()]) {
                assert!(seen.insert(relaxed(&name)), "{name} is there twice");
            }
        }
    });
}

#[test]
fn every_default_is_a_value_of_its_key() {
    for listed in all() {
        let texts: Vec<&str> = match listed.key.preset {
            Preset::Value(text) => vec![text],
            Preset::Nth(texts) => texts.to_vec(),
            Preset::By {
                cases, otherwise, ..
            } => cases
                .iter()
                .map(|(_, text)| *text)
                .chain([otherwise])
                .collect(),
            Preset::Nothing | Preset::Explained(_) | Preset::Required | Preset::Filled => vec![],
        };
        if !matches!(listed.key.kind, Kind::List(_) | Kind::Map { .. }) {
            for text in texts {
                assert!(
                    preset(listed.key, text).is_some(),
                    "{}: {text}",
                    listed.path
                );
            }
        }
    }
}

#[test]
fn every_key_is_documented_in_a_sentence() {
    sections(ROOT, &mut |keys| {
        for key in keys {
            assert!(
                key.doc.ends_with('.') && key.doc.len() < 90,
                "{}: {}",
                key.name,
                key.doc
            );
        }
    });
}

#[test]
fn names_have_three_spellings() {
    for written in ["group-id", "groupId", "group_id", "GROUP_ID", "GroupID"] {
        assert_eq!(relaxed(written), "groupid");
    }
    assert_eq!(camel("max-poll-interval-ms"), "maxPollIntervalMs");
}

#[test]
fn durations_and_sizes_have_a_second_name() {
    let names = |name: &'static str, kind| -> Vec<String> {
        twin_names(&optional(name, kind, ""))
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    };
    assert_eq!(names("delay-ms", SPAN), ["delay"]);
    assert_eq!(names("lease", SPAN), ["lease-ms"]);
    assert_eq!(names("max-size-mb", SIZE), ["max-size", "max-size-bytes"]);
    assert_eq!(names("name", Kind::Text), [] as [&str; 0]);
}
