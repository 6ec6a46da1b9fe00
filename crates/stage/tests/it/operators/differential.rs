//! Random records through each operator: the same as the model, with and without a restart after each call.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate_flow::model::ModelScript;
use tidegate_stage::operators::ChainOptions;

use super::harness::{Act, START, compare, plan};

/// Seconds that event times lie apart at most, and the records themselves.
#[derive(Debug, Clone, Copy)]
struct Spread {
    records_s: u64,
    events_s: i64,
}

const NEAR: Spread = Spread {
    records_s: 20,
    events_s: 40,
};

/// One record of one of some streams, or time that passes.
fn act(streams: &'static [&'static str], spread: Spread) -> impl Strategy<Value = Act> {
    let value = (
        0..3_u8,
        -2..8_i64,
        0..12_u8,
        -spread.events_s..=spread.events_s,
    );
    let send = (
        0..streams.len(),
        0..=spread.records_s,
        value,
        0..3_usize,
        any::<bool>(),
    );
    let send = send.prop_map(move |(stream, after, (k, v, shape, ts), lines, w)| {
        let after = after * 1_000;
        let v = match shape {
            0 => "\"text\"".to_owned(),
            1 => "null".to_owned(),
            2 => format!("{v}.50"),
            _ => v.to_string(),
        };
        let lines: Vec<String> = (0..lines).map(|n| format!("{{\"n\":{n}}}")).collect();
        let lines = lines.join(",");
        (stream, after, k, v, ts, lines, w)
    });
    // Event times follow the clock, which only the caller knows: they are filled in by `timed`.
    prop_oneof![
        12 => send.prop_map(move |(stream, after, k, v, ts, lines, w)| Act::Send {
            stream: streams[stream].to_owned(),
            key: Some(format!("k{k}")),
            after,
            value: format!(
                r#"{{"id":"i{k}","k":"k{k}","v":{v},"ts":"@{ts}","l":[{lines}],"w":{w}}}"#
            ),
        }),
        1 => Just(Act::Send {
            stream: streams[0].to_owned(),
            key: None,
            after: 0,
            value: "{broken".to_owned(),
        }),
        2 => (0..120_u64).prop_map(|seconds| Act::Advance(seconds * 1_000)),
    ]
}

/// Gives the records their event times: so far from the clock.
pub(crate) fn timed(mut acts: Vec<Act>) -> Vec<Act> {
    let mut now = START;
    let mut has_begun = false;
    for act in &mut acts {
        match act {
            Act::Send { after, value, .. } => {
                if has_begun {
                    now += i64::try_from(*after).unwrap();
                }
                has_begun = true;
                if let Some((before, rest)) = value.split_once("\"@") {
                    let (seconds, behind) = rest.split_once('"').unwrap();
                    let seconds: i64 = seconds.parse().unwrap();
                    *value = format!("{before}{}{behind}", now + seconds * 1_000);
                }
            }
            Act::Advance(by) if has_begun => now += i64::try_from(*by).unwrap(),
            Act::Advance(_) | Act::Slow(_) | Act::End => {}
        }
    }
    acts
}

fn cases() -> u32 {
    match std::env::var_os("TIDEGATE_LONG") {
        Some(_) => 1_000,
        None => 24,
    }
}

fn check(flow: &str, streams: &'static [&'static str], spread: Spread) {
    check_by(flow, streams, spread, false);
}

