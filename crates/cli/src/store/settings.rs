//! What the configuration says about the store.

use std::io;

use tidegate_config::Config;
use tidegate_store::StoreOptions;

use crate::report::Report;

/// The store of a configuration.
#[derive(Debug, Clone)]
pub(crate) struct StoreSettings {
    pub(crate) options: StoreOptions,
    /// Whether somebody configured it, or a part that needs it.
    pub(crate) is_given: bool,
}

impl StoreSettings {
    /// The store that is configured; SQLite beside us, where nothing is said.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            options: tidegate::wiring::store_options(config),
            is_given: config.is_set("store") || config.is_set("queue"),
        }
    }

    /// Whether there is something to open: a file that is not there would be made by opening it.
    /// Of a server only connecting tells.
    pub(crate) fn is_there(&self) -> Result<bool, Report> {
        let Some(file) = self.options.file() else {
            return Ok(true);
        };
        match std::fs::metadata(file) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => {
                let doing = format!("cannot look for the database `{}`", file.display());
                Err(Report::of("store.broken", &doing, &error))
            }
        }
    }
}
