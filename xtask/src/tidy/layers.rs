//! Who may know what.
//!
//! Two tables say it all: which of our crates may use which, and which foreign crates are the
//! business of a few. A crate brings its row along. Development dependencies are free, except where a row says otherwise.

use std::process::Command;

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::command::output_of;
use crate::tidy::Finding;
use crate::tidy::names::EMPTY_NAMES;
use crate::tidy::tree::Tree;
use crate::workspace::Workspace;

/// Which of our crates a crate of ours may use. Nothing points up.
const LAYERS: [(&str, &[&str]); 16] = [
    ("tidegate-core", &[]),
    ("tidegate-config", &[]),
    (
        "tidegate-client",
        &["tidegate-core", "tidegate-config", "tidegate-log"],
    ),
    (
        "tidegate-connector",
        &[
            "tidegate-core",
            "tidegate-config",
            "tidegate-log",
            "tidegate-store",
        ],
    ),
    (
        "tidegate-eventlog",
        &[
            "tidegate-core",
            "tidegate-config",
            "tidegate-logger",
            "tidegate-store",
        ],
    ),
    ("tidegate-flow", &["tidegate-core", "tidegate-config"]),
    ("tidegate-log", &["tidegate-core", "tidegate-config"]),
    ("tidegate-logger", &["tidegate-core", "tidegate-config"]),
    (
        "tidegate-outbox",
        &[
            "tidegate-core",
            "tidegate-config",
            "tidegate-log",
            "tidegate-store",
        ],
    ),
    (
        "tidegate-queue",
        &["tidegate-core", "tidegate-config", "tidegate-store"],
    ),
    (
        "tidegate-server",
        &[
            "tidegate-core",
            "tidegate-config",
            "tidegate-log",
            "tidegate-client",
            "tidegate-eventlog",
            "tidegate-outbox",
            "tidegate-stage",
            "tidegate-store",
        ],
    ),
    ("tidegate-sim", &["tidegate-core", "tidegate-log"]),
    (
        "tidegate-stage",
        &[
            "tidegate-core",
            "tidegate-config",
            "tidegate-flow",
            "tidegate-log",
        ],
    ),
    ("tidegate-store", &["tidegate-core", "tidegate-config"]),
    (
        "tidegate-testkit",
        &["tidegate-core", "tidegate-logger", "tidegate-sim"],
    ),
    ("xtask", &[]),
];

/// They stand above everything and may use all of ours. So do the packages below `examples/`.
const ABOVE_ALL: [&str; 2] = ["tidegate", "tidegate-bench"];

/// A foreign crate (or a family of them, by the start of the name) and who may use it.
struct Knowledge {
    family: &'static str,
    only: &'static [&'static str],
    in_examples: bool,
    in_tests: bool,
}

const KNOWLEDGE: [Knowledge; 6] = [
    Knowledge {
        family: "anyhow",
        only: &["xtask"],
        in_examples: false,
        in_tests: false,
    },
    Knowledge {
        family: "axum",
        only: &["tidegate-server", "tidegate-testkit"],
        in_examples: true,
        in_tests: true,
    },
    Knowledge {
        family: "clap",
        only: &["tidegate"],
        in_examples: false,
        in_tests: true,
    },
    Knowledge {
        family: "rdkafka",
        only: &["tidegate-log", "tidegate-bench"],
        in_examples: false,
        in_tests: true,
    },
    Knowledge {
        family: "sqlx",
        only: &["tidegate-store", "tidegate-queue"],
        in_examples: true,
        in_tests: true,
    },
    Knowledge {
        family: "utoipa",
        only: &["tidegate-server", "tidegate-client"],
        in_examples: false,
        in_tests: true,
    },
];

/// Everybody who uses anything of ours builds the core, so it must stay light.
const CORE: &str = "tidegate-core";
const CORE_LIMIT: usize = 30;

/// Cargo's knowledge of our packages.
#[derive(Debug, Default)]
pub(crate) struct Members {
    members: Vec<Member>,
    /// Foreign crates that a build of the core brings along.
    core_tree: Vec<String>,
}

#[derive(Debug)]
struct Member {
    name: String,
    /// Relative to the root.
    manifest: String,
    uses: Vec<Use>,
}

#[derive(Debug)]
struct Use {
    name: String,
    is_for_tests: bool,
}

