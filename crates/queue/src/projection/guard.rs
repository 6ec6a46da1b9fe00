//! A projection's own code, kept within bounds: its leadership is renewed meanwhile, it is cut at
//! its time limit, and a panic is a failure like another.

use tidegate_core::env::CatchPanic;
use tidegate_core::{Code, Failure};

use super::rebuild::RebuildError;
use super::run::Projector;
use super::{Projection, ProjectionFuture};
use crate::port::Leadership;

impl Projector {
    /// Lets a projection do its work, and says whether the leadership was kept.
    pub(super) async fn guard(
        &self,
        projection: &Projection,
        leadership: &Leadership,
        working: ProjectionFuture<'_>,
    ) -> Result<bool, RebuildError> {
        let name = projection.name();
        let renewing = async {
            loop {
                self.clock.sleep(self.options.lease / 3).await;
                match self
                    .store
                    .renew_leadership(leadership, self.options.lease)
                    .await
                {
                    Ok(true) => {}
                    Ok(false) => return,
                    // On SQLite nobody writes while the batch is open: the leadership cannot be renewed,
                    // and nobody can take it either.
                    Err(error) => tracing::debug!(%error, name, "could not renew the leadership"),
                }
            }
        };
        let limit = projection.timeout.unwrap_or(self.options.timeout);
        let worked = tokio::select! {
            biased;
            worked = CatchPanic(working) => worked.unwrap_or_else(|panic| {
                Err(Failure::transient(Code::from_static("projection.panic"), panic))
            }),
            () = renewing => {
                tracing::warn!(name, "another process took over the projection");
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
