use std::io::ErrorKind;
use std::path::Path;

use tidegate_core::env::{Disk, DiskFile, OpenMode};

use super::*;

fn path() -> &'static Path {
    Path::new("/f")
}

fn written(disk: &SimDisk, bytes: &[u8]) -> Box<dyn DiskFile> {
    let mut file = disk.open(path(), OpenMode::CreateNew).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    file.append(bytes).unwrap();
    file
}

fn content(disk: &SimDisk) -> Option<Vec<u8>> {
    (disk as &dyn Disk).read(path(), 1 << 20).ok()
}

#[test]
fn unsynced_bytes_survive_in_part_and_synced_ones_whole() {
    let disk = SimDisk::new(1);
    let mut file = written(&disk, b"synced ");
    file.sync().unwrap();
    file.append(&[b'x'; 10_000]).unwrap();
    let mut lengths = BTreeSet::new();
    for seed in 0..200 {
        let found = content(&disk.after_crash(&Survivors::Random(seed))).unwrap();
        assert!(found.starts_with(b"synced "));
        assert!(found[7..].iter().all(|byte| *byte == b'x' || *byte == 0));
        lengths.insert(found.len());
    }
    assert!(lengths.len() > 5, "torn at many places: {lengths:?}");
    assert!(
        lengths.contains(&7) && lengths.contains(&10_007),
        "none and all: {lengths:?}"
    );
    assert_eq!(
        content(&disk.after_crash(&Survivors::Nothing)).unwrap(),
        b"synced "
    );
    assert_eq!(
        content(&disk.after_crash(&Survivors::Everything))
            .unwrap()
            .len(),
        10_007
    );
}

#[test]
fn names_survive_only_with_their_directory() {
    let disk = SimDisk::new(1);
    let mut file = disk.open(path(), OpenMode::CreateNew).unwrap();
    file.append(b"a").unwrap();
    file.sync().unwrap();
    assert_eq!(content(&disk.after_crash(&Survivors::Nothing)), None);
    disk.sync_dir(Path::new("/")).unwrap();
    assert_eq!(
        content(&disk.after_crash(&Survivors::Nothing)).unwrap(),
        b"a"
    );
    disk.remove(path()).unwrap();
    assert_eq!(content(&disk), None);
    assert_eq!(
        content(&disk.after_crash(&Survivors::Nothing)).unwrap(),
        b"a"
    );
}

#[test]
fn changes_of_different_files_survive_out_of_order() {
    let disk = SimDisk::new(1);
    for name in ["/a", "/b"] {
        let mut file = disk.open(Path::new(name), OpenMode::CreateNew).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        file.append(name.as_bytes()).unwrap();
    }
    let read = |disk: &SimDisk, name: &str| {
        !(disk as &dyn Disk)
            .read(Path::new(name), 9)
            .unwrap()
            .is_empty()
    };
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let found = disk.after_crash(&Survivors::Random(seed));
        seen.insert((read(&found, "/a"), read(&found, "/b")));
    }
    assert_eq!(seen.len(), 4, "each with and without the other: {seen:?}");
    let first = disk.after_crash(&Survivors::First(1));
    assert_eq!((read(&first, "/a"), read(&first, "/b")), (true, false));
}

#[test]
fn a_failed_sync_drops_what_it_should_have_written_and_the_next_one_lies() {
    let lost = (0..20).filter(|seed| {
        let disk = SimDisk::new(*seed);
        let mut file = written(&disk, b"kept");
        file.sync().unwrap();
        file.append(&[b'x'; 5_000]).unwrap();
        let kind = FaultKind::SyncDropsDirty;
        disk.fail(Fault {
            operation: Operation::Sync,
            path: "/f".into(),
            nth: 1,
            kind,
        });
        assert!(file.sync().is_err());
        file.sync().expect("the next one says that all is well");
        assert_eq!(content(&disk).unwrap().len(), 5_004, "reads still show it");
        let found = content(&disk.after_crash(&Survivors::Everything)).unwrap();
        assert!(found.starts_with(b"kept"));
        found != content(&disk).unwrap()
    });
    assert!(lost.count() >= 10, "more often than not, something is gone");
}

