//! The demos that a seed tells again: `tidegate demo retry`, `log`, `queue` and `outbox`.

use crate::command::run;

#[test]
fn g12_the_demo_of_retries_balances_with_nothing_lost_whatever_its_seed() {
    for seed in 0..if crate::guides::is_long() { 20 } else { 8 } {
        let ran = run(&["demo", "retry", "--seed", &seed.to_string(), "-o", "json"]);
        assert_eq!(ran.code, Some(0), "seed {seed}: {}", ran.stdout);
        let verdict = ran.json();
        assert_eq!(verdict["balanced"], true, "seed {seed}");
        let ledger = &verdict["ledger"];
        assert_eq!(ledger["accepted"], 3_600, "seed {seed}");
        assert_eq!(ledger["lost"]["total"], 0, "seed {seed}");
        let ended =
            ledger["delivered"].as_i64().unwrap() + ledger["dead_lettered"].as_i64().unwrap();
        assert_eq!(ended, 3_600, "seed {seed}");
        assert_eq!(verdict["duplicates"], 0, "seed {seed}");
        assert!(
            verdict["breaker_openings"].as_i64().unwrap() >= 1,
            "seed {seed}: an outage opens"
        );
        let phases = verdict["phases"].as_array().unwrap();
        let outage = phases
            .iter()
            .find(|phase| phase["name"] == "outage")
            .unwrap();
        assert_eq!(outage["breaker"], "OPEN", "seed {seed}");
        assert!(
            outage["account"]["queued"].as_i64().unwrap() > 1_000,
            "seed {seed}: they wait"
        );
    }
}

#[test]
fn the_same_seed_tells_the_same_story() {
    let one = run(&["demo", "retry", "--seed", "0x5f3a"]);
    let two = run(&["demo", "retry", "--seed", "0x5f3a"]);
    assert_eq!(one.stdout, two.stdout);
    assert!(one.stdout.contains("✓ the books balance"), "{}", one.stdout);
    assert!(
        one.stdout.contains("tidegate demo retry --seed 0x5f3a"),
        "{}",
        one.stdout
    );
    assert_ne!(
        one.stdout,
        run(&["demo", "retry", "--seed", "0x5f3b"]).stdout
    );
}

#[test]
fn g14_the_log_survives_a_dead_consumer_and_a_power_cut_whatever_the_seed() {
    for seed in 0..if crate::guides::is_long() { 10 } else { 5 } {
        let ran = run(&["demo", "log", "--seed", &seed.to_string(), "-o", "json"]);
        assert_eq!(ran.code, Some(0), "seed {seed}: {}", ran.stdout);
        let verdict = ran.json();
        assert_eq!(
            (&verdict["demo"], &verdict["balanced"]),
            (&"log".into(), &true.into())
        );
        let ledger = &verdict["ledger"];
        assert_eq!(ledger["delivered"], ledger["accepted"], "seed {seed}");
        assert_eq!(ledger["lost"]["total"], 0, "seed {seed}");
        assert_eq!(
            (&verdict["missing"], &verdict["unaccounted"]),
            (&0.into(), &0.into())
        );
        let phases = verdict["phases"].as_array().unwrap();
        let of = |name: &str| phases.iter().find(|phase| phase["name"] == name).unwrap();
        assert_eq!(of("kill")["consumers"], 1, "seed {seed}");
        assert!(
            of("produce")["account"]["queued"].as_i64().unwrap() > 500,
            "seed {seed}"
        );
        assert_eq!(of("verdict")["account"]["queued"], 0, "seed {seed}");
    }
}

#[test]
fn the_same_seed_tells_the_same_story_of_the_log() {
    let one = run(&["demo", "log", "--seed", "7"]);
    assert_eq!(one.stdout, run(&["demo", "log", "--seed", "7"]).stdout);
    assert!(
        one.stdout.contains("tidegate demo log --seed 0x7"),
        "{}",
        one.stdout
    );
    assert!(
        one.stdout.contains("every event is accounted for"),
        "{}",
        one.stdout
    );
    assert_ne!(one.stdout, run(&["demo", "log", "--seed", "8"]).stdout);
}

/// R02, R10: a week of orders and payments, and a machine that dies more than a hundred times.
#[test]
fn r10_the_stage_that_waits_a_week_survives_its_deaths_whatever_the_seed() {
    for seed in ["1", "2"] {
        let ran = run(&["demo", "await", "--seed", seed, "-o", "json"]);
        assert_eq!(
            ran.code,
            Some(0),
            "seed {seed}: {}{}",
            ran.stdout,
            ran.stderr
        );
        let verdict = ran.json();
        assert_eq!(verdict["balanced"], true, "seed {seed}");
        let number = |name: &str| verdict[name].as_u64().unwrap();
        assert_eq!(number("paid"), number("payments"), "seed {seed}");
        assert_eq!(number("paid") + number("unpaid"), number("orders"));
        assert_eq!((number("doubled"), number("wrong")), (0, 0), "seed {seed}");
        assert!(
            number("unpaid") > 50 && number("kills") > 50,
            "{}",
            ran.stdout
        );
    }
    let told = |seed: &str| run(&["demo", "await", "--seed", seed]).stdout;
    assert_eq!(told("7"), told("7"));
}

