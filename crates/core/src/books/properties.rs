use proptest::prelude::*;

use super::*;
use crate::EventId;

const DAY_MS: u64 = 24 * 3_600_000;
/// A fixed "now", long after every birth below.
const NOW_MS: u64 = 1_800_000_000_000;

fn places() -> Vec<Place> {
    let mut places: Vec<Place> = [
        "queued",
        "in_flight",
        "retrying",
        "parked",
        "spilled",
        "dead_lettered",
        "delivered",
    ]
    .iter()
    .map(|text| text.parse().unwrap())
    .collect();
    places.push(Place::Lost(LossReason::from_static("queue_full")));
    places.push(Place::Lost(LossReason::PURGED));
    places
}

/// An id that was born so many minutes before now.
fn id(minutes_ago: u64, random: u64) -> EventId {
    let ms = u128::from(NOW_MS - minutes_ago * 60_000);
    EventId::from_u128(ms << 80 | 7 << 76 | 2 << 62 | u128::from(random >> 2))
}

/// The life of one event: when it was born, and where it went, each by which process.
#[derive(Debug, Clone)]
struct Life {
    id: EventId,
    hops: Vec<(usize, usize)>,
    is_removed: bool,
}

const PROCESSES: usize = 3;

fn lives() -> impl Strategy<Value = Vec<Life>> {
    let ages = prop_oneof![3 => 0_u64..3, 2 => 0_u64..2_000, 1 => 0_u64..90_000];
    let hops = proptest::collection::vec((0..9_usize, 0..PROCESSES), 1..6);
    let life = (ages, any::<u64>(), hops, prop::bool::weighted(0.2)).prop_map(
        |(minutes_ago, random, hops, is_removed)| Life {
            id: id(minutes_ago, random),
            hops,
            is_removed,
        },
    );
    // Two events with one id are one event.
    proptest::collection::vec(life, 1..40).prop_map(|mut lives| {
        lives.sort_by_key(|life| life.id);
        lives.dedup_by_key(|life| life.id);
        lives
    })
}

/// The books of each process, and a recount.
fn play(lives: &[Life]) -> (Vec<Books>, Books) {
    let places = places();
    let mut processes = vec![Books::default(); PROCESSES];
    let mut recount = Books::default();
    for life in lives {
        let mut at = None;
        for (place, process) in &life.hops {
            let to = Some(places[*place].clone());
            for posting in postings([life.id], at, to.clone()) {
                processes[*process].post(&posting);
            }
            at = to;
        }
        if life.is_removed {
            processes[0].move_one(life.id, at, None);
        } else {
            recount.move_one(life.id, None, at);
        }
    }
    (processes, recount)
}

fn together(processes: &[Books]) -> Books {
    let mut all = Books::default();
    for books in processes {
        all.merge(books);
    }
    all
}

fn last_place(life: &Life) -> Place {
    places()[life.hops.last().unwrap().0].clone()
}

