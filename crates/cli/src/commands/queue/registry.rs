//! Who handles what: `handlers` and `unregister`.

use serde_json::json;

use super::open;
use crate::args::{Output, StoreAt};
use crate::confirm::confirm;
use crate::report::{ErrorReport, Exit, print, print_json};
use crate::table;

pub(super) async fn handlers(at: &StoreAt, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(at).await?;
    let registry = opened.queue.store().registry().await;
    let registry = registry.map_err(|error| opened.report(&error))?;
    let pairs = registry.handlers.iter();
    let pairs: Vec<(&String, &String)> = pairs
        .flat_map(|(type_name, handlers)| handlers.iter().map(move |one| (type_name, one)))
        .collect();
    match output {
        Output::Json => {
            let all = pairs
                .iter()
                .map(|(type_name, handler)| json!({ "type": type_name, "handler": handler }));
            print_json(&json!({ "handlers": all.collect::<Vec<_>>() }))?;
        }
        Output::Table if pairs.is_empty() => print("no handlers are registered")?,
        Output::Table => {
            let rows = pairs
                .iter()
                .map(|(type_name, handler)| vec![(*type_name).clone(), (*handler).clone()]);
            print(&table::grid(&["type", "handler"], rows.collect()))?;
        }
    }
    Ok(Exit::Ok)
}

pub(super) async fn unregister(
    (type_name, handler): (&str, &str),
    yes: bool,
    at: &StoreAt,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let opened = open(at).await?;
    let what = format!(
        "events of type `{type_name}` will be completed without `{handler}`, unless a process \
         registers it again"
    );
    let unconfirmed = format!("{what}; this was not confirmed");
    let unconfirmed =
        ErrorReport::new("unregister.unconfirmed", unconfirmed).with_hint("give `--yes`");
    confirm(&what, yes, unconfirmed)?;
    let store = opened.queue.store();
    let was_there = store.unregister(type_name, handler).await;
    if !was_there.map_err(|error| opened.report(&error))? {
        let message = format!("handler `{handler}` is not registered for `{type_name}`");
        return Err(ErrorReport::new("queue.unknown-handler", message)
            .with_hint("`tidegate queue handlers` lists those that are"));
    }
    match output {
        Output::Json => print_json(&json!({ "type": type_name, "unregistered": handler }))?,
        Output::Table => print(&format!("{handler} does not handle {type_name} any more"))?,
    }
    Ok(Exit::Ok)
}
