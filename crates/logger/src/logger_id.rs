//! The identity of a spill directory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tidegate_core::env::{Clock, Entropy};
use tidegate_core::{EventId, EventIdMinter, ParseEventIdError};

/// The id of a spill directory, and of the logger that has it: a UUID.
///
/// It stands in the books of the directory, and goes with every request. So the API keeps the events of each
/// directory apart, and an audit can compare both. A logger without a directory has none.
///
/// ```
/// use tidegate_logger::LoggerId;
/// let id: LoggerId = "019a8f3e-5c00-7abc-8def-0123456789ab".parse()?;
/// assert_eq!(id.to_string(), "019a8f3e-5c00-7abc-8def-0123456789ab");
/// # Ok::<(), tidegate_core::ParseEventIdError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LoggerId(EventId);

impl LoggerId {
    /// An id that no other directory has.
    pub(crate) fn mint(clock: &dyn Clock, entropy: &dyn Entropy) -> Self {
        let mut minter = EventIdMinter::new(entropy.fork("logger-id"));
        Self(minter.mint_at(clock.now_ms()))
    }
}

impl fmt::Display for LoggerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for LoggerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for LoggerId {
    type Err = ParseEventIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}
