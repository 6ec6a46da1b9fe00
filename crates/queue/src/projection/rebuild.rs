//! Rebuilds: a projection built anew beside what readers see, and swapped in whole.

use std::time::Duration;

use tidegate_core::{Classify, Failure, FailureClass};

use super::request::{RebuildMode, forgotten_of, request_of, shadow_of};
use super::run::{ProjectionStep, Projector, ProjectorState, TaskProgress, leadership_name};
use super::{Projection, Target};
use crate::QueueError;
use crate::port::Leadership;

/// A rebuild that did not come to its end; readers see what they saw before.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// There is no such projection here.
    #[error("there is no projection `{name}`")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The store failed.
    #[error("projection `{name}` could not be rebuilt")]
    Store {
        /// The name.
        name: String,
        /// Why.
        #[source]
        source: QueueError,
    },
    /// The projection refused an event.
    #[error("projection `{name}` failed while it was rebuilt")]
    Failed {
        /// The name.
        name: String,
        /// Why.
        #[source]
        source: Failure,
    },
    /// Another process took the leadership.
    #[error("projection `{name}` was taken over while it was rebuilt")]
    TakenOver {
        /// The name.
        name: String,
    },
}

impl RebuildError {
    /// The store failed under the projection `name`.
    pub(super) fn store(name: &str) -> impl Fn(QueueError) -> Self + Copy {
        move |source| Self::Store {
            name: name.to_owned(),
            source,
        }
    }
}

impl Classify for RebuildError {
    fn class(&self) -> FailureClass {
        match self {
            Self::Unknown { .. } => FailureClass::Permanent,
            Self::Store { source, .. } => source.class(),
            Self::Failed { source, .. } => source.class(),
            Self::TakenOver { .. } => FailureClass::Transient,
        }
    }
}

/// Whether a swap changed nothing and may work the next time.
fn is_to_wait(error: &QueueError) -> bool {
    error.class() == FailureClass::Transient && !error.may_have_happened()
}

impl Projector {
    /// Builds a projection anew beside what readers see, from the first event of the log, and swaps
    /// it in whole.
    ///
    /// It waits until nobody else runs the projection. Where somebody does, ask for it by
    /// [`Queue::request_rebuild`](crate::Queue::request_rebuild): a projector that runs goes on with
    /// what readers see meanwhile.
    ///
    /// Returns once the new one is what readers see. If canceled, or if it fails, they see the old one;
    /// calling it again begins anew. The tables of a canceled one are dropped by the next process that
    /// runs or rebuilds the projection. Until then the log is kept for it.
    ///
    /// # Errors
    /// There is no such projection, retention has removed events that it had seen, it failed, the
    /// store failed, or another process took over.
    pub async fn rebuild(&self, name: &str) -> Result<(), RebuildError> {
        self.rebuild_as(name, RebuildMode::Whole).await
    }

    /// The same for a projection that can do without the events that retention has removed: what is
    /// swapped in is built from those that are left.
    ///
    /// # Errors
    /// There is no such projection, it failed, the store failed, or another process took over.
    pub async fn rebuild_partial(&self, name: &str) -> Result<(), RebuildError> {
        self.rebuild_as(name, RebuildMode::Partial).await
    }

    async fn rebuild_as(&self, name: &str, wanted: RebuildMode) -> Result<(), RebuildError> {
        let found = self
            .projections
            .iter()
            .find(|projection| projection.name == name);
        let projection = found.ok_or_else(|| RebuildError::Unknown {
            name: name.to_owned(),
        })?;
        let failed = RebuildError::store(name);
        // Nobody is to wait for a refusal.
        self.check_log(name, wanted).await?;
        let mut work = ProjectorState::default();
        // The process that builds it now goes on until we have the leadership.
        let leadership_name = leadership_name(projection);
        let leadership = loop {
            let held = self.leadership(&leadership_name, &mut work);
            match held.await.map_err(failed)? {
                Some(leadership) => break leadership,
                None => self.clock.sleep(self.options.poll_delay).await,
            }
        };
        let built = self.build_anew(projection, wanted, &leadership).await;
        if built.is_err()
            && let Err(error) = self.give_up(projection, &leadership).await
        {
            // The log is kept for it until somebody runs the projection.
            tracing::warn!(%error, projection = name, "could not clean up after a rebuild");
        }
        let given_back = self
            .store
            .renew_leadership(&leadership, Duration::ZERO)
            .await;
        built?;
        given_back.map_err(failed)?;
        Ok(())
    }

