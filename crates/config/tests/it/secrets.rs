//! Secrets appear in no rendering of anything.

use proptest::prelude::*;
use tidegate_config::{Color, Inputs, Loaded, Origins, Severity, load};

use crate::{environment, with};

const SECRET: &str = "hunter2-ünïque";

fn assert_silent(loaded: &Loaded, what: &str) {
    for text in outputs(loaded) {
        assert!(!text.contains("hunter2"), "{what}: {text}");
        assert!(!text.contains("ünïque"), "{what}: {text}");
    }
}

/// Everything that can be printed of what was loaded.
fn outputs(loaded: &Loaded) -> Vec<String> {
    let config = &loaded.config;
    let mut all = vec![
        format!("{loaded:?}"),
        format!("{config:?}"),
        config.to_yaml(Origins::Commented),
        config.to_json().to_string(),
        config.to_json_with_origins().to_string(),
        config
            .show()
            .map(|shown| format!("{shown:?}"))
            .collect::<String>(),
    ];
    for problems in [&loaded.problems, &loaded.warnings] {
        all.push(problems.to_string());
        all.push(format!("{problems:?}"));
        all.push(problems.render(Color::Never));
        all.push(problems.render_as(Severity::Warning, Color::Always));
        all.push(serde_json::json!(problems).to_string());
    }
    for path in ["store", "eventlog", "server", "log"] {
        // A part that takes numbers only: its complaint repeats what it was given.
        let misfit = config.section::<std::collections::BTreeMap<String, u8>>(path);
        all.extend(misfit.err().map(|problem| problem.to_string()));
    }
    all
}

#[test]
fn a_secret_is_shown_nowhere() {
    let good = format!("server: {{token: {SECRET}}}\n");
    assert_eq!(
        with(&good, &[])
            .config
            .secret("server.token")
            .unwrap()
            .expose(),
        SECRET
    );
    for text in [
        good,
        format!("server: {{listen: x, token: {SECRET}, lisen: 1}}\n"),
        format!("server:\n  token: {SECRET}\n  token: {SECRET}\n"),
        format!("server:\n  tokn: {SECRET}\n"),
        format!("server:\n  token: [{SECRET}, x]\n"),
        format!("server:\n  token: {{x: {SECRET}}}\n"),
        format!("server:\n  token: ${{{SECRET}}}\n"),
        format!("server:\n  token: ${{NOT_SET:-{SECRET}}}\n  listen: x\n"),
        format!("server:\n  token: {SECRET}\n  listen: [\n"),
        format!("server:\n  token: \"{SECRET}\n"),
        format!("server:\n  token: *{SECRET}\n"),
        format!("server:\n  token: a {SECRET}\n"),
        format!("server: {{token: |-\n  {SECRET}\n"),
        format!("store: {{url: 'postgres://me:{SECRET}@db/x', max-connections: x}}\n"),
        format!("store: {{url: 'mysql://me:{SECRET}@db/x'}}\n"),
        format!("log: {{clusters: {{a: {{properties: {{sasl.password: {SECRET}}}}}}}}}\n"),
        format!("log: {{clusters: {{a: {{properties: {{sasl.password: [{SECRET}]}}}}}}}}\n"),
    ] {
        assert_silent(&with(&text, &[]), &text);
    }
}

#[test]
fn a_secret_from_elsewhere_is_shown_nowhere() {
    let text = "server: {token: '${T}', listen: 0.0.0.0:x}\nstore: {url: '${U}'}\n";
    let url = format!("mysql://me:{SECRET}@db");
    assert_silent(&with(text, &[("T", SECRET), ("U", &url)]), "interpolated");
    assert_silent(&with("", &[("SERVER_TOKEN", SECRET)]), "SERVER_TOKEN");
    assert_silent(
        &with("", &[("TIDEGATE__SERVER__TOKEN", SECRET)]),
        "TIDEGATE__",
    );
    assert_silent(
        &with("", &[("TIDEGATE__SERVER__TOKN", SECRET)]),
        "TIDEGATE__ misspelled",
    );
    assert_silent(
        &with("", &[("TIDEGATE__SERVER", &format!("{{token: [{SECRET}"))]),
        "broken",
    );
    let mut inputs = Inputs {
        environment: environment(&[]),
        ..Inputs::default()
    };
    inputs
        .arguments
        .push(("server.token".to_owned(), SECRET.to_owned()));
    assert_silent(&load(&inputs), "argument");
}

