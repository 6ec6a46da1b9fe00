//! Each row of the table of ways out, and of the table of failures.

use crate::passes;

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
