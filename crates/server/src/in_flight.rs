//! How many requests are being answered.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::watch;

/// Counts requests from their head to the last byte of their response. Cloning shares the count.
#[derive(Debug, Clone)]
pub(crate) struct InFlight(Arc<watch::Sender<Count>>);

#[derive(Debug, Default)]
struct Count {
    now: u64,
    ever: u64,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Count::default())))
    }

    /// Counts one more, until the guard is dropped.
    pub(crate) fn enter(&self) -> InFlightRequest {
        self.0.send_modify(|count| {
            count.now += 1;
            count.ever += 1;
        });
        InFlightRequest(self.clone())
    }

    /// How many there are.
    pub(crate) fn now(&self) -> u64 {
        self.0.borrow().now
    }

    /// How many there ever were.
    pub(crate) fn ever(&self) -> u64 {
        self.0.borrow().ever
    }

    /// Waits until there are none.
    pub(crate) async fn none(&self) {
        let mut counts = self.0.subscribe();
        // It fails only when the sender is gone, and we hold it.
        counts.wait_for(|count| count.now == 0).await.ok();
    }
}

/// One request in flight.
#[derive(Debug)]
pub(crate) struct InFlightRequest(InFlight);

impl InFlightRequest {
    /// The response whose body keeps this guard until its last byte is handed over.
    pub(crate) fn attach_to(self, response: Response) -> Response {
        with_guard(response, self)
    }
}

/// The response whose body keeps `guard` until its last byte is handed over.
pub(crate) fn with_guard(response: Response, guard: impl Send + Unpin + 'static) -> Response {
    response.map(|inner| {
        Body::new(Guarded {
            inner,
            _guard: guard,
        })
    })
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| count.now -= 1);
    }
}

struct Guarded<G> {
    inner: Body,
    _guard: G,
}

impl<G: Unpin> HttpBody for Guarded<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
