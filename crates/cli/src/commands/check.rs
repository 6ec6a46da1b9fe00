//! `tidegate check`.

use std::path::Path;

use serde_json::json;
use tidegate_config::{Inputs, load};

use crate::args::Output;
use crate::report::{Exit, Report, print, print_json};
use crate::settings;

pub(crate) fn run(file: &Path, output: Output) -> Result<Exit, Report> {
    let inputs = Inputs {
        sources: vec![settings::read_file(file)?],
        environment: settings::environment(),
        arguments: Vec::new(),
        built: settings::BUILT.to_vec(),
    };
    let loaded = load(&inputs);
    match output {
        Output::Json => {
            print_json(&json!({ "problems": loaded.problems, "warnings": loaded.warnings }));
        }
        Output::Table => {
            settings::print_problems(&loaded);
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
            ));
        }
    }
    Ok(if loaded.problems.is_empty() {
        Exit::Ok
    } else {
        Exit::Findings
    })
}
