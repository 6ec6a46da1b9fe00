//! Where the cluster's files stand, and whose they are.
//!
//! A clone below a directory that only root may enter is out of the server's reach. The data then
//! goes to a directory of its own below the system's temporary one, noted in the file
//! `data-elsewhere`. No `cargo clean` would ever find it there, so `down` removes it.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::command::output_of;
use crate::services::install::is_root;
use crate::services::process::{Home, User};

const NOTE: &str = "data-elsewhere";

/// Whom the server runs as; `None` means as ourselves.
pub(super) fn server_user() -> Result<Option<User>> {
    if !is_root() {
        return Ok(None);
    }
    let id = |flag| -> Result<u32> {
        let text = output_of(Command::new("id").args([flag, "postgres"]))?;
        text.trim().parse().context("`id` printed no number")
    };
    let user = (|| {
        Ok(User {
            uid: id("-u")?,
            gid: id("-g")?,
        })
    })();
    user.map(Some).map_err(|error: anyhow::Error| {
        error.context("the user `postgres` does not exist, and root may not run the server")
    })
}

/// The directory of the cluster, which may not have been made yet.
pub(super) fn data_directory(home: &Home) -> Result<PathBuf> {
    let here = home.path("data");
    let Some(user) = server_user()? else {
        return Ok(here);
    };
    if can_enter(
        &user,
        here.parent().context("the data directory has no parent")?,
    )? {
        return Ok(here);
    }
    let note = home.path(NOTE);
    if let Ok(text) = fs::read_to_string(&note) {
        let noted = PathBuf::from(text.trim());
        if noted.is_dir() {
            return Ok(noted.join("data"));
        }
    }
    let elsewhere = make_elsewhere(&user)?;
    fs::write(&note, format!("{}\n", elsewhere.display()))
        .context("could not note where the data is")?;
    Ok(elsewhere.join("data"))
}

/// An empty directory that belongs to the server; whatever was there is gone.
pub(super) fn make_empty(directory: &Path) -> Result<()> {
    if directory.is_dir() {
        fs::remove_dir_all(directory).context("could not clear a half-made cluster away")?;
    }
    DirBuilder::new()
        .mode(0o700)
        .create(directory)
        .with_context(|| format!("could not create `{}`", directory.display()))?;
    if let Some(user) = server_user()? {
        chown(directory, Some(user.uid), Some(user.gid))
            .context("could not hand a directory over")?;
    }
    Ok(())
}

/// Removes data that stands outside the checkout.
pub(super) fn discard(home: &Home) -> Result<()> {
    let note = home.path(NOTE);
    let Ok(text) = fs::read_to_string(&note) else {
        return Ok(());
    };
    let noted = PathBuf::from(text.trim());
    if noted.is_dir() {
        fs::remove_dir_all(&noted)
            .with_context(|| format!("could not remove `{}`", noted.display()))?;
    }
    fs::remove_file(&note).context("could not remove the note about the data")
}

fn can_enter(user: &User, directory: &Path) -> Result<bool> {
    let status = Command::new("test")
        .arg("-x")
        .arg(directory)
        .uid(user.uid)
        .gid(user.gid)
        .current_dir("/")
        .stderr(Stdio::null())
        .status()
        .context("could not start `test`")?;
    Ok(status.success())
}

fn make_elsewhere(user: &User) -> Result<PathBuf> {
    for base in [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into()] {
        if !base.is_dir() || !can_enter(user, &base)? {
            continue;
        }
        let directory = base.join(format!("tidegate-postgres-{}", std::process::id()));
        // Making it fails when it is there already, so nobody can have prepared it for us.
        let made = DirBuilder::new().mode(0o711).create(&directory);
        made.with_context(|| format!("could not create `{}`", directory.display()))?;
        return Ok(directory);
    }
    bail!("user `postgres` can enter neither this checkout nor any temporary directory")
}
