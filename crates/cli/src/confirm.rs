//! Asking before something that cannot be taken back.

use std::io::{BufRead, IsTerminal};

use crate::report::{ErrorReport, Exit, say};

/// Returns when `yes` was given, or when somebody at the terminal answers so; otherwise with the
/// report of the caller: the command line lacks `--yes`. `what` says what would happen.
pub(crate) fn confirm(what: &str, yes: bool, unconfirmed: ErrorReport) -> Result<(), ErrorReport> {
    if yes {
        return Ok(());
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(unconfirmed.with_exit(Exit::Usage));
    }
    say(&format!("{what}. Go on? [y/N]"));
    let mut answer = String::new();
    match stdin.lock().read_line(&mut answer) {
        Ok(_) if answer.trim().eq_ignore_ascii_case("y") => Ok(()),
        Ok(_) | Err(_) => Err(unconfirmed.with_exit(Exit::Usage)),
    }
}
