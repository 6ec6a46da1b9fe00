//! The breaker by rates behaves as Resilience4j's, call by call.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use tidegate_core::Breaker;
use tidegate_core::breaker::{BreakerState, CallResult, Permit, Rates, Rule, Trip};
use tidegate_core::env::{Entropy, Stream};

const SEQUENCES: u64 = 1_000;
const STEPS: usize = 400;

/// Our steps, in the words that the other side reads, and their outcomes.
struct Played {
    input: String,
    outcomes: Vec<String>,
}

/// Plays one random sequence on our breaker.
fn play(seed: u64) -> Played {
    let mut stream = Stream::new(seed);
    let random: &mut dyn Entropy = &mut stream;
    let (rule, words) = random_rule(random);
    let slow = Duration::from_millis(100);
    let open_for = rule.open_for;
    let mut breaker = Breaker::new(rule);
    let mut played = Played {
        input: format!("{words}\n"),
        outcomes: vec!["- CLOSED".into()],
    };
    let mut now = Duration::ZERO;
    let mut out: Vec<Permit> = Vec::new();
    // How often calls of this sequence fail and are slow, so that both sides of a threshold occur.
    let (bad, lame) = (random.below(100), random.below(100));
    for _ in 0..STEPS {
        let before = breaker.state();
        let mut answer = "-";
        let line = match random.below(10) {
            0..=3 => {
                let permit = breaker.try_acquire(now);
                answer = if permit.is_some() { "yes" } else { "no" };
                out.extend(permit);
                "acquire".to_owned()
            }
            // Results may come in any order: several calls are out at a time.
            4..=7 if !out.is_empty() => {
                let index = usize::try_from(random.below(out.len() as u64)).unwrap();
                let permit = out.swap_remove(index);
                let is_slow = random.below(100) < lame;
                // Exactly the threshold is not slow yet.
                let took = if is_slow {
                    slow + Duration::from_millis(1)
                } else {
                    slow
                };
                let (result, word) = if random.below(100) < bad {
                    (CallResult::Failure, "failure")
                } else {
                    (CallResult::Success, "success")
                };
                breaker.record(permit, result, took, now);
                format!("{word} {}", took.as_millis())
            }
            8 if !out.is_empty() => {
                breaker.release(out.swap_remove(0));
                "release".to_owned()
            }
            _ => {
                let pause = Duration::from_millis(random.below(open_for.as_millis() as u64 + 50));
                // Ours opens again when probes hang; the other side's does not by default.
                let hangs = before == BreakerState::HalfOpen
                    && breaker.wakes_at().is_some_and(|at| at <= now + pause);
                let pause = if hangs { Duration::ZERO } else { pause };
                now += pause;
                breaker.tick(now);
                format!("wait {}", pause.as_millis())
            }
        };
        if breaker.state() != before {
            // Calls that began before count for nothing here, so the other side is not told.
            out.clear();
        }
        writeln!(played.input, "{line}").unwrap();
        played
            .outcomes
            .push(format!("{answer} {}", breaker.state()));
    }
    played
}

fn random_rule(random: &mut dyn Entropy) -> (Rule, String) {
    let window = 1 + random.below(20);
    let minimum = 1 + random.below(30);
    let (failures, slow) = (1 + random.below(100), 1 + random.below(100));
    let wait_ms = 1 + random.below(500);
    let probes = 1 + random.below(8);
    let rates = Rates {
        window: usize::try_from(window).unwrap(),
        minimum_calls: usize::try_from(minimum).unwrap(),
        failure_rate: failures as f32,
        slow_call_rate: slow as f32,
        slow_call: Duration::from_millis(100),
    };
    let rule = Rule {
        trip: Trip::Rates(rates),
        open_for: Duration::from_millis(wait_ms),
        probes: u32::try_from(probes).unwrap(),
    };
    (
        rule,
        format!("rule {window} {minimum} {failures} {slow} 100 {wait_ms} {probes}"),
    )
}

mod needs_java {
    use super::*;

    #[test]
    #[ignore = "needs java"]
    fn g01_rates_give_the_same_states_as_resilience4j() {
        let class_path = std::env::var("TIDEGATE_JAVA_RESILIENCE4J")
            .expect("`cargo xtask test` compiles the other side and says where it is");
        let played: Vec<Played> = (0..SEQUENCES).map(play).collect();
        let mut java = Command::new("java")
            .args(["-cp", &class_path, "BreakerOracle"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("java starts");
        let input: String = played.iter().map(|p| p.input.as_str()).collect();
        let mut stdin = java.stdin.take().unwrap();
        let feeder = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = java.wait_with_output().unwrap();
        feeder.join().unwrap().unwrap();
        assert!(output.status.success());
        let theirs = String::from_utf8(output.stdout).unwrap();
        let mut theirs = theirs.lines();
        let mut seen = std::collections::BTreeMap::<&str, u32>::new();
        for (seed, ours) in played.iter().enumerate() {
            for (step, (line, ours)) in ours.input.lines().zip(&ours.outcomes).enumerate() {
                let theirs = theirs.next().expect("one answer per line");
                assert_eq!(ours, theirs, "sequence {seed}, step {step}: {line}");
                *seen.entry(theirs).or_default() += 1;
            }
        }
        println!("{SEQUENCES} sequences of {STEPS} steps, same states: {seen:?}");
        assert!(
            seen.len() >= 5,
            "all three states were reached, and calls refused: {seen:?}"
        );
    }
}
