//! Asking for a rebuild from a process that does not have the projection.
//!
//! A request is a row `name#wanted` of `event_projection`, beside `name` and the `name#rebuild` of a
//! rebuild that is under way; no name of a projection holds a `#`. Its position is below the first, so
//! that nothing of the log is removed before the rebuild has read it. The projector that runs it finds
//! the row, rebuilds, and takes it away with the swap; a crash before leaves it, and the rebuild begins
//! anew.
//!
//! A projection that was forgotten leaves a row `name#forgotten`: its tables still hold what it had
//! built, so that whoever runs it again must not begin with the first event on top of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

use crate::QueueError;
use crate::queue::Queue;

/// How long the leadership of a projection is held to forget it: these are a few statements.
const LEADERSHIP_SPAN: Duration = Duration::from_secs(5);

/// The events that a rebuild is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RebuildMode {
    /// The whole log, or it is refused.
    Whole,
    /// The events that retention has left.
    Partial,
}

impl RebuildMode {
    /// The position by which it is asked for. The lower one stands, so that what was asked for in
    /// spite of everything stays so.
    fn position(self) -> i64 {
        match self {
            Self::Whole => 0,
            Self::Partial => -1,
        }
    }

    /// The mode that a position asks for.
    pub(super) fn of(position: i64) -> Self {
        match position < 0 {
            true => Self::Partial,
            false => Self::Whole,
        }
    }
}

/// The name under which a projection is rebuilt.
pub(super) fn shadow_of(name: &str) -> String {
    format!("{name}#rebuild")
}

/// The name of a request to rebuild a projection.
pub(super) fn request_of(name: &str) -> String {
    format!("{name}#wanted")
}

/// The name of the mark that a projection was forgotten. Its position is the last there can be, so that
/// nothing of the log is kept for it.
pub(super) fn forgotten_of(name: &str) -> String {
    format!("{name}#forgotten")
}

/// The right to build a projection.
pub(super) fn leadership_of(name: &str) -> String {
    format!("projection.{name}")
}

/// How far a projection is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProjectionState {
    /// Its name.
    pub name: String,
    /// The last position that readers see in it.
    pub position: i64,
    /// How many positions it is behind.
    pub lag: i64,
    /// A rebuild that is asked for or under way.
    pub rebuild: Option<Rebuild>,
}

/// A rebuild that has not come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Rebuild {
    /// Nobody has begun with it.
    Requested,
    /// It is under way.
    Running {
        /// The last position that it has read.
        position: i64,
    },
}

