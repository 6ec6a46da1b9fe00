//! A disk that fails: nothing acknowledged is lost, and what is refused is refused by name.

use tidegate_core::Offset;
use tidegate_core::env::Disk;
use tidegate_sim::{Fault, FaultKind, Operation, SimDisk, Survivors};

use super::harness::{Harness, append, at, dir, id, offset, small, topic};
use crate::commit_order::CommitTickets;
use crate::embedded::context::RefusalReason;
use crate::embedded::files;
use crate::error::LogError;
use crate::local::{CommitTicket, GroupOffset, Write};
use crate::port::Append;
use crate::topic::TopicConfig;

fn opened() -> (SimDisk, Harness) {
    let disk = SimDisk::new(1);
    let mut harness = Harness::open(&disk, small()).unwrap();
    harness.create("a", TopicConfig::new(1)).unwrap();
    harness
        .append((0..5).map(|n| append("a", 0, n)).collect())
        .unwrap();
    (disk, harness)
}

fn fault(operation: Operation, path: &str, kind: FaultKind) -> Fault {
    Fault {
        operation,
        path: path.to_owned(),
        nth: 1,
        kind,
    }
}

const JOURNAL: &str = "journal-0000000000000001-2048";
const SEGMENT: &str = "0-00000000000000000000-0.seg";

#[test]
fn after_a_failed_sync_nothing_is_taken_and_reads_go_on() {
    for survivors in [
        Survivors::Nothing,
        Survivors::Everything,
        Survivors::Random(3),
    ] {
        let (disk, mut harness) = opened();
        disk.fail(fault(Operation::Sync, JOURNAL, FaultKind::SyncDropsDirty));
        let refused = harness.append(vec![append("a", 0, 5)]).unwrap_err();
        assert!(matches!(refused, LogError::Stopped { .. }), "{refused}");
        let refused = harness.append(vec![append("a", 0, 6)]).unwrap_err();
        assert!(matches!(refused, LogError::Stopped { .. }), "{refused}");
        assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 5);
        drop(harness);
        disk.crash(&survivors);
        let mut harness = Harness::open(&disk, small()).unwrap();
        let found = harness.all(&at("a", 0)).unwrap();
        assert!((5..=6).contains(&found.len()), "{}", found.len());
        harness.append(vec![append("a", 0, 7)]).unwrap();
        harness.assert_balanced();
    }
}

#[test]
fn bytes_that_a_failed_sync_left_looking_well_are_written_again() {
    let (disk, mut harness) = opened();
    disk.fail(fault(Operation::Sync, JOURNAL, FaultKind::SyncDropsDirty));
    harness.append(vec![append("a", 0, 5)]).unwrap_err();
    drop(harness);
    // The process ends, the machine runs on: the next one sees what the disk does not have.
    disk.end_process();
    let mut harness = Harness::open(&disk, small()).unwrap();
    let seen = harness.all(&at("a", 0)).unwrap();
    drop(harness);
    disk.crash(&Survivors::Nothing);
    let mut harness = Harness::open(&disk, small()).unwrap();
    assert_eq!(harness.all(&at("a", 0)).unwrap(), seen);
}

#[test]
fn a_short_write_is_refused_and_the_next_one_goes_on() {
    for kind in [FaultKind::ShortWrite, FaultKind::Full] {
        let (disk, mut harness) = opened();
        disk.fail(fault(Operation::Write, JOURNAL, kind));
        let refused = harness.append(vec![append("a", 0, 5)]).unwrap_err();
        assert!(matches!(refused, LogError::Disk { .. }), "{refused}");
        assert_eq!(harness.end(&at("a", 0)), 5);
        let written = harness.append(vec![append("a", 0, 6)]).unwrap();
        assert_eq!(written[0].offset, Offset(5));
        drop(harness);
        disk.crash(&Survivors::Everything);
        let mut harness = Harness::open(&disk, small()).unwrap();
        let found = harness.all(&at("a", 0)).unwrap();
        assert_eq!(found.len(), 6);
        assert_eq!(found[5].record, append("a", 0, 6).record);
        harness.assert_balanced();
    }
}

