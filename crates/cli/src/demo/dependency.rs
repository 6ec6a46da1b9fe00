//! The service that the events are delivered to, with good and bad days.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::env::{Clock, Entropy, Env};
use tidegate_core::{Code, EventId, Failure};

/// How the service does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServiceState {
    /// It answers.
    Fair,
    /// One call in five fails.
    Flaky,
    /// Nothing gets through.
    Down,
}

/// One event in so many is refused for good, whatever the state of the service.
const REFUSED_ONE_IN: u128 = 211;
/// One event in so many fails each time, in a way that looks as if it might work next time.
const STUBBORN_ONE_IN: u128 = 503;

#[derive(Debug, Clone)]
pub(super) struct Dependency {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    service_state: ServiceState,
    entropy: Box<dyn Entropy>,
    /// How often each event arrived here: the other witness, which knows nothing of the books.
    arrivals: BTreeMap<EventId, u64>,
}

impl Dependency {
    pub(super) fn new(env: &Env) -> Self {
        let state = State {
            service_state: ServiceState::Fair,
            entropy: env.entropy.fork("dependency"),
            arrivals: BTreeMap::new(),
        };
        Self {
            clock: Arc::clone(&env.clock),
            state: Arc::new(Mutex::new(state)),
        }
    }

    pub(super) fn set_service_state(&self, service_state: ServiceState) {
        self.state().service_state = service_state;
    }

    /// The events that arrived, each with how often it did.
    pub(super) fn arrivals(&self) -> BTreeMap<EventId, u64> {
        self.state().arrivals.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in one event.
    pub(super) async fn call(&self, id: EventId) -> Result<(), Failure> {
        let (service_state, latency_ms, is_unlucky) = {
            let mut state = self.state();
            (
                state.service_state,
                2 + state.entropy.below(30),
                state.entropy.below(5) == 0,
            )
        };
        self.clock.sleep(Duration::from_millis(latency_ms)).await;
        match service_state {
            ServiceState::Down => Err(Failure::transient(
                Code::from_static("connection.refused"),
                "nobody listens at the other end",
            )),
            ServiceState::Flaky if is_unlucky => Err(Failure::transient(
                Code::from_static("timeout.read"),
                "no answer in time",
            )),
            ServiceState::Fair | ServiceState::Flaky => self.answer(id),
        }
    }

    fn answer(&self, id: EventId) -> Result<(), Failure> {
        if id.as_u128().is_multiple_of(REFUSED_ONE_IN) {
            let code = Code::from_static("schema.invalid");
            return Err(Failure::permanent(code, "the order has no total"));
        }
        if id.as_u128().is_multiple_of(STUBBORN_ONE_IN) {
            let code = Code::from_static("conflict.locked");
            return Err(Failure::transient(code, "somebody else holds this order"));
        }
        *self.state().arrivals.entry(id).or_default() += 1;
        Ok(())
    }
}
