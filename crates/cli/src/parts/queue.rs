//! The durable queue. Its tables are kept tidy here; handlers run in applications.

use std::sync::Arc;

use tidegate_config::Part as Section;
use tidegate_queue::{ProjectorOptions, QueueComponent, UpkeepOptions, sql};

use super::{InspectionTargets, Part, PartFuture, Process};
use crate::args::AuditArgs;
use crate::store::{self, OpenedStore, StoreSettings};
use crate::table;

pub(super) struct QueuePart;

impl Part for QueuePart {
    fn sections(&self) -> &'static [Section] {
        &[Section::Store, Section::Queue]
    }

    fn open<'a>(&'a self, process: &'a mut Process) -> PartFuture<'a> {
        Box::pin(async {
            if !StoreSettings::of(&process.config)?.is_given {
                return Ok(());
            }
            let (store, shown) = process.store().await?;
            let opened = OpenedStore::on(store, shown, &process.env).await?;
            let ran = opened.checked(sql::migrate(&opened.store).await)?;
            let upkeep = UpkeepOptions::from_config(&process.config)?;
            let order = ProjectorOptions::from_config(&process.config)?;
            let component = QueueComponent::new(opened.queue, upkeep, order, &process.env);
            process.components.push(Arc::new(component));
            let made = match ran {
                0 => String::new(),
                ran => format!("; {} ran", table::counted(ran as u64, "migration")),
            };
            let line = format!("kept tidy here; handlers run in applications{made}");
            process.banner.push(("queue", line));
            Ok(())
        })
    }

    fn is_named(&self, arguments: &AuditArgs) -> bool {
        arguments.store.is_some()
    }

    /// A database that is named or configured must be there. A file that is gone, or whose tables are, looks
    /// like one in which nothing was published. A database of another part may be without a queue.
    fn inspect<'a>(&'a self, inspection: &'a mut InspectionTargets) -> PartFuture<'a> {
        Box::pin(async {
            let settings = inspection.store_settings()?;
            let env = &inspection.env;
            let is_required = settings.is_given && !inspection.is_store_in_use;
            let opened = match is_required {
                true => Some(store::open(&settings, env).await?),
                false => store::open_if_there(&settings, env).await?,
            };
            if let Some(opened) = opened {
                let store = opened.store.clone();
                let (upkeep, order) = (UpkeepOptions::default(), ProjectorOptions::default());
                let component = QueueComponent::new(opened.queue, upkeep, order, env);
                inspection.components.push(Arc::new(component));
                inspection.check_file(&store, &settings);
            }
            Ok(())
        })
    }
}
