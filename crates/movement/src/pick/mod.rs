//! Picks the way to bring bytes to a device, from rates that were measured on this machine.
//!
//! No model predicts a rate: [`Measurements::pick`] compares what was measured at the nearest size, and says by how
//! much the picked way was ahead.

mod measure;
mod saved;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Tier;
use crate::method::TransferMethod;
use crate::storage::StoragePath;

pub use measure::{Measured, measure};
pub use saved::{FILE_NAME, LoadError, Machine, SaveError, SavedMeasurements};

/// Two ways whose rates differ by less than this share are equally fast: then the one that takes less time of the CPU
/// is picked, and otherwise a copy before a kernel.
const EQUAL: f64 = 0.05;

/// How a consumer reads the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// All bytes, once and in order.
    Sequential,
    /// Single words of 8 bytes at random places.
    Random {
        /// Number of words.
        accesses: u64,
    },
}

/// A way to bring bytes to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Way {
    /// A transfer method, from host memory.
    Method(TransferMethod),
    /// A storage path, from a file.
    Path(StoragePath),
}

impl Way {
    /// Returns the name for users.
    pub fn name(self) -> &'static str {
        match self {
            Way::Method(method) => method.name(),
            Way::Path(path) => path.name(),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<Way> for String {
    fn from(way: Way) -> String {
        way.name().to_owned()
    }
}

/// A name that is neither of a transfer method nor of a storage path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither a transfer method nor a storage path")]
pub struct UnknownWay(String);

impl TryFrom<String> for Way {
    type Error = UnknownWay;

    fn try_from(name: String) -> Result<Way, UnknownWay> {
        let method = name.parse().map(Way::Method);
        let way = method.or_else(|_| name.parse().map(Way::Path));
        way.map_err(|_| UnknownWay(name))
    }
}

/// One measured rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Where the bytes come from.
    pub source: Tier,
    /// The transfer method or the storage path.
    pub way: Way,
    /// Bytes of each transfer or read.
    pub chunk_bytes: u64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Seconds of processor time for a gigabyte (10⁹ bytes), if they were measured.
    pub cpu_s_per_gb: Option<f64>,
}

/// Rates of one machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Measurements {
    /// The rates of transfers and reads.
    pub rates: Vec<Rate>,
    /// Random accesses of 8 bytes per second that kernels make to pinned memory over the bus.
    pub random_zero_copy_per_s: Option<f64>,
}

/// The picked way.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The transfer method or the storage path.
    pub way: Way,
    /// Bytes of each transfer or read.
    pub chunk_bytes: u64,
    /// The rate that was measured, in bytes per second.
    pub bytes_per_s: f64,
    /// The reason, for users.
    pub why: Reason,
}

/// Why a way was picked.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// No other way was measured.
    Only,
    /// It was faster than the next.
    Faster {
        /// The next way.
        than: Way,
        /// Rate of the next way in bytes per second.
        bytes_per_s: f64,
    },
    /// It was as fast as another way, but takes less time of the CPU, or leaves the GPU's processors free.
    AsFast {
        /// The other way.
        than: Way,
    },
    /// Few words are read and copying all bytes would take longer.
    FewAccesses,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Only => f.write_str("no other way was measured"),
            Reason::Faster { than, bytes_per_s } => {
                write!(f, "{than} gave {:.1} GB/s", bytes_per_s / 1e9)
            }
            Reason::AsFast { than } => write!(f, "as fast as {than}, and cheaper"),
            Reason::FewAccesses => {
                f.write_str("few words are read, so copying all would take longer")
            }
        }
    }
}

impl Measurements {
    /// Picks the way to bring `bytes` bytes from a tier to a device. Returns `None` if no way was measured from there.
    pub fn pick(&self, source: Tier, bytes: u64, pattern: Pattern) -> Option<Choice> {
        let copied = self.fastest(source, bytes);
        if let (Tier::Pinned, Pattern::Random { accesses }, Some(per_s)) =
            (source, pattern, self.random_zero_copy_per_s)
        {
            let in_place_s = accesses as f64 / per_s;
            let copy_s = copied
                .as_ref()
                .map(|choice| bytes as f64 / choice.bytes_per_s);
            if copy_s.is_none_or(|copy_s| in_place_s < copy_s) {
                return Some(Choice {
                    way: Way::Method(TransferMethod::ZeroCopy),
                    chunk_bytes: bytes,
                    bytes_per_s: 8.0 * per_s,
                    why: Reason::FewAccesses,
                });
            }
        }
        copied
    }

