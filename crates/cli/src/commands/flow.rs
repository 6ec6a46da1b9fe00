//! `tidegate flow`, and the flow files of other commands.

mod explain;
mod graph;
#[cfg(feature = "simulation")]
mod runtime;
mod test_files;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;
use tidegate_config::{
    Color, Config, ConfigSource, Files, Loaded, Origin, Problem, Problems, Severity,
};
use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{Disk, OpenMode};
use tidegate_flow::Diagnostic;
use tidegate_flow::check::{
    Bindings, CheckedFlows, Registered, check_bindings, check_flows, problem_code,
};
use tidegate_flow::diagnostic::{CODES, ShownDiagnostic, explain as row_of, problems, shown};
use tidegate_flow::plan::FlowPlan;
use tidegate_flow::syntax::{parse, print as printed};

use crate::args::{FlowArgs, Output, RunArgs};
use crate::report::{ErrorReport, Exit, MessageFormat, is_colorful, print, say};
use crate::settings::{self, SiblingFiles, name_of, read_text};
use crate::table::counted;

pub(crate) fn run(command: &FlowArgs, output: Output) -> Result<Exit, ErrorReport> {
    match command {
        FlowArgs::Check { files, config } => check(files, config.as_deref(), output),
        FlowArgs::Fmt { files, check } => format_files(files, *check, output),
        FlowArgs::Explain(arguments) => explain::run(arguments, output),
        #[cfg(feature = "simulation")]
        FlowArgs::Test {
            paths,
            runtime,
            crash,
        } => test_files::run(paths, test_files::TestedOn::of(*runtime, *crash), output),
        #[cfg(not(feature = "simulation"))]
        FlowArgs::Test { paths } => test_files::run(paths, test_files::TestedOn::Model, output),
        FlowArgs::Run { .. } => Err(ErrorReport::new(
            "internal",
            "it is run by its own function",
        )),
    }
}

/// The arguments of `tidegate run` for these flow files.
pub(crate) fn run_arguments(files: &[PathBuf], run: &RunArgs) -> RunArgs {
    let mut run = run.clone();
    let files: Vec<String> = files
        .iter()
        .map(|file| {
            let whole = std::path::absolute(file);
            name_of(&whole.unwrap_or_else(|_| file.clone()))
        })
        .collect();
    let list = serde_json::to_string(&files).unwrap_or_default();
    run.file.set.push(("flows".to_owned(), list));
    run
}

/// `tidegate explain CODE`.
pub(crate) fn explain_code(code: &str, output: Output) -> Result<Exit, ErrorReport> {
    let Some(row) = row_of(&code.to_ascii_uppercase()) else {
        let near = tidegate_config::nearest(code, CODES.iter().map(|row| row.code));
        let hint = near.unwrap_or("TG0010");
        return Err(
            ErrorReport::new("usage.code", format!("there is no code `{code}`"))
                .with_hint(format!(
                    "codes look like {hint}; docs/flow-reference.md lists them"
                ))
                .with_exit(Exit::Usage),
        );
    };
    let severity = if row.severity == Severity::Problem {
        "error"
    } else {
        "warning"
    };
    let document = json!({
        "code": row.code, "severity": severity, "text": row.text, "cause": row.cause, "example": row.example,
        "repair": row.repair,
    });
    let indented: String = row
        .example
        .lines()
        .map(|line| format!("    {line}\n"))
        .collect();
    output.print(&document, || {
        format!(
            "{} ({severity}): {}\n\n{}\n\n{indented}\n{}",
            row.code, row.text, row.cause, row.repair
        )
    })?;
    Ok(Exit::Ok)
}

/// The texts of flow files; a directory stands for the flow files in it.
pub(crate) fn sources(paths: &[PathBuf]) -> Result<Vec<ConfigSource>, ErrorReport> {
    let mut sources = Vec::new();
    for path in paths {
        for file in files_of(path)? {
            let text = read_text(&file).map_err(|error| unreadable(&file, &error))?;
            sources.push(ConfigSource {
                name: name_of(&file),
                text,
            });
        }
    }
    Ok(sources)
}

