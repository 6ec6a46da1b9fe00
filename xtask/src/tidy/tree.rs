//! The files of the checkout, read once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Kinds of files whose text some rule reads.
const READ: [&str; 5] = ["rs", "md", "toml", "yaml", "yml"];
/// Never ours to check: build output, foreign packages, a demo's data.
const NOT_OURS: [&str; 4] = [".git", "target", "node_modules", "data"];

/// Paths relative to the root, with `/`; directories end with it.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.walk(root, "")?;
        Ok(tree)
    }

    /// A tree from paths and texts.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.files.insert((*path).to_owned(), (*text).to_owned());
            for (at, _) in path.match_indices('/') {
                tree.files.insert(path[..=at].to_owned(), String::new());
            }
        }
        tree
    }

    /// Files whose name ends with one of `extensions`, with their text.
    pub(crate) fn with(
        &self,
        extensions: &'static [&'static str],
    ) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .filter(|(path, _)| {
                path.rsplit_once('.')
                    .is_some_and(|(_, extension)| extensions.contains(&extension))
            })
    }

    /// Every file below `directory`, which ends with a slash.
    pub(crate) fn below(&self, directory: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .filter(move |(path, _)| path.starts_with(directory) && !path.ends_with('/'))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether there is a file or a directory of that name; the root's name is empty.
    pub(crate) fn holds(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.contains_key(&format!("{path}/"))
    }

    fn walk(&mut self, directory: &Path, prefix: &str) -> Result<()> {
        let entries = fs::read_dir(directory)
            .with_context(|| format!("could not list `{}`", directory.display()))?;
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !NOT_OURS.contains(&name.as_str()) {
                    let below = format!("{prefix}{name}/");
                    self.walk(&entry.path(), &below)?;
                    self.files.insert(below, String::new());
                }
            } else if kind.is_file() {
                let path = format!("{prefix}{name}");
                let is_read = name
                    .rsplit_once('.')
                    .is_some_and(|(_, end)| READ.contains(&end));
                let text = if is_read || prefix == "changelog.d/" {
                    let bytes = fs::read(entry.path());
                    let bytes = bytes.with_context(|| format!("could not read `{path}`"))?;
                    String::from_utf8_lossy(&bytes).into_owned()
                } else {
                    String::new()
                };
                self.files.insert(path, text);
            }
        }
        Ok(())
    }
}