#[test]
fn faults_hit_the_operation_they_name() {
    let disk = SimDisk::new(1);
    let mut file = written(&disk, b"");
    let fault = |operation, nth, kind| Fault {
        operation,
        path: "f".into(),
        nth,
        kind,
    };
    disk.fail(fault(Operation::Write, 2, FaultKind::IoError));
    disk.fail(fault(Operation::Write, 3, FaultKind::ShortWrite));
    disk.fail(fault(Operation::Read, 1, FaultKind::IoError));
    disk.fail(fault(Operation::Remove, 1, FaultKind::Full));
    file.append(b"one").unwrap();
    assert!(file.append(b"two").is_err());
    assert_eq!(
        file.append(b"three").unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    let len = file.len().unwrap();
    assert!((3..8).contains(&len), "a part may be there: {len}");
    file.truncate(3).unwrap();
    assert!(file.read_at(0, &mut [0; 3]).is_err());
    assert_eq!(content(&disk).unwrap(), b"one");
    assert_eq!(
        disk.remove(path()).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    disk.remove(path()).unwrap();
    disk.fail_at_random(Operation::Create, FaultKind::IoError, 1.0);
    assert!(disk.open(path(), OpenMode::CreateNew).is_err());
}

#[test]
fn a_full_disk_writes_short_and_has_room_again_after_a_removal() {
    let disk = SimDisk::new(1);
    disk.set_capacity(10);
    let mut file = written(&disk, b"12345");
    assert_eq!(disk.space_left(Path::new("/")).unwrap(), 5);
    assert_eq!(
        file.append(b"678901").unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    assert_eq!(content(&disk).unwrap(), b"1234567890");
    assert_eq!(
        file.preallocate(11).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    disk.remove(path()).unwrap();
    written(&disk, b"1234567890").sync().unwrap();
}

#[test]
fn a_flipped_bit_is_on_the_medium() {
    let disk = SimDisk::new(1);
    let mut file = written(&disk, b"a");
    file.sync().unwrap();
    disk.flip_bit(path(), 0, 1);
    assert_eq!(content(&disk).unwrap(), b"c");
    assert_eq!(
        content(&disk.after_crash(&Survivors::Nothing)).unwrap(),
        b"c"
    );
}

#[test]
fn a_directory_survives_only_with_its_parent_and_takes_its_files_along() {
    let disk = SimDisk::new(1);
    let deep = Path::new("/a/b");
    // Making `/a` is one operation, syncing its parent the second, making `/a/b` the third.
    disk.kill_at(3);
    let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| disk.create_dir_all(deep)));
    assert!(made.is_err());
    let exists = |survivors: Survivors, path: &str| {
        disk.after_crash(&survivors).list(Path::new(path)).is_ok()
    };
    assert!(exists(Survivors::Nothing, "/a") && !exists(Survivors::Nothing, "/a/b"));
    assert!(exists(Survivors::Everything, "/a/b"));
    let disk = disk.after_crash(&Survivors::Everything);
    disk.create_dir_all(deep).unwrap();
    disk.open(Path::new("/a/b/f"), OpenMode::CreateNew).unwrap();
    disk.sync_dir(deep).unwrap();
    let found = disk.after_crash(&Survivors::Nothing);
    assert!(found.open(Path::new("/a/b/f"), OpenMode::Read).is_ok());
}

#[test]
fn opening_and_locking_can_fail_too() {
    let disk = SimDisk::new(1);
    written(&disk, b"x");
    disk.fail_at_random(Operation::Open, FaultKind::IoError, 1.0);
    assert!(disk.open(path(), OpenMode::Read).is_err());
    assert!(disk.list(Path::new("/")).is_err());
    assert!(disk.lock(Path::new("/lock")).is_err());
    disk.fail_at_random(Operation::Open, FaultKind::IoError, 0.0);
    assert!(disk.lock(Path::new("/no/lock")).is_err());
    assert_eq!(
        disk.lock(Path::new("/no/lock")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let full = SimDisk::new(1);
    full.set_capacity(10);
    let mut file = written(&full, b"");
    assert!(file.write_at(1_000, b"x").is_err());
    assert_eq!(
        file.len().unwrap(),
        0,
        "a write that did not happen grows nothing"
    );
}
