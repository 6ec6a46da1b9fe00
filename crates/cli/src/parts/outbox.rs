//! The outbox relays: from tables of the store to topics of the log.

use std::sync::Arc;

use tidegate_client::RemoteComponent;
use tidegate_config::Part as Section;
use tidegate_core::{Component, Failure};
use tidegate_log::embedded::lock_holder;
use tidegate_log::{LogBackend, LogDirectory, OpenLog};
use tidegate_outbox::{Outbox, OutboxComponent, OutboxError, OutboxOptions, migrate, pending};
use tidegate_server::outbox::{OutboxApi, outbox_routes};

use super::{InspectionTargets, Part, PartFuture, Process};
use crate::args::AuditArgs;
use crate::report::ErrorReport;
use crate::{log, store};

pub(super) struct OutboxPart;

impl Part for OutboxPart {
    fn sections(&self) -> &'static [Section] {
        &[Section::Store, Section::Outbox]
    }

    fn open<'a>(&'a self, process: &'a mut Process) -> PartFuture<'a> {
        Box::pin(async {
            let relays = OutboxOptions::from_config(&process.config)?;
            let mut outboxes = Vec::new();
            for options in relays.into_iter().filter(|relay| relay.enabled) {
                let (store, shown) = process.store().await?;
                let Some(log) = process.log.clone() else {
                    return Ok(());
                };
                let (name, table) = (options.name.clone(), options.table.clone());
                let opened = async {
                    migrate(&store, &options).await?;
                    Outbox::open(&store, options, &process.env).await
                };
                let outbox = opened.await.map_err(|error| report(&shown, &error))?;
                outboxes.push(outbox.clone());
                let component = OutboxComponent::new(outbox, log, &process.env);
                before_log(&mut process.components, Arc::new(component));
                let line = format!("relay `{name}` publishes table `{table}`");
                process.banner.push(("outbox", line));
            }
            if !outboxes.is_empty()
                && let Some(keys) = process.idempotency_keys().await?
            {
                process
                    .routes
                    .push(outbox_routes(OutboxApi { outboxes, keys }));
            }
            Ok(())
        })
    }

    fn is_named(&self, arguments: &AuditArgs) -> bool {
        arguments.store.is_some()
    }

    /// A table that is not there holds nothing yet. The process that has the log follows rows into it; where
    /// none has it, they are looked for in its files.
    fn inspect<'a>(&'a self, inspection: &'a mut InspectionTargets) -> PartFuture<'a> {
        Box::pin(async {
            let (at, env) = (&inspection.arguments.at, &inspection.env);
            let (log_options, config) = inspection.log_options()?;
            let relays = OutboxOptions::from_config(&config)?;
            if relays.is_empty() {
                return Ok(());
            }
            let settings = inspection.store_settings()?;
            let Some((store, shown)) = store::open_database(&settings, env).await? else {
                return Ok(());
            };
            let (mut log, mut running, mut directory) = (None, None, None);
            match &log_options.backend {
                LogBackend::Embedded(embedded) => {
                    let is_direct = inspection.arguments.direct;
                    let mut is_held = false;
                    if !is_direct {
                        running = log::answering(&embedded.dir, at, &config)?;
                        is_held = lock_holder(&*env.disk, &embedded.dir)?.is_some();
                    }
                    let is_there = !is_held && log::must_be_there(&embedded.dir, at)?;
                    directory = is_there.then_some(embedded);
                }
                LogBackend::Kafka(_) => {
                    let open = OpenLog::open(&log_options, env, None).await?;
                    log = Some(open.log());
                }
            }
            for options in relays {
                let missing = pending(&store, &options).await;
                if missing.map_err(|error| report(&shown, &error))? > 0 {
                    continue;
                }
                let component: Arc<dyn Component> = match &running {
                    Some(client) if options.enabled => {
                        let name = options.component();
                        Arc::new(RemoteComponent::new(client.clone(), Some(&name)))
                    }
                    Some(_) | None => {
                        let outbox = Outbox::open(&store, options, env).await;
                        let outbox = outbox.map_err(|error| report(&shown, &error))?;
                        Arc::new(match directory {
                            Some(embedded) => {
                                let files = LogDirectory::new((**embedded).clone(), env);
                                OutboxComponent::beside(outbox, files)
                            }
                            None => OutboxComponent::inspected(outbox, log.clone()),
                        })
                    }
                };
                before_log(&mut inspection.components, component);
                inspection.is_store_in_use = true;
            }
            Ok(())
        })
    }
}

/// Rows pass through the outbox before their records are in the log.
fn before_log(components: &mut Vec<Arc<dyn Component>>, component: Arc<dyn Component>) {
    let log = components.iter().position(|one| one.name() == "log");
    components.insert(log.unwrap_or(components.len()), component);
}

/// The report of a failure, which says which database it is about.
fn report(shown: &str, error: &OutboxError) -> ErrorReport {
    let mut failure = Failure::from(error);
    if failure.code.as_str().starts_with("store.") {
        failure.message = format!("store `{shown}`: {}", failure.message);
    }
    failure.into()
}
