//! Processor time of this process.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// Processor time of all threads of this process since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessTimes {
    /// Time in user mode.
    pub user: Duration,
    /// Time in the kernel.
    pub system: Duration,
}

impl ProcessTimes {
    /// Returns the times of this process until now; zeros if the system does not report them.
    pub fn now() -> ProcessTimes {
        let time = |value: TimeVal| {
            let micros = value.tv_sec() * 1_000_000 + value.tv_usec();
            Duration::from_micros(micros.unsigned_abs())
        };
        getrusage(UsageWho::RUSAGE_SELF).map_or_else(
            |_| ProcessTimes::default(),
            |usage| ProcessTimes {
                user: time(usage.user_time()),
                system: time(usage.system_time()),
            },
        )
    }

    /// Returns the times that have passed since earlier times.
    pub fn since(self, earlier: ProcessTimes) -> ProcessTimes {
        ProcessTimes {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }

    /// Returns both times together.
    pub fn total(self) -> Duration {
        self.user + self.system
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_is_counted() {
        let (before, began) = (ProcessTimes::now(), Instant::now());
        let mut turns = 0_u64;
        while began.elapsed() < Duration::from_millis(30) {
            turns = black_box(turns + 1);
        }
        let worked = ProcessTimes::now().since(before);
        assert!(worked.total() >= Duration::from_millis(1), "{worked:?}");
    }
}
