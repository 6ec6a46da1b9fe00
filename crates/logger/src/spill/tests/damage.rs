//! Damage by hand, and what an audit says of it: an event that is gone is missing, everything else that is
//! not as it should be is a finding.

use tidegate_core::env::Env;

use super::super::cursor::Cursor;
use super::*;

fn look(disk: &SimDisk) -> SpillRecount {
    let env = Env {
        disk: Arc::new(disk.clone()),
        ..Env::system()
    };
    SpillDirectory::new(dir(), &env).look().unwrap()
}

fn codes(counted: &SpillRecount) -> Vec<&str> {
    let codes = counted.findings.iter();
    codes.map(|finding| finding.code.as_str()).collect()
}

/// Twenty lines that the books cover, and no process.
fn twenty() -> SimDisk {
    let (disk, directory) = spilled(20);
    drop(directory);
    disk.end_process();
    assert_eq!((look(&disk).missing, codes(&look(&disk))), (vec![], vec![]));
    disk
}

fn lines(disk: &SimDisk) -> Vec<Vec<u8>> {
    let bytes = content(disk, ACTIVE);
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    lines.map(<[u8]>::to_vec).collect()
}

fn put_lines(disk: &SimDisk, lines: &[Vec<u8>]) {
    overwrite(disk, ACTIVE, &lines.concat());
}

fn missing(disk: &SimDisk) -> Vec<Option<EventId>> {
    look(disk).missing.iter().map(|one| one.id).collect()
}

fn remove(disk: &SimDisk, name: &str) {
    disk.remove(&dir().join(name)).unwrap();
}

#[test]
fn a_line_that_is_destroyed_is_missing_and_named() {
    let damages: [fn(&mut Vec<u8>); 4] = [
        |line| line[0] = 0,
        |line| line[14] ^= 1,
        |line| {
            let text = line.len() - 1;
            line[..text].fill(0);
        },
        |line| line.truncate(5),
    ];
    for damage in damages {
        let disk = twenty();
        let mut all = lines(&disk);
        damage(&mut all[7]);
        put_lines(&disk, &all);
        // The last one is glued to the next line, and both are gone.
        let counted = look(&disk);
        let is_named = counted.missing[0].id == Some(id(7));
        assert!(is_named || counted.missing[0].count == 2, "{counted:?}");
        assert_eq!(codes(&counted)[0], "line.unreadable");
    }
}

#[test]
fn a_line_behind_the_books_is_missing_once_a_later_batch_proves_it_was_synced() {
    let disk = SimDisk::new(1);
    let mut directory = TestDirectory::open(&disk).unwrap();
    for number in 0..20 {
        directory.append(&[number, 100 + number]).unwrap();
    }
    let whole = lines(&disk);
    let mut all = whole.clone();
    all[14][3] ^= 1;
    put_lines(&disk, &all);
    assert_eq!(missing(&disk), [Some(id(7))]);
    // Of the last batch nobody can tell.
    let mut all = whole;
    all[38][3] ^= 1;
    put_lines(&disk, &all);
    let counted = look(&disk);
    assert_eq!((counted.unaccounted(), counted.unverifiable), (0, 1));
    assert!(codes(&counted).contains(&"line.unproven"), "{counted:?}");
}

#[test]
fn l35_a_line_that_was_set_aside_is_a_dead_letter_that_is_named_and_no_loss() {
    let disk = twenty();
    let mut all = lines(&disk);
    all[7][3] ^= 1;
    put_lines(&disk, &all);
    let mut directory = TestDirectory::open(&disk).unwrap();
    assert_eq!(directory.drain().unwrap().len(), 19);
    let counted = look(&disk);
    assert_eq!(counted.missing, []);
    assert_eq!(codes(&counted), ["line.corrupt"]);
    assert_eq!(counted.findings[0].id, Some(id(7)));
    // Without the line it is gone.
    overwrite(&disk, CORRUPT, b"");
    assert_eq!(missing(&disk), [Some(id(7))]);
}

#[test]
fn a_directory_without_its_books_is_not_approved() {
    let disk = twenty();
    remove(&disk, ACTIVE);
    remove(&disk, BOOKS);
    assert_eq!(codes(&look(&disk)), ["books.missing"]);
    remove(&disk, LOCK);
    assert_eq!(codes(&look(&disk)), ["spill.missing"]);
    assert_eq!(codes(&look(&SimDisk::new(1))), ["spill.missing"]);
}

