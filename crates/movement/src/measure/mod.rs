//! Measurements of this machine: how fast processors read memories, and how fast transfer methods move bytes.
//!
//! Every measurement checks what it read or moved. [`Plan::short`] takes about a second in all, for `forebay doctor`.

mod cpu;
mod device;
mod methods;
pub(crate) mod pattern;

use std::time::Duration;

pub use cpu::read_by_cpu;
pub(crate) use device::Memory;
pub use device::{read_by_device, read_peer};
pub use methods::{MethodRate, Prepared, rate_methods};
pub use pattern::Pattern;

/// Sizes of the measurements of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of device memory that are read, a power of two.
    pub device_bytes: usize,
    /// Bytes of host memory that are read, a power of two.
    pub host_bytes: usize,
    /// Random reads of device memory; other memories are read less often, as they are slower.
    pub accesses: u64,
    /// Number of dependent reads.
    pub dependent: u64,
    /// Number of measurements of each pattern, after one that is not counted.
    pub repeat: usize,
}

impl Plan {
    /// Returns the sizes for benchmarks: memory that no cache or TLB holds.
    pub fn full() -> Plan {
        Plan {
            device_bytes: 8 << 30,
            host_bytes: 4 << 30,
            accesses: 1 << 28,
            dependent: 1 << 16,
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
    use super::*;

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
