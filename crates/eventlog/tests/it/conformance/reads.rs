//! Reading.

use serde_json::json;
use tidegate_core::env::{Entropy, Stream};
use tidegate_eventlog::{
    AccountQuery, CorrelationLink, EventLog, EventLogError, LookupQuery, NewProcess, PageRequest,
    PostOrigin, TextQuery, TimeWindow, TraceQuery, words,
};

use crate::databases::{batch, event};

crate::on_every_database!(
    p08_pages_follow_each_other_by_number_and_by_key,
    p08_a_page_above_the_largest_is_refused,
    p09_a_search_needs_a_subject_and_a_bounded_window,
    every_word_must_begin_a_word,
    a_search_finds_on_each_database_what_the_words_say,
    p09_a_search_has_pages_by_number_and_by_key,
    p10_a_trace_says_how_it_went,
    p11_linked_events_belong_to_the_account,
    p12_a_process_is_defined_once,
    summaries_add_up,
    a_zero_character_finds_nothing,
);

async fn post(log: &EventLog, events: &[String]) {
    let json = batch(events, Some("b1"));
    let answer = log.post_batch(&json, PostOrigin::default()).await.unwrap();
    assert!(answer.success, "{answer:?}");
}

fn size(page_size: u32) -> PageRequest {
    PageRequest {
        page_size: Some(page_size),
        ..PageRequest::default()
    }
}

async fn p08_pages_follow_each_other_by_number_and_by_key(log: EventLog) {
    let events: Vec<String> = (0..25)
        .map(|n| {
            let at = format!("2026-06-01T10:15:{:02}Z", n % 5);
            event(json!({ "accountId": "A", "timestamp": at, "stepSequence": n }))
        })
        .collect();
    post(&log, &events).await;
    let mut by_key = Vec::new();
    let mut asked = size(10);
    loop {
        let query = AccountQuery {
            page: asked.clone(),
            ..AccountQuery::default()
        };
        let page = log.account_events("A", &query).await.unwrap();
        assert_eq!(page.total_count, 25);
        by_key.extend(page.events.iter().map(|event| event.id));
        match page.next_after {
            Some(after) => asked.after = Some(after.to_string()),
            None => break,
        }
    }
    let mut by_number = Vec::new();
    for number in 1..=3 {
        let query = AccountQuery {
            page: PageRequest {
                page: Some(number),
                ..size(10)
            },
            ..AccountQuery::default()
        };
        let page = log.account_events("A", &query).await.unwrap();
        assert_eq!(page.has_more, number < 3);
        by_number.extend(page.events.iter().map(|event| event.id));
    }
    assert_eq!(by_key, by_number);
    assert_eq!(by_key.len(), 25);
    let found = log
        .correlation("a1b2c3d4".to_owned(), &size(500))
        .await
        .unwrap();
    let ids: Vec<i64> = found.page.events.iter().map(|event| event.id).collect();
    assert!(ids.is_sorted(), "by their sequence: {ids:?}");
}

