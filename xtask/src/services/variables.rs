//! The file `target/services/env`: what tests need to know, one `NAME=value` per line.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Writes `variables` so that a shell can load them.
///
/// The file is replaced in one step: somebody may be reading it.
pub(crate) fn write(file: &Path, variables: &[(&'static str, String)]) -> Result<()> {
    let half_written = file.with_extension("new");
    fs::write(&half_written, text_of(variables)).context("could not write the variables")?;
    fs::rename(&half_written, file).context("could not put the variables in place")
}

fn text_of(variables: &[(&'static str, String)]) -> String {
    variables
        .iter()
        .map(|(name, value)| format!("{name}={}\n", quoted(value)))
        .collect()
}

/// The value for a shell; plain values stay readable.
fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@,%+=".contains(c);
    if value.chars().all(plain) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_stay_plain_and_others_are_quoted() {
        let text = text_of(&[
            ("URL", "postgres://a:b@127.0.0.1:1/x".to_owned()),
            ("CA", "my disk/it's.pem".to_owned()),
        ]);
        assert_eq!(
            text,
            "URL=postgres://a:b@127.0.0.1:1/x\nCA='my disk/it'\\''s.pem'\n"
        );
    }
}