    /// Returns the fastest way to move all bytes.
    fn fastest(&self, source: Tier, bytes: u64) -> Option<Choice> {
        let mut ways: Vec<&Rate> = Vec::new();
        for rate in self.rates.iter().filter(|rate| rate.source == source) {
            if rate.chunk_bytes > bytes.max(self.smallest(rate)) {
                continue;
            }
            match ways.iter_mut().find(|best| best.way == rate.way) {
                Some(best) if best.bytes_per_s < rate.bytes_per_s => *best = rate,
                Some(_) => {}
                None => ways.push(rate),
            }
        }
        let faster = |one: &&Rate, other: &&Rate| other.bytes_per_s.total_cmp(&one.bytes_per_s);
        let first = ways
            .iter()
            .copied()
            .min_by(|one, other| faster(one, other))?;
        let cpu = |rate: &Rate| rate.cpu_s_per_gb.unwrap_or(f64::INFINITY);
        let is_equal = |rate: &&Rate| rate.bytes_per_s >= first.bytes_per_s * (1.0 - EQUAL);
        // Of ways that are equal in this too, the first in the order of measurement: copies come before kernels.
        let equal = ways.iter().copied().filter(is_equal);
        let best = equal.min_by(|one, other| cpu(one).total_cmp(&cpu(other)))?;
        ways.sort_by(faster);
        let why = match ways.get(1) {
            _ if best.way != first.way => Reason::AsFast { than: first.way },
            Some(next) => Reason::Faster {
                than: next.way,
                bytes_per_s: next.bytes_per_s,
            },
            None => Reason::Only,
        };
        Some(Choice {
            way: best.way,
            chunk_bytes: best.chunk_bytes,
            bytes_per_s: best.bytes_per_s,
            why,
        })
    }

    /// Returns the smallest chunk of a way: sources that are smaller are judged by it.
    fn smallest(&self, of: &Rate) -> u64 {
        let same = self
            .rates
            .iter()
            .filter(|rate| rate.source == of.source && rate.way == of.way);
        same.map(|rate| rate.chunk_bytes)
            .min()
            .unwrap_or(of.chunk_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(source: Tier, name: &str, chunk_bytes: u64, gb_per_s: f64, cpu: Option<f64>) -> Rate {
        Rate {
            source,
            way: Way::try_from(name.to_owned()).expect("a way"),
            chunk_bytes,
            bytes_per_s: gb_per_s * 1e9,
            cpu_s_per_gb: cpu,
        }
    }

    fn measured() -> Measurements {
        Measurements {
            rates: vec![
                rate(Tier::Pageable, "pageable-copy", 64 << 10, 5.0, None),
                rate(Tier::Pageable, "pageable-copy", 64 << 20, 7.7, None),
                rate(Tier::Pageable, "staged-copy", 64 << 10, 2.0, None),
                rate(Tier::Pageable, "staged-copy", 64 << 20, 42.0, None),
                rate(Tier::Pinned, "pinned-copy", 64 << 20, 54.0, None),
                rate(Tier::Pinned, "zero-copy", 64 << 20, 55.0, None),
                rate(Tier::File, "staged-uring", 1 << 20, 1.40, Some(0.1)),
                rate(Tier::File, "direct-sync", 1 << 20, 1.42, Some(0.4)),
                rate(Tier::File, "host", 1 << 20, 1.1, Some(0.3)),
            ],
            random_zero_copy_per_s: Some(60e6),
        }
    }

    fn picked(source: Tier, bytes: u64, pattern: Pattern) -> (String, String) {
        let choice = measured().pick(source, bytes, pattern).expect("measured");
        (choice.way.to_string(), choice.why.to_string())
    }

    #[test]
    fn the_fastest_way_at_that_size_is_picked() {
        let way = |bytes| picked(Tier::Pageable, bytes, Pattern::Sequential);
        assert_eq!(
            way(1 << 30),
            (
                "staged-copy".to_owned(),
                "pageable-copy gave 7.7 GB/s".to_owned()
            )
        );
        assert_eq!(way(100_000).0, "pageable-copy");
        assert_eq!(way(10).0, "pageable-copy", "smaller than anything measured");
        assert_eq!(measured().pick(Tier::Managed, 1, Pattern::Sequential), None);
    }

    #[test]
    fn of_equally_fast_ways_the_one_with_less_cpu_time_is_picked() {
        let (way, why) = picked(Tier::File, 1 << 30, Pattern::Sequential);
        assert_eq!(way, "staged-uring");
        assert_eq!(why, "as fast as direct-sync, and cheaper");
    }

    #[test]
    fn a_copy_is_picked_before_a_kernel_that_is_as_fast() {
        let (way, why) = picked(Tier::Pinned, 1 << 30, Pattern::Sequential);
        assert_eq!(
            (&*way, &*why),
            ("pinned-copy", "as fast as zero-copy, and cheaper")
        );
    }

    #[test]
    fn a_few_random_words_stay_where_they_are() {
        let way = |accesses| picked(Tier::Pinned, 54_000_000_000, Pattern::Random { accesses }).0;
        assert_eq!(way(1_000_000), "zero-copy");
        assert_eq!(
            way(100_000_000),
            "pinned-copy",
            "1.7 s in place, 1 s to copy"
        );
    }
}
