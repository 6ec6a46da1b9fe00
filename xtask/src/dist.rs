//! `cargo xtask dist`: the binary that is given to others, without build paths and line tables.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::output_of;
use crate::workspace::Workspace;

/// In bytes; the gate for what others download.
const LARGEST: u64 = 35_000_000;

/// Builds `target/dist/tidegate`, with its line tables in `tidegate.debug` beside it.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let status = workspace
        .cargo()
        .args(["build", "--profile", "dist", "-p", "tidegate"])
        .env("CARGO_ENCODED_RUSTFLAGS", trim_paths(workspace)?)
        .env("CARGO_TARGET_DIR", workspace.root().join("target"))
        .status()
        .context("could not start cargo")?;
    if !status.success() {
        return Ok(false);
    }
    let directory = workspace.root().join("target/dist");
    let built = directory.join("tidegate");
    let debug = directory.join("tidegate.debug");
    // A second run finds the binary stripped, because cargo had nothing to build.
    if has_line_tables(&built)? {
        objcopy(&[Path::new("--only-keep-debug"), &built, &debug])?;
        objcopy(&[Path::new("--strip-all"), &built])?;
        let link = format!("--add-gnu-debuglink={}", debug.display());
        objcopy(&[Path::new(&link), &built])?;
    }
    let size = fs::metadata(&built)
        .with_context(|| format!("could not read `{}`", built.display()))?
        .len();
    println!("{}: {} bytes", built.display(), size);
    println!("{}: its line tables", debug.display());
    if size > LARGEST {
        println!("the binary is larger than {LARGEST} bytes");
    }
    Ok(size <= LARGEST)
}

/// Flags that replace the paths of this machine in panic messages and line tables.
fn trim_paths(workspace: &Workspace) -> Result<OsString> {
    let home = match env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(".cargo"),
    };
    let mut prefixes = vec![(workspace.root().to_owned(), "tidegate".to_owned())];
    let sources = home.join("registry/src");
    let registries = fs::read_dir(&sources)
        .with_context(|| format!("could not list `{}`", sources.display()))?;
    for registry in registries {
        let registry = registry.context("could not list the registries")?.path();
        prefixes.push((registry, "registry".to_owned()));
    }
    let flags: Vec<String> = prefixes
        .iter()
        .map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()))
        .collect();
    Ok(flags.join("\u{1f}").into())
}

fn has_line_tables(binary: &Path) -> Result<bool> {
    let sections = output_of(Command::new("objdump").arg("-h").arg(binary))?;
    Ok(sections.contains(".debug_line"))
}

fn objcopy(arguments: &[&Path]) -> Result<()> {
    if crate::command::find_program("objcopy").is_none() {
        bail!("`objcopy` is missing: install binutils");
    }
    output_of(Command::new("objcopy").args(arguments)).map(drop)
}
