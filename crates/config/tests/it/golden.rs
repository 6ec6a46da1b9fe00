//! The table as files that show every change of it. How to write them anew stands in
//! `examples/golden.rs`.

use tidegate_config::{Origins, defaults_text, keys, schema};

use crate::of;

const DEFAULTS: &str = include_str!("../../default.yaml");
const KEYS: &str = include_str!("../golden/keys.txt");
const SHOW: &str = include_str!("../golden/show.yaml");

#[test]
fn the_keys_are_those_of_the_golden_file() {
    let keys: String = keys::all()
        .iter()
        .map(|listed| format!("{listed}\n"))
        .collect();
    assert_eq!(keys, KEYS, "if this was meant, see examples/golden.rs");
}

#[test]
fn an_empty_file_shows_the_golden_defaults() {
    let shown = of("").config.to_yaml(Origins::Hidden);
    assert_eq!(shown, SHOW, "if this was meant, see examples/golden.rs");
}

#[test]
fn the_reference_is_the_golden_file() {
    assert_eq!(
        defaults_text(),
        DEFAULTS,
        "if this was meant, see examples/golden.rs"
    );
}

#[test]
fn the_reference_loads_to_the_defaults() {
    let loaded = of(DEFAULTS);
    assert_eq!(loaded.problems.to_string(), "");
    assert_eq!(loaded.config.to_yaml(Origins::Hidden), SHOW);
}

#[test]
fn the_reference_uncommented_is_a_file_too() {
    // Names and required values are for the user to fill in; the rest must hold as it stands.
    let lines = DEFAULTS
        .lines()
        .skip_while(|line| line.starts_with('#'))
        .enumerate()
        .map(|(number, line)| {
            // Only what is commented out as a block begins its lines with the mark.
            let block = |line: &&str| line.starts_with(['#', ' ']) || line.ends_with(':');
            let line = line.strip_prefix("# ").filter(block).unwrap_or(line);
            let named = line.replace("<name>: …", "x: 1").replace("<name>", "one");
            match named.trim_end() {
                line if line.ends_with(" url:") => format!("{line} http://localhost/"),
                // The topics of a binding are topics of their own.
                line if line.ends_with(" topic:") => format!("{line} one-{number}"),
                line if line.ends_with("-id:") => format!("{line} one"),
                line if line.ends_with(" name:") || line.ends_with(" cel:") => {
                    format!("{line} one")
                }
                line if line.ends_with(" type:") => format!("{line} file"),
                line if line.ends_with("bootstrap-servers:") => format!("{line} localhost:9092"),
                line => line.to_owned(),
            }
        });
    let text = lines.collect::<Vec<_>>().join("\n");
    let problems = of(&text).problems.to_string();
    // All four handlers at once are one problem each after the first.
    assert!(
        problems.lines().all(|line| line.contains("second handler")),
        "{problems}"
    );
}

#[test]
fn every_key_is_in_the_schema() {
    let schema = schema();
    for listed in keys::all() {
        let mut node = &schema;
        for step in listed.path.split('.') {
            let (name, is_list) = step
                .strip_suffix("[]")
                .map_or((step, false), |name| (name, true));
            node = match name {
                "<name>" => &node["additionalProperties"],
                name => &node["properties"][name],
            };
            if is_list {
                node = &node["items"];
            }
        }
        assert!(node.is_object(), "{} is not in the schema", listed.path);
    }
}

#[test]
fn the_schema_says_what_the_table_says() {
    let schema = schema();
    let binding =
        &schema["properties"]["eventbus"]["properties"]["bindings"]["additionalProperties"];
    insta::assert_snapshot!(
        serde_json::to_string_pretty(&binding["properties"]["session-timeout-ms"]).unwrap(), @r#"
    {
      "anyOf": [
        {
          "minimum": 1,
          "type": "integer"
        },
        {
          "pattern": "\\$\\{",
          "type": "string"
        }
      ],
      "default": 45000,
      "description": "Without a heartbeat for this long, the partitions go to others."
    }
    "#);
    insta::assert_snapshot!(
        serde_json::to_string_pretty(&binding["properties"]["session-timeout"]).unwrap(), @r#"
    {
      "anyOf": [
        {
          "minimum": 1,
          "type": "integer"
        },
        {
          "pattern": "^([0-9.]+ *[a-z]+ *)+$|\\$\\{",
          "type": "string"
        }
      ],
      "description": "The same as `session-timeout-ms`."
    }
    "#);
    insta::assert_snapshot!(
        serde_json::to_string_pretty(&binding["properties"]["listener-type"]).unwrap(), @r#"
    {
      "anyOf": [
        {
          "enum": [
            "SINGLE",
            "single",
            "BATCH",
            "batch"
          ]
        },
        {
          "pattern": "\\$\\{",
          "type": "string"
        }
      ],
      "default": "SINGLE",
      "description": "Whether the handler takes records one by one or in batches."
    }
    "#);
    assert_eq!(
        binding["required"],
        serde_json::json!(["topic", "group-id"])
    );
    assert_eq!(binding["additionalProperties"], false);
}
