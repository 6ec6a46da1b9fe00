//! The frames of a changelog: the changes of an epoch, and pieces of the whole state beside them.
//!
//! `docs/formats/stage.md` has the bytes.

use bytes::Bytes;

use crate::state::backend::EntryKey;
use crate::task_state::TableId;

/// The largest frame, unless a single entry is larger.
pub const MAX_FRAME_BYTES: usize = 512 * 1024;

const MAGIC: &[u8; 4] = b"TGSF";
const VERSION: u8 = 1;
const DELTA: u8 = 1;
const PIECE: u8 = 2;
/// Stands for the length of a value that is removed, and for a range without an end.
const NONE: u32 = u32::MAX;

/// A frame that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Its checksum is wrong, or it ends too early.
    #[error("the frame is damaged")]
    Damaged,
    /// It was written by a later version.
    #[error("the frame has version {0}, and this program knows version {VERSION}")]
    Version(u8),
}

/// How far an input was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputOffset {
    /// The topic.
    pub topic: String,
    /// The next record to read.
    pub next: i64,
}

/// Changes of an epoch; an epoch has one frame or more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaFrame {
    /// The epoch of the task.
    pub epoch: u64,
    /// Its number within the epoch, from 0.
    pub part: u16,
    /// Whether no other of the epoch follows.
    pub is_last: bool,
    /// The processing time of the task at the end of the epoch.
    pub clock_ms: i64,
    /// How many partitions each input has.
    pub partitions: u32,
    /// How far the inputs were read.
    pub inputs: Vec<InputOffset>,
    /// The changes; none removes the entry.
    pub changes: Vec<(EntryKey, Option<Bytes>)>,
}

/// A range of the state, as it was before the epoch that the frame was written with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceFrame {
    /// The epoch that it was written with.
    pub epoch: u64,
    /// The beginning of the range.
    pub from: EntryKey,
    /// The place behind its end; none for the end of all.
    pub to: Option<EntryKey>,
    /// The entries.
    pub entries: Vec<(EntryKey, Bytes)>,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Changes.
    Delta(DeltaFrame),
    /// A part of the whole state.
    Piece(PieceFrame),
}

impl Frame {
    /// The bytes, with their checksum at the end.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(MAGIC);
        out.push(VERSION);
        match self {
            Self::Delta(delta) => {
                out.push(DELTA);
                out.extend_from_slice(&delta.epoch.to_le_bytes());
                out.extend_from_slice(&delta.part.to_le_bytes());
                out.push(u8::from(delta.is_last));
                out.extend_from_slice(&delta.clock_ms.to_le_bytes());
                out.extend_from_slice(&delta.partitions.to_le_bytes());
                put_length(&mut out, delta.inputs.len());
                for input in &delta.inputs {
                    put_bytes(&mut out, input.topic.as_bytes());
                    out.extend_from_slice(&input.next.to_le_bytes());
                }
                put_length(&mut out, delta.changes.len());
                for (key, value) in &delta.changes {
                    put_key(&mut out, key);
                    match value {
                        Some(value) => put_bytes(&mut out, value),
                        None => out.extend_from_slice(&NONE.to_le_bytes()),
                    }
                }
            }
            Self::Piece(piece) => {
                out.push(PIECE);
                out.extend_from_slice(&piece.epoch.to_le_bytes());
                put_key(&mut out, &piece.from);
                out.push(u8::from(piece.to.is_some()));
                if let Some(to) = &piece.to {
                    put_key(&mut out, to);
                }
                put_length(&mut out, piece.entries.len());
                for (key, value) in &piece.entries {
                    put_key(&mut out, key);
                    put_bytes(&mut out, value);
                }
            }
        }
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// It is damaged, or of a later version.
    pub fn decode(bytes: &Bytes) -> Result<Self, FrameError> {
        let mut reader = Reader::checked(bytes)?;
        let frame = match reader.u8()? {
            DELTA => Self::Delta(reader.delta()?),
            PIECE => Self::Piece(reader.piece()?),
            _ => return Err(FrameError::Damaged),
        };
        match reader.bytes.is_empty() {
            true => Ok(frame),
            false => Err(FrameError::Damaged),
        }
    }
}

/// The head of a frame, as a copy of it needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameHead {
    /// Changes.
    Delta {
        /// The epoch.
        epoch: u64,
        /// The number of the frame within it.
        part: u16,
        /// Whether no other of the epoch follows.
        is_last: bool,
    },
    /// A part of the whole state; whether it is the last one.
    Piece {
        /// Nothing lies behind its range.
        is_last: bool,
    },
}

