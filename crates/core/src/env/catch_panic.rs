//! Futures whose panics are answers.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::spawn::panic_message;

/// Runs a future, and gives what it panicked with: for a task that must go on when one of those it
/// works for does not. A future that has panicked is not polled again.
///
/// ```
/// use tidegate_core::env::CatchPanic;
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// assert_eq!(CatchPanic(Box::pin(async { 7 })).await, Ok(7));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a future does nothing by itself"]
pub struct CatchPanic<F>(pub F);

impl<F: Future + Unpin> Future for CatchPanic<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let running = &mut self.0;
        match catch_unwind(AssertUnwindSafe(|| Pin::new(running).poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(payload) => Poll::Ready(Err(panic_message(payload.as_ref()))),
        }
    }
}

impl<F> fmt::Debug for CatchPanic<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CatchPanic")
    }
}
