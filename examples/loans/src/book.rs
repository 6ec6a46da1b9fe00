//! The loans in the database. A change, its event and the answer to its request are one transaction.

use std::sync::{Mutex, PoisonError};

use serde_json::json;
use sqlx::AssertSqlSafe;
use tidegate_core::env::Entropy;
use tidegate_core::{EventIds, error_chain};
use tidegate_logger::{SpanId, TraceContext};
use tidegate_outbox::{NewOutboxEvent, Outbox, OutboxError};
use tidegate_store::idempotency::{KeptAnswer, KeyClaim, finish_in};
use tidegate_store::sql::{
    FromColumns, OwnColumns, SqlAccess, SqlConnection, SqlDatabase, SqlValue,
};
use tidegate_store::{Store, StoreError, StoreTx};

use crate::loan::{Loan, LoanCommand, LoanRefusal, LoanRequest, Terms};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS loan (
    id text PRIMARY KEY, customer text NOT NULL, amount_cents bigint NOT NULL,
    balance_cents bigint NOT NULL, total_cents bigint NOT NULL, status text NOT NULL)";
const COLUMNS: &str = "id, customer, amount_cents, balance_cents, total_cents, status";

impl FromColumns for Loan {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
        let status: String = row.get(5)?;
        let status = status.parse();
        Ok(Self {
            id: row.get(0)?,
            customer: row.get(1)?,
            amount_cents: row.get(2)?,
            balance_cents: row.get(3)?,
            total_cents: row.get(4)?,
            status: status.map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        })
    }
}

