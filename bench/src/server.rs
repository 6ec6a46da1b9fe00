//! The PostgreSQL that everything is measured on.

use tidegate_store::sqlx::postgres::PgConnectOptions;
use tidegate_store::sqlx::{self, AssertSqlSafe, ConnectOptions as _, PgConnection};
use tokio::runtime::Runtime;

use crate::program::Why;

/// A session of our own on the server, and how to get more.
pub(crate) struct Server {
    runtime: Runtime,
    url: String,
    session: PgConnection,
    /// The process that all others of the server come from; none when it is not on this machine.
    postmaster: Option<u32>,
}

/// A transaction that stays open until it is ended.
pub(crate) struct Open {
    session: PgConnection,
}

impl Server {
    /// Connects to the server of `DATABASE_URL`, which `cargo xtask bench` sets.
    pub(crate) fn connect() -> Result<Self, Why> {
        let url = std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL is not set")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let session = runtime.block_on(session(&url))?;
        let mut server = Self {
            runtime,
            url,
            session,
            postmaster: None,
        };
        server.postmaster = server.find_postmaster();
        Ok(server)
    }

    /// A new and empty database; an older one of that name is dropped. Gives its address.
    pub(crate) fn new_database(&mut self, name: &str) -> Result<String, Why> {
        self.drop_database(name)?;
        self.execute(&format!("CREATE DATABASE bench_{name}"))?;
        let (address, settings) = match self.url.split_once('?') {
            Some((address, settings)) => (address, format!("?{settings}")),
            None => (self.url.as_str(), String::new()),
        };
        let (host, _) = address.rsplit_once('/').ok_or("DATABASE_URL has no path")?;
        Ok(format!("{host}/bench_{name}{settings}"))
    }

    pub(crate) fn drop_database(&mut self, name: &str) -> Result<(), Why> {
        self.execute(&format!(
            "DROP DATABASE IF EXISTS bench_{name} WITH (FORCE)"
        ))
    }

    pub(crate) fn execute(&mut self, sql: &str) -> Result<(), Why> {
        self.runtime.block_on(execute(&mut self.session, sql))
    }

    /// Runs a statement in the database at `url`.
    pub(crate) fn execute_in(&self, url: &str, sql: &str) -> Result<(), Why> {
        self.runtime.block_on(async {
            let mut session = session(url).await?;
            execute(&mut session, sql).await
        })
    }

    /// The one number that a query in the database at `url` gives.
    pub(crate) fn number_in(&self, url: &str, sql: &str) -> Result<i64, Why> {
        self.runtime.block_on(async {
            let mut session = session(url).await?;
            number(&mut session, sql).await
        })
    }

    /// Begins a transaction in the database at `url` with `sql` and leaves it open.
    pub(crate) fn open(&self, url: &str, sql: &str) -> Result<Open, Why> {
        self.runtime.block_on(async {
            let mut session = session(url).await?;
            execute(&mut session, sql).await?;
            Ok(Open { session })
        })
    }

    pub(crate) fn commit(&self, mut open: Open) -> Result<(), Why> {
        self.runtime.block_on(execute(&mut open.session, "COMMIT"))
    }

    /// Bytes of write-ahead log since the cluster was made.
    pub(crate) fn wal(&mut self) -> Result<f64, Why> {
        let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
        let bytes = self.runtime.block_on(number(&mut self.session, sql))?;
        Ok(bytes as f64)
    }

    /// Rows of user tables that are dead and still there, in the database at `url`.
    pub(crate) fn dead_rows(&self, url: &str) -> Result<i64, Why> {
        let extension = "CREATE EXTENSION IF NOT EXISTS pgstattuple";
        if self.execute_in(url, extension).is_ok() {
            let sql = "SELECT coalesce(sum((pgstattuple(c.oid)).dead_tuple_count), 0)::bigint
                FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')";
            return self.number_in(url, sql);
        }
        // The statistics of a session that has ended come within a second.
        std::thread::sleep(std::time::Duration::from_millis(1_500));
        let sql = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables";
        self.number_in(url, sql)
    }

    /// Processor seconds of the whole server so far; zero when it is not on this machine.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        /// Clock ticks per second in `/proc`, fixed on Linux.
        const TICKS: f64 = 100.0;
        let Some(postmaster) = self.postmaster else {
            return 0.0;
        };
        let Ok(processes) = std::fs::read_dir("/proc") else {
            return 0.0;
        };
        let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let ticks: u64 = ids
            .filter_map(|id: u32| {
                let fields = stat(id)?;
                let field = |index: usize| fields.get(index).copied().unwrap_or(0);
                if id == postmaster {
                    // Its own, and that of sessions that have ended.
                    Some((11..15).map(field).sum())
                } else if field(1) == u64::from(postmaster) {
                    Some(field(11) + field(12))
                } else {
                    None
                }
            })
            .sum();
        ticks as f64 / TICKS
    }

    fn find_postmaster(&mut self) -> Option<u32> {
        let sql = "SELECT pg_backend_pid()::bigint";
        let id = self.runtime.block_on(number(&mut self.session, sql)).ok()?;
        let name = std::fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
        // Another machine's process number may be somebody else's here.
        if !name.starts_with("postgres") {
            return None;
        }
        let parent = stat(u32::try_from(id).ok()?)?.get(1).copied()?;
        u32::try_from(parent).ok()
    }
}

pub(crate) async fn session(url: &str) -> Result<PgConnection, Why> {
    let options: PgConnectOptions = url.parse().map_err(|error| shown(&error))?;
    let connecting = options.disable_statement_logging().connect().await;
    connecting.map_err(|error| shown(&error))
}

async fn execute(session: &mut PgConnection, sql: &str) -> Result<(), Why> {
    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(session).await;
    done.map(drop).map_err(|error| shown(&error))
}

async fn number(session: &mut PgConnection, sql: &str) -> Result<i64, Why> {
    let found = sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(session)
        .await;
    found.map_err(|error| shown(&error))
}

pub(crate) fn shown(error: &sqlx::Error) -> Why {
    format!("the database: {error}")
}

/// The numbers in a process's `stat` after its name; what is no number is zero.
fn stat(id: u32) -> Option<Vec<u64>> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let fields = text.rsplit(')').next()?.split_whitespace();
    Some(fields.map(|field| field.parse().unwrap_or(0)).collect())
}
