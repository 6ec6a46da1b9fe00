//! Runs projections: the sequencer, then each of them a batch at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Clock, Env};
use tidegate_core::{Classify, Failure, FailureClass};

use super::{Projection, Target};
use crate::QueueError;
use crate::port::{QueueStore, Turn};
use crate::queue::Queue;

/// The turn of the one who gives positions.
const SEQUENCER: &str = "queue.sequencer";
/// Groups of events that get their positions at once.
const GROUPS: u32 = 1_000;

/// How projections are run.
#[derive(Debug, Clone)]
pub struct ProjectorOptions {
    /// The wait when there is nothing to do.
    pub poll_delay: Duration,
    /// How long a turn holds without renewal.
    pub lease: Duration,
}

impl Default for ProjectorOptions {
    fn default() -> Self {
        Self {
            poll_delay: Duration::from_millis(200),
            lease: Duration::from_secs(10),
        }
    }
}

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

/// What one step of a projection came to.
enum Step {
    /// It moved on.
    Moved,
    /// There is nothing to do.
    Idle,
    /// Somebody else has the turn.
    TakenOver,
}

/// Builds projections for as long as it runs. Several processes may run the same ones: each has one
/// owner at a time.
#[derive(Debug)]
pub struct Projector {
    store: Arc<dyn QueueStore>,
    owner: String,
    clock: Arc<dyn Clock>,
    options: ProjectorOptions,
    projections: Vec<Projection>,
}

impl Projector {
    /// A projector of these projections.
    #[must_use]
    pub fn new(
        queue: &Queue,
        projections: Vec<Projection>,
        options: ProjectorOptions,
        env: &Env,
    ) -> Self {
        Self {
            store: Arc::clone(queue.store()),
            owner: queue.owner().to_owned(),
            clock: Arc::clone(&env.clock),
            options,
            projections,
        }
    }

