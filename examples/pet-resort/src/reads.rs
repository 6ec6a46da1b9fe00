//! The lookups. Looking is no business event, so nothing is logged here.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};

use crate::reply::Problem;
use crate::resort::{Booking, OWNERS, Owner, PETS, Pet, Resort};

pub(crate) async fn bookings(State(resort): State<Arc<Resort>>) -> Json<Vec<Booking>> {
    Json(resort.bookings().values().cloned().collect())
}

pub(crate) async fn booking(
    State(resort): State<Arc<Resort>>,
    Path(id): Path<String>,
) -> Result<Json<Booking>, Problem> {
    resort.booking(&id).map(Json)
}

pub(crate) async fn pet(Path(id): Path<String>) -> Result<Json<Pet>, Problem> {
    let pet = PETS.into_iter().find(|pet| pet.id == id);
    pet.map(Json).ok_or_else(|| Problem::not_found("pet", &id))
}

pub(crate) async fn owner(Path(id): Path<String>) -> Result<Json<Owner>, Problem> {
    let owner = OWNERS.into_iter().find(|owner| owner.id == id);
    owner
        .map(Json)
        .ok_or_else(|| Problem::not_found("owner", &id))
}

pub(crate) async fn bookings_of_owner(
    State(resort): State<Arc<Resort>>,
    Path(id): Path<String>,
) -> Result<Json<Vec<Booking>>, Problem> {
    if !OWNERS.iter().any(|owner| owner.id == id) {
        return Err(Problem::not_found("owner", &id));
    }
    let bookings = resort.bookings();
    let theirs = bookings.values().filter(|booking| booking.owner_id == id);
    Ok(Json(theirs.cloned().collect()))
}
