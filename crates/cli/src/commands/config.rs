//! `tidegate config`.

use tidegate_config::{Origins, schema};

use crate::args::{ConfigArgs, Output};
use crate::report::{ErrorReport, Exit, MessageFormat, print, print_json};
use crate::settings;

pub(crate) fn run(command: &ConfigArgs, output: Output) -> Result<Exit, ErrorReport> {
    match command {
        ConfigArgs::Schema => match serde_json::to_string_pretty(&schema()) {
            Ok(text) => print(&text)?,
            Err(error) => {
                return Err(ErrorReport::of(
                    "internal",
                    "cannot write the schema",
                    &error,
                ));
            }
        },
        ConfigArgs::Show { file, origin } => {
            let config = settings::checked(settings::read(file)?.loaded, MessageFormat::Text)?;
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
