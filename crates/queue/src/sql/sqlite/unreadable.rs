//! Events that are no text: SQLite keeps whatever a foreign program gives it.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};
use tidegate_store::sql::SqlConnection;
use tidegate_store::sqlx;

use super::super::claim::Texts;
use super::super::columns::unreadable_errors;
use super::maintain::finish_failed;
use crate::event::headers_of;
use crate::port::Claim;

/// The texts of an event, or none where one of them is no UTF-8: SQLite keeps what it is given.
pub(super) fn texts(row: &SqliteRow) -> Result<Option<Texts>, sqlx::Error> {
    let mut texts = Vec::new();
    for column in 2..6 {
        let bytes: Option<Vec<u8>> = row.try_get(column)?;
        match bytes.map(String::from_utf8).transpose() {
            Ok(text) => texts.push(text),
            Err(_) => return Ok(None),
        }
    }
    let (headers, payload) = (texts.pop().flatten(), texts.pop().flatten());
    let (key, type_name) = (texts.pop().flatten(), texts.pop().flatten());
    Ok(type_name
        .zip(payload)
        .map(|(type_name, payload)| (type_name, key, payload, headers_of(headers.as_deref()))))
}

/// Ends an event that no handler can be given, among the dead letters and with the reason: it would
/// stop every claim.
pub(super) async fn end_unreadable(
    db: &mut SqliteConnection,
    claim: &Claim,
    attempts: u32,
    now: i64,
) -> Result<(), sqlx::Error> {
    db.execute("DELETE FROM tidegate_event_row WHERE id = ?", &[&claim.id])
        .await?;
    let (from, errors) = (claim.place.clone(), unreadable_errors());
    let event = (claim.id, claim.event_id);
    finish_failed(db, event, from, attempts.into(), &errors, now).await?;
    tracing::error!(
        event = claim.id,
        "event is not valid UTF-8; moved to dead letters"
    );
    Ok(())
}
