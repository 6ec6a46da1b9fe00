//! The secret that distinguishes the bytes of a log from bytes that only look like them.
//!
//! Records hold whatever their senders like, also bytes that look like a commit group or a chunk: a
//! file of another log, or something made to mislead. Nobody takes them for one as long as nothing is
//! damaged. But three places are searched byte by byte: behind damage, behind the end of a journal file
//! that is used again, and in a segment that was not synced before the power went. So a log draws a
//! secret when it is made, and keeps it in its manifest. It puts half of the secret into each magic and
//! half into each CRC: bytes that do not have both are not its own.

/// The secret of a log, which no sender of records knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LogSecret(u64);

impl LogSecret {
    /// Draws a secret from a random number.
    pub(super) fn draw(random: u64) -> Self {
        // With the first bit no magic becomes 0, which is what unwritten bytes hold.
        Self(random | 1 << 63)
    }

    /// The secret as it was written down. A log that was made before there were secrets has 0: then magics and
    /// CRCs are what they were.
    pub(super) fn of_number(number: u64) -> Self {
        Self(number)
    }

    pub(super) fn number(self) -> u64 {
        self.0
    }

    /// A magic as it stands in the files of this log.
    pub(super) fn magic(self, magic: [u8; 4]) -> u32 {
        let half = u32::try_from(self.0 >> 32).unwrap_or(0);
        u32::from_le_bytes(magic) ^ half
    }

    /// The CRC32C with which a checksum of this log begins.
    pub(super) fn begin(self) -> u32 {
        u32::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(0)
    }

    /// The CRC32C of bytes of this log.
    pub(super) fn crc(self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(self.begin(), bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_secret_magics_and_checksums_are_the_plain_ones() {
        let none = LogSecret::default();
        assert_eq!(none.magic(*b"TGJ1"), u32::from_le_bytes(*b"TGJ1"));
        assert_eq!(none.crc(b"bytes"), crc32c::crc32c(b"bytes"));
    }

    #[test]
    fn a_secret_changes_both_and_no_magic_becomes_zero() {
        for random in [
            0,
            1,
            u64::from(u32::from_le_bytes(*b"TGJ1")) << 32,
            u64::MAX,
        ] {
            let secret = LogSecret::draw(random);
            assert_eq!(LogSecret::of_number(secret.number()), secret);
            assert_ne!(secret.magic(*b"TGJ1"), u32::from_le_bytes(*b"TGJ1"));
            assert_ne!(secret.magic(*b"TGJ1"), 0);
        }
        let (one, other) = (LogSecret::draw(7), LogSecret::draw(8));
        assert_ne!(one.crc(b"bytes"), other.crc(b"bytes"));
    }
}
