//! Ending a search early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

/// When a search has to end before it is done. Checked about every 256 KiB of rows, and between rows where one row may
/// take long.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// The search ends when this time has passed.
    pub deadline: Option<Instant>,
    /// The search ends when this becomes true.
    pub cancelled: Arc<AtomicBool>,
}

impl Stop {
    /// A search that runs until it is done.
    pub fn never() -> Stop {
        Stop::default()
    }

    /// A search that ends at a time.
    pub fn at(deadline: Instant) -> Stop {
        Stop {
            deadline: Some(deadline),
            ..Stop::default()
        }
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// [`Stopped`] if the search was cancelled or is late.
    pub fn check(&self) -> Result<(), Stopped> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Stopped {
                reason: StopReason::Cancelled,
            });
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(Stopped {
                reason: StopReason::Deadline,
            }),
            _ => Ok(()),
        }
    }
}

/// The stop sign of work that goes on in one command after the other, such as that of a cursor.
#[derive(Debug, Default)]
pub struct SharedStop {
    stop: Mutex<Stop>,
}

impl SharedStop {
    /// Work that goes on in the command of this stop sign.
    pub fn new(stop: Stop) -> Arc<SharedStop> {
        Arc::new(SharedStop {
            stop: Mutex::new(stop),
        })
    }

    /// From now on the work goes on in the command of this stop sign.
    pub fn follow(&self, stop: &Stop) {
        self.stop.lock().clone_from(stop);
    }

    /// The stop sign of the command in which the work goes on.
    pub fn current(&self) -> Stop {
        self.stop.lock().clone()
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// [`Stopped`] if that command was cancelled or is late.
    pub fn check(&self) -> Result<(), Stopped> {
        self.stop.lock().check()
    }
}

/// A search that ended before it was done; what it reported so far is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the search was stopped: {reason}")]
pub struct Stopped {
    /// Why.
    pub reason: StopReason,
}

/// Why a search ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Its deadline passed.
    Deadline,
    /// It was cancelled.
    Cancelled,
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StopReason::Deadline => "deadline passed",
            StopReason::Cancelled => "cancelled",
        })
    }
}