#[test]
fn g15_the_queue_survives_a_killed_dispatcher() {
    // Another seed is told to people, below.
    let seeds = if crate::guides::is_long() {
        1..=5
    } else {
        1..=1
    };
    for seed in seeds.map(|seed: u32| seed.to_string()) {
        let seed = seed.as_str();
        let ran = run(&["demo", "queue", "--seed", seed, "-o", "json"]);
        assert_eq!(
            ran.code,
            Some(0),
            "seed {seed}: {} {}",
            ran.stdout,
            ran.stderr
        );
        let verdict = ran.json();
        assert_eq!(
            (&verdict["demo"], &verdict["balanced"]),
            (&"queue".into(), &true.into())
        );
        let number = |value: &serde_json::Value| value.as_i64().unwrap();
        let ledger = &verdict["ledger"];
        assert_eq!(
            number(&ledger["delivered"]) + number(&ledger["dead_lettered"]),
            number(&ledger["accepted"]),
            "seed {seed}"
        );
        assert_eq!(ledger["lost"]["total"], 0, "seed {seed}");
        for nothing in ["missing", "doubled", "miscounted", "unaccounted"] {
            assert_eq!(verdict[nothing], 0, "seed {seed}: {nothing}");
        }
        // Something was at stake: orders failed, were refused, were taken back, and the dispatcher
        // died with events in its hands.
        for something in ["placed", "rolled_back", "retried", "refused"] {
            assert!(number(&verdict[something]) > 0, "seed {seed}: {something}");
        }
        assert_eq!(ledger["dead_lettered"], verdict["refused"], "seed {seed}");
        let phases = verdict["phases"].as_array().unwrap();
        let of = |name: &str| phases.iter().find(|phase| phase["name"] == name).unwrap();
        assert!(
            number(&of("publish")["account"]["queued"]) > 20,
            "seed {seed}"
        );
        assert_eq!(of("kill")["dispatchers"], 0, "seed {seed}");
        assert!(
            number(&of("kill")["account"]["in_flight"]) > 0,
            "seed {seed}"
        );
        assert_eq!(of("verdict")["account"]["in_flight"], 0, "seed {seed}");
    }
}

#[test]
fn the_story_of_the_queue_is_told_to_people_too() {
    let ran = run(&["demo", "queue", "--seed", "7"]);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    for phase in ["publish", "handle", "kill", "restart", "verdict"] {
        assert!(ran.stdout.contains(phase), "{}", ran.stdout);
    }
    assert!(
        ran.stdout.contains("every completed order is in it once"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stdout.contains("tidegate demo queue --seed 0x7"),
        "{}",
        ran.stdout
    );
}

#[test]
fn g16_the_outbox_survives_a_killed_relay_and_keeps_the_order() {
    // Another seed is told to people, below.
    let seeds = if crate::guides::is_long() {
        1..=5
    } else {
        1..=1
    };
    for seed in seeds.map(|seed: u32| seed.to_string()) {
        let seed = seed.as_str();
        let ran = run(&["demo", "outbox", "--seed", seed, "-o", "json"]);
        let told = format!("seed {seed}: {} {}", ran.stdout, ran.stderr);
        assert_eq!(ran.code, Some(0), "{told}");
        let verdict = ran.json();
        assert_eq!(verdict["demo"], "outbox");
        assert_eq!(verdict["balanced"], true, "{told}");
        assert_eq!(
            verdict["ledger"]["delivered"], verdict["committed"],
            "{told}"
        );
        for nothing in ["missing", "unwanted", "out_of_order", "unaccounted"] {
            assert_eq!(verdict[nothing], 0, "{told}");
        }
        // Something was at stake: transactions were rolled back, and rows waited for the kill.
        assert!(verdict["rolled_back"].as_i64().unwrap() > 0, "{told}");
        let phases = verdict["phases"].as_array().unwrap();
        let of = |name: &str| phases.iter().find(|phase| phase["name"] == name).unwrap();
        assert_eq!(of("relay")["relays"], 2, "{told}");
        assert_eq!(of("kill")["relays"], 1, "{told}");
        assert!(
            of("write")["account"]["queued"].as_i64().unwrap() > 20,
            "{told}"
        );
    }
}

#[test]
fn the_story_of_the_outbox_is_told_to_people_too() {
    let ran = run(&["demo", "outbox", "--seed", "7"]);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    for text in [
        "write",
        "relay",
        "kill",
        "order: kept for all",
        "every event is accounted for",
        "tidegate demo outbox --seed 0x7",
    ] {
        assert!(ran.stdout.contains(text), "{}", ran.stdout);
    }
}
