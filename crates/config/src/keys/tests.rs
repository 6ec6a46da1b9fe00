use std::collections::BTreeSet;

use super::*;
use crate::read::default_value;

/// Visits every section of the table.
fn sections(keys: &'static [Key], visit: &mut impl FnMut(&'static [Key])) {
    visit(keys);
    for key in keys {
        let mut kind = &key.kind;
        while let KeyKind::List(each) | KeyKind::Map { each, .. } = kind {
            kind = each;
        }
        if let KeyKind::Section(inner) = kind {
            sections(inner, visit);
        }
    }
}

#[test]
fn no_two_names_of_a_section_read_the_same() {
    sections(ROOT, &mut |keys| {
        let mut seen = BTreeSet::new();
        for key in keys {
            for (name, _) in key.names() {
                assert!(seen.insert(relaxed(&name)), "{name} is there twice");
            }
        }
    });
}

#[test]
fn every_default_is_a_value_of_its_key() {
    for listed in all() {
        let texts: Vec<&str> = match listed.key.default {
            DefaultValue::Value(text) => vec![text],
            DefaultValue::Nth(texts) => texts.to_vec(),
            DefaultValue::By {
                then, otherwise, ..
            } => vec![then, otherwise],
            DefaultValue::Nothing
            | DefaultValue::Explained(_)
            | DefaultValue::Required
            | DefaultValue::Filled => vec![],
        };
        if !matches!(listed.key.kind, KeyKind::List(_) | KeyKind::Map { .. }) {
            for text in texts {
                assert!(
                    default_value(listed.key, text).is_some(),
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
        let names = Key::new(name, kind, DefaultValue::Nothing, "").names();
        names.into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names("delay-ms", SPAN), ["delay-ms", "delay"]);
    assert_eq!(names("lease", SPAN), ["lease", "lease-ms"]);
    assert_eq!(
        names("max-size-mb", SIZE),
        ["max-size-mb", "max-size", "max-size-bytes"]
    );
    assert_eq!(names("name", KeyKind::Text), ["name"]);
}
