//! Stopping loses nothing, whatever the API does meanwhile.

use std::time::Duration;

use tidegate_core::env::system::SystemDisk;
use tidegate_logger::{Event, RunningLogger, spill};
use tidegate_sim::scaled;
use tidegate_testkit::{Fault, StubApi};

use crate::child;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn stopping_with_the_api_down_keeps_every_event_in_every_process() {
    const EVENTS: u64 = 2_000;
    let runs = usize::try_from(scaled(100)).unwrap();
    let stub = StubApi::start().unwrap();
    stub.down();
    let dirs = tempfile::tempdir().unwrap();
    let mut on_disk = 0;
    for run in 0..runs {
        let dir = dirs.path().join(run.to_string());
        let name = run.to_string();
        let (mut process, mut lines) = child::start("log-and-stop", &dir, &stub.url(), &name);
        let report = lines.next().expect("a report");
        assert!(process.wait().unwrap().success());
        assert_eq!(
            report, "2000 2000 0 0",
            "accepted, spilled, delivered, lost"
        );
        let counted = spill::recount(&SystemDisk, &dir).unwrap();
        assert_eq!((counted.unaccounted(), counted.unverifiable), (0, 0));
        on_disk += spill::inspect(&SystemDisk, &dir).unwrap().waiting();
    }
    assert_eq!(on_disk, runs as u64 * EVENTS);
    // And they are not only there, they can be sent.
    stub.up().unwrap();
    for run in 0..runs {
        let config = child::config(&dirs.path().join(run.to_string()));
        let logger =
            RunningLogger::start(config.build().unwrap(), child::http(&stub.url()), None).unwrap();
        stub.wait_until_blocking(|_| logger.account().spilled == 0, LIMIT);
        assert_eq!(logger.shutdown().account.delivered, 2_000);
    }
    assert_eq!(stub.count() as u64, on_disk);
    println!(
        "{runs} runs: {on_disk} on disk, 0 lost, {} delivered",
        stub.count()
    );
}

#[test]
fn a_request_that_hangs_is_spilled_before_the_timeout() {
    // Sending gets seven tenths of it; the rest is more than any disk needs for 500 events.
    let timeout = Duration::from_secs(10);
    let stub = StubApi::start().unwrap();
    stub.fail_always(Fault::Hang);
    let dir = tempfile::tempdir().unwrap();
    let config = || {
        child::config(dir.path())
            .shutdown_timeout(timeout)
            .build()
            .unwrap()
    };
    let logger = RunningLogger::start(config(), child::http(&stub.url()), None).unwrap();
    for n in 0..500 {
        let event = Event::step("Outside", "Hang", format!("hang-{n}"));
        logger.log(event.correlation_id("hang")).unwrap();
    }
    stub.wait_until_blocking(|stub| stub.requests() > 0, LIMIT);
    // The request hangs for good: stopping ends because it is given up.
    let report = logger.shutdown();
    assert_eq!(report.account.spilled, 500, "{:?}", report.account);
    assert_eq!(report.account.lost.total(), 0);
    let counted = spill::recount(&SystemDisk, dir.path()).unwrap();
    assert_eq!((counted.unaccounted(), counted.unverifiable), (0, 0));
    println!("stopped with a request on its way, 500 of 500 on disk");
    stub.heal();
    let logger = RunningLogger::start(config(), child::http(&stub.url()), None).unwrap();
    stub.wait_until_blocking(|_| logger.account().spilled == 0, LIMIT);
    assert_eq!(logger.shutdown().account.delivered, 500);
}
