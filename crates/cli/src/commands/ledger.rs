//! `tidegate ledger`.

use tidegate_client::{ClientError, ProcessClient, reachable};

use crate::args::{self, Output};
use crate::report::{ErrorReport, Exit, MessageFormat, print_ledger};
use crate::{settings, watch};

/// Shows it once, or again and again.
pub(crate) async fn watch(
    arguments: &args::LedgerCommand,
    output: Output,
) -> Result<Exit, ErrorReport> {
    watch::repeat(arguments.watch, output, || run(&arguments.at, output)).await
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
