//! The options of the Event Log API.

use std::time::Duration;

/// The options of the Event Log API; the section `eventlog.api`.
///
/// ```
/// use tidegate_eventlog::EventLogOptions;
/// let options = EventLogOptions::default();
/// assert_eq!((options.max_batch, options.rate_limit), (1_000, None));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventLogOptions {
    /// Whether this process serves the API (`enabled`).
    pub enabled: bool,
    /// Events that one request may carry (`max-batch`).
    pub max_batch: usize,
    /// How long events are kept (`retention`); none for ever.
    pub retention: Option<Duration>,
    /// Events per second that one application may send (`rate-limit`); none for any number.
    pub rate_limit: Option<u32>,
    /// Whether the debug endpoint is there (`debug`).
    pub debug: bool,
    /// How long answers to an `Idempotency-Key` are kept (`idempotency-ttl`).
    pub idempotency_ttl: Duration,
    /// How often old events and keys are looked for.
    pub cleanup_interval: Duration,
}

impl Default for EventLogOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            max_batch: 1_000,
            retention: None,
            rate_limit: None,
            debug: false,
            idempotency_ttl: Duration::from_secs(24 * 3_600),
            cleanup_interval: Duration::from_secs(60),
        }
    }
}
