//! Rebuilds: a projection built anew beside what readers see, and swapped in whole.

use std::time::Duration;

use tidegate_core::{Classify, Failure, FailureClass};

use super::request::{Wanted, forgotten_of, request_of, shadow_of};
use super::run::{Begun, Projector, Step, Work, turn_name};
use super::{Projection, Target};
use crate::QueueError;
use crate::port::Turn;

/// A rebuild that did not come to its end; readers see what they saw before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    /// Another process took the turn.
    #[error("projection `{name}` was taken over while it was rebuilt")]
    TakenOver {
        /// The name.
        name: String,
    },
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

impl Projector {
    /// Builds a projection anew beside what readers see, from the first event of the log, and swaps
    /// it in whole.
    ///
    /// It waits until nobody else runs the projection. Where somebody does, ask for it by
    /// [`Queue::request_rebuild`](crate::Queue::request_rebuild): a projector that runs goes on with what readers see meanwhile.
    ///
    /// Returns once the new one is what readers see. If canceled, or if it fails, they see the old
    /// one; calling it again begins anew.
    ///
    /// # Errors
    /// There is no such projection, retention has removed events that it had seen, it failed, the
    /// store failed, or another process took over.
    pub async fn rebuild(&self, name: &str) -> Result<(), RebuildError> {
        self.rebuild_as(name, Wanted::Whole).await
    }

    /// The same for a projection that can do without the events that retention has removed: what is
    /// swapped in is built from those that are left.
    ///
    /// # Errors
    /// There is no such projection, it failed, the store failed, or another process took over.
    pub async fn rebuild_partial(&self, name: &str) -> Result<(), RebuildError> {
        self.rebuild_as(name, Wanted::Partial).await
    }

    async fn rebuild_as(&self, name: &str, wanted: Wanted) -> Result<(), RebuildError> {
        let found = self
            .projections
            .iter()
            .find(|projection| projection.name == name);
        let projection = found.ok_or_else(|| RebuildError::Unknown {
            name: name.to_owned(),
        })?;
        let failed = |source| RebuildError::Store {
            name: name.to_owned(),
            source,
        };
        // Nobody is to wait for a refusal.
        self.check_log(name, wanted).await?;
        let mut work = Work::default();
        // Whoever builds it now goes on until we have the turn.
        let turn = loop {
            match self
                .turn(&turn_name(projection), &mut work)
                .await
                .map_err(failed)?
            {
                Some(turn) => break turn,
                None => self.clock.sleep(self.options.poll_delay).await,
            }
        };
        let shadow = shadow_of(name);
        let store = &self.store;
        let taken_over = || RebuildError::TakenOver {
            name: name.to_owned(),
        };
        let is_begun = self.give_up(projection, &turn).await?
            && self.create(projection, Target::Rebuild, &turn).await?;
        if !is_begun {
            return Err(taken_over());
        }
        // What was removed while we waited is missing; from here on retention waits for us.
        if let Err(error) = self.check_log(name, wanted).await {
            self.give_up(projection, &turn).await?;
            store
                .keep_turn(&turn, Duration::ZERO)
                .await
                .map_err(failed)?;
            return Err(error);
        }
        loop {
            if !store
                .keep_turn(&turn, self.options.lease)
                .await
                .map_err(failed)?
            {
                return Err(taken_over());
            }
            let from = store.projection(&shadow).await.map_err(failed)?;
            match self
                .step(projection, (&shadow, from), Target::Rebuild, &turn)
                .await?
            {
                Step::Moved => {}
                Step::Idle => break,
                Step::TakenOver => return Err(taken_over()),
            }
        }
        // What was left of it when it was forgotten goes with the swap.
        let marks = [forgotten_of(name)];
        let swapped = store.swap(&turn, name, &shadow, &projection.tables, &marks);
        if !swapped.await.map_err(failed)? {
            return Err(taken_over());
        }
        store
            .keep_turn(&turn, Duration::ZERO)
            .await
            .map_err(failed)?;
        Ok(())
    }

