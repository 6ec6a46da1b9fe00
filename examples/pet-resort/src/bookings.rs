//! Booking a stay, and canceling it.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use jiff::civil::Date;
use serde::Deserialize;
use tidegate_logger::{StepStatus, TraceContext};

use crate::reply::{Body, Problem};
use crate::resort::{Booking, BookingState, PETS, Pet, Resort};
use crate::trace::simulates;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewBooking {
    pet_id: String,
    check_in_date: Date,
    check_out_date: Date,
}

pub(crate) async fn create(
    State(resort): State<Arc<Resort>>,
    Extension(trace): Extension<TraceContext>,
    headers: HeaderMap,
    Body(asked): Body<NewBooking>,
) -> Result<(StatusCode, Json<Booking>), Problem> {
    let utc = jiff::tz::TimeZone::UTC;
    let today = jiff::Timestamp::now().to_zoned(utc).date();
    if asked.check_in_date <= today || asked.check_out_date <= asked.check_in_date {
        return Err(Problem::invalid("both dates must be in the future"));
    }
    let pet = PETS.iter().find(|pet| pet.id == asked.pet_id);
    let pet = pet.ok_or_else(|| Problem::not_found("pet", &asked.pet_id))?;
    let mut story = resort.story("CreateBooking", &trace, pet.owner_id);
    story.add_identifier("petId", pet.id);
    story.begin(format!("A stay for {} is asked for", pet.id));
    story.did(1, "PetFound", format!("{} is a {}", pet.name, pet.kind));

    if simulates(&headers, "kennel-timeout") {
        tokio::time::sleep(resort.pace.kennel_timeout).await;
        let message = "the kennel system did not answer";
        story.target_system("KENNEL").error_code("timeout.read");
        story.failed(2, "KennelChecked", message);
        story.fell_through("No kennel could be found");
        let status = StatusCode::GATEWAY_TIMEOUT;
        return Err(Problem::new(status, "kennel.timeout", message));
    }
    if simulates(&headers, "kennel-retry") {
        story.target_system("KENNEL").error_code("connect.reset");
        story.failed(2, "KennelChecked", "The first call broke off");
    }
    story.target_system("KENNEL").http_status_code(200);
    story.did(2, "KennelChecked", "A kennel is free");
    story.target_system("VET");
    if simulates(&headers, "vet-warning") {
        let finding = "A vaccination is due soon";
        story.step(3, "HealthChecked", StepStatus::Warning, finding);
    } else {
        story.did(3, "HealthChecked", "The guest is healthy");
    }

    let booking = keep(&resort, pet, &asked, today)?;
    metrics::counter!("petresort.bookings.created").increment(1);
    story.add_identifier("bookingId", booking.id.as_str());
    let details = format!("Booking {} created for {}", booking.id, pet.id);
    story.ended(details, "PENDING");
    Ok((StatusCode::CREATED, Json(booking)))
}

fn keep(resort: &Resort, pet: &Pet, asked: &NewBooking, today: Date) -> Result<Booking, Problem> {
    let id = {
        let mut bookings = resort.bookings();
        let id = format!("BK-{}-{:03}", today.strftime("%Y%m%d"), bookings.len() + 1);
        let booking = Booking {
            id: id.clone(),
            pet_id: pet.id,
            owner_id: pet.owner_id,
            check_in_date: asked.check_in_date,
            check_out_date: asked.check_out_date,
            state: BookingState::Pending,
            awaited: None,
        };
        bookings.insert(id.clone(), booking);
        id
    };
    resort.advance(&id, &[BookingState::Pending], BookingState::Pending)
}

pub(crate) async fn cancel(
    State(resort): State<Arc<Resort>>,
    Extension(trace): Extension<TraceContext>,
    Path(id): Path<String>,
) -> Result<Json<Booking>, Problem> {
    let from = [BookingState::Pending, BookingState::AwaitingApproval];
    let booking = resort.advance(&id, &from, BookingState::Cancelled)?;
    metrics::counter!("petresort.bookings.cancelled").increment(1);
    let mut story = resort.story("CancelBooking", &trace, booking.owner_id);
    story.add_identifier("bookingId", id.as_str());
    story.begin(format!("Booking {id} is to be canceled"));
    story.ended(format!("Booking {id} canceled"), "CANCELLED");
    Ok(Json(booking))
}
