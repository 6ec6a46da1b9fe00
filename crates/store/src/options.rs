//! Which database, and its limits.

use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Which kind of database it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// A file beside us.
    Sqlite,
    /// A server.
    Postgres,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        })
    }
}

/// How to open a [`Store`](crate::Store).
///
/// ```
/// use tidegate_store::{Dialect, StoreOptions};
/// let options = StoreOptions::new("postgres://me@db/orders");
/// assert_eq!(options.dialect(), Some(Dialect::Postgres));
/// ```
#[derive(Clone)]
#[cfg_attr(
    feature = "config",
    derive(serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub struct StoreOptions {
    /// `sqlite://./data/tidegate.db` or `postgres://user:password@host/database`.
    pub url: String,
    /// Connections at most; `store.max-connections`. PostgreSQL lends out all but one of them as
    /// transactions, so that a claim, a settle and a renewal never wait for a handler. With one alone
    /// they do.
    pub max_connections: u32,
    /// How long one call may take, and how long a connection may be waited for.
    #[cfg_attr(feature = "config", serde(with = "tidegate_config::millis"))]
    pub timeout: Duration,
    /// PostgreSQL ends a transaction in which nothing happened for this long: one whose process
    /// stands still would otherwise keep what it locked.
    #[cfg_attr(
        feature = "config",
        serde(rename = "idle-transaction-timeout", with = "tidegate_config::millis")
    )]
    pub idle_transaction: Duration,
    /// The schema the tables are in; PostgreSQL only, none for the user's own search path.
    #[cfg_attr(feature = "config", serde(skip))]
    pub schema: Option<String>,
}

impl StoreOptions {
    /// The documented limits for the database at `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            max_connections: 10,
            timeout: Duration::from_secs(10),
            idle_transaction: Duration::from_secs(60),
            schema: None,
        }
    }

    /// The database of the section `store`.
    ///
    /// # Errors
    /// A value that cannot be used, at its place in the file.
    #[cfg(feature = "config")]
    pub fn from_config(
        config: &tidegate_config::Config,
    ) -> Result<Self, Box<tidegate_config::Problem>> {
        config.section("store")
    }

    /// Which kind of database the address names.
    #[must_use]
    pub fn dialect(&self) -> Option<Dialect> {
        let scheme = self.url.split(':').next().unwrap_or_default();
        match scheme {
            "sqlite" => Some(Dialect::Sqlite),
            "postgres" | "postgresql" => Some(Dialect::Postgres),
            _ => None,
        }
    }

    /// The file, when the address names one of SQLite's.
    ///
    /// ```
    /// use std::path::Path;
    /// use tidegate_store::StoreOptions;
    /// let file = |url: &str| StoreOptions::new(url).file().map(Path::to_owned);
    /// assert_eq!(file("sqlite://./data/a.db").as_deref(), Some(Path::new("./data/a.db")));
    /// assert_eq!(file("sqlite:/var/a.db").as_deref(), Some(Path::new("/var/a.db")));
    /// assert_eq!(file("sqlite://"), None);
    /// assert_eq!(file("postgres://db/a"), None);
    /// ```
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        let rest = self.url.strip_prefix("sqlite:")?;
        let name = rest.strip_prefix("//").unwrap_or(rest);
        let is_file = !name.is_empty() && name != ":memory:";
        is_file.then(|| Path::new(name))
    }

    /// The address without what is secret in it.
    #[must_use]
    pub fn shown_url(&self) -> String {
        let Some((scheme, rest)) = self.url.split_once("://") else {
            return self.url.clone();
        };
        match rest.rsplit_once('@') {
            Some((user, host)) => {
                let user = user.split(':').next().unwrap_or_default();
                format!("{scheme}://{user}:***@{host}")
            }
            None => self.url.clone(),
        }
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOptions")
            .field("url", &self.shown_url())
            .field("max_connections", &self.max_connections)
            .field("timeout", &self.timeout)
            .field("idle_transaction", &self.idle_transaction)
            .field("schema", &self.schema)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let options = StoreOptions::new("postgres://me:open-sesame@db:5432/orders");
        assert_eq!(options.shown_url(), "postgres://me:***@db:5432/orders");
        assert!(!format!("{options:?}").contains("sesame"));
        assert_eq!(
            StoreOptions::new("sqlite://x.db").shown_url(),
            "sqlite://x.db"
        );
    }
}
