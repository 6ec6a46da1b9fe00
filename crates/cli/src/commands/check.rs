//! `tidegate check`.

use std::path::Path;

use serde::Serialize;
use serde_json::json;
use tidegate_config::Config;
use tidegate_flow::Diagnostic;
use tidegate_flow::diagnostic::shown;
use tidegate_logger::spill::EVENT_BYTES;

use crate::args::Output;
use crate::commands::flow;
use crate::report::{ErrorReport, Exit, MessageFormat, print, print_json, say};
use crate::settings;

pub(crate) fn run(file: &Path, rate: u64, output: Output) -> Result<Exit, ErrorReport> {
    let loaded = settings::read_file(file)?;
    let notes = notes(&loaded.config, rate);
    let (flows, texts) = flow::of_config(file, &loaded)?;
    let findings = &flows.diagnostics;
    let is_right = !findings.iter().any(Diagnostic::is_error);
    match output {
        Output::Json => {
            print_json(&json!({
                "problems": loaded.problems, "warnings": loaded.warnings, "notes": notes,
                "flows": shown(findings, &texts),
            }))?;
        }
        Output::Table => {
            settings::tell(&loaded, MessageFormat::Text);
            flow::tell(findings, &texts);
            for note in &notes {
                say(&format!("note: {}: {}", note.path, note.message));
            }
            let count = |count: usize, word: &str| match count {
                0 => format!("no {word}s"),
                1 => format!("1 {word}"),
                _ => format!("{count} {word}s"),
            };
            print(&format!(
                "{}: {}, {}",
                file.display(),
                count(loaded.problems.len(), "problem"),
                count(loaded.warnings.len(), "warning")
            ))?;
            if flows.sources > 0 {
                let errors = findings.iter().filter(|finding| finding.is_error()).count();
                let warnings = findings.len() - errors;
                let files = count(flows.sources as usize, "flow file");
                print(&format!(
                    "{files}: {}, {}",
                    count(errors, "error"),
                    count(warnings, "warning")
                ))?;
            }
        }
    }
    Ok(Exit::Findings.unless(loaded.problems.is_empty() && is_right))
}

/// Something worth knowing that is not wrong.
#[derive(Debug, Serialize)]
struct Note {
    path: &'static str,
    message: String,
}

fn notes(config: &Config, rate: u64) -> Vec<Note> {
    let caps = config
        .text("eventlog.async.spillover-path")
        .and_then(|_| config.integer("eventlog.async.max-spillover-events"))
        .zip(config.size("eventlog.async.max-spillover-size-mb"));
    let Some((events, bytes)) = caps else {
        return Vec::new();
    };
    vec![Note {
        path: "eventlog.async",
        message: capacity(u64::try_from(events).unwrap_or(0), bytes, rate),
    }]
}

/// How long an outage may last before a cap of the spill is hit.
fn capacity(events: u64, bytes: u64, rate: u64) -> String {
    let fit = bytes / EVENT_BYTES;
    let by_events = (format!("{} events", grouped(events)), seconds(events, rate));
    let by_bytes = (size(bytes), seconds(fit, rate));
    let (first, second) = if events <= fit {
        (by_events, by_bytes)
    } else {
        (by_bytes, by_events)
    };
    format!(
        "at {} event{}/s of {EVENT_BYTES} bytes the spill holds {} ({}; {} would hold {})",
        grouped(rate),
        if rate == 1 { "" } else { "s" },
        first.1,
        first.0,
        second.0,
        second.1
    )
}

fn seconds(events: u64, rate: u64) -> String {
    match events / rate {
        0..10 => format!("{:.1} s", events as f64 / rate as f64),
        _ => format!("{} s", grouped((events + rate / 2) / rate)),
    }
}

fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = UNITS.iter().find(|(unit, _)| bytes.is_multiple_of(*unit));
    match unit {
        Some((unit, name)) => format!("{} {name}", grouped(bytes / unit)),
        None => format!("{} bytes", grouped(bytes)),
    }
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_that_is_hit_first_says_how_long_the_spill_lasts() {
        let mib = 1 << 20;
        for (events, bytes, rate, expect) in [
            (
                10_000,
                50 * mib,
                100,
                "at 100 events/s of 400 bytes the spill holds 100 s (10,000 events; 50 MiB would \
                 hold 1,311 s)",
            ),
            (
                10_000_000,
                50 * mib,
                100_000,
                "at 100,000 events/s of 400 bytes the spill holds 1.3 s (50 MiB; 10,000,000 \
                 events would hold 100 s)",
            ),
            (
                10,
                1_000,
                1,
                "at 1 event/s of 400 bytes the spill holds 2.0 s (1,000 bytes; 10 events would \
                 hold 10 s)",
            ),
        ] {
            assert_eq!(capacity(events, bytes, rate), expect);
        }
    }
}
