//! Who handles what: `handlers` and `unregister`.

use serde_json::json;

use super::open;
use crate::args::{Output, StoreAt};
use crate::confirm::confirm;
use crate::report::{ErrorReport, Exit};
use crate::table;

pub(super) async fn handlers(at: &StoreAt, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(at).await?;
    let registry = opened.checked(opened.queue.store().registry().await)?;
    let pairs = registry.handlers.iter();
    let pairs: Vec<(&String, &String)> = pairs
        .flat_map(|(type_name, handlers)| handlers.iter().map(move |one| (type_name, one)))
        .collect();
    let all = pairs.iter();
    let all = all.map(|(type_name, handler)| json!({ "type": type_name, "handler": handler }));
    let document = json!({ "handlers": all.collect::<Vec<_>>() });
    output.print(&document, || {
        if pairs.is_empty() {
            return "no handlers are registered".to_owned();
        }
        let rows = pairs.iter();
        let rows = rows.map(|(type_name, handler)| vec![(*type_name).clone(), (*handler).clone()]);
        table::grid(&["type", "handler"], rows.collect())
    })?;
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
    let message = format!("{what}; this was not confirmed");
    let unconfirmed = ErrorReport::new("unregister.unconfirmed", message).with_hint("give `--yes`");
    confirm(&what, yes, unconfirmed)?;
    let unregistered = opened.queue.store().unregister(type_name, handler).await;
    if !opened.checked(unregistered)? {
        let message = format!("handler `{handler}` is not registered for `{type_name}`");
        return Err(ErrorReport::new("queue.unknown-handler", message)
            .with_hint("`tidegate queue handlers` lists those that are"));
    }
    let document = json!({ "type": type_name, "unregistered": handler });
    let text = || format!("{handler} does not handle {type_name} any more");
    output.print(&document, text)?;
    Ok(Exit::Ok)
}
