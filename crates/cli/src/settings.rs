//! Finding and reading the configuration.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_config::{Color, Config, Inputs, Loaded, Part, Severity, Source, load};
use tidegate_core::env::{Disk, system};

use crate::args::ConfigFile;
use crate::report::{Exit, Report, is_drawable, say};

/// The parts that this program has.
pub(crate) const BUILT: [Part; 1] = [Part::Server];

/// The file that is read when none is named.
const DEFAULT_FILE: &str = "tidegate.yaml";

/// A configuration with where it was found.
pub(crate) struct Settings {
    pub(crate) loaded: Loaded,
    /// The file, if there is one.
    pub(crate) file: Option<PathBuf>,
}

/// Reads the named file, or the default one where it is there, or none.
pub(crate) fn read(arguments: &ConfigFile) -> Result<Settings, Report> {
    let (file, source) = match &arguments.config {
        Some(path) => (Some(path.clone()), Some(read_file(path)?)),
        None => match read_text(Path::new(DEFAULT_FILE)) {
            Ok(text) => {
                let source = Source {
                    name: DEFAULT_FILE.to_owned(),
                    text,
                };
                (Some(PathBuf::from(DEFAULT_FILE)), Some(source))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (None, None),
            Err(error) => return Err(unreadable(Path::new(DEFAULT_FILE), &error)),
        },
    };
    let inputs = Inputs {
        sources: source.into_iter().collect(),
        environment: environment(),
        arguments: arguments.set.clone(),
        built: BUILT.to_vec(),
    };
    Ok(Settings {
        loaded: load(&inputs),
        file,
    })
}

/// Reads a file that must be there.
pub(crate) fn read_file(path: &Path) -> Result<Source, Report> {
    match read_text(path) {
        Ok(text) => Ok(Source {
            name: path.display().to_string(),
            text,
        }),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// The variables of this process; one that is not UTF-8 can be no override of ours.
pub(crate) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The configuration that holds, or a report of everything that is wrong with it.
pub(crate) fn checked(loaded: Loaded) -> Result<Config, Report> {
    print_problems(&loaded);
    let count = loaded.problems.len();
    loaded.checked().map(|(config, _)| config).map_err(|_| {
        // error-page: config.invalid
        let what = if count == 1 {
            "1 problem".to_owned()
        } else {
            format!("{count} problems")
        };
        Report::new("config.invalid", format!("{what} in the configuration"))
            .with_exit(Exit::Findings)
    })
}

/// Shows warnings and problems to people.
pub(crate) fn print_problems(loaded: &Loaded) {
    let color = if is_drawable() && std::env::var_os("NO_COLOR").is_none() {
        Color::Always
    } else {
        Color::Never
    };
    if !loaded.warnings.is_empty() {
        say(&loaded.warnings.render_as(Severity::Warning, color));
    }
    if !loaded.problems.is_empty() {
        say(&loaded.problems.render(color));
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let disk: &dyn Disk = &system::SystemDisk;
    let bytes = disk.read(path, tidegate_config::MAX_FILE_SIZE as u64)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("byte {at} is not UTF-8"),
        )
    })
}

fn unreadable(path: &Path, error: &io::Error) -> Report {
    Report::of(
        "config.unreadable",
        &format!("cannot read `{}`", path.display()),
        error,
    )
}
