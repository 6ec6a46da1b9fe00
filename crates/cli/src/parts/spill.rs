//! The spill directories of loggers. Nothing of them runs here: applications have the loggers.

use std::sync::Arc;

use tidegate_config::Part as Section;
use tidegate_logger::spill::SpillDirectory;

use super::{InspectionTargets, Part, PartFuture, Process};
use crate::args::AuditArgs;
use crate::commands::spill;

pub(super) struct SpillPart;

impl Part for SpillPart {
    fn sections(&self) -> &'static [Section] {
        &[]
    }

    fn open<'a>(&'a self, _: &'a mut Process) -> PartFuture<'a> {
        Box::pin(async { Ok(()) })
    }

    fn is_named(&self, arguments: &AuditArgs) -> bool {
        !arguments.spills.spill.is_empty()
    }

    fn inspect<'a>(&'a self, inspection: &'a mut InspectionTargets) -> PartFuture<'a> {
        Box::pin(async {
            for dir in spill::directories(&inspection.arguments.spills)? {
                let directory = SpillDirectory::new(&dir, &inspection.env);
                inspection.components.push(Arc::new(directory));
            }
            Ok(())
        })
    }
}
