//! Bytes that cannot be read are kept aside: all of them, and once.

use tidegate_core::env::{Disk, OpenMode};
use tidegate_sim::SimDisk;

use super::harness::{Harness, append, dir, journal, small};
use crate::EmbeddedConfig;
use crate::topic::TopicConfig;

/// The names and bytes of what was kept aside.
fn aside(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let disk: &dyn Disk = disk;
    let mut names: Vec<_> = disk.list(dir()).unwrap();
    names.retain(|entry| entry.name.starts_with("aside-"));
    names.sort_by(|one, other| one.name.cmp(&other.name));
    let kept = names.into_iter().map(|entry| {
        let bytes = disk.read(&dir().join(&entry.name), 1 << 24).unwrap();
        (entry.name, bytes)
    });
    kept.collect()
}

fn read(disk: &SimDisk, number: u64) -> Vec<u8> {
    let path = journal(disk, number);
    (disk as &dyn Disk).read(&path, 1 << 24).unwrap()
}

/// Where these bytes lie in a journal file, each time.
fn places(disk: &SimDisk, number: u64, bytes: &[u8]) -> Vec<usize> {
    let content = read(disk, number);
    let windows = content.windows(bytes.len()).enumerate();
    let found = windows.filter(|(_, window)| *window == bytes);
    found.map(|(place, _)| place).collect()
}

#[test]
fn a_file_with_many_damaged_places_is_kept_aside_once_and_from_the_first_of_them_on() {
    let disk = SimDisk::new(1);
    let config = EmbeddedConfig {
        journal_size: 1 << 16,
        ..small()
    };
    let mut harness = Harness::open(&disk, config.clone()).unwrap();
    harness.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..200 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    let end = usize::try_from(harness.opened.context.state().journal.at).unwrap();
    drop(harness);
    disk.end_process();
    let mut first = end;
    for n in (0..200).step_by(2) {
        let place = places(&disk, 1, format!("value {n} ").as_bytes())[0];
        disk.flip_bit(&journal(&disk, 1), place as u64, 1);
        first = first.min(place);
    }
    let damaged = read(&disk, 1);
    for _ in 0..2 {
        drop(Harness::open(&disk, config.clone()).unwrap());
        disk.end_process();
        let kept = aside(&disk);
        assert_eq!(kept.len(), 1);
        let (name, kept) = &kept[0];
        let from = damaged.windows(kept.len()).position(|w| w == kept);
        let from = from.expect("it is a part of that file");
        assert!(from <= first, "{name} {from} {first}");
        assert!(damaged[from + kept.len()..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn of_damage_that_goes_over_whole_files_each_of_them_is_kept_aside() {
    for (damaged, is_zeroed) in [(3..4, false), (3..5, false), (3..5, true)] {
        let disk = SimDisk::new(1);
        let mut harness = Harness::open(&disk, small()).unwrap();
        harness.create("a", TopicConfig::new(1)).unwrap();
        let mut n = 0;
        while harness.opened.context.state().journal.file < 6 {
            harness.append(vec![append("a", 0, n)]).unwrap();
            n += 1;
        }
        drop(harness);
        disk.end_process();
        for number in damaged.clone() {
            let path = journal(&disk, number);
            for place in places(&disk, number, b"value ") {
                disk.flip_bit(&path, place as u64, 1);
            }
            if is_zeroed {
                // Its beginning tells nothing any more.
                let as_disk: &dyn Disk = &disk;
                let mut file = as_disk.open(&path, OpenMode::Write).unwrap();
                file.write_at(0, &[0; 64]).unwrap();
            }
        }
        // And the first groups of the file in which the journal goes on.
        let last = journal(&disk, damaged.end);
        disk.flip_bit(&last, places(&disk, damaged.end, b"value ")[0] as u64, 1);
        let before: Vec<Vec<u8>> = (damaged.start..=damaged.end)
            .map(|number| read(&disk, number))
            .collect();
        let mut harness = Harness::open(&disk, small()).unwrap();
        // The files that are let go of are used again.
        for n in 0..80 {
            harness.append(vec![append("a", 0, 5_000 + n)]).unwrap();
            harness.keep().unwrap();
        }
        drop(harness);
        disk.end_process();
        let kept = aside(&disk);
        for (number, bytes) in (damaged.start..).zip(before) {
            let content = bytes.iter().rposition(|byte| *byte != 0).unwrap();
            let is_kept = kept.iter().any(|(_, kept)| *kept == bytes[..=content]);
            let names: Vec<_> = kept.iter().map(|(name, _)| name).collect();
            assert!(is_kept, "{number} of {damaged:?}: {names:?}");
        }
    }
}
