//! The console blocks of the README and the guides.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{Ran, run};
use crate::help::commands_below;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The README and every guide, by name.
fn pages() -> Vec<(String, String)> {
    let guides = root().join("docs/guides");
    let entries = std::fs::read_dir(guides).unwrap();
    let guides = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = guides.chain([root().join("README.md")]).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

/// The blocks of a language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}\n");
    let parts = page.split(&start).skip(1);
    parts
        .filter_map(|part| Some(part.split_once("```")?.0.to_owned()))
        .collect()
}

/// The calls of the binary in a block, each as its words.
fn calls(block: &str) -> Vec<Vec<String>> {
    let joined = block.replace("\\\n", " ");
    let mut calls = Vec::new();
    for line in joined.lines() {
        let line = line.split(" #").next().unwrap_or_default();
        for part in line.split(['|', ';', '&', '<', '>']) {
            let words: Vec<String> = part.split_whitespace().map(str::to_owned).collect();
            if words.first().is_some_and(|word| word == "tidegate") {
                calls.push(words[1..].to_vec());
            }
        }
    }
    calls
}

#[test]
fn every_command_and_flag_of_a_console_block_exists() {
    let mut helps: BTreeMap<Vec<String>, String> = BTreeMap::new();
    let mut help = |path: &[String]| {
        let known = helps.entry(path.to_vec()).or_insert_with(|| {
            let words: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
            run(&words).stdout
        });
        known.clone()
    };
    let mut checked = 0;
    for (name, page) in pages() {
        let blocks = ["sh", "console", "bash"]
            .iter()
            .flat_map(|language| blocks(&page, language));
        for call in blocks.flat_map(|block| calls(&block)) {
            let mut path: Vec<String> = Vec::new();
            for word in &call {
                if !commands_below(&help(&path)).contains(word) {
                    break;
                }
                path.push(word.clone());
            }
            assert!(!path.is_empty(), "{name}: `tidegate {}`", call.join(" "));
            let text = help(&path);
            for flag in call
                .iter()
                .filter(|word| word.starts_with('-') && word.len() > 1)
            {
                let flag = flag.split('=').next().unwrap();
                let is_number = flag[1..].starts_with(|letter: char| letter.is_ascii_digit());
                assert!(
                    is_number || text.contains(flag),
                    "{name}: `tidegate {}` has no {flag}",
                    call.join(" ")
                );
            }
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked} calls");
}

/// A text with all ids, times and numbers made alike.
fn shape(text: &str) -> Vec<String> {
    let shape = |line: &str| {
        let words = line.split_whitespace().map(|word| {
            let is_id = word.len() == 36 && word.matches('-').count() == 4;
            match is_id {
                true => "ID".to_owned(),
                false => word
                    .chars()
                    .map(|c| if c.is_ascii_digit() { '0' } else { c })
                    .collect(),
            }
        });
        words.collect::<Vec<String>>().join(" ")
    };
    text.lines().map(shape).collect()
}

#[test]
fn the_start_of_the_guide_of_the_log_runs_as_written() {
    let pages = pages();
    let (_, page) = pages.iter().find(|(name, _)| name == "log.md").unwrap();
    let script = blocks(page, "sh").remove(0);
    let shown = blocks(page, "text").remove(0);
    let dir = tempfile::tempdir().unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let mut command = Command::new("bash");
    command
        .args(["-e", "-o", "pipefail", "-c", &script])
        .current_dir(dir.path())
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    let ran = Ran::from(command.output().unwrap());
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let said = shape(&ran.stdout);
    for line in shape(&shown) {
        assert!(said.contains(&line), "`{line}` is not in\n{}", ran.stdout);
    }
}
