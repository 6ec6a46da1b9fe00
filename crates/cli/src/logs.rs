//! Log lines, on standard error.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::LogFormat;
use crate::report::{ErrorReport, Exit, is_colorful};

/// Starts logging. A request's trace id is a field of its span and so stands in each of its lines.
pub(crate) fn start(format: LogFormat, filter: &str) -> Result<(), ErrorReport> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        ErrorReport::of(
            "usage.log-filter",
            &format!("cannot read the log filter `{filter}`"),
            &error,
        )
        .with_hint("write a level such as `info`, or `target=level` pairs joined by commas")
        .with_exit(Exit::Usage)
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(is_colorful())
        .with_writer(std::io::stderr)
        // It would be told on standard error, which is what fails: a full disk must not end the process.
        .log_internal_errors(false);
    let started = match format {
        LogFormat::Text => builder.finish().try_init(),
        LogFormat::Json => builder.json().with_current_span(true).finish().try_init(),
    };
    started.map_err(|error| ErrorReport::of("internal", "cannot start logging", &error))
}
