//! Events that are gone, or set aside, and reported.

use tidegate_core::EventId;
use tidegate_core::books::LossReason;

use crate::event::Event;

/// The reasons, which users' alerts depend on.
pub mod reason {
    use tidegate_core::books::LossReason;

    /// The main queue is full, and there is no spill.
    pub const QUEUE_FULL: LossReason = LossReason::from_static("queue_full");
    /// Every retry failed, and there is no spill.
    pub const RETRIES_EXHAUSTED: LossReason = LossReason::from_static("retries_exhausted");
    /// A retry found the main queue full, and there is no spill.
    pub const RETRY_REQUEUE_FAILED: LossReason = LossReason::from_static("retry_requeue_failed");
    /// No more retries can wait, and there is no spill.
    pub const RETRY_EXECUTOR_REJECTED: LossReason =
        LossReason::from_static("retry_executor_rejected");
    /// The logger was asked to stop before.
    pub const SHUTDOWN_IN_PROGRESS: LossReason = LossReason::from_static("shutdown_in_progress");
    /// It waited for a retry when the logger stopped, and there is no spill.
    pub const SHUTDOWN_PENDING_RETRY: LossReason =
        LossReason::from_static("shutdown_pending_retry");
    /// The queue in front of the spill is full.
    pub const SPILLOVER_QUEUE_FULL: LossReason = LossReason::from_static("spillover_queue_full");
    /// The active spill file holds as many events as it may.
    pub const SPILLOVER_MAX_EVENTS: LossReason = LossReason::from_static("spillover_max_events");
    /// The active spill file is as large as it may be.
    pub const SPILLOVER_MAX_SIZE: LossReason = LossReason::from_static("spillover_max_size");
    /// The breaker is open, and there is no spill.
    pub const CIRCUIT_OPEN: LossReason = LossReason::from_static("circuit_open");
    /// It was still queued when the logger stopped, and there is no spill.
    pub const SHUTDOWN_QUEUED: LossReason = LossReason::from_static("shutdown_queued");
    /// The disk refused it.
    pub const SPILLOVER_WRITE_ERROR: LossReason = LossReason::from_static("spillover_write_error");
    /// A line of a spill file cannot be read; it was set aside.
    pub const SPILLOVER_CORRUPT: LossReason = LossReason::from_static("spillover_corrupt");
    /// The API refused it for good; with a spill it was set aside.
    pub const REJECTED: LossReason = LossReason::from_static("rejected");

    /// All of them.
    pub const ALL: [LossReason; 14] = [
        QUEUE_FULL,
        RETRIES_EXHAUSTED,
        RETRY_REQUEUE_FAILED,
        RETRY_EXECUTOR_REJECTED,
        SHUTDOWN_IN_PROGRESS,
        SHUTDOWN_PENDING_RETRY,
        SPILLOVER_QUEUE_FULL,
        SPILLOVER_MAX_EVENTS,
        SPILLOVER_MAX_SIZE,
        CIRCUIT_OPEN,
        SHUTDOWN_QUEUED,
        SPILLOVER_WRITE_ERROR,
        SPILLOVER_CORRUPT,
        REJECTED,
    ];
}

/// An event that is gone, or set aside, as the loss callback gets it.
#[derive(Debug)]
pub struct Loss<'a> {
    /// Its id, where it is known: a corrupt line may not tell.
    pub id: Option<EventId>,
    /// The event, where it is at hand.
    pub event: Option<&'a Event>,
    /// Why, as a stable code.
    pub reason: &'a LossReason,
}