#[test]
fn books_that_cannot_be_read_are_a_finding_and_a_gap_without_them_a_loss() {
    let without_books: [fn(&SimDisk); 3] = [
        |disk| remove(disk, BOOKS),
        |disk| overwrite(disk, BOOKS, b""),
        |disk| overwrite(disk, BOOKS, &[7; 100]),
    ];
    for damage in without_books {
        let disk = twenty();
        damage(&disk);
        let whole = lines(&disk);
        put_lines(&disk, &whole[..19]);
        let counted = look(&disk);
        assert_eq!(counted.missing, []);
        assert!(codes(&counted)[0].starts_with("books."), "{counted:?}");
        // Nobody knows which lines were sent, so a first line with a high number proves nothing.
        put_lines(&disk, &whole[5..]);
        assert_eq!(missing(&disk), []);
        let rest: Vec<_> = [&whole[..7], &whole[8..]].concat();
        put_lines(&disk, &rest);
        assert_eq!(missing(&disk), [Some(id(7))]);
    }
}

#[test]
fn a_numbered_line_without_its_checksum_is_missing() {
    let disk = twenty();
    let mut all = lines(&disk);
    let text = String::from_utf8(all[7].clone()).unwrap();
    all[7] = text.replace("\"_crc\"", "\"_crd\"").into_bytes();
    put_lines(&disk, &all);
    assert_eq!(missing(&disk), [Some(id(7))]);
}

#[test]
fn lines_that_are_moved_doubled_or_cut_are_called_so() {
    let disk = twenty();
    let whole = lines(&disk);
    let mut swapped = whole.clone();
    swapped.swap(7, 8);
    put_lines(&disk, &swapped);
    let counted = look(&disk);
    assert_eq!(
        (counted.unaccounted(), codes(&counted)),
        (0, vec!["sequence.order"])
    );
    let mut doubled = whole.clone();
    doubled.insert(12, whole[7].clone());
    put_lines(&disk, &doubled);
    let counted = look(&disk);
    assert_eq!(
        (counted.unaccounted(), codes(&counted)),
        (0, vec!["sequence.repeated"])
    );
    assert!(counted.findings[0].message.contains("is there twice"));
    // One that is doubled does not stand for another one.
    doubled.remove(3);
    put_lines(&disk, &doubled);
    assert_eq!(missing(&disk), [Some(id(3))]);
    let mut cut = whole;
    cut[19].truncate(30);
    put_lines(&disk, &cut);
    let counted = look(&disk);
    assert_eq!(
        (missing(&disk), codes(&counted)),
        (vec![Some(id(19))], vec!["line.cut"])
    );
}

#[test]
fn a_damaged_slot_of_the_books_is_said() {
    let disk = twenty();
    for slot in [0, 1] {
        let mut bytes = content(&disk, BOOKS);
        let half = bytes.len() / 2;
        bytes[slot * half + 20] ^= 1;
        let before = content(&disk, BOOKS);
        overwrite(&disk, BOOKS, &bytes);
        let counted = look(&disk);
        assert_eq!(
            (counted.unaccounted(), codes(&counted)),
            (0, vec!["books.damaged"])
        );
        overwrite(&disk, BOOKS, &before);
    }
}

#[test]
fn a_cursor_past_what_was_sent_is_found_and_not_believed() {
    let disk = twenty();
    let mut directory = TestDirectory::open(&disk).unwrap();
    assert!(directory.replay(3, &mut |_| {}).unwrap());
    drop(directory);
    disk.end_process();
    let (mut cursor, position) = Cursor::open(&disk, dir(), true).unwrap();
    let position = position.unwrap();
    let forged = super::super::cursor::ReplayPosition {
        offset: position.end,
        lines: 20,
        ..position
    };
    cursor.write(forged).unwrap();
    drop(cursor);
    assert_eq!(codes(&look(&disk)), ["cursor.ahead"]);
    assert_eq!(inspect(&disk, dir()).unwrap().waiting(), 17);
    let mut directory = TestDirectory::open(&disk).unwrap();
    assert_eq!(directory.drain().unwrap().len(), 17);
}