    /// Builds a projection under its leadership, and swaps it in.
    async fn build_anew(
        &self,
        projection: &Projection,
        wanted: RebuildMode,
        leadership: &Leadership,
    ) -> Result<(), RebuildError> {
        let (name, store) = (projection.name(), &self.store);
        let shadow = shadow_of(name);
        let failed = RebuildError::store(name);
        let taken_over = || RebuildError::TakenOver {
            name: name.to_owned(),
        };
        let is_begun = self.give_up(projection, leadership).await?
            && self.create(projection, Target::Rebuild, leadership).await?;
        if !is_begun {
            return Err(taken_over());
        }
        // Events that were removed while we waited are missing; from here on retention waits for us.
        self.check_log(name, wanted).await?;
        loop {
            let kept = store.renew_leadership(leadership, self.options.lease);
            if !kept.await.map_err(failed)? {
                return Err(taken_over());
            }
            let from = store.projection(&shadow).await.map_err(failed)?;
            let step = self.step(projection, (&shadow, from), Target::Rebuild, leadership);
            match step.await? {
                ProjectionStep::Moved => {}
                ProjectionStep::Idle => break,
                ProjectionStep::TakenOver => return Err(taken_over()),
            }
        }
        // The mark that it was forgotten goes with the swap.
        let marks = [forgotten_of(name)];
        let until = self.clock.elapsed().saturating_add(self.options.timeout);
        loop {
            let swapped = store.swap(leadership, name, &shadow, &projection.tables, &marks);
            match swapped.await {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(taken_over()),
                // Somebody reads the table just now.
                Err(error) if is_to_wait(&error) && self.clock.elapsed() < until => {
                    tracing::debug!(%error, projection = name, "could not swap the rebuilt tables yet; retrying");
                }
                Err(error) => return Err(failed(error)),
            }
            self.clock.sleep(self.options.poll_delay).await;
            let kept = store.renew_leadership(leadership, self.options.lease);
            if !kept.await.map_err(failed)? {
                return Err(taken_over());
            }
        }
    }

    /// Goes on with a rebuild that is asked for and has come to position `from`. Drops one that is not
    /// asked for any more, also where somebody else had begun with it: retention would wait for it for
    /// ever.
    pub(super) async fn follow(
        &self,
        projection: &Projection,
        wanted: Option<RebuildMode>,
        from: Option<i64>,
        leadership: &Leadership,
        begun: &mut TaskProgress,
    ) -> Result<ProjectionStep, RebuildError> {
        let name = projection.name();
        let (is_there, mut from) = (from.is_some(), from.unwrap_or(0));
        match (wanted, begun.is_rebuilding) {
            (None, false) if !is_there => return Ok(ProjectionStep::Idle),
            (None, _) => {
                begun.is_rebuilding = false;
                return match self.give_up(projection, leadership).await? {
                    true => Ok(ProjectionStep::Idle),
                    false => Ok(ProjectionStep::TakenOver),
                };
            }
            (Some(wanted), false) => {
                tracing::info!(projection = name, "a rebuild was asked for");
                let is_begun = self.give_up(projection, leadership).await?
                    && self.create(projection, Target::Rebuild, leadership).await?;
                if !is_begun {
                    return Ok(ProjectionStep::TakenOver);
                }
                if let Err(error) = self.check_log(name, wanted).await {
                    self.refuse(projection, leadership).await?;
                    return Err(error);
                }
                begun.is_rebuilding = true;
                from = 0;
            }
            (Some(_), true) => {}
        }
        let shadow = shadow_of(name);
        let step = self.step(projection, (&shadow, from), Target::Rebuild, leadership);
        match step.await? {
            ProjectionStep::Idle => {}
            step @ (ProjectionStep::Moved | ProjectionStep::TakenOver) => return Ok(step),
        }
        let failed = RebuildError::store(name);
        // It has read all that readers see: what they see is read first in each round. Should the
        // answer get lost, it begins anew; where somebody reads the table just now, only the swap is tried
        // again.
        begun.is_rebuilding = false;
        let (tables, marks) = (&projection.tables, [request_of(name), forgotten_of(name)]);
        let swapped = self
            .store
            .swap(leadership, name, &shadow, tables, &marks)
            .await;
        begun.is_rebuilding = swapped.as_ref().is_err_and(is_to_wait);
        if !swapped.map_err(failed)? {
            return Ok(ProjectionStep::TakenOver);
        }
        tracing::info!(projection = name, "projection rebuilt");
        Ok(ProjectionStep::Moved)
    }

    /// Refuses what is to be built from the whole log, where retention has removed something of it.
    ///
    /// It says that nothing is missing only of what comes after a position that was noted before:
    /// retention may go past whatever is noted later.
    pub(super) async fn check_log(
        &self,
        name: &str,
        wanted: RebuildMode,
    ) -> Result<(), RebuildError> {
        let failed = RebuildError::store(name);
        let is_whole = wanted == RebuildMode::Whole;
        if is_whole && self.store.has_removed().await.map_err(failed)? {
            let name = name.to_owned();
            return Err(failed(QueueError::EventsRemoved { name }));
        }
        Ok(())
    }

    /// Takes away a request that cannot be served, and what there is of its rebuild: whoever asked is
    /// told the same, and the log is not kept for it.
    async fn refuse(
        &self,
        projection: &Projection,
        leadership: &Leadership,
    ) -> Result<(), RebuildError> {
        self.give_up(projection, leadership).await?;
        let request = [request_of(projection.name())];
        let taken = self
            .store
            .forget_projection(Some(leadership), &request, &[]);
        let taken = taken.await.map(drop);
        taken.map_err(RebuildError::store(&projection.name))
    }

    /// Drops what there is of a rebuild, and says whether the leadership was still ours: what is there may be
    /// the work of whoever has it now.
    async fn give_up(
        &self,
        projection: &Projection,
        leadership: &Leadership,
    ) -> Result<bool, RebuildError> {
        let (shadow, tables) = ([shadow_of(projection.name())], &projection.tables);
        let dropped = self
            .store
            .forget_projection(Some(leadership), &shadow, tables);
        let dropped = dropped.await;
        dropped.map_err(RebuildError::store(&projection.name))
    }
}
