//! Finds tasks that reach around the simulation.
//!
//! A stray `tokio::spawn` or timer panics, because no runtime is there. Code under test may catch
//! that panic, as it catches those of handlers; so the panic is noted where it starts, and the run
//! fails whoever caught it.

use std::cell::{Cell, RefCell};
use std::sync::Once;

thread_local! {
    static IS_SIMULATING: Cell<bool> = const { Cell::new(false) };
    static FOUND: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// How tokio says that it was called without a runtime.
const NO_RUNTIME: [&str; 2] = ["there is no reactor running", "Tokio 1.x"];

/// Runs one step of a simulated task and says whether it strayed.
pub(crate) fn watched<T>(step: impl FnOnce() -> T) -> (T, Option<String>) {
    install();
    IS_SIMULATING.set(true);
    let result = step();
    IS_SIMULATING.set(false);
    (result, FOUND.take())
}

fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let message = panic.payload_as_str().unwrap_or_default();
            if IS_SIMULATING.get() && NO_RUNTIME.iter().any(|sign| message.contains(sign)) {
                let place = panic
                    .location()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                FOUND.set(Some(format!("{place}: {message}")));
            }
            before(panic);
        }));
    });
}