impl FrameHead {
    /// Reads the head of a frame, whose checksum is right.
    ///
    /// # Errors
    /// The frame is damaged, or of a later version.
    pub fn of(bytes: &Bytes) -> Result<Self, FrameError> {
        let mut reader = Reader::checked(bytes)?;
        match reader.u8()? {
            DELTA => Ok(Self::Delta {
                epoch: u64::from_le_bytes(reader.array()?),
                part: u16::from_le_bytes(reader.array()?),
                is_last: reader.u8()? == 1,
            }),
            PIECE => {
                // The epoch.
                reader.array::<8>()?;
                reader.key()?;
                let is_last = reader.u8()? == 0;
                Ok(Self::Piece { is_last })
            }
            _ => Err(FrameError::Damaged),
        }
    }
}

/// The checksum that is the last part of an encoded frame.
#[must_use]
pub fn checksum(encoded: &[u8]) -> u32 {
    let last = encoded.last_chunk::<4>();
    last.map_or(0, |crc| u32::from_le_bytes(*crc))
}

/// The checksum of an epoch with one more frame.
#[must_use]
pub fn chain_checksum(before: u32, encoded: &[u8]) -> u32 {
    crc32c::crc32c_append(before, &checksum(encoded).to_le_bytes())
}

/// Bytes that an entry takes in a frame.
#[must_use]
pub fn entry_bytes(key: &EntryKey, value: Option<&Bytes>) -> usize {
    10 + key.key.len() + value.map_or(0, Bytes::len)
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    let length = u32::try_from(length).unwrap_or(NONE - 1);
    out.extend_from_slice(&length.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_key(out: &mut Vec<u8>, key: &EntryKey) {
    out.extend_from_slice(&key.table.0.to_le_bytes());
    put_bytes(out, &key.key);
}

struct Reader {
    bytes: Bytes,
}

impl Reader {
    /// The bytes behind the version of a frame whose checksum is right.
    fn checked(bytes: &Bytes) -> Result<Self, FrameError> {
        let body = bytes.len().checked_sub(4).ok_or(FrameError::Damaged)?;
        let (head, crc) = bytes.split_at(body);
        let crc: [u8; 4] = crc.try_into().map_err(|_| FrameError::Damaged)?;
        if head.get(..4) != Some(&MAGIC[..]) || crc32c::crc32c(head) != u32::from_le_bytes(crc) {
            return Err(FrameError::Damaged);
        }
        let mut reader = Self {
            bytes: bytes.slice(4..body),
        };
        match reader.u8()? {
            VERSION => Ok(reader),
            later => Err(FrameError::Version(later)),
        }
    }

    fn take(&mut self, length: usize) -> Result<Bytes, FrameError> {
        match length <= self.bytes.len() {
            true => Ok(self.bytes.split_to(length)),
            false => Err(FrameError::Damaged),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let bytes = self.take(N)?;
        bytes[..].try_into().map_err(|_| FrameError::Damaged)
    }

    fn u8(&mut self) -> Result<u8, FrameError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_le_bytes)
    }

    fn sized(&mut self) -> Result<Bytes, FrameError> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    fn key(&mut self) -> Result<EntryKey, FrameError> {
        let table = TableId(u16::from_le_bytes(self.array()?));
        Ok(EntryKey::new(table, self.sized()?))
    }

    fn delta(&mut self) -> Result<DeltaFrame, FrameError> {
        let epoch = u64::from_le_bytes(self.array()?);
        let part = u16::from_le_bytes(self.array()?);
        let is_last = self.u8()? == 1;
        let clock_ms = i64::from_le_bytes(self.array()?);
        let partitions = self.u32()?;
        let mut inputs = Vec::new();
        for _ in 0..self.u32()? {
            let topic = self.sized()?;
            let topic = String::from_utf8(topic.to_vec()).map_err(|_| FrameError::Damaged)?;
            let next = i64::from_le_bytes(self.array()?);
            inputs.push(InputOffset { topic, next });
        }
        let mut changes = Vec::new();
        for _ in 0..self.u32()? {
            let key = self.key()?;
            let value = match self.u32()? {
                NONE => None,
                length => Some(self.take(length as usize)?),
            };
            changes.push((key, value));
        }
        Ok(DeltaFrame {
            epoch,
            part,
            is_last,
            clock_ms,
            partitions,
            inputs,
            changes,
        })
    }

    fn piece(&mut self) -> Result<PieceFrame, FrameError> {
        let epoch = u64::from_le_bytes(self.array()?);
        let from = self.key()?;
        let to = match self.u8()? {
            0 => None,
            _ => Some(self.key()?),
        };
        let mut entries = Vec::new();
        for _ in 0..self.u32()? {
            entries.push((self.key()?, self.sized()?));
        }
        Ok(PieceFrame {
            epoch,
            from,
            to,
            entries,
        })
    }
}

/// The text beside each committed offset: which epoch it belongs to, and where its state is.
///
/// ```
/// use tidegate_stage::changelog::EpochMark;
/// let mark = EpochMark { epoch: 7, base: 120, crc: 0xbeef };
/// assert_eq!(mark.to_string(), "s1 e7 b120 c0000beef");
/// assert_eq!(EpochMark::parse("s1 e7 b120 c0000beef"), Some(mark));
/// assert_eq!(EpochMark::parse("anything else"), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochMark {
    /// The epoch of the task.
    pub epoch: u64,
    /// The offset in the changelog from which its state is read.
    pub base: i64,
    /// The checksum of the frames of the epoch.
    pub crc: u32,
}