impl Members {
    pub(crate) fn read(workspace: &Workspace) -> Result<Self> {
        let metadata = MetadataCommand::new()
            .manifest_path(workspace.root().join("Cargo.toml"))
            .no_deps()
            .exec()
            .context("could not read the workspace")?;
        let mut members = Self::default();
        for package in metadata.packages {
            let uses = package.dependencies.iter().map(|dependency| Use {
                name: dependency.name.clone(),
                is_for_tests: dependency.kind == DependencyKind::Development,
            });
            let manifest = package.manifest_path.strip_prefix(&metadata.workspace_root);
            members.members.push(Member {
                name: package.name.to_string(),
                manifest: manifest.unwrap_or(&package.manifest_path).to_string(),
                uses: uses.collect(),
            });
        }
        if members.members.iter().any(|member| member.name == CORE) {
            members.core_tree = tree_of(workspace.cargo(), CORE)?;
        }
        Ok(members)
    }

    /// Applies both tables and the limit. `tree` gives the lines of the manifests.
    pub(crate) fn check(&self, tree: &Tree) -> Vec<Finding> {
        let mut findings = Vec::new();
        for member in &self.members {
            if member
                .name
                .split('-')
                .any(|part| EMPTY_NAMES.contains(&part))
            {
                let text = format!("the name of package `{}` says nothing", member.name);
                findings.push(Finding::new(&member.manifest, 1, text));
            }
            self.check_layers(member, tree, &mut findings);
            check_knowledge(member, tree, &mut findings);
        }
        if self.core_tree.len() > CORE_LIMIT
            && let Some(core) = self.members.iter().find(|member| member.name == CORE)
        {
            let (count, names) = (self.core_tree.len(), self.core_tree.join(" "));
            let text = format!(
                "{CORE} brings {count} crates along, at most {CORE_LIMIT} are allowed: {names}"
            );
            findings.push(Finding::new(&core.manifest, 1, text));
        }
        findings
    }

    fn check_layers(&self, member: &Member, tree: &Tree, findings: &mut Vec<Finding>) {
        if ABOVE_ALL.contains(&member.name.as_str()) || member.is_example() {
            return;
        }
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == member.name) else {
            let text = format!(
                "`{}` has no place in the layers of xtask/src/tidy/layers.rs",
                member.name
            );
            findings.push(Finding::new(&member.manifest, 1, text));
            return;
        };
        for used in member.uses.iter().filter(|used| !used.is_for_tests) {
            let is_ours = self.members.iter().any(|other| other.name == used.name);
            if is_ours && !allowed.contains(&used.name.as_str()) {
                let text = format!("{} may not use {}", member.name, used.name);
                findings.push(member.finding(tree, used, text));
            }
        }
    }
}

impl Member {
    fn is_example(&self) -> bool {
        self.manifest.starts_with("examples/")
    }

    fn finding(&self, tree: &Tree, used: &Use, text: String) -> Finding {
        let manifest = tree.text(&self.manifest).unwrap_or_default();
        let stands_there = |line: &str| {
            line.trim_start()
                .strip_prefix(used.name.as_str())
                .is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
        };
        let line = manifest
            .lines()
            .position(stands_there)
            .map_or(1, |index| index + 1);
        Finding::new(&self.manifest, line, text)
    }
}

fn check_knowledge(member: &Member, tree: &Tree, findings: &mut Vec<Finding>) {
    for used in &member.uses {
        let Some(knowledge) = KNOWLEDGE
            .iter()
            .find(|knowledge| knowledge.covers(&used.name))
        else {
            continue;
        };
        let is_allowed = knowledge.only.contains(&member.name.as_str())
            || (knowledge.in_examples && member.is_example())
            || (knowledge.in_tests && used.is_for_tests);
        if !is_allowed {
            let only = knowledge.only.join(", ");
            let text = format!("{} is for {only} only, not for {}", used.name, member.name);
            findings.push(member.finding(tree, used, text));
        }
    }
}

impl Knowledge {
    fn covers(&self, name: &str) -> bool {
        name.strip_prefix(self.family)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
    }
}

/// The crates in a normal build of `package` alone, without itself.
///
/// Cargo's metadata would count features that other packages of the workspace switch on.
fn tree_of(mut cargo: Command, package: &str) -> Result<Vec<String>> {
    let text = output_of(cargo.args([
        "tree", "-q", "-e", "normal", "--prefix", "none", "-p", package,
    ]))
    .context("could not read the dependency tree")?;
    Ok(names_in_tree(&text, package))
}

fn names_in_tree(text: &str, package: &str) -> Vec<String> {
    let mut names: Vec<String> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some(format!("{} {}", words.next()?, words.next()?))
        })
        .filter(|name| !name.starts_with(&format!("{package} ")))
        .collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .filter_map(|name| name.split(' ').next().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests;
