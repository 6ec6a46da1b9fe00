//! `tidegate projection`: the read models made from the queue's log.
//!
//! How a projection is built is code of an application, which this program does not have. So a
//! rebuild is asked for here, and done by the process that runs the projection.

use std::time::Duration;

use serde_json::json;
use tidegate_core::env::{Clock, Env};
use tidegate_queue::{ProjectionState, QueueError, Rebuild};

use super::queue::open;
use crate::args::{Output, ProjectionArgs, ProjectionRebuild, StoreAt};
use crate::confirm::confirm;
use crate::progress::{ProgressLine, ProgressUnit};
use crate::report::{ErrorReport, Exit, say};
use crate::store::OpenedStore;
use crate::table;

/// How often it is looked whether a rebuild goes on.
const PAUSE: Duration = Duration::from_millis(200);
/// After so long without a beginning, people are told what it waits for.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn run(command: &ProjectionArgs, output: Output) -> Result<Exit, ErrorReport> {
    match command {
        ProjectionArgs::Ls(at) => list(at, output).await,
        ProjectionArgs::Rebuild(arguments) => rebuild(arguments, output).await,
        ProjectionArgs::Forget { name, yes, at } => forget(name, *yes, at, output).await,
    }
}

async fn list(at: &StoreAt, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(at).await?;
    let states = opened.checked(opened.queue.projections().await)?;
    output.print(&json!({ "projections": states }), || {
        if states.is_empty() {
            return "no projection has begun".to_owned();
        }
        let rows = states.iter().map(|state| {
            vec![
                state.name.clone(),
                state.position.to_string(),
                state.lag.to_string(),
                rebuild_text(state.rebuild),
            ]
        });
        let header = ["projection", "position", "lag", "rebuild"];
        table::grid(&header, rows.collect())
    })?;
    Ok(Exit::Ok)
}

fn rebuild_text(rebuild: Option<Rebuild>) -> String {
    match rebuild {
        None => String::new(),
        Some(Rebuild::Requested) => "asked for".to_owned(),
        Some(Rebuild::Running { position }) => format!("at {position}"),
    }
}

async fn rebuild(arguments: &ProjectionRebuild, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(&arguments.at).await?;
    let name = arguments.name.as_str();
    // Also for taking a request back, so that a wrong name is said.
    state_of(&opened, name).await?;
    let what = if arguments.withdraw {
        opened.checked(opened.queue.withdraw_rebuild(name).await)?;
        "withdrawn"
    } else {
        let before = opened.checked(opened.queue.rebuilds(name).await)?;
        let requested = match arguments.partial {
            true => opened.queue.request_partial_rebuild(name).await,
            false => opened.queue.request_rebuild(name).await,
        };
        opened.checked(requested)?;
        match arguments.no_wait {
            true => "requested",
            false => {
                let env = Env::system();
                wait(&opened, name, arguments.timeout, &*env.clock).await?;
                let after = opened.checked(opened.queue.rebuilds(name).await)?;
                if after <= before {
                    return Err(withdrawn(name));
                }
                "rebuilt"
            }
        }
    };
    let document = json!({ "projection": name, "state": what });
    output.print(&document, || format!("{name}: {what}"))?;
    Ok(Exit::Ok)
}

async fn state_of(opened: &OpenedStore, name: &str) -> Result<ProjectionState, ErrorReport> {
    let states = opened.checked(opened.queue.projections().await)?;
    let found = states.into_iter().find(|state| state.name == name);
    let name = name.to_owned();
    opened.checked(found.ok_or(QueueError::UnknownProjection { name }))
}

/// Returns once the request is gone: it was served, or taken back.
async fn wait(
    opened: &OpenedStore,
    name: &str,
    limit: Option<Duration>,
    clock: &dyn Clock,
) -> Result<(), ErrorReport> {
    let begun = clock.elapsed();
    let progress = ProgressLine::begin("projection rebuild", ProgressUnit::Events);
    let mut is_told = false;
    loop {
        let state = state_of(opened, name).await?;
        let Some(rebuild) = state.rebuild else {
            return Ok(());
        };
        let waited = clock.elapsed().saturating_sub(begun);
        if limit.is_some_and(|limit| waited >= limit) {
            return Err(unserved(name, rebuild));
        }
        match rebuild {
            Rebuild::Requested if waited >= PATIENCE && !is_told => {
                is_told = true;
                say(&format!(
                    "no process has begun with `{name}` yet: is one that has this projection \
                     running? The request stays until it is served"
                ));
            }
            Rebuild::Running { position } => {
                let number = |count: i64| u64::try_from(count).unwrap_or(0);
                let total = number(state.position + state.lag);
                progress.counted().set(number(position), total);
            }
            Rebuild::Requested => {}
        }
        clock.sleep(PAUSE).await;
    }
}

fn unserved(name: &str, rebuild: Rebuild) -> ErrorReport {
    match rebuild {
        Rebuild::Requested => ErrorReport::new(
            "projection.unserved",
            format!("no process has begun to rebuild `{name}`"),
        )
        .with_hint(
            "start a process that has this projection; the request stays, and `--withdraw` takes \
             it back",
        ),
        Rebuild::Running { position } => ErrorReport::new(
            "projection.unserved",
            format!("the rebuild of `{name}` is at {position} and goes on"),
        )
        .with_hint("`tidegate projection ls` shows how far it is"),
    }
}

fn withdrawn(name: &str) -> ErrorReport {
    let text = format!("`{name}` was not rebuilt: the request is gone");
    ErrorReport::new("projection.withdrawn", text).with_hint(
        "somebody took it back, or the process that runs the projection refused it and says why in its \
         log; ask again",
    )
}

async fn forget(name: &str, yes: bool, at: &StoreAt, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(at).await?;
    state_of(&opened, name).await?;
    let what = format!(
        "`{name}` loses its position, and the log is not kept for it any more; its tables stay, and \
         should it run again, it is rebuilt from what the log has by then"
    );
    let message = format!("{what}; this was not confirmed");
    let unconfirmed = ErrorReport::new("forget.unconfirmed", message).with_hint("give `--yes`");
    confirm(&what, yes, unconfirmed)?;
    opened.checked(opened.queue.forget_projection(name).await)?;
    output.print(&json!({ "forgotten": name }), || {
        format!("{name}: forgotten")
    })?;
    Ok(Exit::Ok)
}