impl std::fmt::Display for EpochMark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { epoch, base, crc } = self;
        write!(f, "s{VERSION} e{epoch} b{base} c{crc:08x}")
    }
}

impl EpochMark {
    /// Reads the text; none if it is not one of these.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let version = words.next()?.strip_prefix('s')?;
        if version.parse() != Ok(VERSION) {
            return None;
        }
        let mark = Self {
            epoch: words.next()?.strip_prefix('e')?.parse().ok()?,
            base: words.next()?.strip_prefix('b')?.parse().ok()?,
            crc: u32::from_str_radix(words.next()?.strip_prefix('c')?, 16).ok()?,
        };
        words.next().is_none().then_some(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> EntryKey {
        EntryKey::new(TableId(2), name.as_bytes().to_vec())
    }

    fn frames() -> [Frame; 2] {
        [
            Frame::Delta(DeltaFrame {
                epoch: 7,
                part: 1,
                is_last: true,
                clock_ms: 1_700_000_000_000,
                partitions: 4,
                inputs: vec![InputOffset {
                    topic: "orders".to_owned(),
                    next: 42,
                }],
                changes: vec![
                    (key("a"), Some(Bytes::from_static(b"one"))),
                    (key("b"), None),
                    (key(""), Some(Bytes::new())),
                ],
            }),
            Frame::Piece(PieceFrame {
                epoch: 8,
                from: key("a"),
                to: Some(key("c")),
                entries: vec![(key("a"), Bytes::from_static(b"one"))],
            }),
        ]
    }

    #[test]
    fn a_frame_reads_back_and_each_flipped_byte_is_seen() {
        for frame in frames() {
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&Bytes::from(bytes.clone())), Ok(frame));
            for at in 0..bytes.len() {
                let mut broken = bytes.clone();
                broken[at] ^= 0x41;
                assert_eq!(
                    Frame::decode(&Bytes::from(broken)),
                    Err(FrameError::Damaged)
                );
                let cut = Bytes::copy_from_slice(&bytes[..at]);
                assert_eq!(Frame::decode(&cut), Err(FrameError::Damaged));
            }
        }
    }

    #[test]
    fn the_frames_are_those_of_the_first_version() {
        let kept = include_str!("../tests/fixtures/frames-1.hex");
        let shown: Vec<String> = frames()
            .iter()
            .map(|frame| {
                let bytes = frame.encode();
                bytes.iter().map(|byte| format!("{byte:02x}")).collect()
            })
            .collect();
        assert_eq!(shown.join("\n"), kept.trim_end());
    }

    #[test]
    fn a_later_version_is_named() {
        let mut bytes = frames()[0].encode();
        bytes[4] = 9;
        let body = bytes.len() - 4;
        let crc = crc32c::crc32c(&bytes[..body]);
        bytes[body..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            Frame::decode(&Bytes::from(bytes)),
            Err(FrameError::Version(9))
        );
    }

    #[test]
    fn the_longest_mark_is_short() {
        let mark = EpochMark {
            epoch: u64::MAX,
            base: i64::MAX,
            crc: u32::MAX,
        };
        assert!(mark.to_string().len() <= 100);
        assert_eq!(EpochMark::parse(&mark.to_string()), Some(mark));
    }
}