    /// Works until `shutdown` completes. If canceled, turns run out and others go on.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let working = async {
            let mut turns: BTreeMap<String, Turn> = BTreeMap::new();
            loop {
                let is_busy = self.round(&mut turns).await;
                if !is_busy {
                    self.clock.sleep(self.options.poll_delay).await;
                }
            }
        };
        tokio::select! {
            biased;
            () = shutdown => {}
            () = working => {}
        }
    }

    /// One round of everything; says whether there may be more at once.
    async fn round(&self, turns: &mut BTreeMap<String, Turn>) -> bool {
        let mut is_busy = false;
        match self.sequence(turns).await {
            Ok(count) => is_busy |= count >= u64::from(GROUPS),
            Err(error) => tracing::warn!(%error, "positions could not be given"),
        }
        for projection in &self.projections {
            match self.advance(projection, turns).await {
                Ok(Step::Moved) => is_busy = true,
                Ok(Step::Idle | Step::TakenOver) => {}
                Err(error) => {
                    tracing::warn!(%error, projection = projection.name(), "a projection stands");
                }
            }
        }
        is_busy
    }

    async fn turn(
        &self,
        name: &str,
        turns: &mut BTreeMap<String, Turn>,
    ) -> Result<Option<Turn>, QueueError> {
        if let Some(turn) = turns.get(name) {
            if self.store.keep_turn(turn, self.options.lease).await? {
                return Ok(Some(turn.clone()));
            }
            turns.remove(name);
        }
        let taken = self
            .store
            .take_turn(name, &self.owner, self.options.lease)
            .await?;
        if let Some(turn) = &taken {
            turns.insert(name.to_owned(), turn.clone());
        }
        Ok(taken)
    }

    async fn sequence(&self, turns: &mut BTreeMap<String, Turn>) -> Result<u64, QueueError> {
        match self.turn(SEQUENCER, turns).await? {
            Some(_) => self.store.sequence(GROUPS).await,
            None => Ok(0),
        }
    }

    async fn advance(
        &self,
        projection: &Projection,
        turns: &mut BTreeMap<String, Turn>,
    ) -> Result<Step, RebuildError> {
        let name = turn_name(projection);
        let is_new = !turns.contains_key(&name);
        let failed = |source| RebuildError::Store {
            name: projection.name.clone(),
            source,
        };
        let Some(turn) = self.turn(&name, turns).await.map_err(failed)? else {
            return Ok(Step::TakenOver);
        };
        if is_new {
            self.create(projection, Target::Live).await?;
        }
        self.step(projection, &projection.name, Target::Live, &turn)
            .await
    }

    async fn create(&self, projection: &Projection, target: Target) -> Result<(), RebuildError> {
        let failed = |source| RebuildError::Store {
            name: projection.name.clone(),
            source,
        };
        let mut tx = self.store.begin().await.map_err(failed)?;
        let created = (projection.create)(&mut tx, target).await;
        created.map_err(|source| RebuildError::Failed {
            name: projection.name.clone(),
            source,
        })?;
        tx.commit().await.map_err(failed)
    }

    /// One batch: the events, what they change, and the position, in one transaction.
    async fn step(
        &self,
        projection: &Projection,
        position_name: &str,
        target: Target,
        turn: &Turn,
    ) -> Result<Step, RebuildError> {
        let failed = |source| RebuildError::Store {
            name: projection.name.clone(),
            source,
        };
        let from = self.store.projection(position_name).await.map_err(failed)?;
        let page = self
            .store
            .read_log(from, projection.batch_size)
            .await
            .map_err(failed)?;
        if page.last <= from {
            return Ok(Step::Idle);
        }
        let mut tx = self.store.begin().await.map_err(failed)?;
        if !page.events.is_empty() {
            let applied = (projection.apply)(&mut tx, target, &page.events).await;
            applied.map_err(|source| RebuildError::Failed {
                name: projection.name.clone(),
                source,
            })?;
        }
        let advanced = self
            .store
            .advance(tx, turn, position_name, from, page.last)
            .await;
        if advanced.map_err(failed)? {
            Ok(Step::Moved)
        } else {
            Ok(Step::TakenOver)
        }
    }

    /// Builds a projection anew beside what readers see, from the first event of the log, and swaps
    /// it in whole.
    ///
    /// Returns once the new one is what readers see. If canceled, or if it fails, they see the old
    /// one; calling it again begins anew.
    ///
    /// # Errors
    /// There is no such projection, it failed, the store failed, or another process took over.
    pub async fn rebuild(&self, name: &str) -> Result<(), RebuildError> {
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
        let mut turns = BTreeMap::new();
        // Whoever builds it now goes on until we have the turn.
        let turn = loop {
            match self
                .turn(&turn_name(projection), &mut turns)
                .await
                .map_err(failed)?
            {
                Some(turn) => break turn,
                None => self.clock.sleep(self.options.poll_delay).await,
            }
        };
        let shadow = format!("{name}#rebuild");
        let store = &self.store;
        store
            .forget_projection(&shadow, &projection.tables)
            .await
            .map_err(failed)?;
        self.create(projection, Target::Rebuild).await?;
        let taken_over = || RebuildError::TakenOver {
            name: name.to_owned(),
        };
        loop {
            if !store
                .keep_turn(&turn, self.options.lease)
                .await
                .map_err(failed)?
            {
                return Err(taken_over());
            }
            match self
                .step(projection, &shadow, Target::Rebuild, &turn)
                .await?
            {
                Step::Moved => {}
                Step::Idle => break,
                Step::TakenOver => return Err(taken_over()),
            }
        }
        let swapped = store.swap(&turn, name, &shadow, &projection.tables).await;
        if !swapped.map_err(failed)? {
            return Err(taken_over());
        }
        store
            .keep_turn(&turn, Duration::ZERO)
            .await
            .map_err(failed)?;
        Ok(())
    }
}

fn turn_name(projection: &Projection) -> String {
    format!("projection.{}", projection.name)
}
