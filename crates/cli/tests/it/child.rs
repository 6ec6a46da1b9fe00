//! An application that logs, in a process that a test kills: this very test program, started again.

use std::path::Path;
use std::process::Child;

use tidegate_testkit::child::{self, ChildLines, say};
use tokio::runtime::Runtime;

use crate::event_log::{event_of, logger, plain_config};

const DIR: &str = "TIDEGATE_LOGGING_DIR";
const API: &str = "TIDEGATE_LOGGING_API";
const LIFE: &str = "TIDEGATE_LOGGING_LIFE";

/// Starts an application with this spill directory, which sends to the API at `address`. `life` is part of what
/// it logs.
pub(crate) fn start_logging(dir: &Path, address: &str, life: usize) -> (Child, ChildLines) {
    let life = life.to_string();
    let variables = [
        (DIR, dir.as_ref()),
        (API, address.as_ref()),
        (LIFE, life.as_ref()),
    ];
    child::start(&variables).unwrap()
}

/// Not a test of its own: without a role it does nothing. Logs until it is killed, and reports the correlation of
/// each event that was promised. Some events are logged without a promise in between.
#[test]
fn child_process_entry() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let variable = |name: &str| std::env::var(name).unwrap();
    let (address, life) = (variable(API), variable(LIFE));
    let logger = logger(plain_config(), dir.as_ref(), &address);
    let runtime = Runtime::new().unwrap();
    for number in 0_u64.. {
        let correlation = format!("life-{life}-{number}");
        let promise = logger.log_durable(event_of(&correlation));
        runtime.block_on(promise).unwrap();
        say(&correlation);
        let unpromised = event_of(&format!("unpromised-{life}-{number}"));
        assert!(logger.log(unpromised).is_ok(), "there is room");
    }
}
