//! Runs projections: the sequencer and each of them as a task of its own, so that none of them waits
//! for another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{CatchPanic, Clock, Env, Spawn, Task};
use tokio::sync::watch;

use super::rebuild::RebuildError;
use super::request::{RebuildMode, forgotten_of, leadership_of, request_of, shadow_of};
use super::{Projection, Target};
use crate::QueueError;
use crate::port::{Leadership, QueueStore};
use crate::queue::Queue;

/// The leadership of the one who gives positions.
pub(crate) const SEQUENCER: &str = "queue.sequencer";
/// Groups of events that get their positions at once.
pub(crate) const GROUPS: u32 = 1_000;

/// How long giving leadership back may take: a database that is away must not hold up the stop.
const GIVING_BACK: Duration = Duration::from_secs(1);

/// How projections are run; the keys of the section `queue.projection`.
#[derive(Debug, Clone)]
pub struct ProjectorOptions {
    /// The wait when there is nothing to do: `queue.poll-delay-ms`.
    pub poll_delay: Duration,
    /// How long leadership holds without renewal: `lease`. When a process dies, its projections and its
    /// share of the order stand still for so long.
    pub lease: Duration,
    /// How long one batch, or making the tables, may take: `timeout`. A projection may have a limit
    /// of its own.
    pub timeout: Duration,
}

impl Default for ProjectorOptions {
    fn default() -> Self {
        Self {
            poll_delay: Duration::from_millis(200),
            lease: Duration::from_secs(10),
            timeout: Duration::from_secs(300),
        }
    }
}

/// The outcome of one step of a projection.
pub(super) enum ProjectionStep {
    /// It moved on.
    Moved,
    /// There is nothing to do.
    Idle,
    /// Somebody else has the leadership.
    TakenOver,
}

/// The state of a task. A process that dies takes it along, and the next one begins from what the
/// store knows.
#[derive(Debug, Default)]
pub(super) struct ProjectorState {
    leadership: Option<HeldLeadership>,
    /// How far a projection is under its leadership.
    pub(super) begun: TaskProgress,
}

/// Leadership that is ours as far as we know: whatever it is a right to is fenced by its token.
#[derive(Debug)]
struct HeldLeadership {
    leadership: Leadership,
    /// When it was last renewed, at the latest; none when it must be asked for at once.
    renewed: Option<Duration>,
}

/// The work begun under a leadership. Under a later one another process may have worked in between.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TaskProgress {
    token: i64,
    is_created: bool,
    pub(super) is_rebuilding: bool,
}

/// The work of a task.
#[derive(Debug)]
enum Part {
    /// It gives positions.
    Sequencer,
    /// It builds a projection.
    Projection(Projection),
}

impl Part {
    /// The name of its leadership.
    fn leadership_name(&self) -> String {
        match self {
            Self::Sequencer => SEQUENCER.to_owned(),
            Self::Projection(projection) => leadership_name(projection),
        }
    }
}

