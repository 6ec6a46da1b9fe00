//! The account that users see.

use tidegate_core::books::{Account, Place};

/// Shows `count` claimed events of `place` as in flight.
///
/// A claim moves nothing in the books: it is a lease on an event that stays where it was, so that a
/// lease that runs out needs no posting. Users see who is being worked on all the same.
pub(crate) fn show_in_flight(account: &mut Account, place: &Place, count: i64) {
    let from = match place {
        Place::Queued => &mut account.queued,
        Place::Retrying => &mut account.retrying,
        Place::Parked => &mut account.parked,
        Place::InFlight
        | Place::Spilled
        | Place::DeadLettered
        | Place::Delivered
        | Place::Lost(_) => return,
    };
    *from -= count;
    account.in_flight += count;
}
