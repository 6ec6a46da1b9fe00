//! `tidegate audit`, `tidegate where`, `tidegate log check` and `repair` on a directory.

use std::path::{Path, PathBuf};

use crate::command::{run_in, run_with_input};
use crate::log::{CONFIG, configured, lines, read_all, send_one};
use crate::running::Running;

/// Turns the bits of `value` where it lies in a file of `dir` whose name has this in it.
pub(crate) fn turn(dir: &Path, name: &str, value: &str) -> PathBuf {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_string_lossy().contains(name) {
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let found = bytes
            .windows(value.len())
            .position(|bytes| bytes == value.as_bytes());
        if let Some(at) = found {
            bytes[at..at + value.len()]
                .iter_mut()
                .for_each(|byte| *byte = !*byte);
            std::fs::write(&path, bytes).unwrap();
            return path;
        }
    }
    panic!("`{value}` is in no such file of {}", dir.display());
}

/// Damages the record with this value in its segment.
fn damage(dir: &Path, value: &str) -> PathBuf {
    turn(&dir.join("log/topic-orders"), ".seg", value)
}

#[test]
fn an_untouched_log_is_accounted_for() {
    let dir = configured(CONFIG);
    // An audit of nothing is no proof.
    let ran = run_in(dir.path(), &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(2));
    assert_eq!(ran.json()["error"]["code"], "audit.nothing");
    for value in ["one", "two"] {
        send_one(dir.path(), value);
    }
    let ran = run_in(dir.path(), &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    let topic = &ran.json()["components"][0];
    assert_eq!(
        (&topic["name"], &topic["kind"]),
        (&"orders".into(), &"topic".into())
    );
    assert_eq!(
        (&topic["books"]["queued"], &topic["recount"]["queued"]),
        (&2.into(), &2.into())
    );
    let ran = run_in(dir.path(), &["audit"]);
    assert!(
        ran.stdout.contains("✓ every event is accounted for"),
        "{}",
        ran.stdout
    );
    let ran = run_in(dir.path(), &["log", "check"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    let ran = run_in(dir.path(), &["log", "repair", "--yes"]);
    assert!(
        ran.stdout.contains("nothing was to be repaired"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_record_that_was_cut_out_by_hand_is_named() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    let ids: Vec<String> = ["first-value", "second-value", "third-value"]
        .iter()
        .map(|value| send_one(dir, value))
        .collect();
    let segment = damage(dir, "second-value");
    turn(&dir.join("log"), "/journal-", "second-value");
    let before = std::fs::read(&segment).unwrap();

    let ran = run_in(dir, &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(4), "{}", ran.stdout);
    let audit = ran.json();
    assert_eq!(audit["unaccounted"], 1);
    let missing = audit["components"][0]["missing"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(missing.len(), 1, "{audit}");
    assert_eq!(
        (&missing[0]["id"], &missing[0]["place"]),
        (&ids[1].as_str().into(), &"queued".into())
    );
    let ran = run_in(dir, &["audit"]);
    assert!(
        ran.stdout.contains(&format!("event {} is missing", ids[1])),
        "{}",
        ran.stdout
    );

    let ran = run_in(dir, &["log", "check", "-o", "json"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stdout);
    let finding = &ran.json()["findings"][0];
    assert_eq!(
        (&finding["topic"], &finding["from"], &finding["to"]),
        (&"orders".into(), &1.into(), &2.into())
    );

    // The others can be read, and what cannot is said.
    let ran = run_in(dir, &["tail", "orders", "--until", "end", "-o", "json"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    let values: Vec<_> = lines(&ran)
        .iter()
        .map(|line| line["value"].clone())
        .collect();
    assert_eq!(values, ["first-value", "third-value"]);
    assert!(
        ran.stderr.contains("orders-0: offset 1 cannot be read"),
        "{}",
        ran.stderr
    );
    assert_eq!(run_in(dir, &["where", &ids[1]]).code, Some(1));
    assert_eq!(run_in(dir, &["where", &ids[2]]).code, Some(0));

    // Nobody repairs without being told to.
    let ran = run_with_input(dir, &["log", "repair", "-o", "json"], "y\n");
    assert_eq!(
        (ran.code, &ran.json()["error"]["code"]),
        (Some(2), &"repair.unconfirmed".into())
    );
    let numbers = "posts 1 event as lost:damaged and 0 events as lost:commit_damaged";
    let message = ran.json()["error"]["message"].to_string();
    assert!(message.contains(numbers), "{message}");
    assert_eq!(std::fs::read(&segment).unwrap(), before);
    let ran = run_in(dir, &["log", "repair", "--yes", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let repaired = &ran.json()["repaired"][0];
    assert_eq!((&repaired["from"], &repaired["to"]), (&1.into(), &2.into()));
    let aside = dir.join(repaired["aside"].as_str().unwrap());
    let turned: Vec<u8> = b"second-value".iter().map(|byte| !byte).collect();
    let kept = std::fs::read(&aside).unwrap();
    assert!(
        kept.windows(turned.len()).any(|bytes| bytes == turned),
        "{}",
        aside.display()
    );
    // From now on it is lost in the books as well.
    let ran = run_in(dir, &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    assert_eq!(ran.json()["components"][0]["books"]["lost"]["damaged"], 1);
}

#[test]
fn a_damaged_record_that_the_journal_still_has_is_taken_from_there() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    let values = ["first-value", "second-value", "third-value"];
    values.iter().for_each(|value| drop(send_one(dir, value)));
    damage(dir, "second-value");
    assert_eq!(run_in(dir, &["audit"]).code, Some(4));
    let ran = run_in(dir, &["log", "repair", "--yes"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let planned = "posts 0 events as lost:damaged";
    assert!(ran.stderr.contains(planned), "{}", ran.stderr);
    let taken = "taken from the journal: offset 1";
    assert!(ran.stdout.contains(taken), "{}", ran.stdout);
    assert_eq!(run_in(dir, &["audit"]).code, Some(0));
    let found = read_all(dir);
    let found: Vec<_> = found.iter().map(|line| line["value"].clone()).collect();
    assert_eq!(found, values);
}

#[test]
fn a_directory_that_cannot_be_read_is_said_and_left_alone() {
    let dir = configured(CONFIG);
    send_one(dir.path(), "x");
    let manifest = dir.path().join("log/manifest");
    for file in [&manifest, &dir.path().join("log/manifest.copy")] {
        std::fs::write(file, b"something else").unwrap();
    }
    for arguments in [
        &["send", "orders", "--value", "y"][..],
        &["tail", "orders", "--until", "end"],
        &["audit"],
        &["log", "check"],
        &["log", "ls"],
    ] {
        let ran = run_in(dir.path(), arguments);
        assert_eq!(ran.code, Some(1), "{arguments:?}: {}", ran.stdout);
        assert!(
            ran.stderr.contains("error[log.format]"),
            "{arguments:?}: {}",
            ran.stderr
        );
    }
    assert_eq!(std::fs::read(&manifest).unwrap(), b"something else");
}

#[test]
fn an_event_is_found_where_it_lies() {
    let dir = configured(CONFIG);
    send_one(dir.path(), "one");
    let id = send_one(dir.path(), "two");
    let ran = run_in(dir.path(), &["where", &id, "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let located = ran.json();
    assert_eq!(
        (&located["id"], &located["place"]),
        (&id.as_str().into(), &"queued".into())
    );
    assert_eq!(located["component"], "orders");
    let step = &located["history"][0];
    assert_eq!(
        (&step["partition"], &step["offset"]),
        (&0.into(), &1.into())
    );
    let ran = run_in(dir.path(), &["where", &id]);
    assert!(ran.stdout.contains("is queued at orders"), "{}", ran.stdout);
    let nobody = "019a8f3e-5c00-7abc-8def-0123456789ab";
    let ran = run_in(dir.path(), &["where", nobody, "-o", "json"]);
    assert_eq!(
        (ran.code, &ran.json()["error"]["code"]),
        (Some(1), &"where.unknown".into())
    );
    assert_eq!(read_all(dir.path()).len(), 2);
}

/// A log that lost two records with a part of its journal: nothing tells their ids, and their
/// offsets tell that they were there.
#[test]
fn events_lost_with_the_journal_are_missing_until_the_repair() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../log/tests/fixtures/log-v1b");
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    copy(&kept, &log);
    let log_dir = log.to_str().unwrap();
    let audit = || run_in(dir.path(), &["audit", "--log-dir", log_dir, "-o", "json"]);
    let topic = |ran: &crate::command::Ran| ran.json()["components"][0].clone();
    for _ in 0..2 {
        let ran = audit();
        assert_eq!(ran.code, Some(4), "{}", ran.stdout);
        assert_eq!(topic(&ran)["unaccounted"], 2, "{}", ran.stdout);
        assert_eq!(topic(&ran)["missing"][0]["bucket"], "p0:3-3");
    }
    let repair = ["log", "repair", log_dir, "--yes", "-o", "json"];
    let ran = run_in(dir.path(), &repair);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = audit();
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    assert_eq!(topic(&ran)["books"]["lost"]["damaged"], 2);
}

#[test]
fn a_journal_that_was_cut_is_an_unknown_loss_until_it_is_repaired() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    send_one(dir, "one");
    let entries = std::fs::read_dir(dir.join("log")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_journal = |path: &PathBuf| path.to_string_lossy().contains("/journal-");
    for path in paths.filter(is_journal) {
        std::fs::write(path, b"").unwrap();
    }
    for _ in 0..2 {
        let ran = run_in(dir, &["audit"]);
        assert_eq!(ran.code, Some(4), "{}", ran.stdout);
        assert!(ran.stdout.contains("(journal)"), "{}", ran.stdout);
        let ran = run_in(dir, &["log", "check", "-o", "json"]);
        assert_eq!(ran.code, Some(3));
        let loss = &ran.json()["findings"][0]["unknown_loss"];
        assert_eq!(loss["events_at_least"], 1, "{}", ran.stdout);
        // A start does not hide it.
        send_one(dir, "two");
    }
    assert_eq!(run_in(dir, &["log", "repair", "--yes"]).code, Some(0));
    for command in [&["audit"][..], &["log", "check"]] {
        let ran = run_in(dir, command);
        assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    }
}

/// Removes what is in the directory of the log under one of these beginnings.
fn take_away(dir: &Path, beginnings: &[&str]) {
    for entry in std::fs::read_dir(dir.join("log")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !beginnings
            .iter()
            .any(|beginning| name.starts_with(beginning))
        {
            continue;
        }
        match path.is_dir() {
            true => std::fs::remove_dir_all(&path).unwrap(),
            false => std::fs::remove_file(&path).unwrap(),
        }
    }
}

#[test]
fn a_log_of_which_a_part_is_left_is_not_taken_for_none() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    send_one(dir, "one");
    std::fs::remove_file(dir.join("log/manifest")).unwrap();
    take_away(dir, &["journal-"]);
    let ran = run_in(dir, &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    let topic = &ran.json()["components"][0];
    assert_eq!(topic["recount"]["queued"], 1, "{}", ran.stdout);
    assert_eq!(run_in(dir, &["log", "check"]).code, Some(3));
    // Only the records are left.
    std::fs::remove_file(dir.join("log/manifest.copy")).unwrap();
    for arguments in [
        &["audit"][..],
        &["log", "check"],
        &["log", "repair", "--yes"],
        &["send", "orders", "--value", "two"],
        &["where", "019a8f3e-5c00-7abc-8def-0123456789ab"],
    ] {
        let ran = run_in(dir, arguments);
        assert_eq!(ran.code, Some(1), "{arguments:?}: {}", ran.stdout);
        assert!(ran.stderr.contains("log.format"), "{}", ran.stderr);
    }
}

#[test]
fn a_log_of_which_nothing_is_left_but_its_lock_is_missed() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    send_one(dir, "one");
    take_away(dir, &["manifest", "journal-", "spare-", "topic-"]);
    for arguments in [&["audit"][..], &["log", "check"], &["log", "ls"]] {
        let ran = run_in(dir, arguments);
        assert_eq!(ran.code, Some(1), "{arguments:?}: {}", ran.stdout);
        assert!(ran.stderr.contains("log.missing"), "{}", ran.stderr);
        assert!(
            ran.stderr.contains("nothing of it is left"),
            "{}",
            ran.stderr
        );
    }
    // Who sends is told, and a new one is made.
    let ran = run_in(dir, &["send", "orders", "--value", "two"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("a new one is made"), "{}", ran.stderr);
    assert_eq!(run_in(dir, &["audit"]).code, Some(0));
}

#[test]
fn a_repair_keeps_to_the_size_of_the_journal() {
    let dir = configured(CONFIG);
    let log = dir.path().join("log");
    send_one(dir.path(), "one");
    take_away(dir.path(), &["journal-", "spare-"]);
    let repair = ["log", "repair", "--yes"];
    assert_eq!(run_in(dir.path(), &repair).code, Some(0));
    let entries = std::fs::read_dir(&log).unwrap();
    let longest = entries.map(|entry| entry.unwrap().metadata().unwrap().len());
    assert!(longest.max().unwrap() <= 1024 * 1024);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[test]
fn reading_makes_no_log_where_one_is_gone() {
    let dir = configured(CONFIG);
    send_one(dir.path(), "one");
    let log = dir.path().join("log");
    for entry in std::fs::read_dir(&log).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => std::fs::remove_dir_all(path).unwrap(),
            false if path.ends_with("lock") => {}
            false => std::fs::remove_file(path).unwrap(),
        }
    }
    let code = |arguments: &[&str]| {
        let ran = run_in(dir.path(), arguments);
        (ran.code, ran.json()["error"]["code"].clone())
    };
    let missing = (Some(1), serde_json::Value::from("log.missing"));
    assert_eq!(code(&["audit", "-o", "json"]), missing);
    for command in [
        &["tail", "orders", "--until", "end", "-o", "json"][..],
        &[
            "tail",
            "orders",
            "--until",
            "end",
            "-o",
            "json",
            "--log-dir",
            "typo",
        ],
    ] {
        assert_eq!(code(command), missing, "{command:?}");
    }
    assert_eq!(code(&["audit", "-o", "json"]), missing);
    assert!(!dir.path().join("typo").exists());
}

#[test]
fn a_log_without_topics_was_audited_and_has_no_events() {
    let dir = configured("log: {embedded: {path: log, journal-size: 1MiB, segment-size: 1MiB}}\n");
    let running = Running::start(dir.path(), &[]);
    running.signal("-TERM");
    running.end();
    let ran = run_in(dir.path(), &["audit", "-o", "json", "--log-dir", "log"]);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    let components = ran.json()["components"].clone();
    assert_eq!(components.as_array().unwrap().len(), 1, "{components}");
    assert_eq!(components[0]["books"]["accepted"], 0);
}

#[test]
fn a_log_is_read_beside_a_process_that_stands_still_and_nothing_is_written() {
    let dir = configured(CONFIG);
    let running = Running::start(dir.path(), &[]);
    let id = send_one(dir.path(), "one");
    running.signal("-STOP");
    let files = || {
        let entries = std::fs::read_dir(dir.path().join("log")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = paths
            .filter_map(|path| Some((path.clone(), std::fs::read(path).ok()?)))
            .collect();
        files.sort();
        files
    };
    let before = files();
    let ran = run_in(
        dir.path(),
        &["audit", "-o", "json", "--direct", "--log-dir", "log"],
    );
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    assert_eq!(ran.json()["components"][0]["recount"]["queued"], 1);
    let tail = ["tail", "orders", "--direct", "--until", "end", "-o", "json"];
    assert_eq!(lines(&run_in(dir.path(), &tail))[0]["value"], "one");
    let ran = run_in(
        dir.path(),
        &["where", &id, "--direct", "--log-dir", "log", "-o", "json"],
    );
    assert_eq!(ran.json()["place"], "queued", "{}", ran.stderr);
    assert_eq!(files(), before);
    running.signal("-CONT");
    running.signal("-TERM");
    running.end();
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_file_of_the_log_is_refused_and_not_waited_for() {
    let dir = configured(CONFIG);
    send_one(dir.path(), "one");
    let log = dir.path().join("log");
    let segments = std::fs::read_dir(log.join("topic-orders")).unwrap();
    let mut segments = segments.map(|entry| entry.unwrap().path());
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|end| end == "seg");
    let segment = segments.find(is_segment).unwrap();
    for path in [segment, log.join("manifest")] {
        let kept = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        for command in [
            &["audit", "-o", "json"][..],
            &["log", "check", "-o", "json"],
        ] {
            let ran = run_in(dir.path(), command);
            assert_eq!(ran.code, Some(1), "{command:?} {}", ran.stdout);
            assert!(ran.stdout.contains("a pipe"), "{}", ran.stdout);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, kept).unwrap();
    }
}

#[test]
fn records_are_shown_although_the_group_that_made_their_topic_is_damaged() {
    let dir = configured(CONFIG);
    let running = Running::start(dir.path(), &[]);
    for value in ["one", "two"] {
        send_one(dir.path(), value);
    }
    running.signal("-KILL");
    running.end();
    turn(&dir.path().join("log"), "/journal-", "orders");
    let values = read_all(dir.path());
    let values: Vec<&str> = values
        .iter()
        .map(|line| line["value"].as_str().unwrap())
        .collect();
    assert_eq!(values, ["one", "two"]);
}
