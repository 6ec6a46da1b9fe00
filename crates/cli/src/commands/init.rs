//! `tidegate init`: a configuration file to begin with.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use serde_json::json;

use crate::args::Output;
use crate::report::{ErrorReport, Exit};

/// The file to begin with. Every line of it is a default, or a comment.
const TEMPLATE: &str = include_str!("init.yaml");

pub(crate) fn run(file: &Path, output: Output) -> Result<Exit, ErrorReport> {
    let shown = file.display();
    let written = OpenOptions::new().write(true).create_new(true).open(file);
    let written = written.and_then(|mut file| {
        file.write_all(TEMPLATE.as_bytes())?;
        file.sync_all()
    });
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let message = format!("`{shown}` is there already, and was not changed");
            return Err(ErrorReport::new("init.exists", message)
                .with_hint("name another file, or look at this one with `tidegate check`"));
        }
        Err(error) => {
            let doing = format!("cannot write `{shown}`");
            return Err(ErrorReport::of("init.unwritable", &doing, &error));
        }
    }
    output.print(&json!({ "file": file }), || {
        format!("{shown} is written. Next: `tidegate check`, then `tidegate run`")
    })?;
    Ok(Exit::Ok)
}
