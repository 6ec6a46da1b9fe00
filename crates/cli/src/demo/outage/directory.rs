//! The directory of the demo, with everything that it writes.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tidegate_core::env::{Disk, OpenMode};

use super::failed;
use crate::report::{ErrorReport, Exit};

/// A directory that is gone with the demo, unless its user wants to keep it.
pub(super) struct DemoDirectory {
    path: PathBuf,
    /// Whether the user keeps it.
    pub(super) is_kept: bool,
    _temporary: Option<TempDir>,
}

impl DemoDirectory {
    /// A temporary directory, or the one that is named, which must be new or empty.
    pub(super) fn open(keep: Option<&Path>, disk: &dyn Disk) -> Result<Self, ErrorReport> {
        let Some(dir) = keep else {
            let made = tempfile::Builder::new().prefix("tidegate-demo-").tempdir();
            let made =
                made.map_err(|error| failed("cannot make a directory for the demo", &error))?;
            return Ok(Self {
                path: made.path().to_owned(),
                is_kept: false,
                _temporary: Some(made),
            });
        };
        let doing = format!("cannot use the directory `{}`", dir.display());
        let opened = std::path::absolute(dir).and_then(|path| {
            disk.create_dir_all(&path)?;
            Ok((disk.list(&path)?, path))
        });
        let (entries, path) = opened.map_err(|error| failed(&doing, &error))?;
        if !entries.is_empty() {
            let message = format!("the directory `{}` is not empty", dir.display());
            return Err(ErrorReport::new("usage.demo", message)
                .with_hint("name a new directory")
                .with_exit(Exit::Usage));
        }
        Ok(Self {
            path,
            is_kept: true,
            _temporary: None,
        })
    }

    /// The configuration of the API, which is also that of the commands that look at the files.
    pub(super) fn config(&self) -> PathBuf {
        self.path.join("tidegate.yaml")
    }

    /// The output of the API.
    pub(super) fn api_log(&self) -> PathBuf {
        self.path.join("api.log")
    }

    /// The spill of the service.
    pub(super) fn spill(&self) -> PathBuf {
        self.path.join("spillover")
    }

    /// The spill of the service with the tight settings.
    pub(super) fn tight_spill(&self) -> PathBuf {
        self.path.join("spillover-tight")
    }

    /// The address of the database.
    pub(super) fn store_url(&self) -> String {
        format!("sqlite://{}", self.path.join("tidegate.db").display())
    }

    /// Writes the configuration of an API on this port.
    pub(super) fn write_config(&self, port: u16, disk: &dyn Disk) -> Result<(), ErrorReport> {
        let written = || {
            let mut file = disk.open(&self.config(), OpenMode::CreateNew)?;
            file.append(self.yaml(port).as_bytes())?;
            file.sync()
        };
        written().map_err(|error| failed("cannot write the configuration of the demo", &error))
    }

    fn yaml(&self, port: u16) -> String {
        let log = quoted(&self.path.join("log").display().to_string());
        let (store, spill) = (
            quoted(&self.store_url()),
            quoted(&self.spill().display().to_string()),
        );
        format!(
            "server:\n  listen: \"127.0.0.1:{port}\"\n\
             store:\n  url: {store}\n\
             log:\n  embedded: {{path: {log}, journal-size: 1MiB}}\n\
             eventlog:\n  base-url: \"http://127.0.0.1:{port}\"\n  api: {{enabled: true}}\n  \
             async: {{spillover-path: {spill}}}\n"
        )
    }
}

/// A text as YAML that means itself.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text.replace('$', "$$")).to_string()
}

#[cfg(test)]
mod tests {
    use tidegate_config::{Inputs, load};
    use tidegate_core::env::system::SystemDisk;

    use super::*;

    #[test]
    fn the_configuration_means_the_directory_whatever_its_name() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("a \"${HOME}\" b: #c");
        let opened = DemoDirectory::open(Some(&dir), &SystemDisk).unwrap();
        let loaded = load(&Inputs::of_text("tidegate.yaml", &opened.yaml(3000)));
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        let read = |key: &str| loaded.config.text(key).unwrap().to_owned();
        assert_eq!(
            read("eventlog.async.spillover-path"),
            opened.spill().display().to_string()
        );
        assert_eq!(read("store.url"), opened.store_url());
    }

    #[test]
    fn a_directory_with_files_is_refused_and_a_temporary_one_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let opened = DemoDirectory::open(Some(dir.path()), &SystemDisk).unwrap();
        opened.write_config(3000, &SystemDisk).unwrap();
        assert!(DemoDirectory::open(Some(dir.path()), &SystemDisk).is_err());
        let temporary = DemoDirectory::open(None, &SystemDisk).unwrap();
        temporary.write_config(3000, &SystemDisk).unwrap();
        let path = temporary.path.clone();
        drop((opened, temporary));
        assert!(SystemDisk.list(&path).is_err());
        assert_eq!(SystemDisk.list(dir.path()).unwrap().len(), 1);
    }
}