/// A request for a change: its trace, and the claim of its `Idempotency-Key`.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) trace: TraceContext,
    pub(crate) claim: Option<KeyClaim>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BookError {
    #[error(transparent)]
    Refused(#[from] LoanRefusal),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Outbox(#[from] OutboxError),
    #[error("another request with this `Idempotency-Key` took over")]
    TakenOver,
}

/// All loans.
#[derive(Debug)]
pub(crate) struct LoanBook {
    store: Store,
    outbox: Outbox,
    ids: EventIds,
    entropy: Mutex<Box<dyn Entropy>>,
    pub(crate) terms: Terms,
}

impl LoanBook {
    /// The loans in this database, whose table is made where it is missing.
    pub(crate) async fn open(
        store: Store,
        outbox: Outbox,
        ids: EventIds,
        entropy: Box<dyn Entropy>,
        terms: Terms,
    ) -> Result<Self, StoreError> {
        let doing = "make the table of loans";
        match &store {
            Store::Sqlite(db) => {
                let call = db.call(SqlAccess::Write, doing, |db| db.execute_raw(TABLE));
                call.await?;
            }
            Store::Postgres(db) => {
                let call = db.call(SqlAccess::Write, doing, |db| db.execute_raw(TABLE));
                call.await?;
            }
        }
        Ok(Self {
            store,
            outbox,
            ids,
            entropy: Mutex::new(entropy),
            terms,
        })
    }

    /// The trace that a request belongs to; a new one where it names none.
    pub(crate) fn trace<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> TraceContext {
        let mut entropy = self.entropy.lock().unwrap_or_else(PoisonError::into_inner);
        TraceContext::from_headers(lookup, entropy.as_mut())
    }

    /// Makes a loan. Returns when loan, event and answer are committed.
    pub(crate) async fn create(
        &self,
        request: LoanRequest,
        asker: &Asker,
    ) -> Result<KeptAnswer, BookError> {
        let id = self.ids.mint().to_string();
        let (loan, event) = Loan::create(id, request, &self.terms)?;
        let mut tx = self.store.begin().await?;
        let (limit, doing) = (tx.limit(), "make a loan");
        match &mut tx {
            StoreTx::Sqlite(tx) => limit.run(doing, insert(tx.connection(), &loan)).await?,
            StoreTx::Postgres(tx) => limit.run(doing, insert(tx.connection(), &loan)).await?,
        }
        self.end(tx, &loan, event, 201, asker).await
    }

    /// Changes a loan. Returns when change, event and answer are committed; after a refusal nothing is.
    pub(crate) async fn change(
        &self,
        id: &str,
        command: LoanCommand,
        asker: &Asker,
    ) -> Result<KeptAnswer, BookError> {
        let mut tx = self.store.begin().await?;
        let (limit, doing) = (tx.limit(), "change a loan");
        let changed = match &mut tx {
            StoreTx::Sqlite(tx) => {
                let call = update(tx.connection(), id, command);
                limit.run(doing, call).await?
            }
            StoreTx::Postgres(tx) => {
                let call = update(tx.connection(), id, command);
                limit.run(doing, call).await?
            }
        };
        match changed {
            Ok((loan, event)) => self.end(tx, &loan, event, 200, asker).await,
            Err(refusal) => {
                tx.rollback().await?;
                Err(refusal.into())
            }
        }
    }

    /// One loan.
    pub(crate) async fn find(&self, id: String) -> Result<Loan, BookError> {
        let sql = format!("SELECT {COLUMNS} FROM loan WHERE id = $1");
        let (access, doing) = (SqlAccess::Read, "read a loan");
        let (sql, wanted) = (AssertSqlSafe(sql), id.clone());
        let found: Option<Loan> = match &self.store {
            Store::Sqlite(db) => {
                let call = db.call(access, doing, move |db| db.fetch_optional(sql, &[&wanted]));
                call.await?
            }
            Store::Postgres(db) => {
                let call = db.call(access, doing, move |db| db.fetch_optional(sql, &[&wanted]));
                call.await?
            }
        };
        Ok(found.ok_or(LoanRefusal::Unknown(id))?)
    }

    /// Adds the event, keeps the answer, and commits.
    async fn end(
        &self,
        mut tx: StoreTx,
        loan: &Loan,
        event: &str,
        status: u16,
        asker: &Asker,
    ) -> Result<KeptAnswer, BookError> {
        let body = json!(loan).to_string();
        let told = NewOutboxEvent::new(&loan.id, event, &body)
            .aggregate_type("loan")
            .header("traceparent", self.traceparent(asker));
        self.outbox.insert_in(&mut tx, &[told]).await?;
        let answer = KeptAnswer { status, body };
        if let Some(claim) = &asker.claim
            && !finish_in(&mut tx, claim, &answer).await?
        {
            tx.rollback().await?;
            return Err(BookError::TakenOver);
        }
        let (trace_id, loan_id) = (asker.trace.trace_id, &loan.id);
        if let Err(error) = tx.commit().await {
            let why = error_chain(&error);
            tracing::warn!(%trace_id, loan_id, why, "a change was not committed");
            return Err(error.into());
        }
        let status = loan.status;
        tracing::info!(%trace_id, loan_id, loan_event = event, %status, "changed");
        Ok(answer)
    }

    /// The call that an event belongs to.
    fn traceparent(&self, asker: &Asker) -> String {
        let mut entropy = self.entropy.lock().unwrap_or_else(PoisonError::into_inner);
        let span = SpanId::draw(entropy.as_mut());
        asker.trace.traceparent(span).to_string()
    }
}

async fn insert<C: SqlConnection>(db: &mut C, loan: &Loan) -> Result<(), sqlx::Error> {
    let sql = format!("INSERT INTO loan ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6)");
    let status = loan.status.to_string();
    let values: [&dyn SqlValue; 6] = [
        &loan.id,
        &loan.customer,
        &loan.amount_cents,
        &loan.balance_cents,
        &loan.total_cents,
        &status,
    ];
    db.execute(AssertSqlSafe(sql), &values).await.map(drop)
}

/// The loan after the change, and the type of its event; or why it is refused.
type Changed = Result<(Loan, &'static str), LoanRefusal>;

async fn update<C: SqlConnection>(
    db: &mut C,
    id: &str,
    command: LoanCommand,
) -> Result<Changed, sqlx::Error> {
    // Two changes of one loan take turns.
    let select = format!("SELECT {COLUMNS} FROM loan WHERE id = $1 {}", C::FOR_UPDATE);
    let loan = db.fetch_optional::<Loan>(AssertSqlSafe(select), &[&id]);
    let Some(loan) = loan.await? else {
        return Ok(Err(LoanRefusal::Unknown(id.to_owned())));
    };
    let (next, event) = match loan.apply(command) {
        Ok(changed) => changed,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let status = next.status.to_string();
    let sql = "UPDATE loan SET balance_cents = $2, status = $3 WHERE id = $1";
    db.execute(sql, &[&next.id, &next.balance_cents, &status])
        .await?;
    Ok(Ok((next, event)))
}