#[test]
fn a_part_that_wants_something_else_does_not_print_it() {
    #[derive(Debug, serde::Deserialize)]
    struct Wrong {
        #[expect(dead_code, reason = "it never deserializes")]
        token: u32,
    }
    let loaded = with(&format!("server: {{token: {SECRET}}}\n"), &[]);
    let problem = loaded.config.section::<Wrong>("server").unwrap_err();
    insta::assert_snapshot!(problem.to_string(), @r#"tidegate.yaml:1:17: server.token: does not fit: invalid type: string "***", expected u32"#);
}

/// The ways in which people put a password into an address; `§` is the password.
const ADDRESSES: [&str; 16] = [
    "postgres://me:§@db/x",
    "postgres://me:§@db:5432/x?sslmode=require",
    "postgres://me:a/§@db/x",
    "postgres://me:a#§@db/x",
    "postgres://me:12/§#@db/x",
    "postgres://me:§:b@db/x",
    "postgres://me:a@§@db/x",
    "postgres://db/x?user=me&password=§",
    "postgres://db/x?sslpassword=§&sslmode=require",
    "postgres://db/x?api_key=§",
    "postgres://db/x?options=-cpassword%3D§",
    "postgres:me:§@db",
    "postgres:me:§@db/x",
    "host=db user=me password=§",
    "password = §  host = db",
    "mysql://me:§@db/x",
];

/// The places they end up in; `§` is the address, in quotes of YAML.
const PLACES: [&str; 14] = [
    "store: {url: §}",
    "store:\n  url: §\n  max-connections: x\n  urll: 1",
    "store:\n  uri: §\n  max-connections: 0",
    "store:\n  url: [§]",
    "store:\n  url: §\n  url: §",
    "store: §",
    "store: {§: 1}",
    "store: {url: §",
    "eventlog: {base-url: §, enabled: maybe}",
    "eventlog: {application-id: §, enabled: maybe}",
    "server: {listen: §, read-only: §, max-body: §}",
    "log: {clusters: {a: {bootstrap-servers: [§], properties: {schema.registry.url: §}}}}",
    "log: {topics: {§: {partitions: 0}}}",
    "imports: [§]",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    #[test]
    fn a_password_in_an_address_is_shown_nowhere(secret in "[a-z]{4}[a-zA-Z0-9!$%&*+.;~^-]{6,12}") {
        // Variables are a matter of their own.
        let secret = secret.replace('$', "S");
        for address in ADDRESSES {
            let address = address.replace('§', &secret);
            for place in PLACES {
                let quoted = format!("'{address}'");
                let text = format!("shutdown-timeout: soon\n{}\n", place.replace('§', &quoted));
                for shown in outputs(&with(&text, &[])) {
                    prop_assert!(!shown.contains(&secret), "{text}\n{shown}");
                }
            }
            for (name, value) in [("STORE_URL", &address), ("TIDEGATE__EVENTLOG__BASE_URL", &address)] {
                for shown in outputs(&with("store: {max-connections: x}", &[(name, value)])) {
                    prop_assert!(!shown.contains(&secret), "{name}={value}\n{shown}");
                }
            }
            let interpolated = with("store: {url: '${U}', max-connections: x}", &[("U", &address)]);
            for shown in outputs(&interpolated) {
                prop_assert!(!shown.contains(&secret), "{address}\n{shown}");
            }
        }
    }
}

#[test]
fn an_address_without_a_password_is_shown() {
    for address in [
        "sqlite:./data/tidegate.db",
        "sqlite://./data/tidegate.db?mode=rwc",
        "postgres://me@db:5432/x?sslmode=require",
    ] {
        let loaded = with(&format!("store: {{url: '{address}'}}"), &[]);
        assert_eq!(loaded.problems.to_string(), "");
        assert_eq!(loaded.config.to_json()["store"]["url"], address);
    }
}

#[test]
fn a_mask_is_no_secret() {
    let text = "server: {token: '***'}\nstore: {url: 'postgres://me:***@db/x'}\n";
    insta::assert_snapshot!(with(text, &[]).problems.to_string(), @r#"
    tidegate.yaml:1:17: server.token: holds `***`, which stands for a secret and is none (`config show` prints it so; write the secret itself, or `${NAME}`)
    tidegate.yaml:2:14: store.url: holds `***`, which stands for a secret and is none (`config show` prints it so; write the secret itself, or `${NAME}`)
    "#);
}

#[test]
fn a_token_is_something_a_header_can_carry() {
    let text = "server:\n  token: \"two words\"\n";
    insta::assert_snapshot!(with(text, &[]).problems.to_string(), @"tidegate.yaml:2:10: server.token: has a character that is not visible ASCII, the 4th (use letters, digits and signs, without blanks)");
    for token in ["a\tb", "café", "\u{7f}", " "] {
        let loaded = with("", &[("SERVER_TOKEN", token)]);
        // Around a value that is not quoted, blanks are none of its own.
        let is_problem = !loaded.problems.is_empty();
        assert_eq!(
            is_problem,
            !token.trim().is_empty(),
            "{token:?}: {}",
            loaded.problems
        );
    }
    assert!(with("server: {token: '!#$$%~'}", &[]).problems.is_empty());
}
