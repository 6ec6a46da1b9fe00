//! Lines of standard input, in batches.

use std::io::{BufRead, BufReader, Read};

use crate::report::ErrorReport;

/// Lines, and about how many bytes, that are handed over at once.
const LINES: usize = 500;
const BYTES: usize = 128 * 1024;
/// The longest line that is read: more than any log or queue takes.
const LINE: u64 = 1024 * 1024 * 1024;

pub(super) struct InputLines<R>(BufReader<R>);

impl<R: Read> InputLines<R> {
    pub(super) fn new(input: R) -> Self {
        Self(BufReader::with_capacity(BYTES, input))
    }

    /// The next lines, without their ends; none at the end of the input. Lines that have come so far are
    /// handed over before anything more is waited for.
    pub(super) fn next_batch(&mut self) -> Result<Option<Vec<Vec<u8>>>, ErrorReport> {
        let (mut lines, mut bytes) = (Vec::new(), 0);
        loop {
            let mut line = Vec::new();
            let read = self.0.by_ref().take(LINE).read_until(b'\n', &mut line);
            let read = read.map_err(|error| {
                ErrorReport::of("input.failed", "cannot read standard input", &error)
            })?;
            if read == 0 {
                return Ok(Some(lines).filter(|lines| !lines.is_empty()));
            }
            line.pop_if(|last| *last == b'\n');
            bytes += line.len();
            lines.push(line);
            let is_more_here = self.0.buffer().contains(&b'\n');
            if !is_more_here || lines.len() >= LINES || bytes >= BYTES {
                return Ok(Some(lines));
            }
        }
    }
}
