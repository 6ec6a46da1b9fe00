//! The front desk: guests come and go.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use serde::Deserialize;
use tidegate_logger::{StepStatus, TraceContext};

use crate::reply::{Body, Problem};
use crate::resort::{Awaited, Booking, BookingState, Resort};
use crate::story::Story;
use crate::trace::simulates;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckIn {
    kennel_preference: Option<String>,
}

pub(crate) async fn check_in(
    State(resort): State<Arc<Resort>>,
    Extension(trace): Extension<TraceContext>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Option<Json<CheckIn>>,
) -> Result<(StatusCode, Json<Booking>), Problem> {
    let awaits = simulates(&headers, "awaiting-approval");
    let next = if awaits {
        BookingState::AwaitingApproval
    } else {
        BookingState::CheckedIn
    };
    let mut booking = resort.advance(&id, &[BookingState::Pending], next)?;
    let mut story = resort.story("CheckIn", &trace, booking.owner_id);
    if awaits {
        story = Story(story.0.with_await_completion());
    }
    story.add_identifier("bookingId", id.as_str());
    story.begin(format!("{} arrives", booking.pet_id));
    let kennel = body.and_then(|Json(body)| body.kennel_preference);
    let kennel = kennel.as_deref().unwrap_or("any");
    story.did(1, "KennelAssigned", format!("Kennel: {kennel}"));

    if simulates(&headers, "agent-gate") {
        let waiting = "A person looks at it";
        story.step(2, "AgentReview", StepStatus::InProgress, waiting);
        tokio::time::sleep(resort.pace.agent).await;
        if let Some(span) = story.last_span_id() {
            story.on_span(span);
        }
        story.did(2, "AgentReview", "A person agreed");
    }
    if awaits {
        let waiting = "Somebody has to approve";
        story.step(2, "ApprovalAsked", StepStatus::InProgress, waiting);
        booking.awaited = Some(Awaited {
            correlation_id: story.correlation_id().to_owned(),
            trace_id: story.trace_id(),
            root: story.root_span_id(),
        });
        resort.bookings().insert(id, booking.clone());
        return Ok((StatusCode::ACCEPTED, Json(booking)));
    }
    metrics::counter!("petresort.checkins.completed").increment(1);
    story.ended(format!("{} is in", booking.pet_id), "CHECKED_IN");
    Ok((StatusCode::OK, Json(booking)))
}

/// Ends a check-in that an earlier request began: same business case, same trace, same root.
pub(crate) async fn approve_check_in(
    State(resort): State<Arc<Resort>>,
    Extension(trace): Extension<TraceContext>,
    Path(id): Path<String>,
) -> Result<Json<Booking>, Problem> {
    let from = [BookingState::AwaitingApproval];
    let booking = resort.advance(&id, &from, BookingState::CheckedIn)?;
    let mut process = resort.story("CheckIn", &trace, booking.owner_id).0;
    if let Some(awaited) = &booking.awaited {
        process = process
            .with_correlation_id(awaited.correlation_id.clone())
            .with_trace_id(awaited.trace_id);
        if let Some(root) = awaited.root {
            process = process.with_root_span(root);
        }
    }
    let mut story = Story(process);
    story.add_identifier("bookingId", id.as_str());
    story.did(3, "Approved", "Somebody approved");
    metrics::counter!("petresort.checkins.completed").increment(1);
    story.ended(format!("{} is in", booking.pet_id), "CHECKED_IN");
    Ok(Json(booking))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckOut {
    payment_amount: f64,
    card_number_last4: Option<String>,
}

pub(crate) async fn check_out(
    State(resort): State<Arc<Resort>>,
    Extension(trace): Extension<TraceContext>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Body(asked): Body<CheckOut>,
) -> Result<Json<Booking>, Problem> {
    if asked.payment_amount.is_nan() || asked.payment_amount <= 0.0 {
        return Err(Problem::invalid("paymentAmount must be more than 0"));
    }
    let booking = resort.booking(&id)?;
    if booking.state != BookingState::CheckedIn {
        return Err(Problem::conflict(&id, booking.state));
    }
    let mut story = resort.story("CheckOut", &trace, booking.owner_id);
    story.add_identifier("bookingId", id.as_str());
    if let Some(card) = asked.card_number_last4 {
        story.add_metadata("cardNumberLast4", card);
    }
    story.begin(format!("{} leaves", booking.pet_id));
    let amount = format!("{:.2}", asked.payment_amount);
    story.target_system("PAYMENTS");
    if simulates(&headers, "payment-failure") {
        metrics::counter!("petresort.payments.failed").increment(1);
        story.error_code("payment.declined");
        story.failed(1, "Paid", format!("{amount} was declined"));
        story.fell_through("The guest stays until it is paid");
        let (status, code) = (StatusCode::UNPROCESSABLE_ENTITY, "payment.declined");
        return Err(Problem::new(status, code, "the payment was declined"));
    }
    metrics::gauge!("petresort.payments.total").increment(asked.payment_amount);
    story.did(1, "Paid", format!("{amount} was paid"));
    let from = [BookingState::CheckedIn];
    let booking = resort.advance(&id, &from, BookingState::CheckedOut)?;
    metrics::counter!("petresort.checkouts.completed").increment(1);
    story.ended(format!("{} is gone", booking.pet_id), "CHECKED_OUT");
    Ok(Json(booking))
}