/// The file, or the flow files of the directory.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, ErrorReport> {
    let entries = match SystemDisk.list(path) {
        Ok(entries) => entries,
        // Anything else is read, and says itself what is wrong with it.
        Err(_) => return Ok(vec![path.to_owned()]),
    };
    let flows = entries
        .iter()
        .filter(|entry| !entry.is_dir && entry.name.ends_with(".flow"));
    let files: Vec<PathBuf> = flows.map(|entry| path.join(&entry.name)).collect();
    if files.is_empty() {
        let message = format!("there is no flow file in `{}`", path.display());
        return Err(
            ErrorReport::new("flow.unreadable", message).with_hint("flow files end with `.flow`")
        );
    }
    Ok(files)
}

fn unreadable(path: &Path, error: &io::Error) -> ErrorReport {
    ErrorReport::of(
        "flow.unreadable",
        &format!("cannot read `{}`", name_of(path)),
        error,
    )
}

/// Checks texts, and their bindings where there is a configuration.
fn checked(sources: &[ConfigSource], config: Option<&Config>) -> CheckedFlows {
    let texts: Vec<&str> = sources.iter().map(|source| source.text.as_str()).collect();
    let mut flows = check_flows(&texts, &Registered::default());
    if let Some(config) = config {
        let found = check_bindings(&flows, &Bindings::from_config(config));
        flows.diagnostics.extend(found);
    }
    flows
}

/// Says all findings on standard error, with their lines.
pub(crate) fn tell(diagnostics: &[Diagnostic], sources: &[ConfigSource]) {
    let color = if is_colorful() {
        Color::Always
    } else {
        Color::Never
    };
    let (errors, warnings) = problems(diagnostics, sources);
    for (severity, list) in [(Severity::Warning, warnings), (Severity::Problem, errors)] {
        if !list.is_empty() {
            say(&list.render_as(severity, color));
        }
    }
}

/// The flow files that a configuration names, for `tidegate check`, and all texts that the findings are about.
pub(crate) fn of_config(
    file: &Path,
    loaded: &Loaded,
) -> Result<(CheckedFlows, Vec<ConfigSource>), ErrorReport> {
    let mut sources = sources_of(file, &loaded.config)?;
    let flows = checked(&sources, Some(&loaded.config));
    sources.extend_from_slice(loaded.problems.texts());
    Ok((flows, sources))
}

/// The plan of the flow files that a configuration names; none where it names no file.
pub(crate) fn plan_of_config(config: &Config) -> Result<Option<FlowPlan>, ErrorReport> {
    if config.texts("flows").is_empty() {
        return Ok(None);
    }
    let file = match config.origin("flows") {
        Some(Origin::File { file, .. }) => file,
        _ => String::new(),
    };
    let sources = sources_of(Path::new(&file), config)?;
    let flows = checked(&sources, Some(config));
    let has_error = flows.diagnostics.iter().any(Diagnostic::is_error);
    match flows.plan.filter(|_| !has_error) {
        Some(plan) => Ok(Some(plan)),
        None => {
            tell(&flows.diagnostics, &sources);
            let report = ErrorReport::new("flow.invalid", "the flows of `flows` cannot run");
            Err(report.with_exit(Exit::Findings))
        }
    }
}

/// The flow files that a configuration names.
fn sources_of(file: &Path, config: &Config) -> Result<Vec<ConfigSource>, ErrorReport> {
    let mut paths = Vec::new();
    for pattern in config.texts("flows") {
        let found = SiblingFiles.find(&name_of(file), pattern);
        let found = found.map_err(|why| {
            ErrorReport::new("flow.unreadable", format!("`{pattern}` of `flows` {why}"))
        })?;
        paths.extend(found.into_iter().map(PathBuf::from));
    }
    sources(&paths)
}

