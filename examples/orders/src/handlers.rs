//! The handlers of orders.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_core::{Code, Failure};
use tidegate_queue::{Context, Delivery, Handled, Handler};

use crate::shop::{ConfirmationSent, OrderPlaced};

/// Sends a confirmation for each order, once.
#[derive(Debug, Default, Clone)]
pub struct SendConfirmation {
    /// How many were sent.
    pub sent: Arc<AtomicU32>,
}

impl Handler<OrderPlaced> for SendConfirmation {
    fn id(&self) -> &str {
        "send-confirmation"
    }

    async fn handle(&self, event: &Delivery<OrderPlaced>, context: &mut Context) -> Handled {
        // The mail server is away now and then; the next attempt finds it again.
        if event.event.order % 4 == 0 && event.attempt == 1 {
            let code = Code::from_static("mail.away");
            return Failure::transient(code, "the mail server does not answer").into();
        }
        // Recorded together with the success: an attempt after a crash does not send again.
        match context.once("mail").await {
            Ok(true) => {
                self.sent.fetch_add(1, Ordering::Relaxed);
            }
            Ok(false) => {}
            Err(error) => return error.into(),
        }
        let order = event.event.order;
        match context.publish(&ConfirmationSent { order }) {
            Ok(_) => Handled::Success,
            Err(error) => error.into(),
        }
    }
}

/// Takes goods from the shelf; a closure would do as well.
pub async fn reserve_stock(event: Delivery<OrderPlaced>) -> Handled {
    if event.event.cents < 0 {
        let code = Code::from_static("order.invalid");
        return Failure::permanent(code, "an order cannot cost less than nothing").into();
    }
    Handled::Success
}
