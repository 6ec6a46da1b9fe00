//! The Event Log API, on the store of the configuration.

use std::sync::Arc;

use tidegate_config::Part as Section;
use tidegate_core::Failure;
use tidegate_eventlog::{EventLog, EventLogComponent, EventLogError, EventLogOptions, sql};
use tidegate_server::eventlog::{EventLogApi, event_log_routes};

use super::{InspectionTargets, Part, PartFuture, Process};
use crate::args::AuditArgs;
use crate::report::ErrorReport;
use crate::store;

pub(super) struct EventLogPart;

impl Part for EventLogPart {
    fn sections(&self) -> &'static [Section] {
        &[Section::Store, Section::Eventlog]
    }

    fn open<'a>(&'a self, process: &'a mut Process) -> PartFuture<'a> {
        Box::pin(async {
            let options = EventLogOptions::from_config(&process.config)?;
            if !options.enabled {
                return Ok(());
            }
            let (store, shown) = process.store().await?;
            let env = &process.env;
            let log = EventLog::open(store, options, env).await;
            let log = log.map_err(|error| report(&shown, error))?;
            process.routes.push(event_log_routes(EventLogApi {
                log: log.clone(),
                clock: Arc::clone(&env.clock),
                version: env!("CARGO_PKG_VERSION"),
                build: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            }));
            let component = EventLogComponent::new(log, env);
            process.components.push(Arc::new(component));
            let line = format!("events at {}/v1/events", process.url);
            process.banner.push(("eventlog", line));
            Ok(())
        })
    }

    fn is_named(&self, arguments: &AuditArgs) -> bool {
        arguments.store.is_some()
    }

    /// A database without the tables of the event log is there for something else.
    fn inspect<'a>(&'a self, inspection: &'a mut InspectionTargets) -> PartFuture<'a> {
        Box::pin(async {
            let settings = inspection.store_settings()?;
            let env = &inspection.env;
            let Some((store, shown)) = store::open_database(&settings, env).await? else {
                return Ok(());
            };
            let pending = sql::pending(&store).await;
            if pending.map_err(|error| report(&shown, error))? > 0 {
                return Ok(());
            }
            let log = EventLog::on(store.clone(), EventLogOptions::default(), env);
            let component = EventLogComponent::new(log, env);
            inspection.components.push(Arc::new(component));
            inspection.check_file(&store, &settings);
            inspection.is_store_in_use = true;
            Ok(())
        })
    }
}

/// The report of a failure, which says which database it is about.
fn report(shown: &str, error: EventLogError) -> ErrorReport {
    let mut failure = Failure::from(error);
    if failure.code.as_str().starts_with("store.") {
        failure.message = format!("store `{shown}`: {}", failure.message);
    }
    failure.into()
}
