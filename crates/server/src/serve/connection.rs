//! One connection.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tower::ServiceExt;

use super::connections::ConnectionPermit;
use crate::Limits;
use crate::in_flight::with_guard;
use crate::telemetry::{self, Limit};

/// The phases of a server, as its connections see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    /// Go on.
    Open,
    /// Finish the request at hand, if there is one, and close.
    Closing,
    /// Close now.
    Cut,
}

/// The state of an open connection.
pub(super) struct Connection {
    peer: SocketAddr,
    phase: watch::Receiver<ConnectionPhase>,
    permit: Arc<ConnectionPermit>,
}

impl Connection {
    pub(super) fn new(
        peer: SocketAddr,
        permit: ConnectionPermit,
        phase: watch::Receiver<ConnectionPhase>,
    ) -> Self {
        telemetry::connection_opened();
        Self {
            peer,
            phase,
            permit: Arc::new(permit),
        }
    }

    /// Answers requests until the client or the server ends it.
    pub(super) fn serve(
        mut self,
        stream: TcpStream,
        router: Router,
        limits: &Limits,
    ) -> impl Future<Output = ()> + Send + 'static {
        let http = http(limits);
        async move {
            // A response is one write; waiting to fill a packet would only delay it. A socket that
            // refuses the option works without it.
            stream.set_nodelay(true).ok();
            let has_asked = AtomicBool::new(false);
            let permit = Arc::clone(&self.permit);
            let service = service_fn(|request: hyper::Request<Incoming>| {
                has_asked.store(true, Ordering::Relaxed);
                let busy = permit.begin();
                let answering = router.clone().oneshot(request);
                async move { Ok::<_, Infallible>(with_guard(answering.await?, busy)) }
            });
            let mut serving = pin!(http.serve_connection(TokioIo::new(stream), service));
            loop {
                tokio::select! {
                    biased;
                    result = serving.as_mut() => {
                        if let Err(error) = result {
                            self.failed(&error, has_asked.load(Ordering::Relaxed));
                        }
                        return;
                    }
                    () = permit.asked_to_leave() => {
                        if !permit.is_busy() && !has_asked.load(Ordering::Relaxed) {
                            return;
                        }
                        // A request that came meanwhile, and a response that is not written yet,
                        // are finished first.
                        serving.as_mut().graceful_shutdown();
                    }
                    told = self.phase.changed() => {
                        // Nobody left to tell means that the server was dropped.
                        let phase = told.map_or(ConnectionPhase::Cut, |()| *self.phase.borrow_and_update());
                        match phase {
                            ConnectionPhase::Open => {}
                            ConnectionPhase::Closing => serving.as_mut().graceful_shutdown(),
                            ConnectionPhase::Cut => return,
                        }
                    }
                }
            }
        }
    }

    fn failed(&self, error: &hyper::Error, has_asked: bool) {
        if error.is_timeout() {
            telemetry::limit_hit(if has_asked {
                Limit::Idle
            } else {
                Limit::HeaderTimeout
            });
        } else if error.is_parse_too_large() {
            telemetry::limit_hit(Limit::MaxHeader);
        }
        telemetry::connection_failed(self.peer, error);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        telemetry::connection_closed();
        if std::thread::panicking() {
            telemetry::connection_panicked(self.peer);
        }
    }
}

fn http(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_header_size(limits.max_header);
    http
}