/// Builds projections for as long as it runs. Several processes may run the same ones: each has one
/// owner at a time.
#[derive(Debug)]
pub struct Projector {
    pub(super) store: Arc<dyn QueueStore>,
    owner: String,
    pub(super) clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
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
            spawn: Arc::clone(&env.spawn),
            options,
            projections,
        }
    }

    /// Works until `shutdown` completes; then gives its leadership back, so that others go on at once. If
    /// canceled, they run out and others go on after that.
    ///
    /// The sequencer and every projection are tasks of their own: one that hangs holds up itself
    /// alone, until its time limit. On SQLite a batch that is open keeps everybody else from
    /// writing.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let clock = Arc::clone(&self.clock);
        let projector = Arc::new(self);
        let (stop, stopped) = watch::channel(false);
        let parts = projector.projections.iter().cloned();
        let parts = parts.map(Part::Projection).chain([Part::Sequencer]);
        let tasks = parts.map(|part| {
            let name = part.leadership_name();
            let task = Arc::clone(&projector).serve(part, stopped.clone());
            projector.spawn.spawn(&name, Box::pin(task))
        });
        let _tasks = Tasks(tasks.collect());
        drop(stopped);
        shutdown.await;
        stop.send(true).ok();
        tokio::select! {
            biased;
            // Each task has an end of the channel until it is done.
            () = stop.closed() => {}
            () = clock.sleep(GIVING_BACK) => {}
        }
    }

    /// One task: works until the stop, then gives its leadership back.
    async fn serve(self: Arc<Self>, part: Part, mut stopped: watch::Receiver<bool>) {
        let mut work = ProjectorState::default();
        let working = async {
            loop {
                let round = CatchPanic(Box::pin(self.round(&part, &mut work))).await;
                match round {
                    Ok(true) => {}
                    Ok(false) => self.clock.sleep(self.options.poll_delay).await,
                    Err(panic) => {
                        // Nobody knows how far it came; the store does.
                        work = ProjectorState::default();
                        tracing::error!(
                            panic,
                            name = part.leadership_name(),
                            "projection task panicked; restarting it"
                        );
                        self.clock.sleep(self.options.poll_delay).await;
                    }
                }
            }
        };
        tokio::select! {
            biased;
            // An error means that nobody is left to say stop.
            _ = stopped.wait_for(|stop| *stop) => {}
            () = working => {}
        }
        let Some(HeldLeadership { leadership, .. }) = &work.leadership else {
            return;
        };
        if let Err(error) = self
            .store
            .renew_leadership(leadership, Duration::ZERO)
            .await
        {
            tracing::debug!(%error, leadership = leadership.name, "could not release the leadership; letting it expire");
        }
    }

    /// One round of a task; says whether there may be more at once.
    async fn round(&self, part: &Part, work: &mut ProjectorState) -> bool {
        match part {
            Part::Sequencer => match self.sequence(work).await {
                Ok(count) => count >= u64::from(GROUPS),
                Err(error) => {
                    tracing::warn!(%error, "could not assign log positions");
                    false
                }
            },
            Part::Projection(projection) => match self.attend(projection, work).await {
                Ok(ProjectionStep::Moved) => true,
                Ok(ProjectionStep::Idle | ProjectionStep::TakenOver) => false,
                Err(error) => {
                    tracing::warn!(%error, projection = projection.name(), "projection is stuck; retrying");
                    false
                }
            },
        }
    }

    /// The leadership of `name`, where it is ours or free. One that is ours is renewed three times per
    /// lease and not at every round, which would be a synced write each.
    pub(super) async fn leadership(
        &self,
        name: &str,
        work: &mut ProjectorState,
    ) -> Result<Option<Leadership>, QueueError> {
        // Before the call: the lease begins at some time within it.
        let now = self.clock.elapsed();
        if let Some(ours) = &mut work.leadership {
            let is_fresh = |renewed: Duration| now < renewed + self.options.lease / 3;
            if ours.renewed.is_some_and(is_fresh) {
                return Ok(Some(ours.leadership.clone()));
            }
            let lease = self.options.lease;
            if self.store.renew_leadership(&ours.leadership, lease).await? {
                ours.renewed = Some(now);
                return Ok(Some(ours.leadership.clone()));
            }
            work.leadership = None;
        }
        let taken = self
            .store
            .acquire_leadership(name, &self.owner, self.options.lease)
            .await?;
        work.leadership = taken.clone().map(|leadership| HeldLeadership {
            leadership,
            renewed: Some(now),
        });
        Ok(taken)
    }

    async fn sequence(&self, work: &mut ProjectorState) -> Result<u64, QueueError> {
        if self.leadership(SEQUENCER, work).await?.is_none() {
            return Ok(0);
        }
        let sequenced = self.store.sequence(GROUPS).await;
        if sequenced.is_err()
            && let Some(ours) = &mut work.leadership
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
        work: &mut ProjectorState,
    ) -> Result<ProjectionStep, RebuildError> {
        let Some(leadership) = self.hold(projection, work).await? else {
            return Ok(ProjectionStep::TakenOver);
        };
        let known = self.store.projections().await;
        let known = known.map_err(RebuildError::store(&projection.name))?;
        let known: BTreeMap<String, i64> = known.into_iter().collect();
        let at = |name: &str| known.get(name).copied();
        let from = at(projection.name()).unwrap_or(0);
        let requested = at(&request_of(projection.name())).map(RebuildMode::of);
        // Its tables hold what it had built before: it is built beside them.
        let is_forgotten = at(&forgotten_of(projection.name())).is_some();
        let wanted = requested.or(is_forgotten.then_some(RebuildMode::Whole));
        let live = match is_forgotten {
            // Not where the log lacks what its tables hold, unless that is asked for.
            true => {
                let wanted = requested.unwrap_or(RebuildMode::Whole);
                let checked = self.check_log(projection.name(), wanted).await;
                checked.map(|()| ProjectionStep::Idle)
            }
            false => {
                let at = (projection.name(), from);
                self.step(projection, at, Target::Live, &leadership).await
            }
        };
        if is_forgotten && live.is_err() {
            return live;
        }
        let shadow = at(&shadow_of(projection.name()));
        // Also where that one stands: a rebuild may be what mends it.
        let rebuilt = self
            .follow(projection, wanted, shadow, &leadership, &mut work.begun)
            .await;
        let (live, rebuilt) = (live?, rebuilt?);
        let is_taken = |step: &ProjectionStep| matches!(step, ProjectionStep::TakenOver);
        if (is_taken(&live) || is_taken(&rebuilt))
            && let Some(ours) = &mut work.leadership
        {
            // Somebody knows better than we do, so the next round asks.
            ours.renewed = None;
        }
        Ok(match (live, rebuilt) {
            (ProjectionStep::Moved, _) | (_, ProjectionStep::Moved) => ProjectionStep::Moved,
            (live, _) => live,
        })
    }

    /// The leadership of a projection whose tables are there; none while somebody else has it.
    async fn hold(
        &self,
        projection: &Projection,
        work: &mut ProjectorState,
    ) -> Result<Option<Leadership>, RebuildError> {
        let held = self.leadership(&leadership_name(projection), work).await;
        let held = held.map_err(RebuildError::store(&projection.name));
        let Some(leadership) = held? else {
            return Ok(None);
        };
        if work.begun.token != leadership.token {
            work.begun = TaskProgress {
                token: leadership.token,
                ..TaskProgress::default()
            };
        }
        if !work.begun.is_created {
            if !self.create(projection, Target::Live, &leadership).await? {
                work.leadership = None;
                return Ok(None);
            }
            work.begun.is_created = true;
        }
        Ok(Some(leadership))
    }

    /// Makes the tables of a projection where they are missing, and says whether the leadership was kept.
    pub(super) async fn create(
        &self,
        projection: &Projection,
        target: Target,
        leadership: &Leadership,
    ) -> Result<bool, RebuildError> {
        let failed = RebuildError::store(&projection.name);
        let name = match target {
            Target::Live => projection.name.clone(),
            Target::Rebuild => shadow_of(&projection.name),
        };
        let at = self.store.projection(&name).await.map_err(failed)?;
        // Its position is there before its tables: from now on retention waits for it, also while
        // making them, or its first batch, goes wrong.
        let tx = self.store.begin().await.map_err(failed)?;
        let kept = self.store.advance(tx, leadership, &name, at, at).await;
        if !kept.map_err(failed)? {
            return Ok(false);
        }
        let mut tx = self.store.begin().await.map_err(failed)?;
        let lent = &mut tx;
        let creating = Box::pin(async { (projection.create)(lent, target).await });
        if !self.guard(projection, leadership, creating).await? {
            return Ok(false);
        }
        let kept = self.store.advance(tx, leadership, &name, at, at).await;
        kept.map_err(failed)
    }

    /// One batch: the events, what they change, and the position, in one transaction. The position is
    /// that of a name, and where it is.
    pub(super) async fn step(
        &self,
        projection: &Projection,
        (name, from): (&str, i64),
        target: Target,
        leadership: &Leadership,
    ) -> Result<ProjectionStep, RebuildError> {
        let failed = RebuildError::store(&projection.name);
        let page = self.store.read_log(from, projection.batch_size);
        let page = page.await.map_err(failed)?;
        if page.last <= from {
            return Ok(ProjectionStep::Idle);
        }
        let mut tx = self.store.begin().await.map_err(failed)?;
        if !page.events.is_empty() {
            // Making the future is the projection's code too, so that it is made where panics are
            // caught.
            let (lent, events) = (&mut tx, &page.events);
            let applying = Box::pin(async { (projection.apply)(lent, target, events).await });
            if !self.guard(projection, leadership, applying).await? {
                return Ok(ProjectionStep::TakenOver);
            }
        }
        let advanced = self
            .store
            .advance(tx, leadership, name, from, page.last)
            .await;
        if advanced.map_err(failed)? {
            Ok(ProjectionStep::Moved)
        } else {
            tracing::warn!(
                name,
                "another process has the leadership; batch rolled back"
            );
            Ok(ProjectionStep::TakenOver)
        }
    }
}

/// Tasks that end with whoever started them.
struct Tasks(Vec<Task>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(Task::abort);
    }
}

pub(super) fn leadership_name(projection: &Projection) -> String {
    leadership_of(&projection.name)
}
