//! Packages from the system's own package manager.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{find_program, output_of};

/// Whether we may install packages and own every file.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Installs `packages`, without questions.
///
/// Fails without side effects when we are not root or the system has no `apt-get`.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let wanted = packages.join(" ");
    if find_program("apt-get").is_none() {
        bail!("this system has no apt-get; please install: {wanted}");
    }
    if !is_root() {
        bail!("only root may install packages; please run `apt-get install {wanted}`");
    }
    println!("installing {wanted}");
    output_of(&mut apt(&["update"])).context("could not refresh the package lists")?;
    let mut arguments = vec!["install", "--no-install-recommends"];
    arguments.extend(packages);
    output_of(&mut apt(&arguments)).with_context(|| format!("could not install {wanted}"))?;
    Ok(())
}

fn apt(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    // Another installation may hold the lock for a while; waiting beats failing.
    command
        .args(["-q", "-y", "-o", "DPkg::Lock::Timeout=180"])
        .args(arguments);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}
