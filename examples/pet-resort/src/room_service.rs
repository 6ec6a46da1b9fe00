//! Something to eat, in the kennel.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tidegate_logger::TraceContext;

use crate::reply::{Body, Problem};
use crate::resort::{BookingState, Resort};
use crate::trace::simulates;

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Order {
    pet_id: String,
    booking_id: String,
    item: String,
    quantity: u32,
}

pub(crate) async fn order(
    State(resort): State<Arc<Resort>>,
    Extension(trace): Extension<TraceContext>,
    headers: HeaderMap,
    Body(order): Body<Order>,
) -> Result<(StatusCode, Json<Order>), Problem> {
    if order.quantity == 0 || order.item.is_empty() {
        return Err(Problem::invalid("item and quantity must be given"));
    }
    let booking = resort.booking(&order.booking_id)?;
    if booking.state != BookingState::CheckedIn || booking.pet_id != order.pet_id {
        return Err(Problem::conflict(&order.booking_id, booking.state));
    }
    let mut story = resort.story("RoomService", &trace, booking.owner_id);
    story.add_identifier("bookingId", order.booking_id.as_str());
    story.begin(format!("{} wants {}", order.pet_id, order.item));
    if simulates(&headers, "account-retry") {
        story.target_system("ACCOUNTS").error_code("connect.reset");
        story.failed(1, "AccountFound", "The first look-up broke off");
    }
    story.target_system("ACCOUNTS");
    story.did(1, "AccountFound", format!("{} pays", booking.owner_id));
    metrics::counter!("petresort.roomservice.orders").increment(1);
    let details = format!("{} × {} on its way", order.quantity, order.item);
    story.ended(details, "ORDERED");
    Ok((StatusCode::CREATED, Json(order)))
}
