//! From the wish to the last payment.

use loans::Terms;
use serde_json::{Value, json};

use crate::desk::{Servers, on_both};
use crate::{Desk, lines};

on_both!(
    o20_a_small_loan_is_approved_at_once_and_a_large_one_by_somebody,
    o21_a_change_from_the_wrong_status_is_409_and_makes_no_event,
    o22_database_topic_and_consumer_log_agree,
    o23_a_payment_that_cannot_be_changes_nothing,
);

async fn o20_a_small_loan_is_approved_at_once_and_a_large_one_by_somebody(servers: Servers) {
    let desk = servers.desk(Terms::default()).await;
    let (_, status) = desk.borrow(1_000_000).await;
    assert_eq!(status, "APPROVED");
    let (large, status) = desk.borrow(1_000_001).await;
    assert_eq!(status, "PENDING_APPROVAL");
    assert_eq!(desk.change(&large, "contract").await.0, 409);
    let (code, loan) = desk.change(&large, "approve").await;
    assert_eq!((code, &loan["status"]), (200, &json!("APPROVED")));
    desk.close().await;

    let terms = Terms {
        manual_approval: false,
        ..Terms::default()
    };
    let desk = servers.desk(terms).await;
    assert_eq!(desk.borrow(1_000_001).await.1, "APPROVED");
    desk.close().await;
}

async fn o21_a_change_from_the_wrong_status_is_409_and_makes_no_event(servers: Servers) {
    let desk = servers.desk(Terms::default()).await;
    let (rejected, _) = desk.borrow(2_000_000).await;
    assert_eq!(desk.change(&rejected, "reject").await.0, 200);
    let (code, problem) = desk.change(&rejected, "approve").await;
    assert_eq!((code, &problem["code"]), (409, &json!("loan.status")));

    let (small, _) = desk.borrow(50_000).await;
    assert_eq!(desk.change(&small, "disburse").await.0, 409);
    assert_eq!(desk.change(&small, "contract").await.0, 200);
    assert_eq!(desk.change(&small, "contract").await.0, 409);

    for (id, expect) in [
        (&rejected, ["LoanCreated", "LoanRejected"]),
        (&small, ["LoanApproved", "LoanContracted"]),
    ] {
        desk.told(id, &expect).await;
        let records = desk.records(id).await;
        let types = records
            .iter()
            .map(|record| record.headers.get("event-type"));
        let types: Vec<&[u8]> = types.map(Option::unwrap).collect();
        assert_eq!(types, expect.map(str::as_bytes));
    }
    desk.close().await;
}

const EVENTS: [&str; 5] = [
    "LoanApproved",
    "LoanContracted",
    "LoanDisbursed",
    "LoanPaymentReceived",
    "LoanPaid",
];

async fn o22_database_topic_and_consumer_log_agree(servers: Servers) {
    let desk = servers.desk(Terms::default()).await;
    let (id, _) = desk.borrow(100_000).await;
    assert_eq!(desk.change(&id, "contract").await.0, 200);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let path = format!("POST /api/loans/{id}/disburse");
    let (code, loan) = desk
        .ask(&path, Value::Null, &[("traceparent", &parent)])
        .await;
    assert_eq!((code, &loan["balanceCents"]), (200, &json!(106_000)));
    let (_, loan) = desk.pay(&id, 6_000).await;
    assert_eq!(loan["status"], "DISBURSED");
    assert_eq!(desk.loan(&id).await["balanceCents"], 100_000);
    desk.pay(&id, 100_000).await;
    let stored = desk.loan(&id).await;
    assert_eq!(
        (&stored["status"], &stored["balanceCents"]),
        (&json!("PAID"), &json!(0))
    );

    desk.told(&id, &EVENTS).await;
    let rows: Vec<String> = desk.rows(&id).await.into_iter().map(|row| row.0).collect();
    assert_eq!(rows, EVENTS);
    let records = desk.records(&id).await;
    let types: Vec<&[u8]> = records
        .iter()
        .map(|record| record.headers.get("event-type").unwrap())
        .collect();
    assert_eq!(types, EVENTS.map(str::as_bytes));
    let last: Value = serde_json::from_slice(records[4].value.as_ref().unwrap()).unwrap();
    assert_eq!(last, stored, "the event tells what the database has");
    assert!(
        records
            .iter()
            .all(|record| record.headers.event_id().is_some())
    );

    // The line of each event, and the trace of the request that made one of them.
    let notified = lines::about("notified", &id);
    let told: Vec<&Value> = notified.iter().map(|line| &line["loan_event"]).collect();
    assert_eq!(told, EVENTS);
    let changed = lines::about("changed", &id);
    for lines in [&notified, &changed] {
        assert_eq!(lines[2]["trace_id"], trace);
        assert!(
            lines
                .iter()
                .all(|line| line["trace_id"].as_str().unwrap().len() == 32)
        );
    }
    desk.close().await;
}

async fn o23_a_payment_that_cannot_be_changes_nothing(servers: Servers) {
    let desk = servers.desk(Terms::default()).await;
    let (id, _) = desk.borrow(100_000).await;
    desk.change(&id, "contract").await;
    desk.change(&id, "disburse").await;
    for cents in [-1, 0, 106_001] {
        let (code, problem) = desk.pay(&id, cents).await;
        assert_eq!(
            (code, &problem["code"]),
            (400, &json!("loan.invalid")),
            "{cents}"
        );
        assert_eq!(desk.loan(&id).await["balanceCents"], 106_000);
    }
    let (code, problem) = desk.pay("nobody", 1).await;
    assert_eq!((code, &problem["code"]), (404, &json!("loan.unknown")));
    let path = "GET /api/loans/nobody";
    assert_eq!(desk.ask(path, Value::Null, &[]).await.0, 404);
    let (code, _) = desk
        .ask("POST /api/loans", json!({"customer": 7}), &[])
        .await;
    assert_eq!(code, 400);
    assert_eq!(
        desk.rows(&id).await.len(),
        3,
        "no event of a refused payment"
    );
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulation_tells_the_price_and_makes_nothing() {
    let desk = Desk::open().await;
    let body = json!({"customer": "ada", "amountCents": 2_000_000, "months": 24});
    let (code, quote) = desk.ask("POST /api/loans/simulate", body, &[]).await;
    let expect =
        json!({"totalCents": 2_240_000, "installmentCents": 93_334, "needsApproval": true});
    assert_eq!((code, quote), (200, expect));
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probes_and_their_aliases_answer() {
    let desk = Desk::open().await;
    for path in [
        "/livez",
        "/readyz",
        "/actuator/health",
        "/actuator/health/liveness",
        "/actuator/health/readiness",
    ] {
        let (code, text) = desk.page(path).await;
        assert_eq!(code, 200, "{path}: {text}");
    }
    desk.close().await;
}
