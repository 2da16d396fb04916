//! Measurements of this machine: how fast processors read memories, and how fast transfer methods move bytes.
//!
//! Every measurement checks what it read or moved. [`Plan::short`] takes about a second in all, for `forebay doctor`.

mod cpu;
mod device;
mod methods;
pub(crate) mod pattern;
mod process;

use std::time::Duration;

use crate::MoveError;

pub use cpu::read_by_cpu;
pub(crate) use device::Memory;
pub use device::{read_by_device, read_peer};
pub use methods::{MethodRate, Prepared, rate_methods};
pub use pattern::Pattern;
pub(crate) use pattern::Reads;
pub use process::ProcessTimes;

/// Sizes of the measurements of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of device memory that are read, a power of two.
    pub device_bytes: usize,
    /// Bytes of host memory that are read, a power of two.
    pub host_bytes: usize,
    /// Random reads of device memory; other memories are read less often, as they are slower.
    pub accesses: u64,
    /// Number of dependent reads of a measurement, which continues where the one before ended.
    pub dependent: u64,
    /// Number of measurements of each pattern, after one that is not counted.
    pub repeat: usize,
}

impl Plan {
    /// Returns the sizes for benchmarks: memory that no cache or TLB holds. No line is read twice by dependent reads.
    pub fn full() -> Plan {
        Plan {
            device_bytes: 8 << 30,
            host_bytes: 4 << 30,
            accesses: 1 << 28,
            dependent: 1 << 18,
            repeat: 5,
        }
    }

    /// Returns the sizes for `forebay doctor`.
    pub fn short() -> Plan {
        Plan {
            device_bytes: 1 << 30,
            host_bytes: 256 << 20,
            accesses: 1 << 25,
            dependent: 1 << 13,
            repeat: 2,
        }
    }

    /// Returns sizes for tests. The times mean nothing.
    pub fn smoke() -> Plan {
        Plan {
            device_bytes: 1 << 20,
            host_bytes: 1 << 20,
            accesses: 1 << 12,
            dependent: 1 << 10,
            repeat: 2,
        }
    }
}

/// Times of one pattern of reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The pattern.
    pub pattern: Pattern,
    /// Number of reads; for a sequential pattern, of 16 bytes.
    pub accesses: u64,
    /// Bytes of a read.
    pub access_bytes: usize,
    /// Times of the measurements.
    pub times: Vec<Duration>,
}

impl Reading {
    /// Returns the reads per second of each measurement.
    pub fn accesses_per_s(&self) -> Vec<f64> {
        self.per_s(self.accesses as f64)
    }

    /// Returns the bytes per second of each measurement.
    pub fn bytes_per_s(&self) -> Vec<f64> {
        self.per_s(self.accesses as f64 * self.access_bytes as f64)
    }

    /// Returns the nanoseconds per read of each measurement: the latency, if the reads are dependent.
    pub fn access_ns(&self) -> Vec<f64> {
        let per_access = |time: &Duration| time.as_secs_f64() * 1e9 / self.accesses as f64;
        self.times.iter().map(per_access).collect()
    }

    fn per_s(&self, count: f64) -> Vec<f64> {
        let rate = |time: &Duration| count / time.as_secs_f64().max(1e-9);
        self.times.iter().map(rate).collect()
    }
}

/// Measures one pattern over memory of `bytes` bytes, of which `random` elements are read at random. `read` returns the
/// time and the sum of what it read; it runs once to warm up and then [`Plan::repeat`] times.
///
/// # Errors
/// As `read`, or [`MoveError::WrongSum`].
fn measure_pattern(
    pattern: Pattern,
    (bytes, random): (usize, u64),
    plan: Plan,
    reader: &str,
    mut read: impl FnMut(Reads) -> Result<(Duration, u64), MoveError>,
) -> Result<Reading, MoveError> {
    let (accesses, access_bytes) = accesses_of(pattern, bytes, random, plan.dependent);
    let mut reads = Reads {
        pattern,
        accesses,
        first_line: 0,
    };
    let mut expected = reads.sum(bytes);
    let mut times = Vec::new();
    for round in 0..=plan.repeat {
        let (took, sum) = read(reads)?;
        if sum != expected {
            return Err(MoveError::WrongSum {
                what: format!("{pattern} reads by {reader}"),
            });
        }
        times.extend((round > 0).then_some(took));
        if pattern == Pattern::Dependent {
            // A line that an earlier round read could still be in a cache.
            reads.first_line = sum;
            expected = reads.sum(bytes);
        }
    }
    Ok(Reading {
        pattern,
        accesses,
        access_bytes,
        times,
    })
}

/// Returns the number of reads and the bytes of each for a pattern over memory of `bytes` bytes.
fn accesses_of(pattern: Pattern, bytes: usize, random: u64, dependent: u64) -> (u64, usize) {
    match pattern {
        Pattern::Sequential | Pattern::SequentialBulk => ((bytes / 16) as u64, 16),
        Pattern::Random { bytes } => (random, bytes),
        Pattern::Dependent => (dependent, size_of::<u32>()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::pattern::{LINE_BYTES, next_line};
    use super::*;

    #[test]
    fn dependent_reads_never_read_a_line_twice() {
        let plan = Plan {
            repeat: 3,
            ..Plan::smoke()
        };
        let bytes = plan.host_bytes;
        let lines = (bytes / LINE_BYTES) as u64;
        let mut read = HashSet::new();
        let measured = measure_pattern(Pattern::Dependent, (bytes, 0), plan, "a test", |reads| {
            let mut line = reads.first_line;
            for _ in 0..reads.accesses {
                assert!(read.insert(line), "line {line} is read again");
                line = next_line(line, lines);
            }
            Ok((Duration::from_micros(1), line))
        });
        assert_eq!(measured.expect("right sums").times.len(), 3);
        assert_eq!(read.len() as u64, 4 * plan.dependent);
    }

    #[test]
    fn rates_follow_from_times() {
        let reading = Reading {
            pattern: Pattern::Random { bytes: 8 },
            accesses: 1000,
            access_bytes: 8,
            times: vec![Duration::from_millis(1)],
        };
        assert_eq!(reading.accesses_per_s(), [1e6]);
        assert_eq!(reading.bytes_per_s(), [8e6]);
        assert_eq!(reading.access_ns(), [1e3]);
    }
}