/// The field that a refused request was refused for.
fn refused_for<T>(answer: Result<T, EventLogError>) -> String {
    match answer {
        Err(EventLogError::Request(problem)) => problem.path,
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

async fn p08_a_page_above_the_largest_is_refused(log: EventLog) {
    let (most, beyond) = (size(500), size(501));
    assert!(log.correlation("c".to_owned(), &most).await.is_ok());
    assert!(log.trace("t".to_owned(), &most).await.is_ok());
    let correlation = log.correlation("c".to_owned(), &beyond).await;
    assert_eq!(refused_for(correlation), "pageSize");
    let trace = log.trace("t".to_owned(), &beyond).await;
    assert_eq!(refused_for(trace), "pageSize");
    for (page_size, is_taken) in [(100, true), (101, false), (0, false)] {
        let page = size(page_size);
        let batch = log.batch("b".to_owned(), None, &page).await;
        let account = AccountQuery {
            page: page.clone(),
            ..AccountQuery::default()
        };
        let account = log.account_events("A", &account).await;
        let lookup = LookupQuery {
            account_id: Some("A".to_owned()),
            page: page.clone(),
            ..LookupQuery::default()
        };
        let lookup = log.lookup(&lookup).await;
        let traces = TraceQuery {
            page,
            ..TraceQuery::default()
        };
        let traces = log.traces(&traces).await;
        if is_taken {
            assert!(batch.is_ok() && account.is_ok() && lookup.is_ok() && traces.is_ok());
        } else {
            let fields = [
                refused_for(batch),
                refused_for(account),
                refused_for(lookup),
                refused_for(traces),
            ];
            assert_eq!(fields, ["pageSize"; 4]);
        }
    }
    for (page_size, is_taken) in [(50, true), (51, false)] {
        let text = TextQuery {
            query: "booking".to_owned(),
            account_id: Some("A".to_owned()),
            page: size(page_size),
            ..TextQuery::default()
        };
        assert_eq!(log.search(&text).await.is_ok(), is_taken, "{page_size}");
    }
}

async fn p09_a_search_needs_a_subject_and_a_bounded_window(log: EventLog) {
    for (subject, start, end, field) in [
        (None, None, None, "accountId"),
        (Some("A"), Some("2026-06-01"), None, "endDate"),
        (Some("A"), None, Some("2026-06-01"), "startDate"),
        (Some("A"), Some("2026-06-01"), Some("2026-07-01"), "endDate"),
    ] {
        let window = TimeWindow::read(start, end).unwrap();
        let account_id = subject.map(str::to_owned);
        let lookup = LookupQuery {
            account_id: account_id.clone(),
            window,
            ..LookupQuery::default()
        };
        assert_eq!(refused_for(log.lookup(&lookup).await), field);
        let text = TextQuery {
            query: "booking".to_owned(),
            account_id,
            window,
            ..TextQuery::default()
        };
        assert_eq!(refused_for(log.search(&text).await), field);
    }
    let window = TimeWindow::read(Some("2026-06-01T00:00:00Z"), Some("2026-07-01T00:00:00Z"));
    let lookup = LookupQuery {
        process_name: Some("CreateBooking".to_owned()),
        window: window.unwrap(),
        ..LookupQuery::default()
    };
    post(&log, &[event(json!({}))]).await;
    assert_eq!(log.lookup(&lookup).await.unwrap().total_count, 1);
}

async fn every_word_must_begin_a_word(log: EventLog) {
    let details = [
        "Booking BK-1 created for PET-001",
        "Booking BK-2 cancelled",
        "Über die Brücke",
        "nothing to see",
    ];
    let events = details.map(|text| event(json!({ "details": text })));
    post(&log, &events).await;
    for (query, expect) in [
        ("book", 2),
        ("BOOKING bk 1", 1),
        ("ooking", 0),
        ("über brück", 1),
        ("bk-2 CANCEL", 1),
        ("booking nothing", 0),
    ] {
        let query = TextQuery {
            query: query.to_owned(),
            process_name: Some("CreateBooking".to_owned()),
            ..TextQuery::default()
        };
        let found = log.search(&query).await.unwrap();
        assert_eq!(found.total_count, expect, "{query:?}");
    }
}

/// Random texts of letters that databases fold and split by rules of their own.
async fn a_search_finds_on_each_database_what_the_words_say(log: EventLog) {
    const PIECES: [&str; 32] = [
        "a", "A", "é", "e\u{301}", "É", "ß", "ẞ", "İ", "ı", "I", "ﬁ", "Σ", "ς", "σ", "Ж", "ё",
        "日", "本", "ｱ", "１", "1", "٣", "²", "Ⅷ", "_", "-", "'", "\"", "*", "\u{200d}", "🐕", " ",
    ];
    let mut random = Stream::new(15);
    let mut text = |length: u64| -> String {
        let pieces = (0..length).map(|_| PIECES[usize::try_from(random.next_u64() % 32).unwrap()]);
        pieces.collect()
    };
    let details: Vec<String> = (0..150).map(|_| text(12) + "!").collect();
    let events = details.iter().map(|text| event(json!({ "details": text })));
    post(&log, &events.collect::<Vec<_>>()).await;
    let mut found = 0;
    for query in (0..150).map(|n| text(1 + n % 3)) {
        let asked = words(&query);
        if asked.is_empty() {
            continue;
        }
        let has = |word: &String, all: &[String]| all.iter().any(|one| one.starts_with(word));
        let is_hit = |text: &&String| {
            let all = words(text);
            asked.iter().all(|word| has(word, &all))
        };
        let expect = details.iter().filter(is_hit).count();
        let search = TextQuery {
            query: query.clone(),
            process_name: Some("CreateBooking".to_owned()),
            ..TextQuery::default()
        };
        let count = log.search(&search).await.unwrap().total_count;
        assert_eq!(usize::try_from(count).unwrap(), expect, "{query:?}");
        found += expect;
    }
    assert!(found > 100, "{found}");
}

/// Ids of the events that a search shows, and how many it found.
async fn searched(log: &EventLog, page: PageRequest, account: Option<&str>) -> (Vec<i64>, u64) {
    let query = TextQuery {
        query: "found".to_owned(),
        process_name: account.is_none().then(|| "CreateBooking".to_owned()),
        account_id: account.map(str::to_owned),
        page,
        ..TextQuery::default()
    };
    let found = log.search(&query).await.unwrap();
    let ids = found.events.iter().map(|event| event.id).collect();
    (ids, u64::try_from(found.total_count).unwrap())
}

async fn p09_a_search_has_pages_by_number_and_by_key(log: EventLog) {
    // Not in the order of their times, two of a time, and each third without the word.
    let events: Vec<String> = (0..30)
        .map(|n| {
            let details = ["is found", "found again", "nothing"][n % 3];
            let at = format!("2026-06-01T10:15:{:02}Z", n * 7 % 15);
            event(
                json!({ "details": details, "timestamp": at, "accountId": format!("A{}", n % 2) }),
            )
        })
        .collect();
    post(&log, &events).await;
    let (all, total) = searched(&log, size(50), None).await;
    assert_eq!((all.len(), total), (20, 20));
    let mut by_number = Vec::new();
    for (number, expect) in [(1, 9), (2, 9), (3, 2), (4, 0)] {
        let page = PageRequest {
            page: Some(number),
            ..size(9)
        };
        let (ids, total) = searched(&log, page, None).await;
        // A page behind the last one knows the count too.
        assert_eq!((ids.len(), total), (expect, 20), "page {number}");
        by_number.extend(ids);
    }
    let mut by_key = Vec::new();
    let mut asked = size(9);
    loop {
        let query = TextQuery {
            query: "found".to_owned(),
            process_name: Some("CreateBooking".to_owned()),
            page: asked.clone(),
            ..TextQuery::default()
        };
        let page = log.search(&query).await.unwrap();
        assert_eq!(page.total_count, 20);
        by_key.extend(page.events.iter().map(|event| event.id));
        match page.next_after {
            Some(after) => asked.after = Some(after.to_string()),
            None => break,
        }
    }
    assert_eq!((&by_number, &by_key), (&all, &all));
    // Numbers are given in the order of the batch, whose first event is found.
    let first = *all.iter().min().unwrap();
    let mut newest: Vec<(i64, i64)> = all.iter().map(|id| ((id - first) * 7 % 15, *id)).collect();
    newest.sort_unstable_by(|a, b| b.cmp(a));
    assert!(
        newest.iter().map(|(_, id)| id).eq(&all),
        "the newest first: {all:?}"
    );
    let (of_one, total) = searched(&log, size(50), Some("A1")).await;
    assert_eq!((of_one.len(), total), (10, 10));
}

async fn p10_a_trace_says_how_it_went(log: EventLog) {
    let trace = |n: u32| format!("{n:032x}");
    let of = |n: u32, kind: &str, status: &str| {
        event(json!({ "traceId": trace(n), "processStatus": kind, "eventStatus": status }))
    };
    let events = [
        of(1, "STEP", "FAILURE"),
        of(1, "PROCESS_END", "SUCCESS"),
        of(2, "STEP", "WARNING"),
        of(2, "STEP", "FAILURE"),
        of(3, "STEP", "WARNING"),
        of(4, "PROCESS_START", "IN_PROGRESS"),
    ];
    post(&log, &events).await;
    let listed = log.traces(&TraceQuery::default()).await.unwrap();
    let mut rows: Vec<_> = listed
        .traces
        .iter()
        .map(|row| (row.trace_id.clone(), row.latest_status, row.has_errors))
        .collect();
    rows.sort();
    assert_eq!(
        rows,
        [
            (trace(1), "SUCCESS", true),
            (trace(2), "FAILURE", true),
            (trace(3), "WARNING", false),
            (trace(4), "IN_PROGRESS", false),
        ]
    );
    let query = TraceQuery {
        event_status: Some("FAILURE,WARNING".to_owned()),
        has_errors: Some(false),
        ..TraceQuery::default()
    };
    assert_eq!(log.traces(&query).await.unwrap().total_count, 1);
    let shown = log.trace(trace(2), &PageRequest::default()).await.unwrap();
    assert_eq!(shown.status_counts["FAILURE"], 1);
    assert_eq!(shown.systems_involved, ["KENNEL", "PET_RESORT"]);
    let stats = log.stats(TimeWindow::default()).await.unwrap();
    assert_eq!((stats.total_traces, stats.success_rate), (4, 50.0));
}

async fn p11_linked_events_belong_to_the_account(log: EventLog) {
    post(&log, &[event(json!({ "correlationId": "c9" }))]).await;
    let missing = log.find_link("c9").await;
    assert!(matches!(missing, Err(EventLogError::NotFound { .. })));
    for account in ["OLD", "A"] {
        let link = CorrelationLink {
            correlation_id: "c9".to_owned(),
            account_id: account.to_owned(),
            application_id: None,
            customer_id: None,
            card_number_last4: Some("4242".to_owned()),
            retain: false,
        };
        log.link(link).await.unwrap();
    }
    assert_eq!(log.find_link("c9").await.unwrap().account_id, "A");
    for (include_linked, expect) in [(false, 0), (true, 1)] {
        let query = AccountQuery {
            include_linked,
            ..AccountQuery::default()
        };
        let found = log.account_events("A", &query).await.unwrap();
        assert_eq!(found.total_count, expect);
    }
    let page = PageRequest::default();
    let found = log.correlation("c9".to_owned(), &page);
    let found = found.await.unwrap();
    assert_eq!(
        (found.account_id.as_deref(), found.is_linked),
        (Some("A"), true)
    );
}

async fn p12_a_process_is_defined_once(log: EventLog) {
    let process = NewProcess {
        process_name: "CheckIn".to_owned(),
        display_name: "Check in".to_owned(),
        description: "From the door to the kennel".to_owned(),
        owning_team: "desk".to_owned(),
        expected_steps: Some(3),
        sla_ms: None,
        is_active: true,
        retain: false,
    };
    log.define_process(process.clone()).await.unwrap();
    let again = log.define_process(process).await;
    assert!(matches!(again, Err(EventLogError::NameTaken { .. })));
    assert_eq!(log.processes(Some(true)).await.unwrap().len(), 1);
    assert_eq!(log.processes(Some(false)).await.unwrap().len(), 0);
}

async fn summaries_add_up(log: EventLog) {
    let of = |correlation: &str, kind: &str, status: &str| {
        event(json!({ "correlationId": correlation, "accountId": "A",
            "processStatus": kind, "eventStatus": status }))
    };
    let events = [
        of("c1", "PROCESS_START", "IN_PROGRESS"),
        of("c1", "STEP", "FAILURE"),
        of("c1", "PROCESS_END", "SUCCESS"),
        of("c2", "PROCESS_END", "FAILURE"),
        of("c3", "PROCESS_START", "IN_PROGRESS"),
    ];
    post(&log, &events).await;
    let batch = log.batch_summary("b1".to_owned()).await.unwrap();
    assert_eq!(
        (
            batch.total_processes,
            batch.completed,
            batch.failed,
            batch.in_progress
        ),
        (3, 1, 1, 1)
    );
    assert_eq!(batch.correlation_ids, ["c1", "c2", "c3"]);
    let account = log.account_summary("A".to_owned()).await.unwrap();
    assert_eq!((account.total_events, account.failure_count), (5, 2));
    assert_eq!(account.recent_errors.len(), 2);
    let missing = log.account_summary("B".to_owned()).await;
    assert!(matches!(missing, Err(EventLogError::NotFound { .. })));
}

/// PostgreSQL takes none in a value; a question with one has an answer all the same.
async fn a_zero_character_finds_nothing(log: EventLog) {
    const ZERO: &str = "a\0b";
    post(&log, &[event(json!({ "accountId": "A" }))]).await;
    let (zero, page) = (ZERO.to_owned(), PageRequest::default());
    let correlation = log.correlation(zero.clone(), &page).await.unwrap();
    assert_eq!(correlation.page.total_count, 0);
    let trace = log.trace(zero.clone(), &page).await.unwrap();
    assert_eq!(trace.page.total_count, 0);
    let batch = log.batch(zero.clone(), None, &page).await.unwrap();
    assert_eq!(batch.page.total_count, 0);
    assert_eq!(
        log.batch_summary(zero.clone())
            .await
            .unwrap()
            .total_processes,
        0
    );
    for include_linked in [false, true] {
        let query = AccountQuery {
            include_linked,
            ..AccountQuery::default()
        };
        let account = log.account_events(ZERO, &query).await.unwrap();
        assert_eq!(account.total_count, 0);
    }
    let traces = TraceQuery {
        correlation_id: Some(zero.clone()),
        ..TraceQuery::default()
    };
    assert_eq!(log.traces(&traces).await.unwrap().total_count, 0);
    let lookup = LookupQuery {
        process_name: Some(zero.clone()),
        ..LookupQuery::default()
    };
    assert_eq!(log.lookup(&lookup).await.unwrap().total_count, 0);
    for missing in [
        log.find_link(ZERO).await.map(drop),
        log.account_summary(zero).await.map(drop),
    ] {
        assert!(matches!(missing, Err(EventLogError::NotFound { .. })));
    }
}