    /// Goes on with a rebuild that is asked for and has come to position `from`, and drops one that
    /// is not any more.
    pub(super) async fn follow(
        &self,
        projection: &Projection,
        wanted: Option<Wanted>,
        mut from: i64,
        turn: &Turn,
        begun: &mut Begun,
    ) -> Result<Step, RebuildError> {
        let name = projection.name();
        match (wanted, begun.is_rebuilding) {
            (None, false) => return Ok(Step::Idle),
            (None, true) => {
                begun.is_rebuilding = false;
                return match self.give_up(projection, turn).await? {
                    true => Ok(Step::Idle),
                    false => Ok(Step::TakenOver),
                };
            }
            (Some(wanted), false) => {
                tracing::info!(projection = name, "a rebuild was asked for");
                let is_begun = self.give_up(projection, turn).await?
                    && self.create(projection, Target::Rebuild, turn).await?;
                if !is_begun {
                    return Ok(Step::TakenOver);
                }
                if let Err(error) = self.check_log(name, wanted).await {
                    self.refuse(projection, turn).await?;
                    return Err(error);
                }
                begun.is_rebuilding = true;
                from = 0;
            }
            (Some(_), true) => {}
        }
        let shadow = shadow_of(name);
        let step = self.step(projection, (&shadow, from), Target::Rebuild, turn);
        match step.await? {
            Step::Idle => {}
            step @ (Step::Moved | Step::TakenOver) => return Ok(step),
        }
        let failed = |source| RebuildError::Store {
            name: name.to_owned(),
            source,
        };
        // It has read all that readers see: what they see is read first in each round. Should the
        // answer get lost, it begins anew.
        begun.is_rebuilding = false;
        let (tables, marks) = (&projection.tables, [request_of(name), forgotten_of(name)]);
        let swapped = self.store.swap(turn, name, &shadow, tables, &marks);
        if !swapped.await.map_err(failed)? {
            return Ok(Step::TakenOver);
        }
        tracing::info!(projection = name, "rebuilt");
        Ok(Step::Moved)
    }

    /// Refuses what is to be built from the whole log, where retention has removed something of it.
    ///
    /// It says that nothing is missing only of what comes after a position that was noted before:
    /// retention may go past whatever is noted later.
    pub(super) async fn check_log(&self, name: &str, wanted: Wanted) -> Result<(), RebuildError> {
        let failed = |source| RebuildError::Store {
            name: name.to_owned(),
            source,
        };
        match wanted {
            Wanted::Partial => Ok(()),
            Wanted::Whole if self.store.has_removed().await.map_err(failed)? => {
                let name = name.to_owned();
                Err(failed(QueueError::Removed { name }))
            }
            Wanted::Whole => Ok(()),
        }
    }

    /// Takes away a request that cannot be served, and what there is of its rebuild: whoever asked is
    /// told the same, and the log is not kept for it.
    async fn refuse(&self, projection: &Projection, turn: &Turn) -> Result<(), RebuildError> {
        self.give_up(projection, turn).await?;
        let request = request_of(projection.name());
        let taken = self.store.forget_projection(Some(turn), &request, &[]);
        taken.await.map_err(|source| RebuildError::Store {
            name: projection.name.clone(),
            source,
        })?;
        Ok(())
    }

    /// Drops what there is of a rebuild, and says whether the turn was still ours: what is there may be
    /// the work of whoever has it now.
    async fn give_up(&self, projection: &Projection, turn: &Turn) -> Result<bool, RebuildError> {
        let (shadow, tables) = (shadow_of(projection.name()), &projection.tables);
        let dropped = self.store.forget_projection(Some(turn), &shadow, tables);
        let dropped = dropped.await;
        dropped.map_err(|source| RebuildError::Store {
            name: projection.name.clone(),
            source,
        })
    }
}
