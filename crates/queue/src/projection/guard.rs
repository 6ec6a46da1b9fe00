//! What is a projection's own code, kept within bounds: its turn is renewed meanwhile, it is cut at
//! its time limit, and a panic is a failure like another.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate_core::env::Outcome;
use tidegate_core::{Code, Failure};

use super::rebuild::RebuildError;
use super::run::Projector;
use super::{Applied, Projection};
use crate::port::Turn;

impl Projector {
    /// Lets a projection do its work, and says whether the turn was kept.
    pub(super) async fn guard(
        &self,
        projection: &Projection,
        turn: &Turn,
        working: Applied<'_>,
    ) -> Result<bool, RebuildError> {
        let name = projection.name();
        let renewing = async {
            loop {
                self.clock.sleep(self.options.lease / 3).await;
                match self.store.keep_turn(turn, self.options.lease).await {
                    Ok(true) => {}
                    Ok(false) => return,
                    // On SQLite nobody writes while the batch is open: the turn cannot be renewed,
                    // and nobody can take it either.
                    Err(error) => tracing::debug!(%error, name, "a turn was not renewed"),
                }
            }
        };
        let limit = projection.timeout.unwrap_or(self.options.timeout);
        let worked = tokio::select! {
            biased;
            worked = Caught(working) => worked.unwrap_or_else(|panic| {
                Err(Failure::transient(Code::from_static("projection.panic"), panic))
            }),
            () = renewing => {
                tracing::warn!(name, "a projection was taken over in the middle of its work");
                return Ok(false);
            }
            () = self.clock.sleep(limit) => {
                let text = format!("it took longer than {limit:?}");
                Err(Failure::transient(Code::from_static("timeout.projection"), text))
            }
        };
        let failed = |source| RebuildError::Failed {
            name: name.to_owned(),
            source,
        };
        worked.map(|()| true).map_err(failed)
    }
}

/// Runs a future, and gives what it panicked with.
pub(crate) struct Caught<'a, T>(pub(crate) Pin<Box<dyn Future<Output = T> + Send + 'a>>);

impl<T> Future for Caught<'_, T> {
    type Output = Result<T, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let running = &mut self.0;
        match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(payload) => Poll::Ready(Err(match Outcome::panicked(payload.as_ref()) {
                Outcome::Panicked(message) => message,
                Outcome::Completed | Outcome::Aborted => "ended without a result".to_owned(),
            })),
        }
    }
}
