//! One seed, one run.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Entropy, OpenMode};
use tidegate_sim::Sim;
use tokio::sync::mpsc;

/// Three nodes that pass numbers around, write to their disks and crash.
fn run(seed: u64) -> (u64, u64) {
    let mut sim = Sim::new(seed);
    let nodes = ["a", "b", "c"].map(|name| sim.node(name));
    let mut script = sim.entropy("script");
    for round in 0..5 {
        let (tell, hear) = mpsc::channel::<u64>(2);
        let hear = Arc::new(tokio::sync::Mutex::new(hear));
        for node in &nodes {
            let env = node.env();
            let (tell, hear) = (tell.clone(), Arc::clone(&hear));
            drop(node.start("pass", async move {
                let mut entropy = env.entropy.fork("pass");
                let path = format!("/round-{round}");
                let path = std::path::Path::new(&path);
                let Ok(mut file) = env.disk.open(path, OpenMode::CreateNew) else {
                    return;
                };
                for _ in 0..20 {
                    env.clock
                        .sleep(Duration::from_millis(entropy.below(50)))
                        .await;
                    tell.send(entropy.next_u64()).await.ok();
                    let number = hear.lock().await.recv().await.unwrap_or_default();
                    file.append(&number.to_le_bytes()).unwrap();
                    if entropy.below(3) == 0 {
                        file.sync().unwrap();
                    }
                }
            }));
        }
        let dyn_script: &mut dyn Entropy = &mut script;
        sim.run_for(Duration::from_millis(dyn_script.below(1_000)));
        let unlucky = &nodes[usize::try_from(dyn_script.below(3)).unwrap()];
        sim.crash(unlucky);
        sim.restart(unlucky);
    }
    (sim.trace().hash(), sim.trace().events())
}

#[test]
fn one_seed_gives_one_trace_and_another_gives_another() {
    let (hash, events) = run(1);
    assert!(events > 500, "something happened: {events}");
    assert_eq!(run(1), (hash, events));
    assert_ne!(run(2).0, hash);
}

/// Run by the test below in processes of its own.
#[test]
fn prints_its_trace() {
    println!("trace of seed 7: {:?}", run(7));
}

#[test]
fn g02_one_seed_in_two_processes_gives_equal_trace_hashes() {
    let in_a_process_of_its_own = || {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "determinism::prints_its_trace", "--nocapture"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .find(|line| line.starts_with("trace of seed 7"))
            .map(str::to_owned)
    };
    let (one, two) = (in_a_process_of_its_own(), in_a_process_of_its_own());
    assert!(one.is_some());
    assert_eq!(one, two);
    assert_eq!(one, Some(format!("trace of seed 7: {:?}", run(7))));
}

mod stray {
    use super::*;

    fn strays(stray: impl Fn() + Send + 'static) -> String {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut sim = Sim::new(1);
            let node = sim.node("a");
            drop(node.start("stray", async move { stray() }));
            sim.run_for(Duration::from_secs(1));
        }));
        let payload = panic.expect_err("the run fails");
        payload
            .downcast_ref::<String>()
            .cloned()
            .unwrap_or_default()
    }

    #[test]
    fn g03_a_stray_tokio_task_fails_the_run() {
        let message = strays(|| drop(tokio::spawn(async {})));
        assert!(
            message.contains("reached around the simulation at"),
            "{message}"
        );
        assert!(
            message.contains("determinism.rs"),
            "it says where: {message}"
        );
        assert!(message.contains("seed 0x1"), "{message}");
    }

    #[test]
    fn a_stray_timer_fails_the_run() {
        let message = strays(|| drop(tokio::time::sleep(Duration::ZERO)));
        assert!(
            message.contains("reached around the simulation at"),
            "{message}"
        );
    }

    #[test]
    fn a_stray_task_fails_the_run_even_if_its_panic_is_caught() {
        let message = strays(|| {
            std::panic::catch_unwind(|| drop(tokio::spawn(async {}))).ok();
        });
        assert!(
            message.contains("reached around the simulation at"),
            "{message}"
        );
    }

    #[tokio::test]
    #[should_panic(expected = "without a tokio runtime")]
    async fn a_simulation_refuses_to_run_inside_a_runtime() {
        drop(Sim::new(1));
    }
}
