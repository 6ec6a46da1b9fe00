//! Each row of the table of ways out, and of the table of failures.

use tidegate_core::EventId;

use crate::{passes, passes_with};

#[test]
fn emitted_routed_filtered_and_duplicate_records_are_delivered() {
    passes(
        "process p receive a filter x > 0
            deduplicate by id
            route by kind \"r\" to r otherwise continue
            emit to b end",
        "- send: { stream: a, value: { id: 1, x: 1, kind: e } }
         - send: { stream: a, value: { id: 1, x: 1, kind: e } }
         - send: { stream: a, value: { id: 2, x: 0, kind: e } }
         - send: { stream: a, value: { id: 3, x: 1, kind: r } }
         - expect: { stream: b, count: 1 }
         - expect: { stream: r, count: 1 }
         - expect: { ledger: { accepted: 4, delivered: 4 } }",
    );
}

#[test]
fn waiting_records_are_parked_and_leave_with_their_timeout() {
    for (leave, expect) in [
        ("emit to late", "delivered: 1"),
        ("dead_letter late", "dead_lettered: 1"),
        ("skip", "lost.skipped: 1"),
    ] {
        let flow = format!(
            "process p receive a receive b
                await a until b arrives matching on k timeout 1 minute {leave}
                emit to c end"
        );
        passes(
            &flow,
            &format!(
                "- send: {{ stream: a, value: {{ k: 1 }} }}
                 - expect: {{ ledger: {{ parked: 1, delivered: 0 }}, pending: 1 }}
                 - advance: 60s
                 - expect: {{ ledger: {{ parked: 0, {expect}, accepted: 1 }}, pending: 0 }}"
            ),
        );
        let flow = format!(
            "process p receive a store in h
                hold h keyed by k complete when count >= 2 timeout 1 minute {leave}
                emit to c end"
        );
        passes(
            &flow,
            &format!(
                "- send: {{ stream: a, value: {{ k: 1 }} }}
                 - expect: {{ ledger: {{ parked: 1 }}, pending: 1 }}
                 - advance: 60s
                 - expect: {{ ledger: {{ parked: 0, {expect}, accepted: 1 }}, pending: 0 }}"
            ),
        );
    }
}

#[test]
fn windows_and_joins_absorb_what_comes() {
    passes(
        "process p time by ts receive a
            window tumbling 1 minute key by k aggregate count() as n end
            emit to b end",
        "- send: { stream: a, value: { k: 1, ts: 2026-01-05T10:00:01Z } }
         - expect: { ledger: { delivered: 1 } }
         - send: { stream: a, value: { k: 1, ts: 2026-01-05T10:01:01Z } }
         - send: { stream: a, value: { k: 1, ts: 2026-01-05T10:00:02Z } }
         - expect: { dead-letters: [ { code: late, stream: p_dlq } ], ledger: { delivered: 2, dead_lettered: 1 } }",
    );
    passes(
        "process p receive a receive b join a with b on k within 1 minute emit to c end",
        "- send: { stream: a, value: { k: 1 } }
         - expect: { ledger: { delivered: 1 } }
         - advance: 1h
         - expect: { stream: c, count: 0, ledger: { delivered: 1 } }",
    );
}

#[test]
fn losses_by_declaration_have_their_reason() {
    passes(
        "process p receive a route by k \"x\" to b otherwise skip end",
        "- send: { stream: a, value: { k: y } }
         - send: { stream: a, value: { k: x } }
         - expect: { ledger: { lost.skipped: 1, delivered: 1 } }",
    );
    passes(
        "process p receive a transform x = 1 / k emit to b on error transform failure skip end end",
        "- send: { stream: a, value: { k: 0 } }
         - expect: { ledger: { lost.skipped: 1 } }",
    );
    passes(
        "process p receive a emit to b when slow strategy drop end",
        "- slow: true
         - send: { stream: a, value: { k: 0 } }
         - slow: false
         - send: { stream: a, value: { k: 0 } }
         - expect: { stream: b, count: 1, ledger: { lost.slow_drop: 1, delivered: 1 } }",
    );
}

