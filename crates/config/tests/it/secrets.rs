//! Secrets appear in no rendering of anything.

use tidegate_config::{Color, Inputs, Loaded, Origins, Severity, load};

use crate::{environment, with};

const SECRET: &str = "hunter2-ünïque";

fn assert_silent(loaded: &Loaded, what: &str) {
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
    for text in all {
        assert!(!text.contains("hunter2"), "{what}: {text}");
        assert!(!text.contains("ünïque"), "{what}: {text}");
    }
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
