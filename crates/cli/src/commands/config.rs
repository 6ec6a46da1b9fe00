//! `tidegate config`.

use tidegate_config::{Origins, schema};

use crate::args::{Config, Output};
use crate::report::{Exit, Report, Voice, print, print_json};
use crate::settings;

pub(crate) fn run(command: &Config, output: Output) -> Result<Exit, Report> {
    match command {
        Config::Schema => match serde_json::to_string_pretty(&schema()) {
            Ok(text) => print(&text)?,
            Err(error) => return Err(Report::of("internal", "cannot write the schema", &error)),
        },
        Config::Show { file, origin } => {
            let config = settings::checked(settings::read(file)?.loaded, Voice::Text)?;
            match (output, origin) {
                (Output::Json, false) => print_json(&config.to_json())?,
                (Output::Json, true) => print_json(&config.to_json_with_origins())?,
                (Output::Table, false) => print(config.to_yaml(Origins::Hidden).trim_end())?,
                (Output::Table, true) => print(config.to_yaml(Origins::Commented).trim_end())?,
            }
        }
    }
    Ok(Exit::Ok)
}