#[test]
fn each_failure_takes_its_default() {
    for (flow, value, code) in [
        (
            "process p receive a transform x = 1 / k emit to b end",
            "{ k: 0 }",
            "expr.division-by-zero",
        ),
        (
            "process p receive a filter k emit to b end",
            "{ k: 0 }",
            "expr.type",
        ),
        (
            "process p receive a validate_input require k > 0 else \"m\" emit to b end",
            "{ k: 0 }",
            "rule.rejected",
        ),
        (
            "process p receive a route by k \"x\" to b end",
            "{ k: 0 }",
            "route.unmatched",
        ),
        (
            "decision_table t | k => r | | 1 => \"a\" | end
             process p receive a transform using t emit to b end",
            "{ k: 0 }",
            "rule.unmatched",
        ),
        (
            "process p receive c receive a await c until a arrives matching on k timeout 1 day skip emit to b end",
            "{ k: 0 }",
            "correlation.unmatched",
        ),
        (
            "schema s k: string end process p receive a emit to b schema s end",
            "{ k: 0 }",
            "schema.invalid",
        ),
        (
            "schema s k: string end process p receive a schema s emit to b end",
            "{ k: 0 }",
            "schema.invalid",
        ),
    ] {
        let steps = format!(
            "- send: {{ stream: a, value: {value} }}
             - expect: {{ dead-letters: [ {{ code: {code}, stream: p_dlq }} ], ledger: {{ dead_lettered: 1 }} }}
             - expect: {{ stream: b, count: 0 }}
             - expect: {{ stream: p_dlq, values: [ {{ error_code: {code}, stage_name: p }} ], match: partial }}"
        );
        passes(flow, &steps);
    }
}

#[test]
fn a_handler_may_emit_and_outputs_of_a_failed_record_are_not_seen() {
    passes(
        "process p receive a emit to first transform x = 1 / k emit to second
            on error transform failure emit to broken end end",
        "- send: { stream: a, value: { k: 0 } }
         - expect: { stream: first, count: 0 }
         - expect: { stream: second, count: 0 }
         - expect: { stream: broken, values: [ { k: 0 } ], ledger: { delivered: 1 } }
         - send: { stream: a, value: { k: 2 } }
         - expect: { stream: first, values: [ { k: 2 } ] }
         - expect: { stream: second, values: [ { k: 2, x: 0 } ] }",
    );
}

#[test]
fn a_failure_leaves_state_as_it_was() {
    passes(
        "process p receive a
            transform state.seen = state.seen + 1  x = 1 / k
            emit to b
            state local seen keyed by id type counter end end",
        "- send: { stream: a, value: { id: u, k: 1 } }
         - send: { stream: a, value: { id: u, k: 0 } }
         - expect: { state: { seen: { u: 1 } }, ledger: { delivered: 1, dead_lettered: 1 } }",
    );
    passes(
        "process p receive a receive b await a until b arrives matching on k timeout 1 day skip
            transform x = 1 / b.d emit to c end",
        "- send: { stream: a, value: { k: 1 } }
         - send: { stream: b, value: { k: 1, d: 0 } }
         - expect: { pending: 1, ledger: { parked: 1, dead_lettered: 1 } }
         - send: { stream: b, value: { k: 1, d: 1 } }
         - expect: { stream: c, count: 1, pending: 0, ledger: { parked: 0, delivered: 2, dead_lettered: 1 } }",
    );
}

#[test]
fn on_failure_replaces_the_handlers_of_the_process() {
    let transform = "transform t require k > 0 else \"m\" apply x = 1 end end";
    passes(
        &format!(
            "{transform} process p receive a transform using t on_failure continue end emit to b end"
        ),
        "- send: { stream: a, value: { k: 0 } }
         - expect: { stream: b, values: [ { k: 0 } ], ledger: { delivered: 1 } }",
    );
    passes(
        &format!(
            "{transform} process p receive a transform using t on_failure transform why = \"t\" emit to c end emit to b end"
        ),
        "- send: { stream: a, value: { k: 0 } }
         - expect: { stream: c, values: [ { k: 0, why: t } ], ledger: { delivered: 1 } }
         - expect: { stream: b, count: 0 }",
    );
}

/// A process that asks a lookup, with these handlers.
fn asks(handlers: &str) -> String {
    format!(
        "lookup customers key id tier: string end
         process p receive a enrich using customers on id select tier emit to b on error {handlers} end end"
    )
}

const FAILS_TWICE: &str =
    "lookups: { customers: { x: { fail: timeout.connect, times: 2, then: { tier: gold } } } }";

#[test]
fn a_retry_waits_for_its_delay_and_other_records_go_on() {
    for (clauses, first, second) in [
        ("retry 3", 100, 200),
        ("retry 3 times delay 1 second", 1_000, 2_000),
        ("retry 3 delay 1s max_delay 1500ms", 1_000, 1_500),
        ("retry 3 delay 1s backoff linear", 1_000, 2_000),
        ("retry 3 delay 1s backoff fixed", 1_000, 1_000),
    ] {
        passes_with(
            FAILS_TWICE,
            &asks(&format!("lookup failure {clauses} then dead_letter d")),
            &format!(
                "- send: {{ stream: a, value: {{ id: x }} }}
                 - expect: {{ ledger: {{ retrying: 1 }} }}
                 - send: {{ stream: a, value: {{ id: y }} }}
                 - expect: {{ stream: b, values: [ {{ id: y, tier: null }} ], ledger: {{ retrying: 1, delivered: 1 }} }}
                 - advance: {first}ms
                 - advance: {}ms
                 - expect: {{ stream: b, count: 0, ledger: {{ retrying: 1 }} }}
                 - advance: 1ms
                 - expect: {{ stream: b, values: [ {{ id: x, tier: gold }} ], ledger: {{ retrying: 0, delivered: 2 }} }}",
                second - 1
            ),
        );
    }
}

