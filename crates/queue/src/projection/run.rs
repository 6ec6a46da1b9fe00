//! Runs projections: the sequencer, then each of them a batch at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Clock, Env};

use super::rebuild::RebuildError;
use super::request::request_of;
use super::{Projection, Target};
use crate::QueueError;
use crate::port::{QueueStore, Turn};
use crate::queue::Queue;

/// The turn of the one who gives positions.
const SEQUENCER: &str = "queue.sequencer";
/// Groups of events that get their positions at once.
const GROUPS: u32 = 1_000;

/// How long giving turns back may take: a database that is away must not hold up the stop.
const GIVING_BACK: Duration = Duration::from_secs(1);

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

/// What one step of a projection came to.
pub(super) enum Step {
    /// It moved on.
    Moved,
    /// There is nothing to do.
    Idle,
    /// Somebody else has the turn.
    TakenOver,
}

/// What a projector holds and is at. Whoever dies takes it along, and the next one begins from what
/// the store knows.
#[derive(Debug, Default)]
pub(super) struct Work {
    turns: Turns,
    /// How far we are under each turn, by projection.
    pub(super) begun: BTreeMap<String, Begun>,
}

/// The turns that are ours, by name.
pub(super) type Turns = BTreeMap<String, OurTurn>;

/// A turn that is ours as far as we know: whatever it is a right to is fenced by its token.
#[derive(Debug)]
pub(super) struct OurTurn {
    turn: Turn,
    /// When it was last renewed, at the latest; none when it must be asked for at once.
    renewed: Option<Duration>,
}

/// What was begun under a turn. Under a later one somebody else may have been at it in between.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Begun {
    token: i64,
    is_created: bool,
    pub(super) is_rebuilding: bool,
}

/// Builds projections for as long as it runs. Several processes may run the same ones: each has one
/// owner at a time.
#[derive(Debug)]
pub struct Projector {
    pub(super) store: Arc<dyn QueueStore>,
    owner: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: ProjectorOptions,
    pub(super) projections: Vec<Projection>,
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

