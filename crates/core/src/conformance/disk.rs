//! Rules of [`Disk`] that hold while nothing fails. The simulated disk shows what a power cut leaves;
//! it is stricter than any real one.

use std::io::ErrorKind;
use std::path::Path;

use crate::env::{Disk, DiskFile, OpenMode};

fn create(disk: &dyn Disk, path: &Path) -> Box<dyn DiskFile> {
    disk.open(path, OpenMode::CreateNew)
        .expect("a new file is made")
}

fn content(disk: &dyn Disk, path: &Path) -> Vec<u8> {
    disk.read(path, 1 << 20).expect("the file is read")
}

/// Appended and written bytes read back, before and after a sync and a reopening.
pub fn written_values_read_back(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("file");
    let mut file = create(disk, &path);
    assert!(file.is_empty().unwrap());
    file.append(b"hello ").unwrap();
    file.append(b"world").unwrap();
    file.write_at(0, b"J").unwrap();
    assert_eq!(content(disk, &path), b"Jello world");
    file.sync().unwrap();
    drop(file);
    let mut file = disk.open(&path, OpenMode::Write).unwrap();
    file.append(b"!").unwrap();
    assert_eq!(file.len().unwrap(), 12);
    assert_eq!(content(disk, &path), b"Jello world!");
}

/// Two handles on one file append one after the other, and neither over the other.
pub fn two_handles_append_at_the_one_end(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("file");
    let mut one = create(disk, &path);
    let mut two = disk.open(&path, OpenMode::Write).unwrap();
    one.append(b"one").unwrap();
    two.append(b"TWO").unwrap();
    one.append(b"three").unwrap();
    two.truncate(4).unwrap();
    one.append(b"!").unwrap();
    assert_eq!(content(disk, &path), b"oneT!");
}

/// A read at the end gives what there is, and past the end nothing.
pub fn a_read_past_the_end_gives_what_there_is(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("file");
    let mut file = create(disk, &path);
    file.append(b"abcdef").unwrap();
    let mut buffer = [0; 4];
    assert_eq!(file.read_at(0, &mut buffer).unwrap(), 4);
    assert_eq!(&buffer, b"abcd");
    assert_eq!(file.read_at(4, &mut buffer).unwrap(), 2);
    assert_eq!(&buffer[..2], b"ef");
    assert_eq!(file.read_at(6, &mut buffer).unwrap(), 0);
    assert_eq!(file.read_at(600, &mut buffer).unwrap(), 0);
}

/// A write past the end leaves zeros before it, and the next append goes after it.
pub fn a_gap_reads_as_zeros(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("file");
    let mut file = create(disk, &path);
    file.append(b"a").unwrap();
    file.write_at(4, b"e").unwrap();
    file.append(b"f").unwrap();
    assert_eq!(content(disk, &path), b"a\0\0\0ef");
}

/// Bytes that are on their way out read back as before, also those behind the end, and a sync takes them
/// along.
pub fn bytes_on_their_way_out_read_back(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("file");
    let mut file = create(disk, &path);
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(100_000).collect();
    file.append(&bytes).unwrap();
    file.begin_sync(0, 50_000);
    file.begin_sync(50_000, 1_000_000);
    file.begin_sync(0, 0);
    assert_eq!(content(disk, &path), bytes);
    file.append(b"more").unwrap();
    file.sync().unwrap();
    assert_eq!(content(disk, &path), [bytes.as_slice(), b"more"].concat());
}

/// A file can be cut and grown, and appends go to its new end.
pub fn a_file_can_be_cut_and_grown(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("file");
    let mut file = create(disk, &path);
    file.append(b"abcdef").unwrap();
    file.truncate(2).unwrap();
    file.append(b"X").unwrap();
    assert_eq!(content(disk, &path), b"abX");
    file.truncate(5).unwrap();
    assert_eq!(content(disk, &path), b"abX\0\0");
    file.preallocate(8).unwrap();
    file.preallocate(3).unwrap();
    assert_eq!(content(disk, &path), b"abX\0\0\0\0\0");
}

/// Opening tells missing, existing and directory apart.
pub fn opening_says_what_is_wrong(disk: &dyn Disk, dir: &Path) {
    let kind = |path: &Path, mode| disk.open(path, mode).map(|_| ()).map_err(|e| e.kind());
    let path = dir.join("file");
    assert_eq!(kind(&path, OpenMode::Read), Err(ErrorKind::NotFound));
    assert_eq!(kind(&path, OpenMode::Write), Err(ErrorKind::NotFound));
    assert_eq!(kind(&path, OpenMode::CreateNew), Ok(()));
    assert_eq!(
        kind(&path, OpenMode::CreateNew),
        Err(ErrorKind::AlreadyExists)
    );
    assert_eq!(kind(&path, OpenMode::Read), Ok(()));
    assert_eq!(kind(dir, OpenMode::Read), Err(ErrorKind::IsADirectory));
    let inside_missing = dir.join("no").join("file");
    assert_eq!(
        kind(&inside_missing, OpenMode::CreateNew),
        Err(ErrorKind::NotFound)
    );
    let mut read_only = disk.open(&path, OpenMode::Read).unwrap();
    assert!(
        read_only.append(b"x").is_err(),
        "a file opened for reading is not written"
    );
}

