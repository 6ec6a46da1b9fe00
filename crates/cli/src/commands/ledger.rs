//! `tidegate ledger`.

use std::time::Duration;

use tidegate_client::{ClientError, ProcessClient, reachable};
use tidegate_core::env::Clock;
use tidegate_core::env::system::SystemClock;

use crate::args::{self, Output};
use crate::report::{ErrorReport, Exit, MessageFormat, is_terminal, print_bytes, print_ledger};
use crate::settings;

/// Shows it once, or again and again.
pub(crate) async fn watch(
    arguments: &args::LedgerCommand,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let Some(seconds) = arguments.watch else {
        return run(&arguments.at, output).await;
    };
    let clock = SystemClock::new();
    loop {
        if output == Output::Table && is_terminal() {
            // The screen from its beginning.
            print_bytes(b"\x1b[2J\x1b[H")?;
        }
        run(&arguments.at, output).await?;
        clock.sleep(Duration::from_secs(seconds)).await;
    }
}

async fn run(arguments: &args::LedgerArgs, output: Output) -> Result<Exit, ErrorReport> {
    let target = target(arguments)?;
    let ledger = target.ledger().await.map_err(|error| {
        let hint = match &error {
            ClientError::Unreachable { .. } => {
                "is `tidegate run` running there? see `tidegate explain ledger.unreachable`"
            }
            ClientError::Refused { .. } => error.hint(),
        };
        // error-page: ledger.unreachable
        ErrorReport::of("ledger.unreachable", "no ledger", &error).with_hint(hint)
    })?;
    print_ledger(&ledger, output)
}

/// As said on the command line, else as configured.
///
/// The configured token is for the configured address alone: another one may be anybody's.
pub(crate) fn target(arguments: &args::LedgerArgs) -> Result<ProcessClient, ErrorReport> {
    let given = arguments.token.clone().filter(|token| !token.is_empty());
    if let Some(url) = &arguments.url {
        return Ok(ProcessClient::new(url, given));
    }
    let loaded = settings::read(&arguments.file)?.loaded;
    let config = settings::checked(loaded, MessageFormat::Text)?;
    let configured = config.secret("server.token").map(|secret| secret.expose());
    let listen = config.text("server.listen").unwrap_or_default();
    Ok(ProcessClient::new(
        &format!("http://{}", reachable(listen)),
        given.or_else(|| configured.map(str::to_owned)),
    ))
}
