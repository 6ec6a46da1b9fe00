//! One call of a handler: cut at its deadline, and a panic is a failure like another.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use tidegate_core::env::{Clock, Sleep, TaskOutcome};
use tidegate_core::{Code, Failure};

use crate::handler::Handled;

/// Runs a handler's future.
pub(super) struct HandlerCall<'a> {
    call: Pin<Box<dyn Future<Output = Handled> + Send + 'a>>,
    clock: Arc<dyn Clock>,
    limit: Duration,
    /// Set only when the first poll does not end it, which spares most calls a timer.
    deadline: Option<Sleep>,
}

impl<'a> HandlerCall<'a> {
    pub(super) fn new(
        call: Pin<Box<dyn Future<Output = Handled> + Send + 'a>>,
        clock: Arc<dyn Clock>,
        limit: Duration,
    ) -> Self {
        Self {
            call,
            clock,
            limit,
            deadline: None,
        }
    }
}

impl Future for HandlerCall<'_> {
    type Output = Handled;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Handled> {
        let this = &mut *self;
        match catch_unwind(AssertUnwindSafe(|| this.call.as_mut().poll(context))) {
            Ok(Poll::Ready(handled)) => return Poll::Ready(handled),
            Ok(Poll::Pending) => {}
            Err(payload) => return Poll::Ready(panicked(&TaskOutcome::panicked(payload.as_ref()))),
        }
        let deadline = this
            .deadline
            .get_or_insert_with(|| this.clock.sleep(this.limit));
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => {
                let text = format!("no result within {:?}", this.limit);
                let failure = Failure::transient(Code::from_static("timeout.handler"), text);
                Poll::Ready(Handled::TransientError(failure))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// What a handler that panicked has said.
fn panicked(outcome: &TaskOutcome) -> Handled {
    let text = match outcome {
        TaskOutcome::Panicked(message) => message.clone(),
        TaskOutcome::Completed | TaskOutcome::Aborted => "ended without a result".to_owned(),
    };
    Handled::TransientError(Failure::transient(Code::from_static("handler.panic"), text))
}