/// Replacing puts the new content under the old name, and the new name is gone.
pub fn replacing_swaps_the_whole_file(disk: &dyn Disk, dir: &Path) {
    let (old, new) = (dir.join("books"), dir.join("books.new"));
    create(disk, &old).append(b"old").unwrap();
    let mut file = create(disk, &new);
    file.append(b"new and longer").unwrap();
    file.sync().unwrap();
    disk.replace(&new, &old).unwrap();
    assert_eq!(content(disk, &old), b"new and longer");
    let names: Vec<String> = disk
        .list(dir)
        .unwrap()
        .into_iter()
        .map(|e| e.name)
        .collect();
    assert_eq!(names, ["books"]);
    assert_eq!(
        disk.replace(&new, &old).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(content(disk, &old), b"new and longer");
    disk.create_dir_all(&dir.join("sub")).unwrap();
    let elsewhere = disk.replace(&old, &dir.join("sub").join("books"));
    assert_eq!(elsewhere.unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// A file that is open stays readable after it was removed or replaced.
pub fn an_open_file_outlives_its_name(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("file");
    let mut file = create(disk, &path);
    file.append(b"kept").unwrap();
    disk.remove(&path).unwrap();
    let mut buffer = [0; 4];
    assert_eq!(file.read_at(0, &mut buffer).unwrap(), 4);
    assert_eq!(disk.remove(&path).unwrap_err().kind(), ErrorKind::NotFound);
    create(disk, &path).append(b"new").unwrap();
    assert_eq!(content(disk, &path), b"new");
    assert_eq!(&buffer, b"kept");
}

/// A directory lists its entries by name, with their lengths.
pub fn a_directory_lists_its_entries_by_name(disk: &dyn Disk, dir: &Path) {
    create(disk, &dir.join("b")).append(b"12").unwrap();
    create(disk, &dir.join("a")).append(b"1").unwrap();
    disk.create_dir_all(&dir.join("c").join("d")).unwrap();
    disk.create_dir_all(&dir.join("c").join("d")).unwrap();
    let shown: Vec<String> = disk
        .list(dir)
        .unwrap()
        .into_iter()
        .map(|e| format!("{} {} {}", e.name, e.len, e.is_dir))
        .collect();
    assert_eq!(shown, ["a 1 false", "b 2 false", "c 0 true"]);
    assert_eq!(
        disk.list(&dir.join("x")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert!(
        disk.create_dir_all(&dir.join("a").join("x")).is_err(),
        "a file is no directory"
    );
    disk.sync_dir(dir).unwrap();
    assert_eq!(
        disk.sync_dir(&dir.join("x")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

/// A lock is held once, until it is dropped.
pub fn a_lock_is_held_once_until_it_is_dropped(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("lock");
    let held = disk.lock(&path).unwrap();
    assert_eq!(
        disk.lock(&path).map(|_| ()).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    let other = disk.lock(&dir.join("other")).unwrap();
    drop(held);
    drop(disk.lock(&path).unwrap());
    drop(other);
}

/// There is a limit to what a whole read takes in.
pub fn a_whole_read_is_bounded(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("file");
    create(disk, &path).append(b"12345").unwrap();
    assert_eq!(disk.read(&path, 5).unwrap(), b"12345");
    assert_eq!(
        disk.read(&path, 4).unwrap_err().kind(),
        ErrorKind::FileTooLarge
    );
    assert!(disk.space_left(dir).unwrap() > 0);
}

/// One test per rule; `$run` is a macro that is given the rule.
#[macro_export]
macro_rules! disk_conformance {
    ($run:path) => {
        $crate::conformance_tests!(
            $run,
            $crate::conformance::disk,
            [
                written_values_read_back,
                two_handles_append_at_the_one_end,
                a_read_past_the_end_gives_what_there_is,
                a_gap_reads_as_zeros,
                bytes_on_their_way_out_read_back,
                a_file_can_be_cut_and_grown,
                opening_says_what_is_wrong,
                replacing_swaps_the_whole_file,
                an_open_file_outlives_its_name,
                a_directory_lists_its_entries_by_name,
                a_lock_is_held_once_until_it_is_dropped,
                a_whole_read_is_bounded,
            ]
        );
    };
}
