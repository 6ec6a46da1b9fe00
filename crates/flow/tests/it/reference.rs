//! Pages and editor files that are written from the tables of the language.

use std::fmt::Write;

use tidegate_config::Severity;
use tidegate_flow::check::{MAX_ATTEMPTS, MAX_EXPANSION, MAX_WINDOWS};
use tidegate_flow::diagnostic::CODES;
use tidegate_flow::expression::MAX_PATTERN_BYTES;
use tidegate_flow::syntax::{
    MAX_DIAGNOSTICS, MAX_DURATION_DAYS, MAX_EXPRESSION, MAX_FIELDS, MAX_FILE, MAX_LIST, MAX_NAME,
    MAX_NESTING, MAX_STATEMENTS, RESERVED, published, words,
};

use crate::assert_golden;

/// A rule of the grammar over several lines, none of which is too long.
fn wrapped(rule: &str) -> String {
    let mut text = String::new();
    let mut column = 0;
    for word in rule.split(' ') {
        if column + word.len() + 1 > 110 {
            text.push_str("\n   ");
            column = 3;
        }
        if column > 0 {
            text.push(' ');
        }
        text.push_str(word);
        column += word.len() + 1;
    }
    text
}

#[test]
fn the_reference_page_is_written_from_the_tables() {
    let mut page = String::from(
        "# The flow language: reference\n\nThis page is written from the tables of the compiler. [The \
         guide](guides/flow.md) explains the language from the start.\n\n## Words\n\nWords have their meaning where the \
         grammar expects them, and are names elsewhere. A name in backquotes is always a name. Always reserved:\n\n",
    );
    writeln!(page, "`{}`\n\n## Grammar\n\n```ebnf", RESERVED.join(" ")).unwrap();
    for rule in published().lines() {
        writeln!(page, "{}", wrapped(rule)).unwrap();
    }
    writeln!(
        page,
        "```\n\n`expr` is an expression in CEL. It runs as long as CEL can continue.\n\n## Limits\n"
    )
    .unwrap();
    writeln!(page, "| limit | value |\n|---|---|").unwrap();
    for (name, limit, unit) in [
        ("file", MAX_FILE, "bytes"),
        (
            "nesting",
            MAX_NESTING,
            "types, brackets or names of a path inside each other",
        ),
        ("expression", MAX_EXPRESSION, "bytes"),
        ("name", MAX_NAME, "bytes"),
        ("fields", MAX_FIELDS, "of one record"),
        (
            "list",
            MAX_LIST,
            "paths, arms, values, assignments or rows in one list",
        ),
        ("statements", MAX_STATEMENTS, "in one process"),
        (
            "duration",
            usize::try_from(MAX_DURATION_DAYS).unwrap(),
            "days",
        ),
        (
            "windows",
            usize::try_from(MAX_WINDOWS).unwrap(),
            "that one record belongs to",
        ),
        (
            "attempts",
            usize::try_from(MAX_ATTEMPTS).unwrap(),
            "of one retry",
        ),
        ("pattern", MAX_PATTERN_BYTES, "bytes of its compiled form"),
        (
            "expansion",
            MAX_EXPANSION,
            "units, and 8 more for each byte of text: 40 for an expression and 10 for each of its bytes, counted \
             wherever its transform or table is used; 2 for a field that a step looks at; 16 for one that is kept; 8,192 for a pattern",
        ),
        ("diagnostics", MAX_DIAGNOSTICS, "per file"),
    ] {
        writeln!(page, "| `{name}` | {limit} {unit} |").unwrap();
    }
    writeln!(page, "\n## Codes\n\n`tidegate explain CODE` shows an example as well. E is an error, W a warning.\n").unwrap();
    writeln!(
        page,
        "| code | | check | cause | repair |\n|---|---|---|---|---|"
    )
    .unwrap();
    for row in CODES {
        let severity = if row.severity == Severity::Problem {
            "E"
        } else {
            "W"
        };
        let cell = |text: &str| text.replace('|', "\\|");
        let (text, cause, repair) = (cell(row.text), cell(row.cause), cell(row.repair));
        writeln!(
            page,
            "| {} | {severity} | {text} | {cause} | {repair} |",
            row.code
        )
        .unwrap();
    }
    assert_golden("../../docs/flow-reference.md", &page);
}

#[test]
fn the_editor_grammar_has_every_word_of_the_table() {
    let alternatives = words().join("|");
    let grammar = serde_json::json!({
        "name": "Tidegate flow",
        "scopeName": "source.tidegate.flow",
        "fileTypes": ["flow"],
        "patterns": [
            { "name": "comment.line.double-slash.flow", "match": "//.*$" },
            { "name": "comment.block.flow", "begin": "/\\*", "end": "\\*/" },
            { "name": "string.quoted.double.flow", "begin": "\"", "end": "\"|$",
              "patterns": [{ "name": "constant.character.escape.flow", "match": "\\\\." }] },
            { "name": "variable.other.quoted.flow", "match": "`[^`]+`" },
            { "name": "constant.numeric.flow", "match": "\\b[0-9]+(\\.[0-9]+)?(ms|s|m|h|d|w)?\\b" },
            { "name": "keyword.control.flow", "match": format!("\\b({})\\b", RESERVED.join("|")) },
            { "name": "keyword.other.flow", "match": format!("\\b({alternatives})\\b(?!\\s*[:.(])") },
            { "name": "keyword.operator.flow", "match": "=>|==|!=|<=|>=|&&|\\|\\||\\.\\.|[=<>+\\-*/%?:|!]" }
        ]
    });
    let text = serde_json::to_string_pretty(&grammar).unwrap();
    assert_golden(
        "../../editors/tidegate-flow.tmLanguage.json",
        &format!("{text}\n"),
    );
}
