//! Groups that lie behind the last one that follows.

use bytes::Bytes;

use crate::embedded::group::{ALIGN, HEADER, JournalFrame};
use crate::embedded::secret::LogSecret;
use crate::embedded::state::JournalPlace;

/// A group behind damage.
pub(super) struct ResyncPoint {
    pub(super) place: JournalPlace,
    pub(super) frame: JournalFrame,
}

impl ResyncPoint {
    pub(super) fn new(file: u64, (at, frame): (u64, JournalFrame)) -> Self {
        let place = JournalPlace { file, at };
        Self { place, frame }
    }
}

/// The first group from `at` on that is whole, comes later than `missing`, and says that `missing`
/// was synced.
pub(super) fn find_resync_point(
    bytes: &Bytes,
    secret: LogSecret,
    at: u64,
    missing: u64,
) -> Option<(u64, JournalFrame)> {
    groups(bytes, secret, at).find(|(_, frame)| frame.sequence > missing && frame.synced >= missing)
}

/// All whole groups from `at` on, whatever lies between them.
pub(in crate::embedded) fn groups(
    bytes: &Bytes,
    secret: LogSecret,
    at: u64,
) -> impl Iterator<Item = (u64, JournalFrame)> {
    let mut at = usize::try_from(at).unwrap_or(usize::MAX);
    std::iter::from_fn(move || {
        while at + HEADER <= bytes.len() {
            let here = at;
            match JournalFrame::read(&bytes[here..], secret) {
                Some(frame) => {
                    at += frame.size();
                    return Some((here as u64, frame));
                }
                None => at += ALIGN,
            }
        }
        None
    })
}

/// Where the bytes end that belong to a write which was never acknowledged; none if there are none.
pub(super) fn torn(
    bytes: &Bytes,
    secret: LogSecret,
    at: u64,
    (sequence, previous): (u64, u32),
) -> Option<u64> {
    let rest = bytes.get(usize::try_from(at).ok()?..)?;
    let begun = JournalFrame::peek(rest, secret)
        .filter(|frame| frame.sequence == sequence && frame.previous == previous)
        .map(|frame| at + frame.size().min(rest.len()) as u64);
    let behind = groups(bytes, secret, at)
        .filter(|(_, frame)| frame.sequence >= sequence)
        .map(|(at, frame)| at + frame.size() as u64)
        .max();
    begun.max(behind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::group;

    /// The header of a group without its payload: the write was cut there.
    fn cut_group(secret: LogSecret, sequence: u64, previous: u32) -> Bytes {
        let mut group = vec![0; HEADER + 16];
        group[HEADER..].fill(7);
        group::frame(&mut group, secret, sequence, previous, 1, 0);
        group.truncate(HEADER + 8);
        Bytes::from(group)
    }

    #[test]
    fn a_cut_write_is_torn_only_if_it_follows_the_last_group() {
        let secret = LogSecret::draw(5);
        let next = (8, 99);
        let end =
            |sequence, previous| torn(&cut_group(secret, sequence, previous), secret, 0, next);
        assert_eq!(end(8, 99), Some(HEADER as u64 + 8));
        assert_eq!(end(8, 98), None, "it follows another group");
        assert_eq!(end(7, 99), None, "it is older than the last group");
        assert_eq!(end(9, 99), None, "its predecessor is not here");
    }
}
