//! The queue in a process that has no handlers: what is done for it there.

use std::sync::Arc;

use tidegate_config::Config;
use tidegate_core::HealthFinding;
use tidegate_core::books::{ComponentAccount, ComponentKind};
use tidegate_core::env::{Env, Task};
use tidegate_queue::{Projector, QueueError, Upkeep, UpkeepOptions, telemetry};
use tidegate_server::{Accounts, AccountsFuture, AccountsUnavailable};
use tokio::sync::watch;

use super::{Opened, StoreSettings};
use tidegate::wiring::{dispatcher_options, projector_options};

/// The name of the queue in the books.
const NAME: &str = "queue";

/// The tasks that tend a queue: clean-up and gauges, and the order of the log. Handlers are those of
/// applications; claiming here would only take events from them.
#[derive(Debug)]
pub(crate) struct Tending {
    stop: watch::Sender<bool>,
    tasks: Vec<Task>,
    opened: Opened,
}

impl Tending {
    /// Starts them.
    pub(crate) fn start(opened: &Opened, config: &Config, env: &Env) -> Self {
        telemetry::describe();
        let options = dispatcher_options(config);
        let (stop, stopped) = watch::channel(false);
        let until_stopped = || {
            let mut stopped = stopped.clone();
            async move {
                // An error means that nobody is left to say stop.
                stopped.wait_for(|stop| *stop).await.ok();
            }
        };
        let upkeep = UpkeepOptions {
            cleanup_interval: options.cleanup_interval,
            retention: options.retention,
            ..UpkeepOptions::default()
        };
        let upkeep = Upkeep::new(&opened.queue, upkeep, env).run(until_stopped());
        let order = projector_options(config);
        // Without projections it only gives positions, which retention waits for.
        let order = Projector::new(&opened.queue, Vec::new(), order, env).run(until_stopped());
        let tasks = vec![
            env.spawn.spawn("queue-upkeep", Box::pin(upkeep)),
            env.spawn.spawn("queue-order", Box::pin(order)),
        ];
        let opened = opened.clone();
        Self {
            stop,
            tasks,
            opened,
        }
    }

    /// Ends them. If canceled, they end with the runtime, and nothing is lost by that.
    pub(crate) async fn stop(self) {
        self.stop.send(true).ok();
        for task in self.tasks {
            task.join().await;
        }
        self.opened.close().await;
    }
}

/// Whether the store can be used now.
pub(crate) async fn finding(opened: &Opened, settings: &StoreSettings) -> HealthFinding {
    // A file that was removed can still be written to, and all of it is gone with the process.
    match settings.is_there() {
        Ok(true) => {}
        Ok(false) => return HealthFinding::down("the file of the database was removed"),
        Err(_) => return HealthFinding::down("the file of the database cannot be looked at"),
    }
    match opened.store.ping().await {
        Ok(()) => HealthFinding::up(),
        Err(error) => HealthFinding::down(chain(&error)),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut beneath = error.source();
    while let Some(source) = beneath {
        text.push_str(&format!(": {source}"));
        beneath = source.source();
    }
    text
}

/// The books of the queue, as the ledger shows them.
pub(crate) async fn component(opened: &Opened) -> Result<ComponentAccount, QueueError> {
    Ok(ComponentAccount {
        name: NAME.to_owned(),
        kind: ComponentKind::Queue,
        account: opened.queue.account().await?,
    })
}

/// The queue as the server asks it.
#[derive(Debug, Clone)]
pub(crate) struct QueueWitness(pub(crate) Opened);

impl QueueWitness {
    /// The witness of this queue.
    pub(crate) fn of(opened: &Opened) -> Arc<Self> {
        Arc::new(Self(opened.clone()))
    }
}

impl Accounts for QueueWitness {
    fn name(&self) -> &str {
        NAME
    }

    fn read(&self) -> AccountsFuture<'_> {
        Box::pin(async move {
            let component = component(&self.0).await;
            let component = component.map_err(|error| AccountsUnavailable::Failed {
                name: NAME.to_owned(),
                source: Box::new(error),
            })?;
            Ok(vec![component])
        })
    }
}
