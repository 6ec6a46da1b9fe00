//! Wake-ups: `NOTIFY` at most once per few milliseconds and process. It is done outside of every
//! transaction of the user, because it takes a lock of the whole server at commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_store::Postgres;
use tidegate_store::sql::SqlConnection;
use tokio::sync::Notify;

/// The pause between two notifications of one process.
const PAUSE: Duration = Duration::from_millis(2);
/// The pause before listening again after the connection was lost.
const RECONNECT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Wakes {
    channel: String,
    /// Whether something happened since the last notification.
    is_pending: AtomicBool,
    /// Whether a task is on its way that will notify.
    is_sending: AtomicBool,
    /// A task has nothing more to send.
    sent: Notify,
    is_listening: AtomicBool,
    heard: Notify,
}

impl Wakes {
    pub(super) fn new(channel: String) -> Self {
        Self {
            channel,
            is_pending: AtomicBool::new(false),
            is_sending: AtomicBool::new(false),
            sent: Notify::new(),
            is_listening: AtomicBool::new(false),
            heard: Notify::new(),
        }
    }

    pub(super) async fn heard(&self) {
        self.heard.notified().await;
    }

    /// Waits until nothing is left to send.
    pub(super) async fn sent(&self) {
        loop {
            let sent = self.sent.notified();
            tokio::pin!(sent);
            sent.as_mut().enable();
            let is_pending = self.is_pending.load(Ordering::SeqCst);
            if !is_pending && !self.is_sending.load(Ordering::SeqCst) {
                return;
            }
            sent.await;
        }
    }
}

/// Notifies soon.
pub(super) fn send(wakes: &Arc<Wakes>, postgres: &Postgres, env: &Env) {
    wakes.is_pending.store(true, Ordering::SeqCst);
    if wakes.is_sending.swap(true, Ordering::SeqCst) {
        return;
    }
    let (wakes, postgres) = (Arc::clone(wakes), postgres.clone());
    let clock = Arc::clone(&env.clock);
    let task = async move {
        loop {
            while wakes.is_pending.swap(false, Ordering::SeqCst) {
                let channel = wakes.channel.clone();
                let notify = postgres.run("wake dispatchers", move |db| {
                    db.execute("SELECT pg_notify($1, '')", &[&channel])
                });
                // A wake-up that is lost is found by polling.
                if let Err(error) = notify.await {
                    tracing::debug!(%error, "could not wake the dispatchers");
                }
                clock.sleep(PAUSE).await;
            }
            wakes.is_sending.store(false, Ordering::SeqCst);
            wakes.sent.notify_waiters();
            // A wake-up that came between the two saw a sender and left it to us.
            if !wakes.is_pending.load(Ordering::SeqCst)
                || wakes.is_sending.swap(true, Ordering::SeqCst)
            {
                return;
            }
        }
    };
    drop(env.spawn.spawn("queue-notify", Box::pin(task)));
}

/// Starts listening, once. It ends with the last handle on the queue.
pub(super) fn listen(wakes: &Arc<Wakes>, postgres: &Postgres, env: &Env) {
    if wakes.is_listening.swap(true, Ordering::SeqCst) {
        return;
    }
    let (weak, postgres) = (Arc::downgrade(wakes), postgres.clone());
    let clock = Arc::clone(&env.clock);
    let channel = wakes.channel.clone();
    let task = async move {
        while weak.strong_count() > 0 {
            match postgres.listen(&channel).await {
                Ok(mut listener) => loop {
                    let heard = tokio::select! {
                        biased;
                        heard = listener.try_recv() => heard,
                        // So that it ends soon after the queue does.
                        () = clock.sleep(RECONNECT) => {
                            if weak.strong_count() == 0 {
                                return;
                            }
                            continue;
                        }
                    };
                    let Some(wakes) = weak.upgrade() else {
                        return;
                    };
                    // Also after a lost connection: what was sent meanwhile was not heard.
                    wakes.heard.notify_waiters();
                    wakes.heard.notify_one();
                    if !matches!(heard, Ok(Some(_))) {
                        break;
                    }
                },
                Err(error) => tracing::debug!(%error, "cannot listen; polling goes on"),
            }
            clock.sleep(RECONNECT).await;
        }
    };
    drop(env.spawn.spawn("queue-listen", Box::pin(task)));
}