proptest! {
    #[test]
    fn a01_any_moves_by_any_processes_balance_and_agree_with_the_recount(lives in lives()) {
        let (processes, recount) = play(&lives);
        let books = together(&processes);
        prop_assert!(books.is_balanced());
        prop_assert!(books.account().is_balanced());
        prop_assert_eq!(books.account().accepted, lives.len() as i64);
        prop_assert_eq!(difference(&books, &recount), vec![]);
        let removed = lives.iter().filter(|life| life.is_removed).count();
        prop_assert_eq!(books.removed().accepted, removed as i64);
        prop_assert_eq!(Books::from_rows(&books.rows()), Some(books));
    }

    #[test]
    fn forgetting_leaves_balanced_books(lives in lives()) {
        let mut books = together(&play(&lives).0);
        let in_flight = books.in_place(&Place::InFlight);
        prop_assert_eq!(books.forget(&Place::InFlight), in_flight);
        prop_assert!(books.is_balanced());
        prop_assert_eq!(books.account().in_flight, 0);
        prop_assert_eq!(books.account().accepted, lives.len() as i64 - in_flight);
    }

    #[test]
    fn folding_at_any_time_on_either_side_changes_no_finding(
        lives in lives(), later in 0_u64..(60 * DAY_MS), fold_recount: bool,
    ) {
        let (processes, mut recount) = play(&lives);
        let mut books = together(&processes);
        let account = books.account();
        let side = if fold_recount { &mut recount } else { &mut books };
        side.fold(NOW_MS + later);
        prop_assert!(books.is_balanced());
        prop_assert_eq!(books.account(), account);
        prop_assert_eq!(difference(&books, &recount), vec![]);
    }

    #[test]
    fn g06_one_event_missing_anywhere_is_named(
        lives in lives(), pick: prop::sample::Index, later in 0_u64..(60 * DAY_MS),
    ) {
        let present: Vec<&Life> = lives.iter().filter(|life| !life.is_removed).collect();
        prop_assume!(!present.is_empty());
        let gone = present[pick.index(present.len())];
        let (processes, _) = play(&lives);
        let rest: Vec<Life> = lives.iter().filter(|life| life.id != gone.id).cloned().collect();
        let (_, recount) = play(&rest);
        let mut books = together(&processes);
        books.fold(NOW_MS + later);
        let found = difference(&books, &recount);
        prop_assert_eq!(found.len(), 1);
        prop_assert_eq!((found[0].count, found[0].id), (1, Some(gone.id)));
        prop_assert_eq!(&found[0].place, &last_place(gone));
        // And one that should not be there is named as well.
        let found = difference(&together(&play(&rest).0), &play(&lives).1);
        prop_assert_eq!((found[0].count, found[0].id), (-1, Some(gone.id)));
    }

    #[test]
    fn two_events_missing_are_told_by_bucket_place_and_number(
        minutes_ago in 0_u64..90_000, random: u64, others in lives(),
    ) {
        let twins = [id(minutes_ago, random), id(minutes_ago, !random)];
        let mut books = together(&play(&others).0);
        for twin in twins {
            books.move_one(twin, None, Some(Place::Spilled));
        }
        let found = difference(&books, &play(&others).1);
        prop_assert_eq!(found, vec![Discrepancy {
            bucket: Bucket::of(twins[0]), place: Place::Spilled, count: 2, id: None,
        }]);
    }
}

#[test]
fn an_event_that_is_settled_twice_unbalances_the_books() {
    let event = id(5, 9);
    let mut books = Books::default();
    books.move_one(event, None, Some(Place::InFlight));
    for _ in 0..2 {
        assert!(books.is_balanced() && books.account().is_balanced());
        books.move_one(event, Some(Place::InFlight), Some(Place::Delivered));
    }
    assert!(!books.is_balanced() && !books.account().is_balanced());
}

#[test]
fn an_event_in_the_wrong_place_is_named_on_both_sides() {
    let event = id(5, 9);
    let (mut books, mut recount) = (Books::default(), Books::default());
    books.move_one(event, None, Some(Place::Queued));
    recount.move_one(event, None, Some(Place::Delivered));
    let found: Vec<_> = difference(&books, &recount)
        .into_iter()
        .map(|d| (d.place, d.count, d.id))
        .collect();
    assert_eq!(
        found,
        [
            (Place::Queued, 1, Some(event)),
            (Place::Delivered, -1, Some(event))
        ]
    );
}

#[test]
fn one_exchanged_for_another_is_found_although_the_numbers_agree() {
    let (mut books, mut recount) = (Books::default(), Books::default());
    books.move_one(id(5, 9), None, Some(Place::Queued));
    recount.move_one(id(5, 400), None, Some(Place::Queued));
    let found = difference(&books, &recount);
    assert_eq!((found.len(), found[0].count, found[0].id), (1, 0, None));
}

#[test]
fn an_account_is_written_in_the_documented_form_and_reads_back() {
    let mut books = Books::default();
    books.move_one(id(1, 1), None, Some(Place::Delivered));
    books.move_one(
        id(1, 5),
        None,
        Some(Place::Lost(LossReason::from_static("queue_full"))),
    );
    let json = serde_json::to_string(&books.account()).unwrap();
    assert_eq!(
        json,
        r#"{"accepted":2,"queued":0,"in_flight":0,"retrying":0,"parked":0,"spilled":0,"dead_lettered":0,"delivered":1,"lost":{"total":1,"queue_full":1}}"#
    );
    assert_eq!(
        serde_json::from_str::<Account>(&json).unwrap(),
        books.account()
    );
}

#[test]
fn a_place_reads_back_from_its_text() {
    for place in places() {
        assert_eq!(place.to_string().parse(), Ok(place));
    }
    assert!("lost:".parse::<Place>().is_err());
    assert!("nowhere".parse::<Place>().is_err());
}
