//! The server under a stub: one thread with a runtime of its own for as long as the port is open.

use std::future::pending;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, Response, Uri, header};
use bytes::Bytes;
use tidegate_core::EventId;
use tidegate_logger::LoggerId;
use tokio::sync::oneshot;

use super::Shared;
use super::fault::{Fault, Request};
use super::line::{Cut, Lines, Scissors};
use crate::reply::{Reply, post_envelope, post_one};

/// How long a stub tries to get its port back, which another process may hold for a moment.
const REOPEN_LIMIT: Duration = Duration::from_secs(5);

/// A port that is open.
pub(super) struct Running {
    /// Never sent: it is dropped to stop the thread.
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Running {
    /// Opens the port and serves it. Returns once connections are accepted.
    pub(super) fn start(
        address: SocketAddr,
        shared: Arc<Shared>,
    ) -> io::Result<(Self, SocketAddr)> {
        let listener = bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let serve = async move {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                return;
            };
            let router = Router::new()
                .fallback(handle)
                // The limit of the API is checked once the whole body is here. A connection that
                // is closed in the middle of a body loses the answer.
                .layer(DefaultBodyLimit::disable())
                .with_state(shared)
                .into_make_service_with_connect_info::<Scissors>();
            let serving = axum::serve(Lines(listener), router);
            tokio::select! {
                biased;
                _ = stopped => {}
                _ = serving => {}
            }
        };
        // The runtime goes with the thread, and every connection with the runtime.
        let thread = std::thread::Builder::new()
            .name("stub-api".to_owned())
            .spawn(move || runtime.block_on(serve))?;
        Ok((Self { stop, thread }, address))
    }

    /// Closes the port and every connection. Returns once both are closed.
    pub(super) fn stop(self) {
        let Self { stop, thread } = self;
        // Without its sender the thread knows that it is over.
        drop(stop);
        // An error means that it is gone already.
        drop(thread.join());
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let start = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && start.elapsed() < REOPEN_LIMIT =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

async fn handle(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(scissors): ConnectInfo<Scissors>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let request = Request {
        number: shared.stored.count_request(),
        path: uri.path().to_owned(),
        headers: headers
            .iter()
            .map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                (name.as_str().to_owned(), value)
            })
            .collect(),
        body_len: body.len(),
    };
    let fault = {
        let mut faults = shared.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.next(&request)
    };
    let reply = |failing: &[usize]| {
        guard(&shared, &method, &request)
            .unwrap_or_else(|| route(&shared, &request, &body, failing))
    };
    let response = match fault {
        None => respond(reply(&[]), None),
        Some(Fault::Delay(delay)) => {
            tokio::time::sleep(delay).await;
            respond(reply(&[]), None)
        }
        Some(Fault::Partial(failing)) => respond(reply(&failing), None),
        Some(Fault::Status {
            status,
            retry_after,
            body,
        }) => {
            let mut reply = Reply::error(status, "Scripted", "stub.scripted", "as scripted");
            if let Some(body) = body {
                reply.body = body.into();
            }
            respond(reply, retry_after)
        }
        Some(Fault::Hang) => {
            shared.note(request);
            return pending().await;
        }
        Some(Fault::Reset) => {
            scissors.cut(Cut::Reset);
            respond(Reply::error(500, "Reset", "stub.reset", "never seen"), None)
        }
        Some(Fault::HalfAnswer) => {
            scissors.cut(Cut::HalfWay);
            respond(reply(&[]), None)
        }
        Some(Fault::ApplyThenDrop) => {
            scissors.cut(Cut::Now);
            respond(reply(&[]), None)
        }
    };
    shared.note(request);
    response
}

/// The answer to a request that is refused whatever its body holds.
fn guard(shared: &Shared, method: &Method, request: &Request) -> Option<Reply> {
    let token = shared.token.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(token) = &*token
        && request.header("authorization") != Some(&format!("Bearer {token}"))
    {
        return Some(Reply::error(
            401,
            "Unauthorized",
            "auth.denied",
            "wrong or no token",
        ));
    }
    if method != Method::POST {
        return Some(Reply::error(
            405,
            "Method Not Allowed",
            "http.405",
            "only POST",
        ));
    }
    (request.body_len > shared.limits.max_body).then(|| {
        let message = format!("at most {} bytes", shared.limits.max_body);
        Reply::error(413, "Payload Too Large", "body.too_large", &message)
    })
}

fn route(shared: &Shared, request: &Request, body: &[u8], failing: &[usize]) -> Reply {
    let logger = request.header("x-tidegate-logger");
    let logger = match logger.map(str::parse::<LoggerId>).transpose() {
        Ok(logger) => logger,
        Err(error) => {
            let message = error.to_string();
            return Reply::error(400, "Validation Error", "logger.invalid", &message);
        }
    };
    match request.path.as_str() {
        "/v1/events" if failing.contains(&0) => {
            Reply::error(503, "Service Unavailable", "store.unavailable", "busy")
        }
        "/v1/events" => {
            let id = ["idempotency-key", "x-tidegate-event-id"]
                .iter()
                .filter_map(|name| request.header(name))
                .find_map(|text| text.parse::<EventId>().ok());
            post_one(&shared.stored, body, id, logger)
        }
        "/v1/events/batch" => {
            let max_batch = shared.limits.max_batch;
            post_envelope(&shared.stored, body, failing, max_batch, logger)
        }
        _ => Reply::error(404, "NOT_FOUND", "not_found", "no such path"),
    }
}

fn respond(reply: Reply, retry_after: Option<String>) -> Response<Body> {
    let mut response = Response::builder()
        .status(reply.status)
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(retry_after) = retry_after {
        response = response.header(header::RETRY_AFTER, retry_after);
    }
    response
        .body(Body::from(reply.body))
        .unwrap_or_else(|error| {
            // A script asked for what HTTP cannot say.
            let mut response = Response::new(Body::from(error.to_string()));
            *response.status_mut() = axum::http::StatusCode::INTERNAL_SERVER_ERROR;
            response
        })
}
