//! Cancellation tokens. A token has a deadline and a flag. Long-running work checks both periodically.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

/// A cancellation token, with which work can be stopped before it is complete. A search checks it about every 256 KiB
/// of rows.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// Time at which the work is stopped.
    pub deadline: Option<Instant>,
    /// Stops the work once set to true.
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

/// The cancellation token of work that spans several commands, such as the `find` and each `getMore` of a cursor.
#[derive(Debug, Default)]
pub struct SharedStop {
    stop: Mutex<Stop>,
}

impl SharedStop {
    /// Returns a token that follows `stop`, the token of the current command.
    pub fn new(stop: Stop) -> Arc<SharedStop> {
        Arc::new(SharedStop {
            stop: Mutex::new(stop),
        })
    }

    /// Follows `stop`, the token of the next command, from now on. Work that an earlier command's token has stopped
    /// stays stopped, because the work keeps the [`Stopped`] error.
    pub fn follow(&self, stop: &Stop) {
        self.stop.lock().clone_from(stop);
    }

    /// Returns the token of the command that currently continues the work.
    pub fn current(&self) -> Stop {
        self.stop.lock().clone()
    }

    /// Runs a part of the work. Stops that part at `deadline`, or at the current command's deadline if that is earlier.
    pub fn until<T>(&self, deadline: Instant, part: impl FnOnce() -> T) -> T {
        let own = self.current();
        self.follow(&Stop {
            deadline: own.deadline.into_iter().chain([deadline]).min(),
            cancelled: own.cancelled.clone(),
        });
        let done = part();
        self.follow(&own);
        done
    }

    /// Checks that the work may continue.
    ///
    /// # Errors
    /// [`Stopped`] if the current command was cancelled or its deadline has passed.
    pub fn check(&self) -> Result<(), Stopped> {
        self.stop.lock().check()
    }
}

/// The work was stopped before it was complete, so the results reported so far are partial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the search was stopped: {reason}")]
pub struct Stopped {
    /// The reason.
    pub reason: StopReason,
}

/// The reason why work was stopped early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The deadline passed.
    Deadline,
    /// The work was cancelled.
    Cancelled,
    /// The work needed memory for which the account has no room.
    MemoryFull {
        /// Limit of the account in bytes.
        limit_bytes: u64,
    },
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StopReason::Deadline => "deadline passed",
            StopReason::Cancelled => "cancelled",
            StopReason::MemoryFull { .. } => "memory full",
        })
    }
}
