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
