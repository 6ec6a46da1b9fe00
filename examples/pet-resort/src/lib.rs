#![doc = include_str!("../README.md")]

mod bookings;
mod desk;
mod probes;
mod reads;
mod reply;
mod resort;
mod room_service;
mod story;
mod telemetry;
mod trace;

use std::future::Future;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use tokio::net::TcpListener;

pub use probes::Probes;
pub use resort::{Pace, Resort};
pub use telemetry::{METRICS, describe};

/// Serves `app` until `stop` completes and every request that had begun is answered.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, app)
        .with_graceful_shutdown(stop)
        .await
}

/// The service.
pub fn router(resort: Arc<Resort>) -> Router {
    Router::new()
        .route("/api/bookings", post(bookings::create).get(reads::bookings))
        .route(
            "/api/bookings/{id}",
            get(reads::booking).delete(bookings::cancel),
        )
        .route("/api/bookings/{id}/check-in", post(desk::check_in))
        .route(
            "/api/bookings/{id}/approve-check-in",
            post(desk::approve_check_in),
        )
        .route("/api/bookings/{id}/check-out", post(desk::check_out))
        .route("/api/room-service", post(room_service::order))
        .route("/api/pets/{id}", get(reads::pet))
        .route("/api/owners/{id}", get(reads::owner))
        .route("/api/owners/{id}/bookings", get(reads::bookings_of_owner))
        .layer(axum::middleware::from_fn_with_state(
            Arc::clone(&resort),
            trace::follow,
        ))
        .with_state(resort)
}
