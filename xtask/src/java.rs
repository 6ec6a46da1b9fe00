//! Java for the broker and for tests that compare us with a Java peer.
//!
//! A peer is a directory with a `pom.xml` and `.java` files: `crates/*/tests/java/NAME` or
//! `bench/NAME`. Its jars come by Maven, its classes by `javac`, both into `target/java/NAME`, and
//! `TIDEGATE_JAVA_NAME` holds the class path.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use crate::command::{find_program, output_of};
use crate::workspace::Workspace;

const OLDEST: u32 = 17;

/// System packages that are not installed yet.
pub(crate) fn missing_packages() -> Vec<&'static str> {
    let mut packages = Vec::new();
    if ["java", "javac", "keytool"]
        .iter()
        .any(|name| find_program(name).is_none())
    {
        packages.push("default-jdk-headless");
    }
    if find_program("mvn").is_none() {
        packages.push("maven");
    }
    packages
}

/// Says what is missing, if anything.
pub(crate) fn require() -> Result<()> {
    for program in ["java", "javac", "keytool", "mvn"] {
        find_program(program).with_context(|| format!("`{program}` is not installed"))?;
    }
    let text = output_of(Command::new("javac").arg("-version"))?;
    match major(&text) {
        Some(version) if version >= OLDEST => Ok(()),
        Some(version) => bail!("Java {version} is too old, {OLDEST} is the oldest that will do"),
        None => bail!("`javac -version` printed no version: {}", text.trim()),
    }
}

/// Fills `libs` with the jars that `pom` asks for, unless they are there.
///
/// `libs` appears complete or not at all. The text of the pom is kept in `note`, so that a change
/// of it is noticed.
pub(crate) fn copy_jars(pom: &str, note: &Path, libs: &Path) -> Result<()> {
    if libs.is_dir() && fs::read_to_string(note).is_ok_and(|noted| noted == pom) {
        return Ok(());
    }
    let half_copied = libs.with_extension("new");
    for directory in [&half_copied, libs] {
        if directory.is_dir() {
            fs::remove_dir_all(directory).context("could not clear old jars away")?;
        }
    }
    fs::write(note, pom).context("could not write a pom.xml")?;
    let mut output = std::ffi::OsString::from("-DoutputDirectory=");
    output.push(&half_copied);
    output_of(
        Command::new("mvn")
            .args(["-q", "-B", "-f"])
            .arg(note)
            .arg("dependency:copy-dependencies")
            .arg(output),
    )
    .context("could not get the jars")?;
    // A peer without dependencies gets no directory from Maven.
    fs::create_dir_all(&half_copied).context("could not create the directory for jars")?;
    fs::rename(&half_copied, libs).context("could not put the jars in place")
}

/// The Java peers of this checkout, sorted.
pub(crate) fn peers(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let root = workspace.root();
    let mut found = Vec::new();
    for package in directories(&root.join("crates"))? {
        found.extend(directories(&package.join("tests/java"))?);
    }
    found.extend(directories(&root.join("bench"))?);
    found.retain(|directory| directory.join("pom.xml").is_file());
    found.sort_by_key(|directory| directory.file_name().map(OsStr::to_owned));
    if let Some(pair) = found
        .windows(2)
        .find(|pair| pair[0].file_name() == pair[1].file_name())
    {
        bail!(
            "`{}` and `{}` would share one variable",
            pair[0].display(),
            pair[1].display()
        );
    }
    Ok(found)
}

/// Gets the jars of the peer in `directory`. An error means that this machine cannot have them.
pub(crate) fn fetch(workspace: &Workspace, directory: &Path) -> Result<()> {
    let home = home(workspace, directory)?;
    fs::create_dir_all(&home).context("could not create a directory for jars")?;
    let pom = fs::read_to_string(directory.join("pom.xml")).context("could not read a pom.xml")?;
    copy_jars(&pom, &home.join("pom.xml"), &home.join("libs"))
}

/// Compiles the peer in `directory` and returns the variable that names its class path.
pub(crate) fn prepare(workspace: &Workspace, directory: &Path) -> Result<(String, String)> {
    let home = home(workspace, directory)?;
    let (libs, classes) = (home.join("libs"), home.join("classes"));
    compile(directory, &libs, &classes)
        .with_context(|| format!("could not compile `{}`", directory.display()))?;
    let class_path = format!("{}:{}/*", classes.display(), libs.display());
    Ok((variable(name(directory)?), class_path))
}

fn home(workspace: &Workspace, directory: &Path) -> Result<PathBuf> {
    Ok(workspace.root().join("target/java").join(name(directory)?))
}

fn name(directory: &Path) -> Result<&str> {
    directory
        .file_name()
        .and_then(OsStr::to_str)
        .context("a Java peer without a name")
}

fn compile(directory: &Path, libs: &Path, classes: &Path) -> Result<()> {
    let mut sources = Vec::new();
    collect_sources(directory, &mut sources)?;
    let mut newest = SystemTime::UNIX_EPOCH;
    for source in sources.iter().chain([&directory.join("pom.xml")]) {
        newest = newest.max(fs::metadata(source)?.modified()?);
    }
    if let Ok(stamp) = fs::metadata(classes).and_then(|classes| classes.modified())
        && stamp > newest
    {
        return Ok(());
    }
    let half_made = classes.with_extension("new");
    for old in [&half_made, &classes.to_owned()] {
        if old.is_dir() {
            fs::remove_dir_all(old).context("could not clear old classes away")?;
        }
    }
    fs::create_dir_all(&half_made)?;
    if !sources.is_empty() {
        let mut command = Command::new("javac");
        command
            .arg("-cp")
            .arg(libs.join("*"))
            .arg("-d")
            .arg(&half_made)
            .args(&sources);
        output_of(&mut command)?;
    }
    fs::rename(&half_made, classes).context("could not put the classes in place")
}

fn collect_sources(directory: &Path, sources: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name() != Some(OsStr::new("target")) {
                collect_sources(&path, sources)?;
            }
        } else if path.extension() == Some(OsStr::new("java")) {
            sources.push(path);
        }
    }
    Ok(())
}

fn directories(parent: &Path) -> Result<Vec<PathBuf>> {
    if !parent.is_dir() {
        return Ok(vec![]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(parent)? {
        let path = entry?.path();
        if path.is_dir() {
            found.push(path);
        }
    }
    Ok(found)
}

fn variable(name: &str) -> String {
    format!("TIDEGATE_JAVA_{}", name.to_uppercase().replace('-', "_"))
}

/// The major version in the answer of `javac -version`, such as `javac 17.0.15`.
fn major(text: &str) -> Option<u32> {
    let version = text.split_whitespace().nth(1)?;
    version.split(['.', '-', '+']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_old_and_new_version_texts() {
        assert_eq!(major("javac 17.0.15\n"), Some(17));
        assert_eq!(major("javac 1.8.0_402"), Some(1));
        assert_eq!(major("javac 26-ea"), Some(26));
        assert_eq!(major("what?"), None);
    }

    #[test]
    fn a_peer_is_named_after_its_directory() {
        assert_eq!(variable("resilience4j"), "TIDEGATE_JAVA_RESILIENCE4J");
        assert_eq!(variable("kafka-streams"), "TIDEGATE_JAVA_KAFKA_STREAMS");
    }
}
