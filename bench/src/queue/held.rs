//! Ours while somebody keeps a transaction open.

use super::drain::{self, Drain};
use crate::program::{Program, Why};
use crate::server::Server;

/// One statement, so that the snapshot is taken.
const READING: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
    SELECT count(*) FROM event_log";
/// It takes a number and is seen by nobody: a gap that every claim meets.
const WRITING: &str = r#"BEGIN;
    INSERT INTO event_queue (type, payload) VALUES ('Measured', '{"number":0,"text":""}')"#;

/// A backlog published and handled while a snapshot is held, and the dead rows it left.
pub(super) fn reading(
    server: &mut Server,
    ours: &Program,
    events: u32,
) -> Result<(Drain, i64), Why> {
    let (drain, url, open) = drain::backlog(server, ours, events, |server, url| {
        server.open(url, READING)
    })?;
    let dead = server.dead_rows(&url)?;
    server.commit(open)?;
    eprintln!(
        "  {}: that was with a snapshot held, {dead} dead rows",
        ours.name
    );
    Ok((drain, dead))
}

/// A backlog while an event is published and not committed; it is handled once it is.
pub(super) fn writing(server: &mut Server, ours: &Program, events: u32) -> Result<Drain, Why> {
    let (drain, url, open) = drain::backlog(server, ours, events, |server, url| {
        server.open(url, WRITING)
    })?;
    eprintln!("  {}: that was with a writing transaction held", ours.name);
    server.commit(open)?;
    ours.call(&url, &["drain".as_ref(), "1".as_ref()])?;
    let logged = server.number_in(&url, "SELECT count(*) FROM event_log")?;
    if logged != i64::from(events) + 1 {
        return Err(format!("{logged} events are in the log"));
    }
    Ok(drain)
}