    /// Works until `shutdown` completes; then gives its turns back, so that others go on at once. If
    /// canceled, they run out and others go on after that.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let mut work = Work::default();
        let working = async {
            loop {
                let is_busy = self.round(&mut work).await;
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
        let giving_back = async {
            for OurTurn { turn, .. } in work.turns.values() {
                if let Err(error) = self.store.keep_turn(turn, Duration::ZERO).await {
                    tracing::debug!(%error, turn = turn.name, "a turn is left to run out");
                }
            }
        };
        tokio::select! {
            biased;
            () = giving_back => {}
            () = self.clock.sleep(GIVING_BACK) => {}
        }
    }

    /// One round of everything; says whether there may be more at once.
    async fn round(&self, work: &mut Work) -> bool {
        let mut is_busy = false;
        match self.sequence(&mut work.turns).await {
            Ok(count) => is_busy |= count >= u64::from(GROUPS),
            Err(error) => tracing::warn!(%error, "positions could not be given"),
        }
        if self.projections.is_empty() {
            return is_busy;
        }
        let known = match self.store.projections().await {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "projections could not be read");
                return is_busy;
            }
        };
        for projection in &self.projections {
            let request = request_of(projection.name());
            let is_wanted = known.iter().any(|(name, _)| *name == request);
            match self.attend(projection, is_wanted, work).await {
                Ok(Step::Moved) => is_busy = true,
                Ok(Step::Idle | Step::TakenOver) => {}
                Err(error) => {
                    tracing::warn!(%error, projection = projection.name(), "a projection stands");
                }
            }
        }
        is_busy
    }

    /// The turn of `name`, where it is ours or free. One that is ours is renewed three times per
    /// lease and not at every round, which would be a synced write each.
    pub(super) async fn turn(
        &self,
        name: &str,
        turns: &mut Turns,
    ) -> Result<Option<Turn>, QueueError> {
        // Before the call: the lease begins at some time within it.
        let now = self.clock.elapsed();
        if let Some(ours) = turns.get_mut(name) {
            let is_fresh = |renewed: Duration| now < renewed + self.options.lease / 3;
            if ours.renewed.is_some_and(is_fresh) {
                return Ok(Some(ours.turn.clone()));
            }
            if self.store.keep_turn(&ours.turn, self.options.lease).await? {
                ours.renewed = Some(now);
                return Ok(Some(ours.turn.clone()));
            }
            turns.remove(name);
        }
        let taken = self
            .store
            .take_turn(name, &self.owner, self.options.lease)
            .await?;
        if let Some(turn) = &taken {
            let ours = OurTurn {
                turn: turn.clone(),
                renewed: Some(now),
            };
            turns.insert(name.to_owned(), ours);
        }
        Ok(taken)
    }

    async fn sequence(&self, turns: &mut Turns) -> Result<u64, QueueError> {
        if self.turn(SEQUENCER, turns).await?.is_none() {
            return Ok(0);
        }
        let sequenced = self.store.sequence(GROUPS).await;
        if sequenced.is_err()
            && let Some(ours) = turns.get_mut(SEQUENCER)
        {
            // It may be because somebody else does it, so the next round asks.
            ours.renewed = None;
        }
        sequenced
    }

    /// One batch of what readers see, and one of its rebuild where that is asked for.
    async fn attend(
        &self,
        projection: &Projection,
        is_wanted: bool,
        work: &mut Work,
    ) -> Result<Step, RebuildError> {
        let Some(turn) = self.hold(projection, work).await? else {
            return Ok(Step::TakenOver);
        };
        let live = self
            .step(projection, &projection.name, Target::Live, &turn)
            .await;
        // Also where that one stands: a rebuild may be what mends it.
        let rebuilt = self.follow(projection, is_wanted, &turn, work).await;
        let (live, rebuilt) = (live?, rebuilt?);
        let is_taken = |step: &Step| matches!(step, Step::TakenOver);
        if is_taken(&live) || is_taken(&rebuilt) {
            // Somebody knows better than we do, so the next round asks.
            if let Some(ours) = work.turns.get_mut(&turn_name(projection)) {
                ours.renewed = None;
            }
        }
        Ok(match (live, rebuilt) {
            (Step::Moved, _) | (_, Step::Moved) => Step::Moved,
            (live, _) => live,
        })
    }

    /// The turn of a projection whose tables are there; none while somebody else has it.
    async fn hold(
        &self,
        projection: &Projection,
        work: &mut Work,
    ) -> Result<Option<Turn>, RebuildError> {
        let held = self.turn(&turn_name(projection), &mut work.turns).await;
        let held = held.map_err(|source| RebuildError::Store {
            name: projection.name.clone(),
            source,
        })?;
        let Some(turn) = held else {
            work.begun.remove(projection.name());
            return Ok(None);
        };
        let begun = work.begun.entry(projection.name.clone()).or_default();
        if begun.token != turn.token {
            *begun = Begun {
                token: turn.token,
                ..Begun::default()
            };
        }
        if !begun.is_created {
            self.create(projection, Target::Live).await?;
            begun.is_created = true;
        }
        Ok(Some(turn))
    }

    pub(super) async fn create(
        &self,
        projection: &Projection,
        target: Target,
    ) -> Result<(), RebuildError> {
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
    pub(super) async fn step(
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
            // Making the future is the projection's code too, so that it is made where panics are
            // caught.
            let (lent, events) = (&mut tx, &page.events);
            let applying = Box::pin(async { (projection.apply)(lent, target, events).await });
            if !self.guard(projection, turn, applying).await? {
                return Ok(Step::TakenOver);
            }
        }
        let advanced = self
            .store
            .advance(tx, turn, position_name, from, page.last)
            .await;
        if advanced.map_err(failed)? {
            Ok(Step::Moved)
        } else {
            let name = projection.name();
            tracing::warn!(name, "a batch was taken back: somebody else has the turn");
            Ok(Step::TakenOver)
        }
    }
}

pub(super) fn turn_name(projection: &Projection) -> String {
    format!("projection.{}", projection.name)
}
