//! The events of the campaign, and what their handlers do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::env::{Entropy, Stream};
use tidegate_core::{Code, Failure};
use tidegate_queue::{Context, Delivery, Handled, Handler, QueueError, QueueEvent};
use tidegate_store::sqlx;
use tidegate_testkit::child::say;

use crate::child::LEASE;

/// An order was placed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Placed {
    pub(crate) n: u64,
    pub(crate) key: Option<String>,
}

impl QueueEvent for Placed {
    const TYPE: &'static str = "placed";

    fn key(&self) -> Option<String> {
        self.key.clone()
    }
}

/// It was shipped: what follows from some of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Shipped {
    pub(crate) n: u64,
}

impl QueueEvent for Shipped {
    const TYPE: &'static str = "shipped";
}

/// Whether the handler `one` can never do anything with this event.
pub(crate) fn is_hopeless(n: u64) -> bool {
    n % 53 == 52
}

/// Whether the handler `two` publishes another event with its success.
pub(crate) fn is_shipped(n: u64) -> bool {
    n.is_multiple_of(3)
}

/// The behavior of a process's handlers beside their work.
#[derive(Debug, Clone)]
pub(crate) enum Mood {
    /// Nothing.
    Plain,
    /// They take this long.
    Slow(Duration),
    /// They fail in every way, until it is calm.
    Stormy { seed: u64, is_calm: Arc<AtomicBool> },
}

/// A handler that says what it did.
pub(crate) struct Reporting {
    pub(crate) id: String,
    pub(crate) mood: Mood,
}

impl Reporting {
    /// The fault of this call: an answer, a delay, or nothing.
    async fn weather(&self, event: &Delivery<Placed>) -> Option<Handled> {
        let (seed, is_calm) = match &self.mood {
            Mood::Plain => return None,
            Mood::Slow(span) => {
                tokio::time::sleep(*span).await;
                return None;
            }
            Mood::Stormy { seed, is_calm } => (seed, is_calm),
        };
        if is_calm.load(Ordering::Relaxed) {
            return None;
        }
        let name = format!("{} {} {}", self.id, event.event_id, event.attempt);
        let roll: &mut dyn Entropy = &mut Stream::new(*seed).stream(&name);
        match roll.below(100) {
            0..6 => {
                let code = Code::from_static("test.broken");
                let failure = Failure::transient(code, "not yet");
                return Some(Handled::TransientError(failure));
            }
            6 => panic!("handlers panic"),
            7 => std::future::pending().await,
            8..12 => {
                let longest = LEASE.as_millis() as u64 * 2;
                tokio::time::sleep(Duration::from_millis(roll.below(longest))).await;
            }
            _ => {}
        }
        None
    }

    async fn work(
        &self,
        event: &Delivery<Placed>,
        context: &mut Context,
    ) -> Result<(), QueueError> {
        let n = event.event.n;
        if self.id != "two" {
            return Ok(());
        }
        if is_shipped(n) && context.once("ship").await? {
            context.publish(&Shipped { n })?;
        }
        let tx = context.transaction().await?;
        let connection = tx.postgres().ok_or(QueueError::ForeignTransaction)?;
        let id = sqlx::types::Uuid::from_u128(event.event_id.as_u128());
        let insert = sqlx::query("INSERT INTO effect (event_id, key) VALUES ($1, $2)")
            .bind(id)
            .bind(&event.event.key)
            .execute(connection);
        let failed = |error| tidegate_store::StoreError::of("write an effect", error);
        insert.await.map_err(failed)?;
        Ok(())
    }
}

impl Handler<Placed> for Reporting {
    fn id(&self) -> &str {
        &self.id
    }

    async fn handle(&self, event: &Delivery<Placed>, context: &mut Context) -> Handled {
        if let Some(answer) = self.weather(event).await {
            return answer;
        }
        if self.id == "one" && is_hopeless(event.event.n) {
            let code = Code::from_static("test.hopeless");
            return Handled::UnrecoverableError(Failure::permanent(code, "never"));
        }
        if let Err(error) = self.work(event, context).await {
            return error.into();
        }
        say(&format!("handled {} {}", self.id, event.event_id));
        Handled::Success
    }
}