fn check(files: &[PathBuf], config: Option<&Path>, output: Output) -> Result<Exit, ErrorReport> {
    let mut sources = sources(files)?;
    let loaded = config.map(settings::read_file).transpose()?;
    let flows = checked(&sources, loaded.as_ref().map(|loaded| &loaded.config));
    if let Some(loaded) = &loaded {
        sources.extend_from_slice(loaded.problems.texts());
    }
    let mut findings = shown(&flows.diagnostics, &sources);
    if let Some(loaded) = &loaded {
        findings.extend(of_problems(&loaded.problems));
    }
    let count = |severity: &str| {
        findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count() as u64
    };
    let (errors, warnings) = (count("error"), count("warning"));
    if output == Output::Table {
        if let Some(loaded) = loaded.as_ref().filter(|loaded| !loaded.problems.is_empty()) {
            settings::tell(loaded, MessageFormat::Text);
        }
        tell(&flows.diagnostics, &sources);
    }
    output.print(&json!({ "diagnostics": findings }), || {
        let files = counted(u64::from(flows.sources), "file");
        format!(
            "{files}: {}, {}",
            counted(errors, "error"),
            counted(warnings, "warning")
        )
    })?;
    Ok(Exit::Findings.unless(errors == 0))
}

/// Problems of the configuration as findings, with the codes that the language has for them.
fn of_problems(problems: &Problems) -> Vec<ShownDiagnostic> {
    let of = |problem: &Problem| ShownDiagnostic {
        code: problem_code(problem).to_owned(),
        severity: "error",
        file: problem.file.clone(),
        line: problem.line,
        column: problem.column,
        message: format!("{}: {}", problem.path, problem.message),
        hint: problem.hint.clone(),
    };
    problems.iter().map(of).collect()
}

fn format_files(paths: &[PathBuf], is_check: bool, output: Output) -> Result<Exit, ErrorReport> {
    let mut changed = Vec::new();
    let mut broken = Vec::new();
    for path in paths {
        for file in files_of(path)? {
            let text = read_text(&file).map_err(|error| unreadable(&file, &error))?;
            let (tree, diagnostics) = parse(&text, 0);
            let name = name_of(&file);
            if diagnostics.iter().any(Diagnostic::is_error) {
                let source = [ConfigSource {
                    name: name.clone(),
                    text,
                }];
                tell(&diagnostics, &source);
                broken.extend(shown(&diagnostics, &source));
                continue;
            }
            let formatted = printed(&tree);
            if formatted == text {
                continue;
            }
            if !is_check {
                write(&file, &formatted)?;
            }
            changed.push(name);
        }
    }
    output.print(
        &json!({ "changed": changed, "diagnostics": broken }),
        || {
            let word = if is_check { "would change" } else { "changed" };
            let mut lines: Vec<String> = changed
                .iter()
                .map(|name| format!("{name} {word}"))
                .collect();
            lines.push(format!("{} {word}", counted(changed.len() as u64, "file")));
            lines.join("\n")
        },
    )?;
    Ok(Exit::Findings.unless(broken.is_empty() && (changed.is_empty() || !is_check)))
}

/// Replaces a file whole: a formatter that is killed must not leave half of one.
fn write(path: &Path, text: &str) -> Result<(), ErrorReport> {
    let temporary = path.with_extension("flow.tmp");
    let written = SystemDisk
        .open(&temporary, OpenMode::CreateNew)
        .and_then(|mut file| {
            file.append(text.as_bytes())?;
            file.sync()?;
            SystemDisk.replace(&temporary, path)
        });
    written.map_err(|error| {
        ErrorReport::of(
            "flow.unwritable",
            &format!("cannot write `{}`", path.display()),
            &error,
        )
    })
}

/// The plan of files, or a report of what is wrong with them.
pub(crate) fn plan_of(paths: &[PathBuf]) -> Result<FlowPlan, ErrorReport> {
    let sources = sources(paths)?;
    let flows = checked(&sources, None);
    flows.plan.ok_or_else(|| {
        tell(&flows.diagnostics, &sources);
        let errors = flows
            .diagnostics
            .iter()
            .filter(|found| found.is_error())
            .count();
        let message = format!("{} in the flow", counted(errors as u64, "error"));
        ErrorReport::new("flow.invalid", message).with_exit(Exit::Findings)
    })
}

/// Prints lines.
fn print_lines(lines: &[String]) -> Result<(), ErrorReport> {
    print(&lines.join("\n"))
}
