//! An Event Log API without sockets.

use std::fmt;
use std::future::pending;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::Code;
use tidegate_core::env::{Clock, Entropy};
use tidegate_logger::{
    Api, ApiAnswer, ApiFailure, EventOutcome, LoggerId, Payload, ResponseBody, Sending, classify,
};

use crate::reply::{Reply, post_many, post_one};
use crate::stored::Stored;

/// How one call of a [`ScriptedApi`] goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Script {
    /// The API handles the events and the answer comes back.
    Serve,
    /// Nobody listens.
    Refuse,
    /// No answer ever comes, and nothing is stored. A real client would give up; use
    /// [`TimeOut`](Self::TimeOut) for that.
    Hang,
    /// Nothing is stored, and the client gives up after this time.
    TimeOut(Duration),
    /// Nothing is stored, and this status comes back.
    Status {
        /// The status.
        status: u16,
        /// When the API wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// The events are stored, and half of the answer comes back.
    HalfAnswer,
    /// The events are stored, and the connection breaks before the answer.
    AnswerLost,
    /// The events at these places of the batch are not stored this time, the others are.
    Partial(Vec<usize>),
    /// The events are stored, and the answer has this many outcomes, however many events there are:
    /// what the `Api` of a user may do wrong.
    Outcomes(usize),
    /// The next behavior, after this time.
    After(Duration, Box<Script>),
}

impl Script {
    /// This status, with no word on when to ask again.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::Status {
            status,
            retry_after: None,
        }
    }

    /// An answer that takes this long.
    #[must_use]
    pub fn slow(delay: Duration) -> Self {
        Self::After(delay, Box::new(Self::Serve))
    }

    /// Any way in which a call can fail though its events are good, and that ends by itself.
    pub fn failing(entropy: &mut dyn Entropy, batch: &[Payload]) -> Self {
        const STATUSES: [u16; 9] = [401, 404, 408, 425, 429, 500, 502, 503, 504];
        match entropy.below(8) {
            0 => Self::Refuse,
            1 => Self::TimeOut(Duration::from_secs(30)),
            2 => Self::HalfAnswer,
            3 => Self::AnswerLost,
            4 => {
                let places = 0..batch.len();
                Self::Partial(places.filter(|_| entropy.below(2) == 0).collect())
            }
            5 if batch.len() > 1 => Self::status(413),
            6 => Self::Status {
                status: 503,
                retry_after: Some(Duration::from_millis(entropy.below(5_000))),
            },
            _ => {
                let place = usize::try_from(entropy.below(STATUSES.len() as u64)).unwrap_or(0);
                Self::status(STATUSES.get(place).copied().unwrap_or(503))
            }
        }
    }
}

type Decide = dyn Fn(&[Payload], u64) -> Script + Send + Sync;

/// An Event Log API without sockets, for simulations.
///
/// It waits on the clock it is given and on nothing else, and needs no runtime. It stores like the
/// real one: an id once, bad events never. The events that arrived are asked through [`Stored`].
///
/// ```
/// use std::sync::Arc;
/// use tidegate_core::EventId;
/// use tidegate_logger::{ApiAnswer, Api, Payload};
/// use tidegate_sim::Sim;
/// use tidegate_testkit::{Script, ScriptedApi};
///
/// let mut sim = Sim::new(1);
/// let node = sim.node("a");
/// let api = Arc::new(ScriptedApi::new(node.env().clock, |_, call| {
///     if call == 1 { Script::AnswerLost } else { Script::Serve }
/// }));
/// let payload = Payload { id: EventId::from_u128(7), json: "{}".into() };
///
/// let sender = Arc::clone(&api);
/// sim.block_on(&node, async move {
///     let batch = [payload];
///     assert!(matches!(sender.send(&batch).await, ApiAnswer::Failed(_)));
///     assert!(matches!(sender.send(&batch).await, ApiAnswer::PerEvent(_)));
/// });
/// assert_eq!((api.count(), api.duplicates()), (1, 1));
/// ```
pub struct ScriptedApi {
    clock: Arc<dyn Clock>,
    decide: Box<Decide>,
    stored: Stored,
    calls: AtomicU64,
    is_down: AtomicBool,
}

impl ScriptedApi {
    /// An API whose calls go as `script` says; it is given the events and the number of the call,
    /// which counts from 1.
    pub fn new(
        clock: Arc<dyn Clock>,
        script: impl Fn(&[Payload], u64) -> Script + Send + Sync + 'static,
    ) -> Self {
        Self {
            clock,
            decide: Box::new(script),
            stored: Stored::new(),
            calls: AtomicU64::new(0),
            is_down: AtomicBool::new(false),
        }
    }

