//! The copy of the checkout that mistakes are put into.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::output_of;

/// Makes `tree` equal to what git knows of the checkout at `root`, new files included.
///
/// A file that is right already is not touched, so cargo does not build it again. A mistake that a
/// killed run has left behind is undone.
pub(crate) fn refresh(root: &Path, tree: &Path) -> Result<()> {
    let mut git = Command::new("git");
    git.current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others"])
        .arg("--exclude-standard");
    let names = output_of(&mut git).context("could not list the files of the checkout")?;
    let mut wanted = BTreeSet::new();
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (root.join(name), tree.join(name));
        // Git also names files that were removed and whose removal is not committed yet.
        if !from.is_file() {
            continue;
        }
        let text = fs::read(&from).with_context(|| format!("could not read `{name}`"))?;
        if !fs::read(&to).is_ok_and(|there| there == text) {
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent).context("could not create a directory")?;
            }
            // With its rights: some files are scripts.
            fs::copy(&from, &to).with_context(|| format!("could not copy `{name}`"))?;
        }
        wanted.insert(to);
    }
    remove_others(tree, &wanted)
}

fn remove_others(directory: &Path, wanted: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).context("could not list the copy")? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            remove_others(&path, wanted)?;
        } else if !wanted.contains(&path) {
            fs::remove_file(&path)
                .with_context(|| format!("could not remove `{}`", path.display()))?;
        }
    }
    Ok(())
}