#[test]
fn a_disk_without_room_refuses_and_goes_on_when_there_is_room() {
    let (disk, mut harness) = opened();
    harness.keep().unwrap();
    disk.set_capacity(12_000);
    let mut acknowledged = 5;
    let mut refusals = 0;
    for n in 5..200 {
        match harness.append(vec![append("a", 0, n)]) {
            Ok(written) => {
                assert_eq!(written[0].offset, Offset(acknowledged));
                acknowledged += 1;
            }
            Err(LogError::Disk { .. }) => refusals += 1,
            Err(other) => panic!("{other}"),
        }
        match harness.keep() {
            Ok(()) | Err(LogError::Disk { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        refusals > 50 && acknowledged > 20,
        "{refusals} {acknowledged}"
    );
    assert_eq!(harness.all(&at("a", 0)).unwrap().len() as i64, acknowledged);
    harness.assert_balanced();
    disk.set_capacity(1 << 20);
    harness.keep().unwrap();
    harness.append(vec![append("a", 0, 500)]).unwrap();
    drop(harness);
    disk.crash(&Survivors::Nothing);
    let mut harness = Harness::open(&disk, small()).unwrap();
    assert_eq!(
        harness.all(&at("a", 0)).unwrap().len() as i64,
        acknowledged + 1
    );
    harness.assert_balanced();
}

#[test]
fn a_start_that_cannot_list_a_topic_fails_and_the_next_one_finds_everything() {
    let (disk, mut harness) = opened();
    // So that the topic has a directory.
    harness.keep().unwrap();
    drop(harness);
    disk.end_process();
    let place = files::topic_dir(dir(), &topic("a"));
    let nth = |nth| Fault {
        nth,
        ..fault(Operation::Open, place.to_str().unwrap(), FaultKind::IoError)
    };
    let mut listed = 0;
    let mut harness = loop {
        disk.fail(nth(listed + 1));
        match Harness::open(&disk, small()) {
            Err(refused) => assert!(matches!(refused, LogError::Disk { .. }), "{refused}"),
            Ok(harness) => break harness,
        }
        listed += 1;
    };
    assert!(listed > 0);
    let by_hand = (&disk as &dyn Disk).list(&place);
    assert!(by_hand.is_err(), "the start has met the fault and went on");
    assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 5);
}

#[test]
fn a_segment_whose_sync_fails_is_filled_again_by_the_next_process() {
    let (disk, mut harness) = opened();
    harness.opened.maintenance.fill(true).unwrap();
    disk.fail(fault(Operation::Sync, SEGMENT, FaultKind::SyncDropsDirty));
    let failed = harness.opened.maintenance.checkpoint().unwrap_err();
    assert!(matches!(failed, LogError::Disk { .. }));
    drop(harness);
    disk.end_process();
    let mut harness = Harness::open(&disk, small()).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    disk.crash(&Survivors::Nothing);
    let mut harness = Harness::open(&disk, small()).unwrap();
    assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 5);
    harness.assert_balanced();
}

/// Bytes that a failed sync drops are gone whatever the failure says, and the next sync says that all is
/// well: a checkpoint behind it would let go of the journal that still has the records.
#[test]
fn a_segment_or_directory_sync_that_says_there_is_no_room_stops_the_log() {
    for (operation, path) in [(Operation::Sync, SEGMENT), (Operation::SyncDir, "topic-a")] {
        let (disk, mut harness) = opened();
        harness.opened.maintenance.fill(true).unwrap();
        disk.fail(fault(operation, path, FaultKind::Full));
        let failed = harness.opened.maintenance.checkpoint().unwrap_err();
        assert!(matches!(failed, LogError::Disk { .. }), "{failed}");
        let refused = harness.append(vec![append("a", 0, 5)]).unwrap_err();
        assert!(matches!(refused, LogError::Stopped { .. }), "{refused}");
        let refused = harness.opened.maintenance.checkpoint().unwrap_err();
        assert!(matches!(refused, LogError::Stopped { .. }), "{refused}");
        drop(harness);
        disk.crash(&Survivors::Nothing);
        let mut harness = Harness::open(&disk, small()).unwrap();
        assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 5);
        harness.assert_balanced();
    }
}

#[test]
fn a_journal_file_whose_name_may_not_last_is_not_written_to() {
    let (disk, mut harness) = opened();
    disk.fail(fault(Operation::SyncDir, "", FaultKind::Full));
    let mut acknowledged = 5;
    while harness.append(vec![append("a", 0, acknowledged)]).is_ok() {
        acknowledged += 1;
        assert!(acknowledged < 10_000, "another journal file is never begun");
    }
    let refused = harness
        .append(vec![append("a", 0, acknowledged)])
        .unwrap_err();
    assert!(matches!(refused, LogError::Stopped { .. }), "{refused}");
    drop(harness);
    disk.crash(&Survivors::Nothing);
    let mut harness = Harness::open(&disk, small()).unwrap();
    let found = harness.all(&at("a", 0)).unwrap().len() as u64;
    assert_eq!(found, acknowledged);
    harness.assert_balanced();
}

