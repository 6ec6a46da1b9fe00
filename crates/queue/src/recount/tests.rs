use super::*;

const BORN: u128 = 0x019a_8f3e_5c00_7abc_8000_0000_0000_0000;

fn id(n: u128) -> EventId {
    EventId::from_u128(BORN + n)
}

fn logged(is_failed: bool) -> FoundRows {
    FoundRows {
        logged: Some(is_failed),
        ..FoundRows::default()
    }
}

fn row(place: Place) -> FoundRows {
    FoundRows {
        row: Some(place),
        ..FoundRows::default()
    }
}

fn waiting() -> FoundRows {
    FoundRows {
        is_waiting: true,
        ..FoundRows::default()
    }
}

fn places(seen: &FoundRows) -> Vec<Place> {
    seen.places().collect()
}

#[test]
fn an_event_is_where_its_tables_have_it() {
    assert_eq!(places(&logged(false)), [Place::Delivered]);
    assert_eq!(places(&logged(true)), [Place::DeadLettered]);
    assert_eq!(places(&row(Place::Parked)), [Place::Parked]);
    assert_eq!(places(&waiting()), [Place::Queued]);
    let claimed = FoundRows {
        batches: 1,
        ..FoundRows::default()
    };
    assert_eq!(places(&claimed), [Place::Queued]);
    assert_eq!(places(&FoundRows::default()), []);
}

#[test]
fn an_event_of_the_log_that_nobody_finds_there_is_nowhere() {
    let adrift = FoundRows {
        is_adrift: true,
        // The batch that it was settled from lists it, and will not hand it out again.
        batches: 1,
        ..logged(false)
    };
    assert_eq!(places(&adrift), []);
}

#[test]
fn a_batch_that_lists_what_was_settled_counts_no_second_time() {
    for settled in [logged(false), row(Place::Retrying)] {
        let listed = FoundRows {
            batches: 1,
            ..settled.clone()
        };
        assert_eq!(places(&listed), places(&settled));
    }
}

#[test]
fn an_event_in_two_places_is_found_twice() {
    let twice = FoundRows {
        row: Some(Place::Retrying),
        ..logged(false)
    };
    assert_eq!(places(&twice), [Place::Delivered, Place::Retrying]);
    let again = FoundRows {
        is_waiting: true,
        ..logged(false)
    };
    assert_eq!(places(&again), [Place::Delivered, Place::Queued]);
    let two_batches = FoundRows {
        batches: 2,
        ..FoundRows::default()
    };
    assert_eq!(places(&two_batches).len(), 2);
    let mut books = Books::default();
    books.move_one(id(1), None, Some(Place::Delivered));
    let mut count = Count::default();
    count.add(id(1), &twice);
    let recount = count.finish(books);
    assert_eq!(recount.unaccounted(), 1);
    let found = &recount.missing[0];
    assert_eq!(
        (&found.place, found.count, found.id),
        (&Place::Retrying, -1, Some(id(1)))
    );
}

/// Books of events that were all delivered.
fn delivered(count: u128) -> Books {
    let mut books = Books::default();
    for n in 0..count {
        books.move_one(id(n), None, Some(Place::Queued));
        books.move_one(id(n), Some(Place::Queued), Some(Place::Delivered));
    }
    books
}

fn ids_of(recount: &QueueRecount) -> Vec<Option<EventId>> {
    recount.missing.iter().map(|one| one.id).collect()
}

#[test]
fn several_events_that_are_nowhere_are_named() {
    let mut count = Count::default();
    for n in 0..10 {
        let seen = match n {
            3 | 4 | 8 => FoundRows::default(),
            _ => logged(false),
        };
        count.add(id(n), &seen);
    }
    let recount = count.finish(delivered(10));
    assert_eq!(recount.unaccounted(), 3);
    assert_eq!(ids_of(&recount), [Some(id(3)), Some(id(4)), Some(id(8))]);
}

#[test]
fn one_without_payload_beside_one_that_is_nowhere_is_named_by_the_sums() {
    let mut count = Count::default();
    for n in [0, 1, 2, 4] {
        let seen = match n {
            2 => FoundRows::default(),
            _ => logged(false),
        };
        count.add(id(n), &seen);
    }
    let recount = count.finish(delivered(5));
    assert_eq!(ids_of(&recount), [Some(id(2)), Some(id(3))]);
}

#[test]
fn an_event_unknown_to_the_books_takes_no_name_from_a_missing_one() {
    let mut count = Count::default();
    // Event 0 lost its payload; 7 and 9 are nowhere and nobody accepted them.
    count.add(id(1), &logged(false));
    count.add(id(7), &FoundRows::default());
    let recount = count.finish(delivered(2));
    assert_eq!(ids_of(&recount), [Some(id(0))]);
    let mut count = Count::default();
    count.add(id(7), &FoundRows::default());
    count.add(id(9), &FoundRows::default());
    let recount = count.finish(delivered(2));
    assert_eq!(recount.unaccounted(), 2);
    assert_eq!(ids_of(&recount), [None]);
}

#[test]
fn two_short_places_are_not_confused() {
    let mut books = delivered(4);
    for n in 4..8 {
        books.move_one(id(n), None, Some(Place::Queued));
    }
    let mut count = Count::default();
    for n in 0..8 {
        let seen = match n {
            0 | 1 | 6 | 7 => FoundRows::default(),
            2 | 3 => logged(false),
            _ => waiting(),
        };
        count.add(id(n), &seen);
    }
    let recount = count.finish(books);
    assert_eq!(recount.unaccounted(), 4);
    assert_eq!(ids_of(&recount), [None, None]);
}

#[test]
fn an_event_named_by_the_sums_is_out_of_the_way_of_the_others() {
    let mut books = delivered(3);
    for n in 3..8 {
        books.move_one(id(n), None, Some(Place::Queued));
    }
    let mut count = Count::default();
    for n in 0..8 {
        let seen = match n {
            // One of those delivered, and two of those that wait.
            1 | 4 | 6 => FoundRows::default(),
            0 | 2 => logged(false),
            _ => waiting(),
        };
        count.add(id(n), &seen);
    }
    let recount = count.finish(books);
    let mut named = ids_of(&recount);
    named.sort();
    assert_eq!(named, [Some(id(1)), Some(id(4)), Some(id(6))]);
}

#[test]
fn claimed_events_are_in_flight_on_both_sides() {
    let mut books = Books::default();
    let mut count = Count::default();
    for n in 0..3 {
        books.move_one(id(n), None, Some(Place::Queued));
    }
    books.move_one(id(2), Some(Place::Queued), Some(Place::Retrying));
    let claimed = FoundRows {
        batches: 1,
        ..FoundRows::default()
    };
    let retried = FoundRows {
        is_row_claimed: true,
        ..row(Place::Retrying)
    };
    count.add(id(0), &claimed);
    count.add(id(1), &waiting());
    count.add(id(2), &retried);
    let audited = count.finish(books).audited();
    assert_eq!((audited.name.as_str(), audited.unaccounted), ("queue", 0));
    for side in [&audited.books, &audited.recount] {
        let seen = (side.queued, side.in_flight, side.retrying);
        assert_eq!(seen, (1, 2, 0));
        assert!(side.is_balanced());
    }
}

#[test]
fn pages_that_are_folded_agree_with_books_that_are_not() {
    let mut count = Count::default();
    for n in 0..6 {
        if n != 4 {
            count.add(id(n), &logged(false));
        }
        count.end_page(u64::MAX / 2);
    }
    let recount = count.finish(delivered(6));
    assert_eq!(ids_of(&recount), [Some(id(4))]);
}
