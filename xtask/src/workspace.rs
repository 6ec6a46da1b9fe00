//! Where the workspace stands.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The checkout this run works on.
///
/// State is kept below `target` of the checkout even when `CARGO_TARGET_DIR` points elsewhere. Two
/// builders with their own build directories still share one set of servers.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the checkout that `cargo xtask` was called in.
    pub(crate) fn find() -> Result<Self> {
        // Cargo names the manifest's directory at run time. The one noted at compile time is wrong
        // as soon as a checkout is moved or its build directory is shared.
        let at_run_time = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let at_compile_time = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        for directory in at_run_time.into_iter().chain([at_compile_time]) {
            if directory.ends_with("xtask") && directory.join("Cargo.toml").is_file() {
                let root = directory
                    .parent()
                    .context("xtask has no parent directory")?;
                return Ok(Self {
                    root: root.to_owned(),
                });
            }
        }
        bail!("the workspace was not found: call this as `cargo xtask` inside a checkout")
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where the servers keep their data, logs and pid files.
    pub(crate) fn services(&self) -> PathBuf {
        self.root.join("target/services")
    }

    /// Where the gate keeps what its steps printed.
    pub(crate) fn gate_logs(&self) -> PathBuf {
        self.root.join("target/xtask-test")
    }

    /// The cargo that runs us, called in the root.
    pub(crate) fn cargo(&self) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.current_dir(&self.root);
        command
    }
}
