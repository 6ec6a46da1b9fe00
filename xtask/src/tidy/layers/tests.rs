use super::*;

fn member(name: &str, manifest: &str, uses: &[(&str, bool)]) -> Member {
    let uses = uses.iter().map(|(name, is_for_tests)| Use {
        name: (*name).to_owned(),
        is_for_tests: *is_for_tests,
    });
    Member {
        name: name.to_owned(),
        manifest: manifest.to_owned(),
        uses: uses.collect(),
    }
}

fn messages(members: Vec<Member>, files: &[(&str, &str)]) -> Vec<String> {
    let members = Members {
        members,
        core_tree: vec![],
    };
    members
        .check(&Tree::of(files))
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn nothing_points_up() {
    let found = messages(
        vec![
            member(
                "tidegate-core",
                "crates/core/Cargo.toml",
                &[("tidegate-logger", false)],
            ),
            member(
                "tidegate-logger",
                "crates/logger/Cargo.toml",
                &[("tidegate-core", false)],
            ),
            member(
                "tidegate-sim",
                "crates/sim/Cargo.toml",
                &[("tidegate-core", false)],
            ),
        ],
        &[(
            "crates/core/Cargo.toml",
            "[dependencies]\nserde = \"1\"\ntidegate-logger.workspace = true\n",
        )],
    );
    assert_eq!(
        found,
        ["crates/core/Cargo.toml:3: tidegate-core may not use tidegate-logger"]
    );
}

#[test]
fn tests_may_use_what_the_crate_may_not() {
    let uses = [
        ("tidegate-testkit", true),
        ("clap", true),
        ("tidegate-core", true),
    ];
    let members = vec![
        member("tidegate-core", "crates/core/Cargo.toml", &uses),
        member("tidegate-testkit", "crates/testkit/Cargo.toml", &[]),
    ];
    assert!(messages(members, &[]).is_empty());
}

#[test]
fn a_crate_without_a_layer_is_found() {
    let found = messages(
        vec![member("tidegate-extra", "crates/extra/Cargo.toml", &[])],
        &[],
    );
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("has no place"), "{found:?}");
}

#[test]
fn foreign_crates_stay_with_those_who_know_them() {
    let found = messages(
        vec![
            member(
                "tidegate-testkit",
                "t/Cargo.toml",
                &[("axum", false), ("clap", true)],
            ),
            member(
                "tidegate-logger",
                "l/Cargo.toml",
                &[("utoipa-axum", false), ("anyhow", true)],
            ),
            member(
                "orders",
                "examples/orders/Cargo.toml",
                &[("axum", false), ("clap_complete", false)],
            ),
        ],
        &[],
    );
    assert_eq!(
        found,
        [
            "l/Cargo.toml:1: utoipa-axum is for tidegate-server, tidegate-client only, not for tidegate-logger",
            "l/Cargo.toml:1: anyhow is for xtask only, not for tidegate-logger",
            "examples/orders/Cargo.toml:1: clap_complete is for tidegate only, not for orders",
        ]
    );
}

#[test]
fn an_empty_package_name_is_found() {
    let found = messages(
        vec![member("tidegate-common", "crates/c/Cargo.toml", &[])],
        &[],
    );
    assert!(found[0].contains("says nothing"), "{found:?}");
}

#[test]
fn a_heavy_core_is_found() {
    let members = Members {
        members: vec![member(CORE, "crates/core/Cargo.toml", &[])],
        core_tree: (0..=CORE_LIMIT)
            .map(|number| format!("crate-{number}"))
            .collect(),
    };
    let found = members.check(&Tree::default());
    assert!(
        found[0].text.contains("brings 31 crates along"),
        "{found:?}"
    );
}

#[test]
fn a_tree_is_counted_once_per_version() {
    let text =
        "tidegate-core v0.1.0 (somewhere)\nserde v1.0.1\nsyn v2.0.0 (*)\nsyn v2.0.0\nsyn v3.0.0\n";
    assert_eq!(names_in_tree(text, CORE), ["serde", "syn", "syn"]);
}
