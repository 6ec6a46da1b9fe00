//! Every metric of the resort.

use metrics::{describe_counter, describe_gauge};

/// The names, which dashboards depend on.
pub const METRICS: [&str; 9] = [
    "petresort.bookings.created",
    "petresort.bookings.cancelled",
    "petresort.bookings.active",
    "petresort.checkins.completed",
    "petresort.checkouts.completed",
    "petresort.pets.checked_in",
    "petresort.payments.total",
    "petresort.payments.failed",
    "petresort.roomservice.orders",
];

/// Says what each metric means, to the recorder that is installed.
pub fn describe() {
    describe_counter!("petresort.bookings.created", "Bookings made");
    describe_counter!("petresort.bookings.cancelled", "Bookings canceled");
    describe_gauge!(
        "petresort.bookings.active",
        "Bookings that are neither over nor canceled"
    );
    describe_counter!("petresort.checkins.completed", "Guests who checked in");
    describe_counter!("petresort.checkouts.completed", "Guests who checked out");
    describe_gauge!("petresort.pets.checked_in", "Guests in the house");
    describe_gauge!("petresort.payments.total", "Money taken");
    describe_counter!("petresort.payments.failed", "Payments declined");
    describe_counter!("petresort.roomservice.orders", "Orders of room service");
}