impl Queue {
    /// How far every projection is, by name.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn projections(&self) -> Result<Vec<ProjectionState>, QueueError> {
        let head = self.store().read_log(0, 1).await?.head;
        let positions = self.store().projections().await?;
        Ok(states(&positions.into_iter().collect(), head))
    }

    /// Asks whoever runs the projection to rebuild it: a [`Projector`](crate::Projector) of any
    /// process, now or when one is started.
    ///
    /// Returns once the request would survive a power cut. If canceled, it is made or not. Asking
    /// twice asks once.
    ///
    /// # Errors
    /// No projection of this name has begun, retention has removed events that it had seen, or the
    /// database is away or refused.
    pub async fn request_rebuild(&self, name: &str) -> Result<(), QueueError> {
        let removed = || QueueError::EventsRemoved {
            name: name.to_owned(),
        };
        if self.store().has_removed().await? {
            return Err(removed());
        }
        self.request(name, RebuildMode::Whole).await?;
        // From the request on nothing is removed, but something may have been until then. A projector
        // that finds the request asks the same.
        if self.store().has_removed().await? {
            self.withdraw_rebuild(name).await?;
            return Err(removed());
        }
        Ok(())
    }

    /// The same for a projection that can do without the events that retention has removed: what is
    /// swapped in is built from those that are left.
    ///
    /// # Errors
    /// No projection of this name has begun, or the database is away or refused.
    pub async fn request_partial_rebuild(&self, name: &str) -> Result<(), QueueError> {
        self.request(name, RebuildMode::Partial).await
    }

    async fn request(&self, name: &str, wanted: RebuildMode) -> Result<(), QueueError> {
        let unknown = || QueueError::UnknownProjection {
            name: name.to_owned(),
        };
        if name.contains('#') {
            return Err(unknown());
        }
        let (request, position) = (request_of(name), wanted.position());
        let noted = self.store().note_position(name, &request, position);
        noted.await?.then_some(()).ok_or_else(unknown)
    }

    /// How often a rebuild of a projection was swapped in: whether one that was asked for is done, or
    /// was taken back, is told by that.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn rebuilds(&self, name: &str) -> Result<u64, QueueError> {
        self.store().rebuilds(name).await
    }

    /// Takes a request back. A rebuild that is under way is given up, and readers see what they saw.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn withdraw_rebuild(&self, name: &str) -> Result<(), QueueError> {
        let store = self.store();
        store
            .forget_projection(None, &[request_of(name)], &[])
            .await?;
        Ok(())
    }

    /// Forgets a projection that is gone for good, so that the log is not kept for it any more. Its
    /// tables stay; should it run again, it is rebuilt from the first event of the log beside them, and
    /// swapped in. Where retention has removed events by then, it stands until a partial rebuild is asked
    /// for.
    ///
    /// Returns once that would survive a power cut. Forgetting it twice changes nothing.
    ///
    /// # Errors
    /// A process runs it, or the database is away or refused.
    pub async fn forget_projection(&self, name: &str) -> Result<(), QueueError> {
        let store = self.store();
        let leadership = store
            .acquire_leadership(&leadership_of(name), self.owner(), LEADERSHIP_SPAN)
            .await?;
        let runs = || QueueError::ProjectionRuns {
            name: name.to_owned(),
        };
        let leadership = leadership.ok_or_else(runs)?;
        let mark = forgotten_of(name);
        let known = store.projections().await?;
        if !known.iter().any(|(known, _)| *known == mark) {
            let tx = store.begin().await?;
            let is_kept = store.advance(tx, &leadership, &mark, 0, i64::MAX).await?;
            is_kept.then_some(()).ok_or_else(runs)?;
        }
        let names = [name.to_owned(), request_of(name), shadow_of(name)];
        let is_kept = store
            .forget_projection(Some(&leadership), &names, &[])
            .await?;
        is_kept.then_some(()).ok_or_else(runs)?;
        store.renew_leadership(&leadership, Duration::ZERO).await?;
        Ok(())
    }
}

/// The projections among these positions, with what is asked for and under way beside them.
fn states(positions: &BTreeMap<String, i64>, head: i64) -> Vec<ProjectionState> {
    // Also one that has no position itself: what was begun of it holds retention back.
    let names = positions
        .keys()
        .filter_map(|name| match name.split_once('#') {
            None => Some(name.as_str()),
            Some((of, "rebuild" | "wanted")) => Some(of),
            Some(_) => None,
        });
    let names: BTreeSet<&str> = names.collect();
    let state = names.into_iter().map(|name| {
        let position = positions.get(name).copied().unwrap_or(0);
        let running = positions.get(&shadow_of(name));
        let running = running.map(|at| Rebuild::Running { position: *at });
        let is_requested = positions.contains_key(&request_of(name));
        ProjectionState {
            name: name.to_owned(),
            position,
            lag: (head - position).max(0),
            rebuild: running.or(is_requested.then_some(Rebuild::Requested)),
        }
    });
    state.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebuild_under_way_belongs_to_its_projection() {
        let rows = [
            ("a", 7),
            ("a#rebuild", 3),
            ("a#wanted", 0),
            ("b", 9),
            ("b#wanted", 0),
            ("c", 10),
            ("d#forgotten", i64::MAX),
            ("e#forgotten", i64::MAX),
            ("e#rebuild", 4),
        ];
        let positions = rows.map(|(name, at)| (name.to_owned(), at));
        let states = states(&positions.into_iter().collect(), 9);
        let shown: Vec<_> = states
            .iter()
            .map(|state| (state.name.as_str(), state.lag, state.rebuild))
            .collect();
        assert_eq!(
            shown,
            [
                ("a", 2, Some(Rebuild::Running { position: 3 })),
                ("b", 0, Some(Rebuild::Requested)),
                ("c", 0, None),
                ("e", 9, Some(Rebuild::Running { position: 4 })),
            ]
        );
    }
}
