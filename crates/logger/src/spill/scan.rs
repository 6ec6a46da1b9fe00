//! Reads a file line by line, in constant memory.

use std::io;
use std::ops::Range;

use tidegate_core::env::DiskFile;

use super::MAX_LINE;

/// Bytes that are read at a time.
const CHUNK: usize = 256 * 1024;

/// The lines of a file from an offset on.
pub(super) struct LineReader {
    buffer: Vec<u8>,
    /// Where in the buffer the next line starts.
    start: usize,
    /// Where in the file the buffer starts.
    base: u64,
    /// How far the file is looked at; what lies behind does not exist for us.
    end: u64,
    is_at_end: bool,
    /// Lines that were given out or passed over.
    number: u64,
}

/// One line as it lies in the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RawLine<'a> {
    /// Counted from 1 where the reader began.
    pub(super) number: u64,
    pub(super) offset: u64,
    /// Without its newline.
    pub(super) bytes: &'a [u8],
    /// Where the next line starts.
    pub(super) next: u64,
    /// Whether it ends with a newline; only the last one may not.
    pub(super) is_whole: bool,
}

impl LineReader {
    pub(super) fn new(offset: u64, end: u64) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            base: offset,
            end,
            is_at_end: false,
            number: 0,
        }
    }

    /// Where the next line starts.
    pub(super) fn position(&self) -> u64 {
        self.base + self.start as u64
    }

    /// The next line; a piece of one that is longer than [`MAX_LINE`].
    pub(super) fn next<'a>(&'a mut self, file: &dyn DiskFile) -> io::Result<Option<RawLine<'a>>> {
        let found = self.advance(file)?;
        Ok(found.map(|(bytes, is_whole)| self.line(bytes, is_whole)))
    }

    /// The next line that is not blank.
    pub(super) fn next_filled<'a>(
        &'a mut self,
        file: &dyn DiskFile,
    ) -> io::Result<Option<RawLine<'a>>> {
        while let Some((bytes, is_whole)) = self.advance(file)? {
            if !self.buffer[bytes.clone()].trim_ascii().is_empty() {
                return Ok(Some(self.line(bytes, is_whole)));
            }
        }
        Ok(None)
    }

    fn line(&self, bytes: Range<usize>, is_whole: bool) -> RawLine<'_> {
        RawLine {
            number: self.number,
            offset: self.base + bytes.start as u64,
            bytes: &self.buffer[bytes],
            next: self.position(),
            is_whole,
        }
    }

    /// Finds the next line in the buffer, and says whether it ends with a newline.
    fn advance(&mut self, file: &dyn DiskFile) -> io::Result<Option<(Range<usize>, bool)>> {
        let mut searched = self.start;
        let (length, is_whole) = loop {
            if let Some(found) = memchr::memchr(b'\n', &self.buffer[searched..]) {
                break (searched + found - self.start, true);
            }
            searched = self.buffer.len();
            if searched - self.start >= MAX_LINE || self.is_at_end {
                break (searched - self.start, false);
            }
            searched -= self.drop_read();
            self.fill(file)?;
        };
        if length == 0 && !is_whole {
            return Ok(None);
        }
        let start = self.start;
        self.start += length + usize::from(is_whole);
        self.number += 1;
        Ok(Some((start..start + length, is_whole)))
    }

    /// Drops what was given out already, and says how much that was.
    fn drop_read(&mut self) -> usize {
        let dropped = self.start;
        self.buffer.drain(..dropped);
        self.base += dropped as u64;
        self.start = 0;
        dropped
    }

    fn fill(&mut self, file: &dyn DiskFile) -> io::Result<()> {
        let at = self.base + self.buffer.len() as u64;
        let room = usize::try_from(self.end.saturating_sub(at))
            .unwrap_or(CHUNK)
            .min(CHUNK);
        let filled = self.buffer.len();
        self.buffer.resize(filled + room, 0);
        let read = file.read_at(at, &mut self.buffer[filled..])?;
        self.buffer.truncate(filled + read);
        self.is_at_end = read == 0;
        Ok(())
    }
}
