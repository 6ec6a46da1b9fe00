//! Nodes that crash, restart and have clocks of their own.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::env::{Disk, Env, OpenMode, TaskOutcome};
use tidegate_sim::{Node, Sim, seeds};
use tokio::sync::mpsc;

const SECOND: Duration = Duration::from_secs(1);

/// Appends a line each second and notes what was synced.
async fn write_each_second(env: Env, synced: Arc<Mutex<u64>>) {
    let path = Path::new("/lines");
    let mut file = match env.disk.open(path, OpenMode::Write) {
        Ok(file) => file,
        Err(_) => {
            let file = env.disk.open(path, OpenMode::CreateNew).unwrap();
            env.disk.sync_dir(Path::new("/")).unwrap();
            file
        }
    };
    loop {
        file.append(b"line\n").unwrap();
        file.sync().unwrap();
        *synced.lock().unwrap() = file.len().unwrap();
        env.clock.sleep(SECOND).await;
    }
}

fn lines(node: &Node) -> u64 {
    let disk = node.disk();
    disk.open(Path::new("/lines"), OpenMode::Read)
        .map_or(0, |file| file.len().unwrap())
}

#[test]
fn synced_bytes_are_there_after_any_number_of_crashes() {
    seeds!(50, |seed| {
        let mut sim = Sim::new(seed);
        let node = sim.node("writer");
        let synced = Arc::new(Mutex::new(0));
        for _ in 0..5 {
            let task = node.start("write", write_each_second(node.env(), Arc::clone(&synced)));
            sim.run_for(SECOND * 7);
            sim.crash(&node);
            assert!(!node.is_up());
            assert_eq!(sim.block_on_outcome(task), TaskOutcome::Aborted);
            assert!(lines(&node) >= *synced.lock().unwrap());
            sim.restart(&node);
        }
        assert!(*synced.lock().unwrap() >= 5 * 5 * 7);
    });
}

/// Waits for the end of a task from outside any node.
trait Outside {
    fn block_on_outcome(&mut self, task: tidegate_core::env::Task) -> TaskOutcome;
}

impl Outside for Sim {
    fn block_on_outcome(&mut self, task: tidegate_core::env::Task) -> TaskOutcome {
        let observer = self.node("observer");
        self.block_on(&observer, task.join())
    }
}

#[test]
fn the_disk_can_end_its_node_at_any_operation() {
    for operation in 1..30 {
        let mut sim = Sim::new(operation);
        let node = sim.node("writer");
        let synced = Arc::new(Mutex::new(0));
        node.disk().kill_at(operation);
        drop(node.start("write", write_each_second(node.env(), Arc::clone(&synced))));
        assert!(
            sim.run_until(SECOND * 60, || !node.is_up()),
            "operation {operation}"
        );
        assert_eq!(node.disk().operations(), operation);
        assert!(lines(&node) >= *synced.lock().unwrap());
    }
}

#[test]
fn a_killed_process_loses_nothing_that_it_wrote() {
    let mut sim = Sim::new(1);
    let node = sim.node("writer");
    let disk = node.disk();
    let mut file = disk.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
    file.append(b"not synced").unwrap();
    let lock = disk.lock(Path::new("/lock")).unwrap();
    sim.kill(&node);
    assert!(file.append(b"by a ghost").is_err());
    sim.restart(&node);
    let content = (&node.disk() as &dyn Disk)
        .read(Path::new("/f"), 99)
        .unwrap();
    assert_eq!(content, b"not synced");
    drop(
        node.disk()
            .lock(Path::new("/lock"))
            .expect("the lock is gone with the process"),
    );
    drop(lock);
}

#[test]
fn a_crashed_node_does_nothing_more_even_while_it_is_dropped() {
    struct Ghost(Env);
    impl Drop for Ghost {
        fn drop(&mut self) {
            // A component that drains when it is dropped: too late, the power is gone.
            assert!(
                self.0
                    .disk
                    .open(Path::new("/ghost"), OpenMode::CreateNew)
                    .is_err()
            );
            drop(
                self.0
                    .spawn
                    .spawn("ghost", Box::pin(async { panic!("a ghost ran") })),
            );
        }
    }
    let mut sim = Sim::new(1);
    let node = sim.node("a");
    let ghost = Ghost(node.env());
    drop(node.start("holder", async move {
        let _ghost = ghost;
        std::future::pending::<()>().await;
    }));
    sim.run_for(SECOND);
    sim.crash(&node);
    sim.restart(&node);
    sim.run_for(SECOND);
    assert!(
        node.disk()
            .open(Path::new("/ghost"), OpenMode::Read)
            .is_err()
    );
}

#[test]
fn clocks_are_skewed_and_jump_while_elapsed_time_goes_on() {
    let mut sim = Sim::new(1);
    let (a, b) = (sim.node("a"), sim.node("b"));
    b.set_clock_offset_ms(300_000);
    let (clock_a, clock_b) = (a.env().clock, b.env().clock);
    assert_eq!(
        clock_b.now().duration_since(clock_a.now()).unwrap(),
        SECOND * 300
    );
    let before = (clock_b.now(), clock_b.elapsed());
    b.set_clock_offset_ms(-60_000);
    assert!(clock_b.now() < before.0);
    assert!(clock_b.elapsed() >= before.1);
}

#[test]
fn a_restarted_node_has_new_ports_and_the_old_ones_are_dead() {
    let mut sim = Sim::new(1);
    let node = sim.node("a");
    sim.run_for(SECOND * 100);
    let old = node.env();
    assert!(old.clock.elapsed() >= SECOND * 100);
    sim.crash(&node);
    sim.restart(&node);
    let new = node.env();
    assert_eq!(
        new.clock.elapsed(),
        Duration::ZERO,
        "a process's clock starts anew"
    );
    assert!(
        new.clock.now() >= old.clock.now(),
        "and the wall clock goes on"
    );
    assert!(old.disk.open(Path::new("/f"), OpenMode::CreateNew).is_err());
    assert!(new.disk.open(Path::new("/f"), OpenMode::CreateNew).is_ok());
}

#[test]
fn a_week_passes_in_no_time_and_nothing_is_early() {
    let mut sim = Sim::new(1);
    let node = sim.node("a");
    let clock = node.env().clock;
    let (tell, mut told) = mpsc::channel(10);
    for days in [7, 1, 3] {
        let (clock, tell) = (Arc::clone(&clock), tell.clone());
        drop(node.start("sleeper", async move {
            clock.sleep(SECOND * 86_400 * days).await;
            tell.send((days, clock.elapsed())).await.ok();
        }));
    }
    sim.run_for(SECOND * 86_400 * 8);
    let woken: Vec<_> = std::iter::from_fn(|| told.try_recv().ok()).collect();
    assert_eq!(woken, [1, 3, 7].map(|days| (days, SECOND * 86_400 * days)));
}

#[test]
#[should_panic(expected = "a task that nobody joins panicked: on purpose")]
fn a_panic_that_nobody_sees_fails_the_run() {
    let mut sim = Sim::new(1);
    let node = sim.node("a");
    drop(node.start("failing", async { panic!("on purpose") }));
    sim.run_for(SECOND);
}

#[test]
#[should_panic(expected = "keeps itself busy")]
fn a_task_that_never_waits_fails_the_run() {
    let mut sim = Sim::new(1);
    let node = sim.node("a");
    drop(node.start(
        "busy",
        std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        }),
    ));
    sim.run_for(SECOND);
}
