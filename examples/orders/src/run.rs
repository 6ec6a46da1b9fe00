//! Wiring: the queue, a dispatcher, a projector, and ten orders.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::books::Account;
use tidegate_core::env::Env;
use tidegate_queue::{
    Delivery, Dispatcher, DispatcherOptions, Handled, Projector, ProjectorOptions, Queue,
    QueueError,
};
use tidegate_store::{Store, StoreOptions};
use tokio::sync::watch;

use crate::handlers::{SendConfirmation, reserve_stock};
use crate::shop::{self, ConfirmationSent, OrderPlaced};
use crate::totals;

/// The shop in the end.
#[derive(Debug)]
pub struct Summary {
    /// The sums that customers have spent.
    pub totals: Vec<(String, i64)>,
    /// How many confirmations were sent.
    pub sent: u32,
    /// Where the events are.
    pub account: Account,
    /// Events of types that the shop has no handler for, by type: they wait for one.
    pub unhandled: BTreeMap<String, u64>,
    /// How many events are missing, by a recount of the tables.
    pub unaccounted: u64,
}

/// Places `orders`, waits until everything is handled that the shop has handlers for, and looks at the
/// result.
///
/// # Errors
/// The database is away or refused.
pub async fn run(url: &str, orders: i64) -> Result<Summary, Box<dyn Error + Send + Sync>> {
    let env = Env::system();
    let store = Store::open(&StoreOptions::new(url), &env).await?;
    let queue = Queue::open(store.clone(), &env)
        .await?
        .named("orders-example");
    shop::create(&queue).await?;

    let confirmations = SendConfirmation::default();
    let mut options = DispatcherOptions::default();
    options.policy.retry.attempts = Some(5);
    let dispatcher = Dispatcher::builder(queue.clone())
        .options(options)
        .register(confirmations.clone())?
        .register_fn("reserve-stock", reserve_stock)?
        .register_fn("archive", |_: Delivery<ConfirmationSent>| async {
            Handled::Success
        })?
        .build(&env);
    let projector = Projector::new(
        &queue,
        vec![totals::projection()?],
        ProjectorOptions::default(),
        &env,
    );

    let (stop, stopped) = watch::channel(false);
    let until_stopped = |mut stopped: watch::Receiver<bool>| async move {
        // An error means that nobody is left to say stop.
        stopped.wait_for(|stop| *stop).await.ok();
    };
    let dispatching = dispatcher.run(until_stopped(stopped.clone()));
    let projecting = projector.run(until_stopped(stopped));
    let shopping = async {
        let outcome = shop_until_done(&queue, orders, &env).await;
        stop.send(true).ok();
        outcome
    };
    let (_, (), totals) = tokio::join!(dispatching, projecting, shopping);
    let summary = Summary {
        totals: totals?,
        sent: confirmations.sent.load(Ordering::Relaxed),
        account: queue.account().await?,
        unhandled: queue.store().stats().await?.unhandled,
        unaccounted: queue.store().recount().await?.unaccounted(),
    };
    // From here on SQLite's file alone is the whole database.
    store.close().await?;
    Ok(summary)
}

async fn shop_until_done(
    queue: &Queue,
    orders: i64,
    env: &Env,
) -> Result<Vec<(String, i64)>, QueueError> {
    let before = queue.account().await?.accepted;
    for number in 1..=orders {
        let order = OrderPlaced {
            order: before + number,
            customer: ["ada", "grace", "edsger"][usize::try_from(number % 3).unwrap_or(0)]
                .to_owned(),
            cents: 100 * number,
        };
        shop::place(queue, &order).await?;
    }
    loop {
        // The end of the log first: what has a position by then is what the lag is measured by.
        let head = queue.store().read_log(0, 1).await?.head;
        let stats = queue.store().stats().await?;
        let is_ordered = u64::try_from(head).is_ok_and(|head| head >= stats.finalized);
        let is_read = stats.lag.values().all(|lag| *lag == 0) && !stats.lag.is_empty();
        // An event of a type without a handler, published by somebody else, waits for ever. So do the
        // events behind it in the order of its key.
        let unwanted = stats.unhandled.values().sum::<u64>() + stats.held_up;
        if stats.pending + stats.processing <= unwanted && is_read && is_ordered {
            return totals::read(queue).await;
        }
        env.clock.sleep(Duration::from_millis(20)).await;
    }
}
