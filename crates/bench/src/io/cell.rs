//! What one measurement does: path, page cache, pattern, direction, size of the buffer and number in flight.

use std::fmt;
use std::ops::Range;

use forebay_movement::storage::StoragePath;

use crate::size;

/// Order of the offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// One buffer after the other.
    Sequential,
    /// Offsets at random.
    Random,
}

/// Direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
}

/// Use of the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cache {
    /// Bypassed (O_DIRECT).
    Bypass,
    /// Used, and empty at first.
    Cold,
    /// Used, and holding the whole file.
    Hot,
}

/// What varies in a series of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sweep {
    /// The size of the buffer, with one in flight: figure 2 of Miura et al.
    Buffers,
    /// The number in flight: figures 3 and 4.
    Threads,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) path: StoragePath,
    pub(super) cache: Cache,
    pub(super) pattern: Pattern,
    pub(super) operation: Operation,
    /// Bytes of a buffer, a multiple of pages.
    pub(super) bytes: usize,
    /// Operations in flight: the number of threads for the paths host, staged-threads and direct-sync, otherwise that
    /// of operations of one thread.
    pub(super) parallel: usize,
}

impl Cell {
    /// Returns the name of the series, as in `sequential-read`.
    pub(super) fn panel(&self) -> String {
        format!("{}-{}", self.pattern, self.operation)
    }

    /// Returns the name of the line, as in `host, hot`.
    pub(super) fn line(&self) -> String {
        match self.cache {
            Cache::Bypass => self.path.to_string(),
            Cache::Cold => format!("{}, cold cache", self.path),
            Cache::Hot => format!("{}, hot cache", self.path),
        }
    }

    /// Returns the name of the case in a series, as in `io-threads-random-read: direct-sync/4`.
    pub(super) fn case(&self, sweep: Sweep) -> String {
        let (sweep, x) = match sweep {
            Sweep::Buffers => ("buffer", self.bytes),
            Sweep::Threads => ("threads", self.parallel),
        };
        format!("io-{sweep}-{}: {}/{x}", self.panel(), self.line())
    }

    /// Returns the offsets of each thread in a file. Once it has gone through its part of the file, a thread begins
    /// again if `wraps`.
    pub(super) fn offsets(
        &self,
        file_bytes: u64,
        (thread, threads): (usize, usize),
        wraps: bool,
    ) -> Offsets {
        let blocks = file_bytes / self.bytes as u64;
        let (thread, threads) = (thread as u64, threads as u64);
        let own = blocks * thread / threads..blocks * (thread + 1) / threads;
        Offsets {
            pattern: self.pattern,
            // Random reads may meet; random writes must not.
            blocks: match (self.pattern, self.operation) {
                (Pattern::Random, Operation::Read) => 0..blocks,
                _ => own,
            },
            next: 0,
            random: fastrand::Rng::with_seed(thread + 1),
            bytes: self.bytes as u64,
            wraps: wraps && self.cache != Cache::Cold,
        }
    }

    /// Returns whether the file has a block for each operation in flight.
    pub(super) fn fits(&self, file_bytes: u64) -> bool {
        file_bytes / self.bytes as u64 >= self.parallel as u64
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (panel, line, bytes) = (self.panel(), self.line(), size::text(self.bytes));
        write!(f, "{panel} by {line}, {bytes}, {} in flight", self.parallel)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pattern::Sequential => "sequential",
            Pattern::Random => "random",
        })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Read => "read",
            Operation::Write => "write",
        })
    }
}

/// The offsets of a thread. A sequential thread goes through its own part of the file, again and again if it wraps.
#[derive(Debug)]
pub(super) struct Offsets {
    pattern: Pattern,
    blocks: Range<u64>,
    next: u64,
    random: fastrand::Rng,
    bytes: u64,
    wraps: bool,
}

impl Iterator for Offsets {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let count = self.blocks.end - self.blocks.start;
        if count == 0 || (self.next == count && !self.wraps) {
            return None;
        }
        let block = match self.pattern {
            Pattern::Sequential => self.next % count,
            Pattern::Random => self.random.u64(0..count),
        };
        self.next += 1;
        Some((self.blocks.start + block) * self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(pattern: Pattern, operation: Operation, cache: Cache) -> Cell {
        Cell {
            path: StoragePath::Host,
            cache,
            pattern,
            operation,
            bytes: 4096,
            parallel: 2,
        }
    }

    #[test]
    fn sequential_threads_share_the_file() {
        let cell = cell(Pattern::Sequential, Operation::Read, Cache::Bypass);
        let offsets = |thread| {
            cell.offsets(5 * 4096 + 7, (thread, 2), true)
                .take(4)
                .collect::<Vec<_>>()
        };
        assert_eq!(offsets(0), [0, 4096, 0, 4096]);
        assert_eq!(offsets(1), [8192, 12_288, 16_384, 8192]);
        assert_eq!(
            cell.case(Sweep::Threads),
            "io-threads-sequential-read: host/2"
        );
        let text = "sequential-read by host, 4 KiB, 2 in flight";
        assert_eq!(cell.to_string(), text);
        assert!(cell.fits(8192) && !cell.fits(8191));
    }

    #[test]
    fn a_cold_cache_is_read_once() {
        let cell = cell(Pattern::Sequential, Operation::Read, Cache::Cold);
        assert_eq!(cell.offsets(3 * 4096, (0, 1), true).count(), 3);
        assert_eq!(cell.line(), "host, cold cache");
    }

    #[test]
    fn random_writes_of_two_threads_never_meet() {
        let cell = cell(Pattern::Random, Operation::Write, Cache::Bypass);
        let offsets = |thread| cell.offsets(64 * 4096, (thread, 2), true).take(500);
        assert!(offsets(0).all(|offset| offset < 32 * 4096));
        assert!(offsets(1).all(|offset| (32 * 4096..64 * 4096).contains(&offset)));
        assert_eq!(
            offsets(0).collect::<Vec<_>>(),
            offsets(0).collect::<Vec<_>>()
        );
    }
}
