//! Records that come late, and several results of one record.

use crate::{difference, passes};

#[test]
fn an_older_record_does_not_make_deduplicate_forget_a_newer_one() {
    passes(
        "process p time by ts receive a deduplicate by k window 1 hour emit to b end",
        "- send: { stream: a, value: { k: 1, n: 1, ts: 2026-01-05T10:00:00Z } }
         - send: { stream: a, value: { k: 1, n: 2, ts: 2026-01-05T08:00:00Z } }
         - send: { stream: a, value: { k: 1, n: 3, ts: 2026-01-05T10:30:00Z } }
         - expect: { stream: b, values: [ { n: 1 }, { n: 2 } ], match: partial }",
    );
}

#[test]
fn a_late_read_or_write_does_not_shorten_a_life() {
    for ttl in ["ttl 1 hour", "ttl sliding 1 hour"] {
        let flow = format!(
            "process p time by ts receive a transform n = state.n + 1 state.n = state.n + 1 emit to b
                 state local n keyed by k type counter {ttl} end end"
        );
        passes(
            &flow,
            "- send: { stream: a, value: { k: 1, ts: 2026-01-05T10:00:00Z } }
             - send: { stream: a, value: { k: 1, ts: 2026-01-05T09:30:00Z } }
             - send: { stream: a, value: { k: 1, ts: 2026-01-05T10:45:00Z } }
             - expect: { stream: b, values: [ { n: 1 }, { n: 2 }, { n: 3 } ], match: partial }",
        );
    }
}

#[test]
fn a_record_of_an_open_session_is_not_late() {
    passes(
        "process p time by ts watermark delay 10 seconds receive a
             window session gap 1 minute key by k late data to late aggregate count() as n end
             emit to b end",
        "- send: { stream: a, value: { k: 1, ts: 2026-01-05T10:00:00Z } }
         - send: { stream: a, value: { k: 1, ts: 2026-01-05T10:00:50Z } }
         - send: { stream: a, value: { k: 2, ts: 2026-01-05T10:01:30Z } }
         - send: { stream: a, value: { k: 1, ts: 2026-01-05T10:00:10Z } }
         - send: { stream: a, value: { k: 2, ts: 2026-01-05T10:05:00Z } }
         - expect: { stream: late, count: 0 }
         - expect: { stream: b, values: [ { k: 1, n: 3 }, { k: 2, n: 1 } ], match: partial }",
    );
}

#[test]
fn each_emitted_record_is_told_about() {
    passes(
        "transform split each lines.map(l, {\"id\": id, \"line\": l}) end
         process p receive a transform using split emit to b emit to c
             on commit emit completion to done correlation id include line end",
        "- send: { stream: a, value: { id: o1, lines: [x, y] } }
         - expect: { stream: done, values: [
             { correlation_id: o1, target_system: b, line: x }, { correlation_id: o1, target_system: c, line: x },
             { correlation_id: o1, target_system: b, line: y }, { correlation_id: o1, target_system: c, line: y } ],
             match: partial }",
    );
}

#[test]
fn partial_expectations_in_any_order_each_take_a_record_of_their_own() {
    let flow = "process p receive a emit to b end";
    let sent = "- send: { stream: a, value: { k: 1, v: x } }
         - send: { stream: a, value: { k: 1, v: y } }
         - send: { stream: a, value: { k: 2, v: z } }";
    // The first expectation fits two records, and the second only one of them.
    let expect = |values: &str| {
        format!(
            "{sent}\n- expect: {{ stream: b, match: partial, order: any, values: [ {values} ] }}"
        )
    };
    passes(flow, &expect("{ k: 1 }, { v: z }, { v: x }"));
    passes(flow, &expect("{}, { k: 1 }, { k: 1, v: x }"));
    let failure = difference("", flow, &expect("{ k: 1 }, { v: x }, { v: x }"));
    assert!(failure.is_some_and(|text| text.contains("expected")));
}
