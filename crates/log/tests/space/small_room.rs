//! A small file system of one's own, for tests that fill it up.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the small file system to the process that works on it.
const ROOM: &str = "TIDEGATE_TEST_ROOM";

/// Runs a test of this program in a process that has a file system of so many MiB to itself.
#[expect(
    clippy::print_stdout,
    reason = "whoever reads the output of a test learns that it was skipped"
)]
pub(crate) fn run_in_small_room(test: &str, mib: u32) {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size={mib}m,mode=1777 tidegate {0} || exit 77; exec {1} --exact {test} \
         --ignored --nocapture",
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

/// The small file system, in the process that has one.
pub(crate) fn room() -> Option<PathBuf> {
    std::env::var_os(ROOM).map(PathBuf::from)
}

/// Takes all room that is left, until the file is removed. Gives its path.
#[allow(dead_code, reason = "not every test program fills its room at once")]
pub(crate) fn fill_up(room: &Path) -> PathBuf {
    use std::io::Write as _;
    let path = room.join("ballast");
    let mut ballast = std::fs::File::create(&path).unwrap();
    for size in [64 * 1024, 1] {
        while ballast.write_all(&vec![1; size]).is_ok() {}
    }
    path
}