#[test]
fn a_rejected_event_that_is_damaged_is_missing() {
    let (disk, mut directory) = spilled(3);
    let batch = directory
        .spool
        .read_replay(1, usize::MAX, &directory.books)
        .unwrap();
    let payload = batch.lines[0].payload.clone().unwrap();
    let rejection = Rejection {
        payload,
        code: Code::from_static("event.invalid"),
        message: "\",\"event\":{}".to_owned(),
        status: Some(400),
        attempts: 1,
    };
    directory
        .spool
        .set_aside(&[rejection], 1_767_225_600_000)
        .unwrap();
    let (from, to) = (Some(Place::Spilled), Some(Place::DeadLettered));
    for posting in postings([id(0)], from, to) {
        directory.books.post(&posting);
    }
    directory.spool.mark_replayed(&batch, 1);
    directory.spool.write_books(&directory.books).unwrap();
    assert_eq!(missing(&disk), []);
    let text = String::from_utf8(content(&disk, REJECTED)).unwrap();
    overwrite(
        &disk,
        REJECTED,
        text.replace("event 0", "event 9").as_bytes(),
    );
    assert_eq!(missing(&disk), [Some(id(0))]);
}

#[test]
fn a_torn_last_line_behind_the_books_may_have_been_acknowledged() {
    let disk = twenty();
    let mut bytes = content(&disk, ACTIVE);
    bytes.extend(b"{\"details\":\"half a li");
    overwrite(&disk, ACTIVE, &bytes);
    let counted = look(&disk);
    assert_eq!(
        (counted.missing.len(), codes(&counted)),
        (0, vec!["line.unproven"])
    );
    assert!(
        counted.findings[0]
            .message
            .contains("may have been acknowledged")
    );
    // A whole line that lacks only its end is added to the others by the next start.
    let disk = SimDisk::new(1);
    let mut directory = TestDirectory::open(&disk).unwrap();
    for number in 0..3 {
        directory.append(&[number]).unwrap();
    }
    let mut bytes = content(&disk, ACTIVE);
    bytes.pop();
    overwrite(&disk, ACTIVE, &bytes);
    assert_eq!(codes(&look(&disk)), Vec::<&str>::new());
}

/// A directory whose lines wait in a sealed file, as a failed sync leaves them.
fn sealed() -> (SimDisk, String) {
    let disk = SimDisk::new(1);
    let mut directory = TestDirectory::open(&disk).unwrap();
    for number in 0..20 {
        directory.append(&[number]).unwrap();
    }
    disk.fail(tidegate_sim::Fault {
        operation: tidegate_sim::Operation::Sync,
        path: ACTIVE.into(),
        nth: 1,
        kind: tidegate_sim::FaultKind::SyncDropsDirty,
    });
    directory.append(&[20, 21]).unwrap();
    directory.spool.write_books(&directory.books).unwrap();
    drop(directory);
    disk.end_process();
    (disk, numbered(SEALED, 1))
}

/// A directory of which three lines were replayed.
fn replaying() -> (SimDisk, String) {
    let disk = twenty();
    let mut directory = TestDirectory::open(&disk).unwrap();
    assert!(directory.replay(3, &mut |_| {}).unwrap());
    drop(directory);
    disk.end_process();
    (disk, REPLAY.to_owned())
}

#[test]
fn a_line_of_a_replay_or_sealed_file_that_is_gone_or_destroyed_is_missing_and_named() {
    let damages: [fn(&mut Vec<Vec<u8>>); 3] = [
        |lines| drop(lines.remove(7)),
        |lines| lines[7][14] ^= 1,
        |lines| {
            let end = lines[7].len() - 1;
            lines[7][..end].fill(0);
        },
    ];
    for make in [sealed, replaying] {
        for (which, damage) in damages.iter().enumerate() {
            let (disk, file) = make();
            assert_eq!(
                (look(&disk).missing, codes(&look(&disk))),
                (vec![], vec![]),
                "{file}"
            );
            let bytes = content(&disk, &file);
            let split = bytes.split_inclusive(|byte| *byte == b'\n');
            let mut lines: Vec<Vec<u8>> = split.map(<[u8]>::to_vec).collect();
            damage(&mut lines);
            overwrite(&disk, &file, &lines.concat());
            let counted = look(&disk);
            let found: Vec<_> = counted
                .missing
                .iter()
                .map(|one| (one.count, one.id))
                .collect();
            assert_eq!(
                found,
                [(1, Some(id(7)))],
                "{file}, damage {which}: {counted:?}"
            );
        }
    }
}

#[test]
fn a_replay_or_sealed_file_that_is_removed_is_missing_with_all_its_lines() {
    for (make, waiting) in [(sealed as fn() -> (SimDisk, String), 20), (replaying, 17)] {
        let (disk, file) = make();
        remove(&disk, &file);
        let counted = look(&disk);
        assert_eq!(counted.unaccounted(), waiting, "{file}: {counted:?}");
    }
}
