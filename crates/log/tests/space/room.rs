//! A file system that really has no room left.

use std::path::Path;
use std::process::Command;

use tidegate_core::Offset;
use tidegate_log::{EmbeddedConfig, Log, Read, TopicConfig, TopicPartition};

use crate::{append, number, open, topic};

const MIB: u64 = 1024 * 1024;
/// Names the small file system to the process that works on it.
const ROOM: &str = "TIDEGATE_TEST_ROOM";

/// Runs the test below in a process that has a small file system of its own to itself.
#[test]
fn a_full_file_system_loses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=24m tidegate {0} || exit 77; exec {1} --exact \
         room::on_a_small_file_system --ignored --nocapture",
        dir.path().display(),
        std::env::current_exe().unwrap().display(),
    );
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).args(["sh", "-c", &script]);
        command.env(ROOM, dir.path()).output()
    };
    // A mount of our own needs no rights where the system lets users have name spaces.
    let tried = [&["--mount"][..], &["--mount", "--map-root-user"][..]]
        .map(|arguments| run("unshare", arguments));
    let ran = tried.into_iter().flatten().find(|output| {
        let is_refused = !output.status.success() && output.stdout.is_empty();
        !is_refused && output.status.code() != Some(77)
    });
    let Some(output) = ran else {
        assert!(
            std::env::var_os("CI").is_none(),
            "no small file system could be mounted"
        );
        println!("skipped: this user may not mount a file system");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.contains("1 passed"), "{text}\n{errors}");
}

#[test]
#[ignore = "not a test: what the one above runs in a process of its own"]
fn on_a_small_file_system() {
    let Ok(room) = std::env::var(ROOM) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(fill(Path::new(&room)));
}

async fn fill(room: &Path) {
    let config = EmbeddedConfig {
        segment_size: 2 * MIB,
        journal_size: 2 * MIB,
        cache_size: MIB,
        ..EmbeddedConfig::new(room.join("log"))
    };
    let log = open(config.clone());
    let kept = TopicConfig::new(1);
    log.create_topic(&topic("orders"), kept).await.unwrap();
    let mut acknowledged = 0;
    let mut refusals = 0;
    while refusals < 20 {
        match log
            .append(vec![append("orders", acknowledged, 10_000)])
            .await
        {
            Ok(_) => acknowledged += 1,
            Err(error) => {
                refusals += 1;
                assert!(acknowledged > 500, "full after {acknowledged}: {error}");
            }
        }
    }
    look(&log, acknowledged).await;
    log.close().await;

    // Room is made, and it goes on; at the latest after it is opened again.
    remount(room, "48m");
    let log = open(config);
    look(&log, acknowledged).await;
    log.append(vec![append("orders", acknowledged, 10_000)])
        .await
        .unwrap();
    look(&log, acknowledged + 1).await;
    log.close().await;
}

/// Gives the file system another size.
fn remount(room: &Path, size: &str) {
    let done = Command::new("mount")
        .args(["-o", &format!("remount,size={size}")])
        .arg(room)
        .status();
    assert!(done.unwrap().success());
}

/// Every acknowledged record is there, once and in order. What was refused may be there too: it was
/// not said that it is not.
async fn look(log: &dyn Log, acknowledged: u64) {
    let at = TopicPartition::new(topic("orders"), 0);
    let mut from = Offset(0);
    let mut expected = 0;
    while expected < acknowledged {
        let batch = log.read(Read::new(at.clone(), from)).await.unwrap();
        assert!(!batch.records.is_empty(), "{expected} of {acknowledged}");
        for stored in &batch.records {
            assert_eq!(number(&stored.record), expected);
            expected += 1;
        }
        from = batch.next;
    }
}
