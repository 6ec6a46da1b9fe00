//! Showing something again and again.

use std::future::Future;
use std::time::Duration;

use tidegate_core::env::Clock;
use tidegate_core::env::system::SystemClock;

use crate::args::Output;
use crate::report::{ErrorReport, Exit, is_terminal, print_bytes};

/// Shows it once, or every so many seconds until Ctrl-C or an error. People see it in one place of their screen;
/// programs get one document per line.
pub(crate) async fn repeat<F: Future<Output = Result<Exit, ErrorReport>>>(
    seconds: Option<u64>,
    output: Output,
    show: impl Fn() -> F,
) -> Result<Exit, ErrorReport> {
    let Some(seconds) = seconds else {
        return show().await;
    };
    let clock = SystemClock::new();
    loop {
        if output == Output::Table && is_terminal() {
            // The screen from its beginning.
            print_bytes(b"\x1b[2J\x1b[H")?;
        }
        show().await?;
        clock.sleep(Duration::from_secs(seconds)).await;
    }
}
