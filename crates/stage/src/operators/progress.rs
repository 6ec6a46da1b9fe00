//! The memory of a chain beside its state: clock, watermark, and how far each input came.

use crate::task_state::codec::{Reader, Writer};

/// The form of the progress of a chain.
const PROGRESS_VERSION: u8 = 1;

/// The progress of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InputActivity {
    /// `s` and the alias of a source, or `r` and the name of a topic of the stage's own.
    pub(super) name: String,
    pub(super) idle_timeout: i64,
    /// The newest event time.
    pub(super) newest: Option<i64>,
    /// When its last record came.
    pub(super) last_seen: i64,
}

/// The memory of a chain beside its state; it lies in the table of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    /// The processing time, once there was one.
    pub(super) clock: Option<i64>,
    /// The event time that all inputs have passed; it never goes back.
    pub(super) watermark: i64,
    /// The last number that was given to an entry or a timer.
    pub(super) numbers: u64,
    pub(super) inputs: Vec<InputActivity>,
}

impl Progress {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.byte(PROGRESS_VERSION);
        writer.signed(self.clock.unwrap_or(i64::MIN));
        writer.signed(self.watermark).number(self.numbers);
        writer.number(self.inputs.len() as u64);
        for input in &self.inputs {
            writer.bytes(input.name.as_bytes());
            writer.signed(input.newest.unwrap_or(i64::MIN));
            writer.signed(input.last_seen);
        }
        writer.0
    }

    /// Takes over what was written; inputs that are gone are left out.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Option<()> {
        let mut reader = Reader(bytes);
        if reader.byte()? != PROGRESS_VERSION {
            return None;
        }
        let known = |time: i64| Some(time).filter(|time| *time != i64::MIN);
        self.clock = known(reader.signed()?);
        self.watermark = reader.signed()?;
        self.numbers = reader.number()?;
        for _ in 0..reader.number()? {
            let name = reader.text()?;
            let (newest, last_seen) = (known(reader.signed()?), reader.signed()?);
            if let Some(input) = self.inputs.iter_mut().find(|input| input.name == name) {
                (input.newest, input.last_seen) = (newest, last_seen);
            }
        }
        Some(())
    }

    /// Moves the watermark to the newest time that all inputs have reached. A silent one stops holding it back.
    pub(super) fn move_watermark(&mut self, now: i64, delay: i64) {
        let is_active = |input: &&InputActivity| now - input.last_seen < input.idle_timeout;
        let active = self.inputs.iter().filter(is_active);
        let slowest = active.map(|input| input.newest.unwrap_or(i64::MIN)).min();
        let fastest = || self.inputs.iter().filter_map(|input| input.newest).max();
        let newest = slowest.or_else(fastest).unwrap_or(i64::MIN);
        self.watermark = self.watermark.max(newest.saturating_sub(delay));
    }
}