#[test]
fn attempts_that_are_used_up_and_permanent_failures_take_the_next_action() {
    let fails = |class: &str| {
        format!("lookups: {{ customers: {{ x: {{ fail: service.down, class: {class} }} }} }}")
    };
    // The default of a lookup failure: three attempts, then the dead letter stream.
    for (handlers, class, attempts, stream) in [
        ("rule failure skip", "transient", 3, "p_dlq"),
        ("rule failure skip", "permanent", 1, "p_dlq"),
        (
            "lookup failure retry 4 lookup failure dead_letter d",
            "transient",
            4,
            "d",
        ),
        ("lookup failure dead_letter d", "transient", 1, "d"),
    ] {
        passes_with(
            &fails(class),
            &asks(handlers),
            &format!(
                "- send: {{ stream: a, value: {{ id: x }} }}
                 - advance: 1h
                 - expect: {{ dead-letters: [ {{ code: service.down, stream: {stream}, attempts: {attempts} }} ],
                     ledger: {{ retrying: 0, dead_lettered: 1 }} }}"
            ),
        );
    }
}

#[test]
fn an_attempt_leaves_no_trace_of_the_one_before() {
    passes_with(
        FAILS_TWICE,
        "lookup customers key id tier: string end
         process p receive a transform state.n = state.n + 1  n = state.n emit to seen
            enrich using customers on id select tier emit to b
            state local n keyed by id type counter end end",
        "- send: { stream: a, value: { id: x } }
         - expect: { stream: seen, count: 0, state: { n: { x: null } } }
         - advance: 1s
         - expect: { stream: seen, values: [ { id: x, n: 1 } ], state: { n: { x: 1 } } }
         - expect: { stream: b, count: 1 }",
    );
}

#[test]
fn a_timeout_whose_records_cannot_be_looked_up_is_tried_again() {
    passes_with(
        FAILS_TWICE,
        "lookup customers key id tier: string end
         process p receive a store in h
            hold h keyed by id complete on timeout timeout 1 hour
            enrich using customers on id select tier emit to b end",
        "- send: { stream: a, value: { id: x } }
         - advance: 1h
         - expect: { stream: b, count: 0, pending: 1, ledger: { parked: 1 } }
         - advance: 1s
         - expect: { stream: b, values: [ { id: x, tier: gold, count: 1 } ], match: partial, pending: 0,
             ledger: { parked: 0, delivered: 1 } }",
    );
}

#[test]
fn a_sink_that_is_away_for_a_while_gets_the_record_later() {
    passes_with(
        "sinks: { b: { fail: service.down, class: transient, times: 1 } }",
        "process p receive a emit to b on error transform failure retry 2 end end",
        "- send: { stream: a, value: { id: x } }
         - expect: { stream: b, count: 0, ledger: { retrying: 1 } }
         - advance: 100ms
         - expect: { stream: b, count: 1, ledger: { delivered: 1 } }",
    );
    passes_with(
        "sinks: { b: { fail: record.refused } }",
        "process p receive a emit to b end",
        "- send: { stream: a, value: { id: x } }
         - expect: { dead-letters: [ { code: record.refused, stream: p_dlq } ], ledger: { dead_lettered: 1 } }",
    );
}

#[test]
fn a_system_failure_stops_the_process_and_loses_nothing() {
    passes_with(
        "lookups: { customers: { x: { fail: auth.denied, class: system } } }",
        &asks("lookup failure retry 3"),
        "- send: { stream: a, value: { id: y } }
         - send: { stream: a, value: { id: x } }
         - send: { stream: a, value: { id: y } }
         - advance: 1h
         - expect: { stream: b, count: 1, ledger: { accepted: 3, delivered: 1, queued: 2 } }",
    );
}

#[test]
fn records_of_a_slow_process_are_sampled_by_their_id() {
    let sends: String = (0..40)
        .map(|n| format!("- send: {{ stream: a, value: {{ n: {n} }} }}\n"))
        .collect();
    let kept = (0..40_u64).filter(|n| {
        let id = EventId::derived(&["a", &n.to_string()]);
        let hash = EventId::derived(&[&id.to_string()]).as_u128();
        (hash >> 64) < 1 << 63
    });
    let kept = kept.count();
    assert!((5..35).contains(&kept));
    for (rate, kept) in [("1", 40), ("0.5", kept)] {
        let lost = 40 - kept;
        let ledger = format!("accepted: 40, delivered: {kept}, lost.slow_sample: {lost}");
        passes(
            &format!("process p receive a emit to b when slow strategy sample {rate} end"),
            &format!(
                "- slow: true\n{sends}- expect: {{ stream: b, count: {kept}, ledger: {{ {ledger} }} }}"
            ),
        );
    }
}
