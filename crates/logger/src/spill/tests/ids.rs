//! The id of a directory.

use tidegate_core::Component;
use tidegate_core::books::{ComponentKind, DeliveredEvents};
use tidegate_core::env::Env;

use super::super::books_file::BooksFile;
use super::*;

/// Books as the version before ids wrote them: one event delivered, one rejected.
const WITHOUT_ID: &str = r#"{"generation":6,"seq":2,"sum":"0343beb38962e8ad528206fcc5deabe6","replay":null,"sealed":[],"active_len":0,"is_clean":true,"torn":0,"books":[{"b":"m29912476","p":"accepted","n":2,"s":"343beb38962e8ad528206fcc5deabe6"},{"b":"m29912476","p":"dead_lettered","n":1,"s":"1a1df59c4b17456a941037dfbc74cf9"},{"b":"m29912476","p":"delivered","n":1,"s":"1a1df59c4b17456a941037eca175eed"}]}"#;

fn open(disk: &SimDisk, new_id: &str) -> (Spool, Recovered) {
    let caps = Caps {
        events: 10_000,
        bytes: 1 << 20,
    };
    let new_id = new_id.parse().unwrap();
    Spool::open(Arc::new(disk.clone()), dir(), caps, true, new_id).unwrap()
}

const FIRST: &str = "019a8f3e-5c00-7abc-8def-000000000001";
const SECOND: &str = "019a8f3e-5c00-7abc-8def-000000000002";

/// Writes books of an earlier version.
fn write_older(disk: &SimDisk) {
    disk.create_dir_all(dir()).unwrap();
    let mut bytes = u32::try_from(WITHOUT_ID.len())
        .unwrap()
        .to_le_bytes()
        .to_vec();
    bytes.extend(crc32c::crc32c(WITHOUT_ID.as_bytes()).to_le_bytes());
    bytes.extend_from_slice(WITHOUT_ID.as_bytes());
    bytes.resize(64 * 1024, 0);
    let mut file = disk.open(&dir().join(BOOKS), OpenMode::CreateNew).unwrap();
    file.append(&bytes).unwrap();
    file.sync().unwrap();
}

fn delivered(disk: &SimDisk) -> Vec<DeliveredEvents> {
    let env = Env {
        disk: Arc::new(disk.clone()),
        ..Env::system()
    };
    let directory = SpillDirectory::new(dir(), &env);
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let read = directory.delivered();
    runtime.unwrap().block_on(read).unwrap()
}

#[test]
fn a_directory_keeps_its_id() {
    let disk = SimDisk::new(1);
    assert_eq!(open(&disk, FIRST).0.id().to_string(), FIRST);
    let (mut spool, recovered) = open(&disk, SECOND);
    assert_eq!(spool.id().to_string(), FIRST);
    spool.close(&recovered.books).unwrap();
    drop(spool);
    let written = BooksFile::peek(&disk, dir()).unwrap();
    assert_eq!(written.id.unwrap().to_string(), FIRST);
}

#[test]
fn a_directory_whose_books_are_gone_has_a_new_id() {
    let disk = SimDisk::new(1);
    drop(open(&disk, FIRST));
    disk.remove(&dir().join(BOOKS)).unwrap();
    assert_eq!(open(&disk, SECOND).0.id().to_string(), SECOND);
}

#[test]
fn books_of_an_earlier_version_get_an_id_and_what_was_delivered_before_is_not_compared() {
    let disk = SimDisk::new(1);
    write_older(&disk);
    let before = delivered(&disk);
    assert_eq!((before.len(), &before[0].origin), (1, &None));
    let (mut spool, Recovered { mut books, .. }) = open(&disk, FIRST);
    let account = books.account();
    assert_eq!((account.delivered, account.dead_lettered), (1, 1));
    // One more is delivered under the id, in the same bucket as the one before it.
    let born = u128::from(29_912_476_u64 * 60_000);
    let id = EventId::from_u128((born << 80) | (7 << 76) | (0b10 << 62));
    books.move_one(id, None, Some(Place::Delivered));
    spool.close(&books).unwrap();
    drop(spool);
    for _ in 0..2 {
        let read = delivered(&disk).remove(0);
        assert_eq!(read.origin.as_deref(), Some(FIRST));
        assert_eq!(read.to, ComponentKind::EventLog);
        assert_eq!(read.books.in_place(&Place::Delivered), 2);
        assert_eq!(read.books.removed().delivered, 1);
        // Opened again, it is not asked once more what was delivered before.
        drop(open(&disk, SECOND));
    }
}
