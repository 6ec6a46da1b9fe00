//! The API without sockets behaves like the one with them.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Clock, Entropy};
use tidegate_logger::{Api, ApiAnswer, EventOutcome, Payload};
use tidegate_sim::Sim;
use tidegate_testkit::{Fault, Script, ScriptedApi, StubApi};

use super::{client, event, event_saying, events, words};

/// Runs one call in a simulation and says what came of it, and how long it took.
fn play(script: Script, batch: Vec<Payload>) -> (Vec<String>, Duration, Arc<ScriptedApi>) {
    let mut sim = Sim::new(1);
    let node = sim.node("client");
    let clock = node.env().clock;
    let api = Arc::new(ScriptedApi::new(clock.clone(), move |_, _| script.clone()));
    let sender = Arc::clone(&api);
    let (words, took) = sim.block_on(&node, async move {
        let start = clock.elapsed();
        let words = words(&sender.send(&batch).await);
        (words, clock.elapsed() - start)
    });
    (words, took, api)
}

#[test]
fn a_script_gives_the_answer_that_the_same_fault_gives_over_http() {
    let pairs = [
        (Script::AnswerLost, Fault::ApplyThenDrop),
        (Script::HalfAnswer, Fault::HalfAnswer),
        (Script::Partial(vec![0]), Fault::Partial(vec![0])),
        (Script::status(401), Fault::status(401)),
        (Script::status(413), Fault::status(413).body("")),
        (Script::status(400), Fault::status(400).body("")),
        (Script::status(500), Fault::status(500)),
        (Script::Serve, Fault::Delay(Duration::ZERO)),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for (script, fault) in pairs {
        for count in [1, 3] {
            let batch = events(count);
            let stub = StubApi::start().unwrap();
            stub.fail_next(fault.clone());
            let real = runtime.block_on(async { words(&client(&stub).send(&batch).await) });
            let (scripted, _, api) = play(script.clone(), batch);
            assert_eq!(scripted, real, "{script:?} for {count}");
            assert_eq!(api.ids(), stub.ids(), "{script:?} for {count}");
        }
    }
}

#[test]
fn bad_events_are_rejected_one_by_one() {
    let batch = vec![event(1), event_saying(2, "REJECT"), event(1)];
    let (words, _, api) = play(Script::Serve, batch);
    assert_eq!(words, ["stored", "rejected event.invalid", "stored"]);
    assert_eq!((api.count(), api.duplicates(), api.rejected()), (1, 1, 1));
}

#[test]
fn a_script_answers_for_as_many_events_as_it_says() {
    for count in [0, 1, 4] {
        let (words, _, api) = play(Script::Outcomes(count), events(3));
        assert_eq!((words, api.count()), (vec!["stored".to_owned(); count], 3));
    }
}

#[test]
fn waiting_is_on_the_clock_it_was_given() {
    let hour = Duration::from_secs(3600);
    let (words, took, api) = play(Script::slow(hour), events(2));
    assert_eq!((words, took >= hour), (vec!["stored".to_owned(); 2], true));
    assert_eq!((api.calls(), api.requests()), (1, 1));
    let (words, took, api) = play(Script::TimeOut(hour), events(2));
    assert_eq!(
        (words, took >= hour),
        (vec!["failed timeout.read".to_owned()], true)
    );
    assert_eq!(api.count(), 0);
    let (words, _, api) = play(Script::Refuse, events(2));
    assert_eq!(words, ["failed connection.refused"]);
    assert_eq!((api.calls(), api.requests()), (1, 0));
}

#[test]
fn a_hang_ends_only_when_it_is_dropped() {
    let mut sim = Sim::new(1);
    let node = sim.node("client");
    let clock = node.env().clock;
    let api = ScriptedApi::new(clock.clone(), |_, _| Script::Hang);
    sim.block_on(&node, async move {
        let batch = events(1);
        tokio::select! {
            biased;
            answer = api.send(&batch) => panic!("{answer:?}"),
            () = clock.sleep(Duration::from_secs(24 * 3600)) => {}
        }
        assert_eq!(api.count(), 0);
    });
}

#[test]
fn an_api_that_is_down_refuses_whatever_its_script() {
    let mut sim = Sim::new(1);
    let node = sim.node("client");
    let api = ScriptedApi::reliable(node.env().clock);
    sim.block_on(&node, async move {
        api.down();
        assert_eq!(
            words(&api.send(&events(1)).await),
            ["failed connection.refused"]
        );
        api.up();
        assert_eq!(words(&api.send(&events(1)).await), ["stored"]);
    });
}

/// Sends every event until it is stored, in batches of up to 8 that are halved when they must be.
fn deliver(seed: u64) -> (u64, u64, Vec<String>) {
    let mut sim = Sim::new(seed);
    let node = sim.node("client");
    let env = node.env();
    let entropy: Box<dyn Entropy> = env.entropy.fork("api");
    let clock: Arc<dyn Clock> = env.clock;
    let api = Arc::new(ScriptedApi::unreliable(clock, entropy, 0.6));
    let sender = Arc::clone(&api);
    let log = sim.block_on(&node, async move {
        let mut waiting = events(200);
        let mut size = 8;
        let mut log = Vec::new();
        while !waiting.is_empty() {
            let rest = waiting.split_off(size.min(waiting.len()));
            let answer = sender.send(&waiting).await;
            log.extend(words(&answer));
            match answer {
                ApiAnswer::PerEvent(outcomes) => {
                    let mut outcomes = outcomes.iter();
                    waiting.retain(|_| {
                        let outcome = outcomes.next().unwrap();
                        assert!(!matches!(outcome, EventOutcome::Rejected { .. }));
                        *outcome != EventOutcome::Stored
                    });
                    size = 8;
                }
                ApiAnswer::TooLarge => size = (size / 2).max(1),
                ApiAnswer::Failed(_) => {}
            }
            waiting.extend(rest);
        }
        log
    });
    let mut ids = api.ids();
    ids.sort_unstable();
    let expect: Vec<_> = events(200).iter().map(|payload| payload.id).collect();
    assert_eq!(ids, expect, "seed {seed}");
    (api.calls(), api.duplicates(), log)
}

#[test]
fn an_unreliable_api_stores_every_event_once_and_repeats_itself_for_a_seed() {
    for seed in 0..20 {
        let first = deliver(seed);
        assert!(
            first.0 > 25 && first.1 > 0,
            "nothing failed with seed {seed}"
        );
        assert_eq!(first, deliver(seed), "seed {seed}");
    }
}
