//! The dashboard shows what the service exports.

use serde_json::Value;

use crate::Desk;

/// The names in an expression: words that are not followed by a parenthesis, and hold an underscore.
fn names(expression: &str) -> Vec<String> {
    let expression = expression.replace("${prefix}", "loan_outbox");
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let begins = ["loan_outbox_", "tidegate_"];
    let known = |word: &&str| begins.iter().any(|begin| word.starts_with(begin));
    words.filter(known).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_of_the_dashboard_is_exported() {
    let text = include_str!("../../../../docs/dashboards/outbox.json");
    let dashboard: Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut wanted: Vec<String> = targets
        .flat_map(|target| names(target["expr"].as_str().unwrap()))
        .collect();
    wanted.sort();
    wanted.dedup();
    assert_eq!(wanted.len(), 10, "{wanted:?}");

    let desk = Desk::open().await;
    let (id, _) = desk.borrow(100_000).await;
    desk.told(&id, &["LoanApproved"]).await;
    // Gauges are set by a loop of the relay, now and then.
    let began = std::time::Instant::now();
    loop {
        let (code, page) = desk.page("/metrics").await;
        assert_eq!(code, 200);
        let is_there = |name: &&String| {
            page.lines().any(|line| {
                let rest = line.strip_prefix(name.as_str());
                rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            })
        };
        let missing: Vec<&String> = wanted.iter().filter(|name| !is_there(name)).collect();
        if missing.is_empty() {
            break;
        }
        assert!(began.elapsed().as_secs() < 60, "{missing:?}\n{page}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    desk.close().await;
}
