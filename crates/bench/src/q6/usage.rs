//! CPU use of a measurement: time in user mode, in the kernel, and idle while a disk request was pending.

use std::fs;
use std::time::{Duration, Instant};

use forebay_movement::measure::ProcessTimes;

/// Length of a tick of `/proc/stat` on x86-64 and arm64.
const TICK_MS: u64 = 10;

/// CPU seconds. `user` and `system` are those of this process; `wait` is that of the whole machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Elapsed time.
    pub elapsed: Duration,
    /// Time in user mode, over all threads.
    pub user: Duration,
    /// Time in the kernel, over all threads.
    pub system: Duration,
    /// Time that cores were idle while a disk request was pending, over all cores, in ticks of 10 ms.
    pub wait: Duration,
}

impl Usage {
    /// Returns whether CPU times were measured: a kernel that is timed on the device has none.
    pub fn has_cpu_times(&self) -> bool {
        self.user + self.system > Duration::ZERO
    }
}

/// A measurement that is running.
#[derive(Debug)]
pub struct Meter {
    began: Instant,
    process: ProcessTimes,
    wait: Duration,
}

impl Meter {
    /// Begins a measurement.
    pub fn start() -> Meter {
        Meter {
            began: Instant::now(),
            process: ProcessTimes::now(),
            wait: wait_time(),
        }
    }

    /// Ends the measurement.
    pub fn stop(self) -> Usage {
        let elapsed = self.began.elapsed();
        let ProcessTimes { user, system } = ProcessTimes::now().since(self.process);
        Usage {
            elapsed,
            user,
            system,
            wait: wait_time().saturating_sub(self.wait),
        }
    }
}

/// Returns the machine's time of waiting for disks; zero if the system does not report it.
fn wait_time() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    Duration::from_millis(wait_ticks(&text) * TICK_MS)
}

/// Returns the fifth number of the first line, the ticks of waiting.
fn wait_ticks(stat: &str) -> u64 {
    let line = stat.lines().next().unwrap_or_default();
    let ticks = line.split_whitespace().nth(5);
    ticks.and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_user_mode_is_counted() {
        let meter = Meter::start();
        let began = Instant::now();
        let mut turns = 0_u64;
        while began.elapsed() < Duration::from_millis(30) {
            turns = std::hint::black_box(turns + 1);
        }
        let usage = meter.stop();
        assert!(usage.elapsed >= Duration::from_millis(30));
        assert!(
            usage.user + usage.system >= Duration::from_millis(1),
            "{usage:?}"
        );
    }

    #[test]
    fn the_fifth_number_is_the_waiting() {
        let stat = "cpu  10 20 30 40 50 60 70 0 0 0\ncpu0 1 2 3 4 5 6 7 0 0 0\n";
        assert_eq!(wait_ticks(stat), 50);
        assert_eq!(wait_ticks(""), 0);
    }
}
