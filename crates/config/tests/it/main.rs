//! The promises of the loader, one file each.

mod fixtures;
mod golden;
mod imports;
mod mistakes;
mod never_panics;
mod overrides;
mod rules;
mod secrets;
mod sections;
mod shapes;
mod shown;

use std::collections::BTreeMap;

use tidegate_config::{Inputs, Loaded, load};

/// Loads one text with every part built and nothing in the environment.
fn of(text: &str) -> Loaded {
    load(&Inputs::of_text("tidegate.yaml", text))
}

/// Loads one text with these variables.
fn with(text: &str, variables: &[(&str, &str)]) -> Loaded {
    let mut inputs = Inputs::of_text("tidegate.yaml", text);
    inputs.environment = environment(variables);
    load(&inputs)
}

fn environment(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// The problems of one text, one line each.
fn problems(text: &str) -> String {
    of(text).problems.to_string()
}
