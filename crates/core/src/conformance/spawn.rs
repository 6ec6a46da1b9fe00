//! Rules of [`Spawn`].

use tokio::sync::{mpsc, oneshot};

use crate::env::{BoxFuture, Spawn, Task, TaskOutcome};

/// Starts a task in one of the two ways.
type Start = fn(&dyn Spawn, &str, BoxFuture<'static>) -> Task;

const WAYS: [Start; 2] = [
    |spawn, name, task| spawn.spawn(name, task),
    |spawn, name, task| spawn.spawn_thread(name, task),
];

/// A task runs to its end and says so.
pub async fn a_task_runs_to_its_end(spawn: &dyn Spawn) {
    for start in WAYS {
        let (tell, told) = oneshot::channel();
        let task = start(
            spawn,
            "teller",
            Box::pin(async move {
                tell.send(7).ok();
            }),
        );
        assert_eq!(told.await, Ok(7));
        assert_eq!(task.join().await, TaskOutcome::Completed);
    }
}

/// A panic ends one task, reaches whoever joins it, and nobody else.
pub async fn a_panic_ends_one_task_and_is_reported(spawn: &dyn Spawn) {
    for start in WAYS {
        let (keep, mut kept) = mpsc::channel::<u32>(1);
        let other = start(
            spawn,
            "other",
            Box::pin(async move {
                keep.send(1).await.ok();
                keep.send(2).await.ok();
            }),
        );
        let failing = start(
            spawn,
            "failing",
            Box::pin(async { panic!("on purpose {}", 1) }),
        );
        assert_eq!(
            failing.join().await,
            TaskOutcome::Panicked("on purpose 1".to_owned())
        );
        assert_eq!((kept.recv().await, kept.recv().await), (Some(1), Some(2)));
        assert_eq!(other.join().await, TaskOutcome::Completed);
    }
}

/// An aborted task ends at its next await, and aborting again changes nothing.
pub async fn an_aborted_task_ends_at_its_next_await(spawn: &dyn Spawn) {
    for start in WAYS {
        let (begun, has_begun) = oneshot::channel();
        let task = start(
            spawn,
            "waiting",
            Box::pin(async move {
                begun.send(()).ok();
                std::future::pending::<()>().await;
            }),
        );
        assert_eq!(has_begun.await, Ok(()));
        task.abort();
        task.abort();
        assert_eq!(task.join().await, TaskOutcome::Aborted);
    }
}

/// A task whose handle is dropped runs on.
pub async fn a_task_runs_on_when_its_handle_is_dropped(spawn: &dyn Spawn) {
    for start in WAYS {
        let (go, gone) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        drop(start(
            spawn,
            "detached",
            Box::pin(async move {
                gone.await.ok();
                tell.send(()).ok();
            }),
        ));
        go.send(()).ok();
        assert_eq!(told.await, Ok(()));
    }
}

/// One test per rule; `$run` is a macro that is given the rule.
#[macro_export]
macro_rules! spawn_conformance {
    ($run:path) => {
        $crate::conformance_tests!(
            $run,
            $crate::conformance::spawn,
            [
                a_task_runs_to_its_end,
                a_panic_ends_one_task_and_is_reported,
                an_aborted_task_ends_at_its_next_await,
                a_task_runs_on_when_its_handle_is_dropped,
            ]
        );
    };
}
