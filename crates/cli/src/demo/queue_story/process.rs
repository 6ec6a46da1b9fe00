//! The work of another process: a dispatcher with its handlers, and the read model.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Clock, Env, Stream};
use tidegate_core::{Backoff, Code, Failure};
use tidegate_queue::sql::tally;
use tidegate_queue::{
    Context, Delivery, Dispatcher, DispatcherOptions, Handled, Handler, Projector, ProjectorOptions,
};
use tokio::runtime::{Builder, Handle, Runtime};

use super::TALLY;
use super::shop::{OrderPlaced, PaymentTaken, ShopWitness};

/// The time that a handler takes for one event.
const HANDLING: Duration = Duration::from_millis(40);
/// After this, the events of a killed dispatcher are given to another one.
const LEASE: Duration = Duration::from_secs(1);
const POLL_DELAY: Duration = Duration::from_millis(50);

/// A runtime of its own. Dropping it kills everything in it: all of that ends where it stands, nothing is
/// finished, and nothing is given back.
pub(in crate::demo) struct DemoProcess(Option<Runtime>);

impl DemoProcess {
    /// A process in which nothing runs yet, and the way to run something in it.
    pub(in crate::demo) fn new() -> io::Result<(Self, Handle)> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        Ok((Self(Some(runtime)), handle))
    }

    /// A process that runs a dispatcher and a projector.
    pub(super) fn start(
        name: &str,
        database: &str,
        seed: u64,
        world: &ShopWitness,
    ) -> io::Result<Self> {
        let (process, runtime) = Self::new()?;
        let (name, database, world) = (name.to_owned(), database.to_owned(), world.clone());
        runtime.spawn(async move {
            let mut env = Env::system();
            env.entropy = Box::new(Stream::new(seed));
            let env = env.fork(&name);
            // One that cannot work handles nothing, and the verdict says so.
            work(&name, &database, &env, world).await.ok();
        });
        Ok(process)
    }
}

impl Drop for DemoProcess {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

async fn work(
    name: &str,
    database: &str,
    env: &Env,
    world: ShopWitness,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let queue = super::open(database, env).await;
    let queue = queue.map_err(|_| "the database did not open")?.named(name);
    let mut options = DispatcherOptions {
        poll_delay: POLL_DELAY,
        lease: LEASE,
        ..DispatcherOptions::default()
    };
    let (first, longest) = (Duration::from_millis(100), Duration::from_secs(1));
    options.policy.retry.backoff = Backoff::exponential(first, 2.0, longest);
    let clock = Arc::clone(&env.clock);
    let (shipping, archive) = (world.clone(), world.clone());
    let dispatcher = Dispatcher::builder(queue.clone())
        .options(options)
        .register(Bill {
            world,
            clock: Arc::clone(&clock),
        })?
        .register_fn("ship", move |event: Delivery<OrderPlaced>| {
            ship(event, shipping.clone(), Arc::clone(&clock))
        })?
        .register_fn("archive", move |event: Delivery<PaymentTaken>| {
            archive.paid(event.event.order, event.event_id);
            async { Handled::Success }
        })?
        .build(env);
    let turns = ProjectorOptions {
        poll_delay: POLL_DELAY,
        lease: LEASE,
        ..ProjectorOptions::default()
    };
    let projector = Projector::new(&queue, vec![tally(TALLY)?], turns, env);
    // Nobody asks them to stop: they are killed.
    let for_ever = std::future::pending::<()>;
    tokio::join!(dispatcher.run(for_ever()), projector.run(for_ever()));
    Ok(())
}

/// Takes the money, and publishes that it did together with its success.
struct Bill {
    world: ShopWitness,
    clock: Arc<dyn Clock>,
}

impl Handler<OrderPlaced> for Bill {
    fn id(&self) -> &str {
        "bill"
    }

    async fn handle(&self, event: &Delivery<OrderPlaced>, context: &mut Context) -> Handled {
        self.clock.sleep(HANDLING).await;
        if event.attempt <= event.event.card_failures {
            self.world.failed_once();
            let code = Code::from_static("timeout.read");
            return Failure::transient(code, "the card service does not answer").into();
        }
        let order = event.event.order;
        self.world.billed(order);
        match context.publish(&PaymentTaken { order }) {
            Ok(_) => Handled::Success,
            Err(error) => error.into(),
        }
    }
}

async fn ship(event: Delivery<OrderPlaced>, world: ShopWitness, clock: Arc<dyn Clock>) -> Handled {
    clock.sleep(HANDLING).await;
    let order = event.event.order;
    if event.event.address.is_none() {
        world.refused(order);
        let code = Code::from_static("address.missing");
        return Failure::permanent(code, "nobody knows where to send it").into();
    }
    world.shipped(order);
    Handled::Success
}
