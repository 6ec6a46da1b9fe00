//! A commit group: what happens together or not at all, framed for the journal.
//!
//! ```text
//!  0  u32  magic "TGJ1", XOR the upper half of the secret of the log
//!  4  u32  length of the payload
//!  8  u64  sequence, one more than that of the group before
//! 16  u32  CRC32C of the group before
//! 20  u32  CRC32C of this group, with zeros here, begun with the lower half of the secret
//! 24  u64  number of the write, never used twice
//! 32  u64  sequence up to which everything was synced when this was written
//! 40  payload: changes
//!     zeros up to the next multiple of 8
//! ```
//!
//! **A group follows another one** only if it has the next sequence and names the other's CRC. So
//! what is left in a reused file, or of a write that was given up, never follows anything: it
//! names another predecessor, and the number of the write keeps even equal content apart.
//!
//! **A group that cannot be read was torn** unless a later one says that it was synced.

use bytes::Bytes;

use super::codec::Decoder;
use super::secret::LogSecret;

const MAGIC: [u8; 4] = *b"TGJ1";
/// Bytes in front of the payload.
pub(super) const HEADER: usize = 40;
/// Groups begin at multiples of this.
pub(super) const ALIGN: usize = 8;

/// The frame of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JournalFrame {
    pub(super) payload_len: usize,
    pub(super) sequence: u64,
    pub(super) previous: u32,
    pub(super) crc: u32,
    pub(super) synced: u64,
}

/// The bytes that a group with this payload takes.
pub(super) fn size(payload: usize) -> usize {
    (HEADER + payload).next_multiple_of(ALIGN)
}

/// Frames the payload that follows the first [`HEADER`] bytes of `group`, and pads it. Gives the CRC.
pub(super) fn frame(
    group: &mut Vec<u8>,
    secret: LogSecret,
    sequence: u64,
    previous: u32,
    write: u64,
    synced: u64,
) -> u32 {
    let payload = u32::try_from(group.len() - HEADER).unwrap_or(u32::MAX);
    group[0..4].copy_from_slice(&secret.magic(MAGIC).to_le_bytes());
    group[4..8].copy_from_slice(&payload.to_le_bytes());
    group[8..16].copy_from_slice(&sequence.to_le_bytes());
    group[16..20].copy_from_slice(&previous.to_le_bytes());
    group[20..24].copy_from_slice(&[0; 4]);
    group[24..32].copy_from_slice(&write.to_le_bytes());
    group[32..40].copy_from_slice(&synced.to_le_bytes());
    let crc = secret.crc(group);
    group[20..24].copy_from_slice(&crc.to_le_bytes());
    group.resize(group.len().next_multiple_of(ALIGN), 0);
    crc
}

impl JournalFrame {
    /// Reads the frame at the front of `bytes`, without looking at the payload.
    pub(super) fn peek(bytes: &[u8], secret: LogSecret) -> Option<Self> {
        let mut decoder = Decoder(bytes.get(..HEADER)?);
        if decoder.u32()? != secret.magic(MAGIC) {
            return None;
        }
        Some(Self {
            payload_len: usize::try_from(decoder.u32()?).ok()?,
            sequence: decoder.u64()?,
            previous: decoder.u32()?,
            crc: decoder.u32()?,
            synced: {
                decoder.u64()?;
                decoder.u64()?
            },
        })
    }

    /// Reads the group at the front of `bytes` if it is whole.
    pub(super) fn read(bytes: &[u8], secret: LogSecret) -> Option<Self> {
        let frame = Self::peek(bytes, secret)?;
        let group = bytes.get(..HEADER.checked_add(frame.payload_len)?)?;
        let crc = secret.crc(&group[..20]);
        let crc = crc32c::crc32c_append(crc, &[0; 4]);
        let crc = crc32c::crc32c_append(crc, &group[24..]);
        (crc == frame.crc
            || super::injected_bugs::is(super::injected_bugs::InjectedBug::UncheckedTail))
        .then_some(frame)
    }

    /// The bytes of the whole group.
    pub(super) fn size(&self) -> usize {
        size(self.payload_len)
    }

    /// The payload of the group at the front of `bytes`.
    pub(super) fn payload(&self, bytes: &Bytes) -> Bytes {
        bytes.slice(HEADER..HEADER + self.payload_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_reads_back_and_every_flipped_bit_is_noticed() {
        let secret = LogSecret::draw(5);
        let mut group = vec![0; HEADER];
        group.extend_from_slice(b"payload");
        let crc = frame(&mut group, secret, 7, 99, 3, 6);
        assert_eq!(group.len() % ALIGN, 0);
        let read = JournalFrame::read(&group, secret).unwrap();
        assert_eq!(
            (read.sequence, read.previous, read.crc, read.synced),
            (7, 99, crc, 6)
        );
        assert_eq!(&read.payload(&Bytes::from(group.clone()))[..], b"payload");
        assert_eq!(JournalFrame::read(&group, LogSecret::default()), None);
        assert_eq!(JournalFrame::read(&group, LogSecret::draw(6)), None);
        for bit in 0..(HEADER + 7) * 8 {
            let mut damaged = group.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(JournalFrame::read(&damaged, secret), None, "bit {bit}");
        }
    }
}
