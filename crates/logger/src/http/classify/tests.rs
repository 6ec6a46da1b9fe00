use proptest::prelude::*;

use super::*;

fn whole(text: &str) -> ResponseBody<'_> {
    ResponseBody::Whole(text.as_bytes())
}

/// One word for an answer: what the table of the module says.
fn word(answer: &ApiAnswer) -> String {
    match answer {
        ApiAnswer::TooLarge => "split".to_owned(),
        ApiAnswer::Failed(failure) => format!("failed {}", failure.code),
        ApiAnswer::PerEvent(outcomes) => {
            let words: Vec<String> = outcomes
                .iter()
                .map(|outcome| match outcome {
                    EventOutcome::Stored => "stored".to_owned(),
                    EventOutcome::Rejected { code, .. } => format!("rejected {code}"),
                    EventOutcome::Failed { code, .. } => format!("later {code}"),
                })
                .collect();
            words.join(", ")
        }
    }
}

#[test]
fn every_status_means_one_thing_for_one_event_and_one_for_several() {
    let check = |status: u16, one: &str, several: &str| {
        let garbage = whole("<html>");
        assert_eq!(word(&classify(status, None, garbage, 1)), one, "{status}");
        assert_eq!(
            word(&classify(status, None, garbage, 2)),
            several,
            "{status}"
        );
    };
    check(400, "rejected event.invalid", "split");
    check(409, "rejected idempotency.conflict", "split");
    check(413, "rejected body.too_large", "split");
    check(415, "rejected body.unsupported", "split");
    check(422, "rejected event.invalid", "split");
    for (statuses, code) in [
        (&[401, 403][..], "auth.denied"),
        (&[404], "not_found"),
        (&[408], "timeout.request"),
        (&[429], "rate.limited"),
        (&[503], "store.unavailable"),
        (&[200, 201, 202, 204, 299], "answer.unreadable"),
    ] {
        for status in statuses {
            check(
                *status,
                &format!("failed {code}"),
                &format!("failed {code}"),
            );
        }
    }
    // Something on the way has spoilt the header; the events are good, one alone and several.
    for count in [1, 2] {
        let body = r#"{"error":"Validation Error","code":"logger.invalid","message":"1 field"}"#;
        let answer = word(&classify(400, None, whole(body), count));
        assert_eq!(answer, "failed logger.invalid");
    }
    let listed = [400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503];
    let others = (100..200)
        .chain(300..=999)
        .filter(|status| !listed.contains(status));
    for status in others.chain([0, u16::MAX]) {
        let expect = format!("failed http.{status}");
        check(status, &expect, &expect);
    }
}

