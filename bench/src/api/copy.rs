//! `COPY`, which is the fastest way into a table of PostgreSQL.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Instant;

use futures_util::TryStreamExt as _;
use tidegate_core::env::Env;
use tidegate_eventlog::sql;
use tidegate_store::{Store, StoreOptions};
use tokio::runtime::Runtime;

use crate::program::Why;
use crate::server::{session, shown};

/// Bytes that are handed to the server at once.
const CHUNK: usize = 256 * 1024;

fn runtime() -> Result<Runtime, Why> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
}

/// Writes the rows of the table at `url` to a file.
pub(super) fn write_rows(url: &str, path: &Path) -> Result<(), Why> {
    let io = |error: std::io::Error| format!("{}: {error}", path.display());
    runtime()?.block_on(async {
        let mut file = File::create(path).map_err(io)?;
        let mut session = session(url).await?;
        let copying = session
            .copy_out_raw("COPY tidegate_eventlog TO STDOUT")
            .await;
        let mut rows = copying.map_err(|error| shown(&error))?;
        while let Some(some) = rows.try_next().await.map_err(|error| shown(&error))? {
            file.write_all(&some).map_err(io)?;
        }
        Ok(())
    })
}

/// Copies the rows in the file to a new table in the database at `url`; rows per second.
pub(super) fn rate(url: &str, path: &Path) -> Result<f64, Why> {
    let io = |error: std::io::Error| format!("{}: {error}", path.display());
    runtime()?.block_on(async {
        let store = Store::open(&StoreOptions::new(url), &Env::system()).await;
        let store = store.map_err(|error| error.to_string())?;
        let made = sql::migrate(&store).await;
        made.map_err(|error| error.to_string())?;
        let mut file = File::open(path).map_err(io)?;
        let mut chunk = vec![0; CHUNK];
        let mut session = session(url).await?;
        let began = Instant::now();
        let copying = session
            .copy_in_raw("COPY tidegate_eventlog FROM STDIN")
            .await;
        let mut copying = copying.map_err(|error| shown(&error))?;
        loop {
            let count = file.read(&mut chunk).map_err(io)?;
            if count == 0 {
                break;
            }
            let sent = copying.send(&chunk[..count]).await;
            sent.map_err(|error| shown(&error))?;
        }
        let rows = copying.finish().await.map_err(|error| shown(&error))?;
        Ok(rows as f64 / began.elapsed().as_secs_f64())
    })
}
