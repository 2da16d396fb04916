//! The cancellation token of the process: a deadline and a flag that long work checks as it goes. It knows nothing of
//! what the work is.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

/// A cancellation token: when work has to end before it is done. A search checks it about every 256 KiB of rows.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// The work ends when this time has passed.
    pub deadline: Option<Instant>,
    /// The work ends when this becomes true.
    pub cancelled: Arc<AtomicBool>,
}

impl Stop {
    /// Returns a token that never ends the work.
    pub fn never() -> Stop {
        Stop::default()
    }

    /// Returns a token that ends the work at `deadline`.
    pub fn at(deadline: Instant) -> Stop {
        Stop {
            deadline: Some(deadline),
            ..Stop::default()
        }
    }

    /// Checks that the work may continue.
    ///
    /// # Errors
    /// [`Stopped`] if the work was cancelled or its deadline has passed.
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

/// The cancellation token of work that several commands continue one after another, such as that of a cursor.
#[derive(Debug, Default)]
pub struct SharedStop {
    stop: Mutex<Stop>,
}

impl SharedStop {
    /// Returns a token that follows the command of `stop`.
    pub fn new(stop: Stop) -> Arc<SharedStop> {
        Arc::new(SharedStop {
            stop: Mutex::new(stop),
        })
    }

    /// Follows the command of `stop` from now on. Work that was stopped for an earlier command stays stopped: it keeps
    /// the [`Stopped`] that it got.
    pub fn follow(&self, stop: &Stop) {
        self.stop.lock().clone_from(stop);
    }

    /// Returns the token of the command that continues the work now.
    pub fn current(&self) -> Stop {
        self.stop.lock().clone()
    }

    /// Checks that the work may continue.
    ///
    /// # Errors
    /// [`Stopped`] if that command was cancelled or its deadline has passed.
    pub fn check(&self) -> Result<(), Stopped> {
        self.stop.lock().check()
    }
}

/// Work that ended before it was done. What it reported so far is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the search was stopped: {reason}")]
pub struct Stopped {
    /// Why.
    pub reason: StopReason,
}

/// Why work ended early.
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
