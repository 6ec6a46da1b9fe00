//! Nothing that is handed in makes the loader panic.

use proptest::prelude::*;
use tidegate_config::{Color, ConfigSource, Inputs, Loaded, Origins, load};

use crate::fixtures;

fn use_all(loaded: &Loaded) {
    let texts = [
        loaded.problems.render(Color::Never),
        loaded.warnings.render(Color::Always),
        loaded.problems.to_string(),
        loaded.config.to_yaml(Origins::Commented),
        loaded.config.to_json_with_origins().to_string(),
    ];
    assert!(texts.iter().any(|text| !text.is_empty()));
}

/// Pieces of YAML that meet the corners of the loader more often than random characters do.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("\n".to_owned()),
        Just("\n  ".to_owned()),
        Just("\n    ".to_owned()),
        Just(": ".to_owned()),
        Just("- ".to_owned()),
        Just("${".to_owned()),
        Just("${A:-".to_owned()),
        Just("}".to_owned()),
        Just("{".to_owned()),
        Just("[".to_owned()),
        Just("]".to_owned()),
        Just(", ".to_owned()),
        Just("&a ".to_owned()),
        Just("*a".to_owned()),
        Just("\"".to_owned()),
        Just("'".to_owned()),
        Just("|\n".to_owned()),
        Just("\t".to_owned()),
        Just("---\n".to_owned()),
        Just("ö".to_owned()),
        prop::sample::select(vec![
            "eventbus",
            "bindings",
            "topic",
            "retry",
            "tiers",
            "delay-ms",
            "outbox",
            "server",
            "token",
            "listen",
            "log",
            "topics",
            "flows",
            "store",
            "url",
            "null",
            "none",
            "10s",
            "handler",
            "http",
            "postgres://a:b@c",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,3}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn on_any_text(text in any::<String>()) {
        use_all(&load(&Inputs::of_text("any.yaml", &text)));
    }

    #[test]
    fn on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        use_all(&load(&Inputs::of_text("any.yaml", &String::from_utf8_lossy(&bytes))));
    }

    #[test]
    fn on_almost_yaml(pieces in prop::collection::vec(piece(), 0..40)) {
        use_all(&load(&Inputs::of_text("any.yaml", &pieces.concat())));
    }

    #[test]
    fn on_damaged_files(which in 0..5_usize, at in 0..4000_usize, with in "\\PC{0,4}", cut in 0..20_usize) {
        let mut text: Vec<char> = fixtures::ALL[which].chars().collect();
        let at = at % text.len();
        let end = (at + cut).min(text.len());
        text.splice(at..end, with.chars());
        use_all(&load(&Inputs::of_text("any.yaml", &text.into_iter().collect::<String>())));
    }

    #[test]
    fn on_any_environment(
        names in prop::collection::vec("(TIDEGATE__|EVENTBUS_|OUTBOX_|LOG_)?[A-Za-z0-9_.ö-]{0,20}", 0..6),
        value in "\\PC{0,10}",
    ) {
        let mut inputs = Inputs::of_text("any.yaml", fixtures::EVENTBUS);
        inputs.sources.push(ConfigSource { name: "b".to_owned(), text: "flows: ${A}".to_owned() });
        for name in names {
            inputs.environment.insert(name.clone(), value.clone());
            inputs.arguments.push((name, value.clone()));
        }
        use_all(&load(&inputs));
    }
}