    /// An API that always works.
    #[must_use]
    pub fn reliable(clock: Arc<dyn Clock>) -> Self {
        Self::new(clock, |_, _| Script::Serve)
    }

    /// An API that fails in this share of its calls (0 to 1), in any way of [`Script::failing`]. It
    /// takes up to 50 ms for each call.
    #[must_use]
    pub fn unreliable(clock: Arc<dyn Clock>, entropy: Box<dyn Entropy>, share: f64) -> Self {
        let entropy = Mutex::new(entropy);
        Self::new(clock, move |batch, _| {
            let mut entropy = entropy.lock().unwrap_or_else(PoisonError::into_inner);
            let delay = Duration::from_micros(entropy.below(50_000));
            let next = if entropy.unit() < share {
                Script::failing(entropy.as_mut(), batch)
            } else {
                Script::Serve
            };
            Script::After(delay, Box::new(next))
        })
    }

    /// The same API in front of this store, as after a restart of the API or of the node whose
    /// clock it uses.
    #[must_use]
    pub fn with_store(mut self, stored: Stored) -> Self {
        self.stored = stored;
        self
    }

    /// The events that arrived.
    #[must_use]
    pub fn store(&self) -> &Stored {
        &self.stored
    }

    /// How many calls were made, those that reached nobody included.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// From now on nobody listens, whatever the script says.
    pub fn down(&self) {
        self.is_down.store(true, Ordering::SeqCst);
    }

    /// The script is in force again.
    pub fn up(&self) {
        self.is_down.store(false, Ordering::SeqCst);
    }

    async fn play(&self, logger: Option<LoggerId>, batch: &[Payload]) -> ApiAnswer {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let mut script = (self.decide)(batch, call);
        while let Script::After(delay, next) = script {
            self.clock.sleep(delay).await;
            script = *next;
        }
        // Asked only now: a slow call may meet an API that went down in the meantime.
        if self.is_down.load(Ordering::SeqCst) || script == Script::Refuse {
            return failed(Code::from_static("connection.refused"), "nobody listens");
        }
        self.stored.count_request();
        match script {
            Script::Serve => answer(&self.post(batch, &[], logger), batch),
            Script::Partial(failing) => answer(&self.post(batch, &failing, logger), batch),
            Script::HalfAnswer => {
                let reply = self.post(batch, &[], logger);
                let head = reply.body.get(..reply.body.len() / 2).unwrap_or_default();
                let body = ResponseBody::Cut {
                    head,
                    reason: "the script cut it",
                };
                classify(reply.status, None, body, batch.len())
            }
            Script::Outcomes(count) => {
                let _stored = self.post(batch, &[], logger);
                ApiAnswer::PerEvent(vec![EventOutcome::Stored; count])
            }
            Script::AnswerLost => {
                let _stored = self.post(batch, &[], logger);
                failed(Code::from_static("connection.lost"), "the answer was lost")
            }
            Script::Status {
                status,
                retry_after,
            } => classify(status, retry_after, ResponseBody::Whole(b""), batch.len()),
            Script::TimeOut(limit) => {
                self.clock.sleep(limit).await;
                failed(Code::from_static("timeout.read"), "no answer in time")
            }
            // The two others have been dealt with above.
            Script::Hang | Script::Refuse | Script::After(..) => pending().await,
        }
    }

    fn post(&self, batch: &[Payload], failing: &[usize], logger: Option<LoggerId>) -> Reply {
        match batch {
            [_] if failing.contains(&0) => {
                Reply::error(503, "Service Unavailable", "store.unavailable", "busy")
            }
            [one] => post_one(&self.stored, &one.json, Some(one.id), logger),
            several => {
                let events = several.iter().map(|payload| payload.json.as_ref());
                post_many(&self.stored, events, failing, None, logger)
            }
        }
    }
}

fn answer(reply: &Reply, batch: &[Payload]) -> ApiAnswer {
    classify(
        reply.status,
        None,
        ResponseBody::Whole(&reply.body),
        batch.len(),
    )
}

fn failed(code: Code, message: &str) -> ApiAnswer {
    ApiAnswer::Failed(ApiFailure {
        code,
        message: message.to_owned(),
        retry_after: None,
    })
}

impl Api for ScriptedApi {
    fn send_from<'a>(&'a self, logger: Option<LoggerId>, batch: &'a [Payload]) -> Sending<'a> {
        Box::pin(self.play(logger, batch))
    }
}

impl Deref for ScriptedApi {
    type Target = Stored;

    fn deref(&self) -> &Stored {
        &self.stored
    }
}

impl fmt::Debug for ScriptedApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptedApi({:?})", self.stored)
    }
}
