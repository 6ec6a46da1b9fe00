//! `tidegate completions` and `tidegate man`.

use clap::CommandFactory;

use crate::args::Arguments;
use crate::report::{Exit, Report};

pub(crate) fn completions(shell: clap_complete::Shell) -> Exit {
    let mut written = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "tidegate", &mut written);
    write(&written)
}

pub(crate) fn man() -> Result<Exit, Report> {
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
            .map_err(|error| Report::of("internal", "cannot write the manual page", &error))?;
    }
    Ok(write(&written))
}

fn write(bytes: &[u8]) -> Exit {
    use std::io::Write;
    // A reader that has gone away, as `head` does, is no error of ours.
    std::io::stdout().lock().write_all(bytes).ok();
    Exit::Ok
}
