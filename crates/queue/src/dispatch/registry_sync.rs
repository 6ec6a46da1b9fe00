//! Keeps the dispatcher and the handler registry of the store in step.

use super::Shared;
use crate::port::Registry;
use crate::{QueueError, limit};

/// Writes our handlers into the registry, and reads it.
pub(super) async fn register(shared: &Shared) -> Result<Registry, QueueError> {
    let all = shared.handlers.values();
    let all = all.map(|handler| (handler.type_name.clone(), handler.id.clone()));
    let all: Vec<(String, String)> = all.collect();
    let store = shared.queue.store();
    limit::check_lanes(&store.registry().await?, &all)?;
    store.register(&all).await?;
    store.registry().await
}

/// Reads the registry after the store has said that it is another one.
///
/// Its version only grows, unless the store came back with less than it had: from a backup, or as a
/// copy that was behind. Our handlers may be missing in it then, so that they are registered again.
pub(super) async fn refresh(shared: &Shared) -> Result<(), QueueError> {
    // Before the call: a read that is on its way for long may be older than what we know by then.
    let known = shared.state().registry.version;
    let read = shared.queue.store().registry().await?;
    if read.version >= known {
        shared.state().learn(read);
        return Ok(());
    }
    let version = read.version;
    tracing::warn!(
        version,
        known,
        "handler registry is older than before (restored backup?); registering again"
    );
    let registry = register(shared).await?;
    shared.state().begin_anew(registry);
    Ok(())
}