#[test]
fn a_torn_tail_on_a_disk_without_room_does_not_keep_the_log_closed() {
    let (disk, mut harness) = opened();
    harness.append(vec![append("a", 0, 5)]).unwrap();
    let place = harness.opened.context.state().journal;
    drop(harness);
    let journal = super::harness::dir().join(JOURNAL);
    disk.flip_bit(&journal, place.at - 20, 1);
    let before = disk_bytes(&disk);
    disk.set_capacity(1);
    let mut harness = Harness::open(&disk, small()).unwrap();
    assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 5);
    let refused = harness.append(vec![append("a", 0, 6)]).unwrap_err();
    assert!(matches!(refused, LogError::Disk { .. }), "{refused}");
    disk.set_capacity(1 << 20);
    harness.append(vec![append("a", 0, 7)]).unwrap();
    drop(harness);
    assert_eq!(disk_bytes(&disk), before, "the torn file is as it was");
    disk.crash(&Survivors::Nothing);
    let mut harness = Harness::open(&disk, small()).unwrap();
    let found = harness.all(&at("a", 0)).unwrap();
    assert_eq!(found.len(), 6);
    assert_eq!(found[5].record, append("a", 0, 7).record);
    harness.assert_balanced();
    let as_disk: &dyn tidegate_core::env::Disk = &disk;
    let entries = as_disk.list(super::harness::dir()).unwrap();
    assert!(!entries.iter().any(|e| e.name.starts_with("aside-")));
}

fn disk_bytes(disk: &SimDisk) -> Vec<u8> {
    let disk: &dyn tidegate_core::env::Disk = disk;
    let journal = super::harness::dir().join(JOURNAL);
    disk.read(&journal, 1 << 20).unwrap()
}

#[test]
fn commits_that_wait_behind_one_that_fails_are_refused_too() {
    let commit = |next: i64, ticket: &CommitTicket, appends: Vec<Append>| {
        let ids = (next - 2..next).map(|n| id(u64::try_from(n).unwrap()));
        let offset = GroupOffset {
            ticket: ticket.next(),
            ..offset("g", at("a", 0), next, ids)
        };
        Write {
            appends,
            offsets: vec![offset],
        }
    };
    // Without room for records in the same batch, and without room on the disk in the batch before.
    for shares_batch in [true, false] {
        let (disk, mut harness) = opened();
        harness.register("g", vec![0]).unwrap();
        let ticket = CommitTicket::default();
        let first = commit(2, &ticket, vec![append("a", 0, 9)]);
        let failed = vec![(at("a", 0), first.offsets[0].ticket.clone())];
        let second = commit(4, &ticket, vec![]);
        let answers = if shares_batch {
            let why = Some("no room".to_owned());
            harness
                .opened
                .context
                .status()
                .set(RefusalReason::Full, why);
            harness.write_all(vec![first, second]).unwrap()
        } else {
            disk.fail(fault(Operation::Write, JOURNAL, FaultKind::Full));
            vec![harness.write(first), harness.write(second)]
        };
        let codes: Vec<String> = answers
            .into_iter()
            .map(|answer| answer.unwrap_err().code().to_string())
            .collect();
        assert_eq!(
            codes,
            ["log.disk", "log.preceding-commit-failed"],
            "{shares_batch}"
        );
        harness
            .opened
            .context
            .status()
            .set(RefusalReason::Full, None);
        // Nothing of it is there; whoever was told and brings all that is missing goes on.
        harness.assert_balanced();
        let early = harness.write(commit(4, &ticket, vec![])).unwrap_err();
        assert_eq!(early.code().to_string(), "log.preceding-commit-failed");
        CommitTickets::new(failed).acknowledge::<()>(&Err(LogError::Closed));
        let mut all = commit(4, &ticket, vec![]);
        all.offsets[0].postings = offset("g", at("a", 0), 4, (0..4).map(id)).postings;
        harness.write(all).unwrap();
        harness.assert_balanced();
    }
}
