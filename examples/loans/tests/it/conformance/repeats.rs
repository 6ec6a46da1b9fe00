//! Requests that are made twice.

use std::time::Duration;

use loans::Terms;
use serde_json::json;

use crate::desk::{Servers, on_both};

on_both!(
    o18_a_repeated_key_has_one_effect_and_ends_with_its_time,
    o18_requests_at_once_with_one_key_have_one_effect,
);

async fn o18_a_repeated_key_has_one_effect_and_ends_with_its_time(servers: Servers) {
    let desk = servers.desk(Terms::default()).await;
    let body = json!({"customer": "ada", "amountCents": 100_000, "months": 12});
    let key = [("idempotency-key", "wish-1")];
    let first = desk.ask("POST /api/loans", body.clone(), &key).await;
    let again = desk.ask("POST /api/loans", body.clone(), &key).await;
    assert_eq!((first.0, &first), (201, &again));
    let other = json!({"customer": "eve", "amountCents": 100_000, "months": 12});
    assert_eq!(desk.ask("POST /api/loans", other, &key).await.0, 409);

    let id = first.1["id"].as_str().unwrap().to_owned();
    desk.change(&id, "contract").await;
    desk.change(&id, "disburse").await;
    let pay = format!("POST /api/loans/{id}/pay");
    let payment = json!({"amountCents": 6_000});
    let key = [("idempotency-key", "payment-1")];
    let first = desk.ask(&pay, payment.clone(), &key).await;
    let again = desk.ask(&pay, payment.clone(), &key).await;
    assert_eq!((first.0, &first), (200, &again));
    assert_eq!(desk.loan(&id).await["balanceCents"], 100_000, "paid once");
    assert_eq!(desk.rows(&id).await.len(), 4, "told once");
    // A request that cannot be has not used its key.
    let corrected = [("idempotency-key", "payment-2")];
    let refused = desk.ask(&pay, json!({"amountCents": 1_000_000}), &corrected);
    assert_eq!(refused.await.0, 400);
    let paid = desk.ask(&pay, json!({"amountCents": 1_000}), &corrected);
    assert_eq!(paid.await.0, 200);

    desk.pass(Duration::from_secs(24 * 3_600 + 1));
    let later = desk.ask(&pay, payment, &key).await;
    assert_eq!(later.0, 200);
    assert_eq!(
        desk.loan(&id).await["balanceCents"],
        93_000,
        "the key had expired"
    );
    desk.close().await;
}

async fn o18_requests_at_once_with_one_key_have_one_effect(servers: Servers) {
    let desk = servers.desk(Terms::default()).await;
    let body = json!({"customer": "ada", "amountCents": 100_000, "months": 12});
    let key = [("idempotency-key", "at-once")];
    let ask = || desk.ask("POST /api/loans", body.clone(), &key);
    let answers: [(u16, serde_json::Value); 4] = tokio::join!(ask(), ask(), ask(), ask()).into();
    let made = answers.iter().filter(|(code, _)| *code == 201);
    let ids: std::collections::BTreeSet<_> = made.map(|(_, loan)| loan["id"].to_string()).collect();
    assert_eq!(ids.len(), 1, "{answers:?}");
    // The others came while the first one ran, or found its answer.
    assert!(answers.iter().all(|(code, _)| matches!(code, 201 | 503)));
    desk.close().await;
}
