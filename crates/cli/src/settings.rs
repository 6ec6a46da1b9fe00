//! Finding and reading the configuration.

mod files;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_config::{Color, Config, ConfigSource, Inputs, Loaded, Problem, Severity, load_with};

use crate::args::ConfigFile;
use crate::parts;
use crate::report::{ErrorReport, Exit, MessageFormat, is_colorful, say};
pub(crate) use files::{SiblingFiles, name_of, read_text};

/// The file that is read when none is named.
const DEFAULT_FILE: &str = "tidegate.yaml";

/// A configuration with where it was found.
pub(crate) struct Settings {
    pub(crate) loaded: Loaded,
    /// The file, if there is one.
    pub(crate) file: Option<PathBuf>,
}

/// Reads the named file, or the default one where it is there, or none.
pub(crate) fn read(arguments: &ConfigFile) -> Result<Settings, ErrorReport> {
    let named = arguments.config.as_deref();
    let path = named.unwrap_or(Path::new(DEFAULT_FILE));
    let source = match read_text(path) {
        Ok(text) => Some(source(path, text)),
        Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(unreadable(path, &error)),
    };
    Ok(Settings {
        file: source.as_ref().map(|_| path.to_owned()),
        loaded: load(source, &arguments.set),
    })
}

/// The configuration of a command that does not run it. Warnings are about what `run` would make of the
/// file, and are not said.
pub(crate) fn quietly(arguments: &ConfigFile) -> Result<Config, ErrorReport> {
    let loaded = read(arguments)?.loaded;
    match loaded.problems.is_empty() {
        true => Ok(loaded.config),
        false => checked(loaded, MessageFormat::Text),
    }
}

/// Reads a file that must be there.
pub(crate) fn read_file(path: &Path) -> Result<Loaded, ErrorReport> {
    let text = read_text(path).map_err(|error| unreadable(path, &error))?;
    Ok(load(Some(source(path, text)), &[]))
}

fn source(path: &Path, text: String) -> ConfigSource {
    let name = name_of(path);
    ConfigSource { name, text }
}

fn load(source: Option<ConfigSource>, set: &[(String, String)]) -> Loaded {
    let inputs = Inputs {
        sources: source.into_iter().collect(),
        environment: environment(),
        arguments: set.to_vec(),
        built: parts::built(),
    };
    load_with(&inputs, &mut SiblingFiles)
}

/// The variables of this process; one that is not UTF-8 can be no override of ours.
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The configuration that holds, or a report of everything that is wrong with it.
pub(crate) fn checked(loaded: Loaded, format: MessageFormat) -> Result<Config, ErrorReport> {
    tell(&loaded, format);
    let what = match loaded.problems.len() {
        0 => return Ok(loaded.config),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    let report = match is_exposed(&loaded) {
        // error-page: server.exposed
        true => ErrorReport::new(
            "server.exposed",
            "the server would listen where others can reach it, without a token",
        )
        .with_hint("see `tidegate explain server.exposed`")
        .with_exit(Exit::Findings),
        false => invalid(format!("{what} in the configuration")),
    };
    Err(report.with_findings(loaded))
}

/// Whether nothing is wrong but an address off loopback without a token.
fn is_exposed(loaded: &Loaded) -> bool {
    let config = &loaded.config;
    let listen = config.text("server.listen").unwrap_or_default();
    let listen = listen.parse::<std::net::SocketAddr>();
    let mut problems = loaded.problems.iter();
    problems.all(|problem| problem.path == "server.listen")
        && config.secret("server.token").is_none()
        && listen.is_ok_and(|listen| !listen.ip().is_loopback())
}

/// The report of a configuration that does not hold.
pub(crate) fn invalid(message: String) -> ErrorReport {
    // error-page: config.invalid
    ErrorReport::new("config.invalid", message).with_exit(Exit::Findings)
}

/// Says all warnings and problems on standard error.
pub(crate) fn tell(loaded: &Loaded, format: MessageFormat) {
    if format == MessageFormat::Events {
        for warning in &loaded.warnings {
            let Problem {
                file,
                line,
                column,
                path,
                hint,
                ..
            } = warning;
            tracing::warn!(file, line, column, path, hint, "{}", warning.message);
        }
        for problem in &loaded.problems {
            let Problem {
                file,
                line,
                column,
                path,
                hint,
                ..
            } = problem;
            tracing::error!(file, line, column, path, hint, "{}", problem.message);
        }
        return;
    }
    let color = if is_colorful() {
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

fn unreadable(path: &Path, error: &io::Error) -> ErrorReport {
    // error-page: config.unreadable
    let doing = format!("cannot read `{}`", name_of(path));
    let report = ErrorReport::of("config.unreadable", &doing, error);
    if error.kind() == io::ErrorKind::NotFound {
        return report.with_hint("`tidegate init` writes one to begin with");
    }
    report
}
