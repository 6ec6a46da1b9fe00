//! `tidegate completions` and `tidegate man`.

use clap::CommandFactory;

use crate::args::{Arguments, Output};
use crate::report::{ErrorReport, Exit, print_bytes, print_json};

pub(crate) fn completions(
    shell: clap_complete::Shell,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let mut written = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "tidegate", &mut written);
    write(&written, output)
}

pub(crate) fn man(output: Output) -> Result<Exit, ErrorReport> {
    let mut written = Vec::new();
    let mut pages = vec![Arguments::command()];
    // One page for the command and one for each below it, one after the other.
    while let Some(mut command) = pages.pop() {
        command.build();
        pages.extend(
            command
                .get_subcommands()
                .filter(|c| c.get_name() != "help")
                .cloned(),
        );
        clap_mangen::Man::new(command)
            .render(&mut written)
            .map_err(|error| ErrorReport::of("internal", "cannot write the manual page", &error))?;
    }
    write(&written, output)
}

/// Shells and `man` read their own formats; JSON holds them as a text.
fn write(bytes: &[u8], output: Output) -> Result<Exit, ErrorReport> {
    match output {
        Output::Table => print_bytes(bytes)?,
        Output::Json => {
            print_json(&serde_json::json!({ "text": String::from_utf8_lossy(bytes) }))?;
        }
    }
    Ok(Exit::Ok)
}
