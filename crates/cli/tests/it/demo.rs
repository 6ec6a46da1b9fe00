//! `tidegate demo`.

use crate::command::run;

#[test]
fn g12_the_demo_balances_with_nothing_lost_whatever_its_seed() {
    for seed in 0..20 {
        let ran = run(&["demo", "--seed", &seed.to_string(), "-o", "json"]);
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
    let one = run(&["demo", "--seed", "0x5f3a"]);
    let two = run(&["demo", "--seed", "0x5f3a"]);
    assert_eq!(one.stdout, two.stdout);
    assert!(one.stdout.contains("✓ the books balance"), "{}", one.stdout);
    assert!(
        one.stdout.contains("tidegate demo --seed 0x5f3a"),
        "{}",
        one.stdout
    );
    assert_ne!(one.stdout, run(&["demo", "--seed", "0x5f3b"]).stdout);
}