fn check_by(flow: &str, streams: &'static [&'static str], spread: Spread, ends: bool) {
    let plan = plan(flow);
    let config = Config {
        cases: cases(),
        failure_persistence: None,
        ..Config::default()
    };
    let acts = prop::collection::vec(act(streams, spread), 1..40);
    let result = TestRunner::new(config).run(&acts, |acts| {
        let mut acts = timed(acts);
        if ends {
            acts.push(Act::End);
        }
        for restarts in [false, true] {
            let outside = (ModelScript::default(), ChainOptions::default());
            compare((&plan, "p"), outside, &acts, restarts);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{flow}\n{error}");
    }
}

#[test]
fn losses_while_records_come_too_fast_are_those_of_the_model() {
    for strategy in ["sample 0.5", "drop", "block"] {
        let flow = format!("process p receive a emit to b when slow strategy {strategy} end");
        let plan = plan(&flow);
        let send = |number: u64| Act::Send {
            stream: "a".to_owned(),
            key: None,
            after: 10,
            value: format!("{{\"n\":{number}}}"),
        };
        let mut acts: Vec<Act> = (0..10).map(send).collect();
        acts.push(Act::Slow(true));
        acts.extend((10..40).map(send));
        acts.push(Act::Slow(false));
        acts.extend((40..50).map(send));
        let outside = (ModelScript::default(), ChainOptions::default());
        compare((&plan, "p"), outside, &acts, false);
    }
}

const AB: &[&str] = &["a", "b"];

#[test]
fn steps_without_memory_are_those_of_the_model() {
    check(
        "decision_table t | v => level | | > 4 => \"high\" | | in [1, 2] => \"low\" | end
         transform split require v != 0 else \"zero\" each l.map(x, {\"k\": k, \"n\": x.n, \"v\": v}) drop v end
         process p receive a project except w filter v != 3
            validate_input require v != 7 else \"seven\"
            transform x.y = v * 2  copy = v
            emit to first
            transform using t
               on_failure transform level = \"none\" continue end
            route by level \"high\" to high otherwise continue
            transform using split on_success emit to also transform done = true end
            emit to parts key by n
            on commit emit completion to told correlation k include n
            on error transform failure emit to failed end
            metrics counter lows when level == \"low\" histogram size of v buckets 1, 10 end
         end",
        &["a"],
        NEAR,
    );
    check(
        "process p receive a receive b merge a, b
            route when v > 5 to big when v > 2 to middle otherwise skip
            on error transform failure skip end
            when slow strategy sample 0.5
         end",
        AB,
        NEAR,
    );
}

#[test]
fn declared_state_is_that_of_the_model() {
    for ttl in [
        "",
        "ttl 30 seconds",
        "ttl sliding 30 seconds",
        "ttl absolute 30 seconds",
    ] {
        for by in ["event_time", "processing_time"] {
            for cleanup in ["on_access", "background", "on_checkpoint"] {
                if ttl.is_empty() && (by == "event_time" || cleanup != "on_access") {
                    continue;
                }
                let life = if ttl.is_empty() {
                    String::new()
                } else {
                    format!("{ttl} by {by} cleanup {cleanup}")
                };
                let flow = format!(
                    "process p time by ts receive a
                        transform state.n = state.n + 1  state.last = v
                            state.m[string(v)] = state.n  state.all = w ? state.all + [v] : [v]
                        transform n = state.n  last = state.last  m = state.m  all = state.all
                            bad = v + 1
                        emit to b
                        state
                            local n keyed by k type counter {life}
                            local last keyed by k type gauge {life}
                            local m keyed by k type map {life}
                            local all keyed by k type list {life}
                        end
                    end"
                );
                // Only records in the order of their times: one that is late may find what was cleaned up.
                let spread = Spread {
                    records_s: 20,
                    events_s: 0,
                };
                check(&flow, &["a"], spread);
            }
        }
    }
}

#[test]
fn deduplication_is_that_of_the_model() {
    check(
        "process p receive a deduplicate by id window 30 seconds on_duplicate emit to twice end
            transform x = v + 1 emit to b end",
        &["a"],
        NEAR,
    );
    let spread = Spread {
        records_s: 20,
        events_s: 10,
    };
    check(
        "process p time by ts receive a deduplicate by id, v window 30 seconds emit to b end",
        &["a"],
        spread,
    );
}

const AGGREGATES: &str = "aggregate count() as n sum(v) as s avg(v) as m min(v) as lo max(v) as hi
    first(v) as f last(v) as z collect(v) as every end";

#[test]
fn windows_are_those_of_the_model() {
    for shape in [
        "tumbling 1 minute",
        "sliding 1 minute every 20 seconds",
        "session gap 15 seconds",
    ] {
        for time in ["", "time by ts watermark delay 5 seconds"] {
            for end in ["", "allowed lateness 30 seconds late data to late"] {
                if time.is_empty() && !end.is_empty() {
                    continue;
                }
                let flow = format!(
                    "process p {time} receive a window {shape} key by k {AGGREGATES} {end}
                        filter n != 4 emit to b end"
                );
                check(&flow, &["a"], NEAR);
            }
        }
    }
    check(
        "transform top apply best = records.map(r, r.v) end keep k, best, revision end
         process p time by ts receive a receive b merge a, b
            window session gap 20 seconds key by k allowed lateness 20 seconds aggregate using top
            emit to c end",
        AB,
        NEAR,
    );
}

#[test]
fn joins_are_those_of_the_model() {
    for kind in ["inner", "left", "right", "outer"] {
        for time in ["", "time by ts watermark delay 5 seconds"] {
            let flow = format!(
                "process p {time} receive a receive b join a with b on k within 30 seconds type {kind}
                    transform x = a.v + 1
                    emit to c on error transform failure emit to failed end end"
            );
            check(&flow, AB, NEAR);
        }
    }
    check_by(
        "process p receive a receive b mode batch join a with b on k within 1 day type outer emit to c end",
        AB,
        NEAR,
        true,
    );
}

#[test]
fn await_is_that_of_the_model() {
    for leave in ["emit to orphans", "dead_letter orphans", "skip"] {
        for time in ["", "time by ts"] {
            let flow = format!(
                "transform split each a.l.map(x, {{\"k\": k, \"n\": x.n}}) end
                 process p {time} receive a receive b
                    await a until b arrives matching on k timeout 1 minute {leave}
                    transform using split emit to c
                    on error correlation failure emit to unmatched end end"
            );
            check(&flow, AB, NEAR);
        }
    }
}

#[test]
fn hold_is_that_of_the_model() {
    for complete in [
        "complete when count >= 3 timeout 1 minute emit to partial",
        "complete when count >= 3 timeout 1 minute skip",
        "complete using full timeout 1 minute dead_letter partial",
        "complete on timeout timeout 1 minute",
    ] {
        for order in [
            "",
            "state buffer h keyed by k type lifo end",
            "state buffer h keyed by k type priority by v end",
        ] {
            let flow = format!(
                "decision_table full | count => done | | > 2 => true | | == 1 => false | end
                 process p receive a store in h receive b match from h on k
                    hold h keyed by k {complete}
                    transform x = a.size() + b.size()
                    emit to c {order} end"
            );
            check(&flow, AB, NEAR);
        }
    }
    check(
        "process p time by ts receive a store in h receive b match from h on k as marker
            hold h keyed by k complete when marker received timeout 1 minute emit to partial
            emit to c end",
        AB,
        NEAR,
    );
}

#[test]
fn combinations_are_those_of_the_model() {
    // Parts of one record wait in several entries, and their whole leaves later.
    check(
        "transform split each l.map(x, {\"k\": k, \"n\": x.n, \"v\": v}) end
         process p receive a
            transform using split
            hold a in h keyed by n complete when count >= 2 timeout 1 minute dead_letter lone
            transform x = a[0].v + 1
            emit to c end",
        &["a"],
        NEAR,
    );
    check(
        "process p receive a receive b receive c
            await a until b arrives matching on k timeout 40 seconds emit to orphans into ab
            join ab with c on k within 30 seconds type left into abc
            deduplicate by k window 1 minute
            window tumbling 1 minute key by k aggregate count() as n end
            emit to d end",
        &["a", "b", "c"],
        NEAR,
    );
    check(
        "process p receive a receive b
            join a with b on k within 30 seconds type outer into both
            transform state.seen = state.seen + 1  k2 = k
            transform x = a.v + b.v
            emit to c
            state local seen keyed by k type counter end
            on error transform failure emit to failed end end",
        AB,
        NEAR,
    );
}