#[test]
fn one_event_is_stored_only_when_the_answer_says_so() {
    let check = |body: &str, expect: &str| {
        assert_eq!(word(&classify(201, None, whole(body), 1)), expect, "{body}");
    };
    check(
        r#"{"success":true,"executionIds":["5b0e"],"correlationId":"a"}"#,
        "stored",
    );
    check(r#"{"success":true}"#, "stored");
    for unreadable in [
        "",
        "ok",
        "{}",
        "null",
        "<html>please log in</html>",
        r#"{"success":false}"#,
        r#"{"success":"true"}"#,
        r#"{"success":true"#,
        r#"{"success":true}{"#,
    ] {
        check(unreadable, "failed answer.unreadable");
    }
}

#[test]
fn several_events_are_judged_one_by_one() {
    let check = |body: &str, expect: &str| {
        assert_eq!(word(&classify(201, None, whole(body), 3)), expect, "{body}");
    };
    let all = "stored, stored, stored";
    check(r#"{"success":true}"#, all);
    check(r#"{"success":true,"errors":[]}"#, all);
    check(r#"{"success":true,"errors":null}"#, all);
    check(
        r#"{"success":true,"totalReceived":3,"totalInserted":1,"totalDuplicates":2,"errors":[]}"#,
        all,
    );
    check(
        r#"{"success":false,"totalReceived":3,"totalInserted":1,"totalDuplicates":1,"errors":[
            {"index":2,"error":"missing processStatus","code":"event.invalid","class":"Permanent"}]}"#,
        "stored, stored, rejected event.invalid",
    );
    check(
        r#"{"success":false,"errors":[
            {"index":0,"code":"store.busy","class":"Transient"},
            {"index":1,"code":"NOT A CODE","class":"permanent"}]}"#,
        "later store.busy, rejected event.invalid, stored",
    );
    // Without a class nobody said that it will never be stored.
    check(
        r#"{"success":false,"errors":[{"index":1,"error":"boom"}]}"#,
        "stored, later store.unavailable, stored",
    );
    for one in ["System", "", "Perma"] {
        let body = format!(r#"{{"success":false,"errors":[{{"index":1,"class":"{one}"}}]}}"#);
        check(&body, "stored, later store.unavailable, stored");
    }
}

#[test]
fn of_two_verdicts_on_one_event_the_milder_one_holds() {
    let permanent = r#"{"index":0,"class":"Permanent"}"#;
    let transient = r#"{"index":0,"class":"Transient"}"#;
    for (first, second) in [(permanent, transient), (transient, permanent)] {
        let body = format!(r#"{{"success":false,"errors":[{first},{second}]}}"#);
        let answer = classify(201, None, whole(&body), 2);
        assert_eq!(word(&answer), "later store.unavailable, stored");
    }
}

#[test]
fn a_batch_answer_that_contradicts_itself_stores_nothing() {
    for body in [
        "",
        "[]",
        "{}",
        r#"{"success":false}"#,
        r#"{"success":false,"errors":[]}"#,
        r#"{"success":true,"totalReceived":2}"#,
        r#"{"success":true,"totalReceived":4}"#,
        r#"{"success":false,"errors":[{"index":3,"class":"Permanent"}]}"#,
        r#"{"success":false,"errors":[{"index":-1,"class":"Permanent"}]}"#,
        r#"{"success":false,"errors":[{"class":"Permanent"}]}"#,
        r#"{"success":false,"errors":["event 2"]}"#,
        r#"{"success":true,"totalInserted":1,"totalDuplicates":1,"errors":[]}"#,
        r#"{"success":true,"totalInserted":18446744073709551615,"totalDuplicates":4}"#,
        r#"{"success":true,"success":false,"errors":[]}"#,
        r#"{"success":true,"errors":[{"index":1,"cla"#,
    ] {
        let answer = classify(201, None, whole(body), 3);
        assert_eq!(word(&answer), "failed answer.unreadable", "{body}");
    }
}

#[test]
fn a_body_that_was_cut_stores_nothing_even_if_its_head_reads_well() {
    for batch_len in [1, 2] {
        let head = br#"{"success":true}"#;
        let body = ResponseBody::Cut {
            head,
            reason: "cut",
        };
        let answer = classify(201, None, body, batch_len);
        assert_eq!(word(&answer), "failed answer.unreadable");
    }
}

#[test]
fn a_rejection_repeats_what_the_api_said() {
    let body = r#"{"error":"Validation Error","code":"event.strange","message":"1 field",
        "details":[{"path":"processStatus","message":"missing"}]}"#;
    let ApiAnswer::PerEvent(outcomes) = classify(400, None, whole(body), 1) else {
        panic!("no outcome per event");
    };
    assert_eq!(
        outcomes,
        [EventOutcome::Rejected {
            code: Code::from_static("event.strange"),
            message: "the Event Log API answered 400: 1 field; processStatus: missing".to_owned(),
            status: Some(400),
        }]
    );
}

#[test]
fn a_failure_carries_the_wait_that_was_asked_for() {
    let wait = Some(Duration::from_secs(9));
    for status in [200, 401, 429, 503] {
        let ApiAnswer::Failed(failure) = classify(status, wait, whole("x"), 5) else {
            panic!("{status} did not fail");
        };
        assert_eq!(failure.retry_after, wait);
    }
}

/// Bodies that are nearly right, which plain noise never is.
fn nearly_right() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just("true"),
        Just("false"),
        Just("null"),
        Just("0"),
        Just("1"),
        Just("7"),
        Just("[]"),
        Just(r#"[{"index":0,"class":"Permanent"}]"#),
        Just(r#"[{"index":9}]"#),
        Just(r#""event.invalid""#),
    ];
    let name = prop_oneof![
        Just("success"),
        Just("errors"),
        Just("totalReceived"),
        Just("totalInserted"),
        Just("totalDuplicates"),
        Just("code"),
        Just("details"),
    ];
    prop::collection::vec((name, word), 0..6).prop_map(|fields| {
        let fields: Vec<String> = fields
            .iter()
            .map(|(name, word)| format!(r#""{name}":{word}"#))
            .collect();
        format!("{{{}}}", fields.join(",")).into_bytes()
    })
}

proptest! {
    #[test]
    fn no_answer_panics_and_only_2xx_stores(
        status in prop_oneof![any::<u16>(), 200_u16..600],
        text in prop_oneof![prop::collection::vec(any::<u8>(), 0..200), nearly_right()],
        is_cut in any::<bool>(),
        batch_len in 1_usize..5,
    ) {
        let body = if is_cut {
            ResponseBody::Cut { head: &text, reason: "cut" }
        } else {
            ResponseBody::Whole(&text)
        };
        match classify(status, None, body, batch_len) {
            ApiAnswer::PerEvent(outcomes) => {
                prop_assert_eq!(outcomes.len(), batch_len);
                let is_stored = outcomes.contains(&EventOutcome::Stored);
                prop_assert!(!is_stored || ((200..300).contains(&status) && !is_cut));
            }
            ApiAnswer::TooLarge => prop_assert!(batch_len > 1),
            ApiAnswer::Failed(_) => {}
        }
    }
}
