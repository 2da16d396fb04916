//! Patterns of reads, and the sums that they must give.

use std::fmt;
use std::thread;

/// Bytes of a random read that are measured.
pub(crate) const RANDOM_BYTES: [usize; 5] = [4, 8, 16, 64, 128];

/// Bytes between two dependent reads: a line of the GPU's L2 cache.
pub(crate) const LINE_BYTES: usize = 128;

/// The line that follows line `i` in a cycle of all lines is `i * CYCLE_FACTOR + CYCLE_ADDEND`, modulo their number, a
/// power of two. The factor is 1 modulo 4 and the addend is odd, so the cycle has all lines.
pub(crate) const CYCLE_FACTOR: u64 = 0x9E37_79B5;
pub(crate) const CYCLE_ADDEND: u64 = 0x85EB_CA6B;

/// The order in which memory is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// All bytes in order.
    Sequential,
    /// All bytes in order, by the bulk copy engine of a GPU (sm_90).
    SequentialBulk,
    /// Elements of a size at random.
    Random {
        /// Bytes of an element.
        bytes: usize,
    },
    /// Lines at random, by one thread; the address of each is the result of the read before.
    Dependent,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Pattern; 8] = [
        Pattern::Sequential,
        Pattern::SequentialBulk,
        Pattern::Random { bytes: 4 },
        Pattern::Random { bytes: 8 },
        Pattern::Random { bytes: 16 },
        Pattern::Random { bytes: 64 },
        Pattern::Random { bytes: 128 },
        Pattern::Dependent,
    ];
}

/// Reads of one pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reads {
    pub(crate) pattern: Pattern,
    /// Number of reads; for a sequential pattern, of 16 bytes.
    pub(crate) accesses: u64,
    /// Line of the first dependent read.
    pub(crate) first_line: u64,
}

impl Reads {
    /// Returns the sum of what is read from memory of `bytes` bytes that was filled for the pattern. For dependent
    /// reads it is the line that the last read found.
    pub(crate) fn sum(&self, bytes: usize) -> u64 {
        match self.pattern {
            Pattern::Sequential | Pattern::SequentialBulk => {
                let words = (bytes / size_of::<u32>()) as u64;
                words * (words - 1) / 2
            }
            Pattern::Random { bytes: each } => random_sum(bytes, each, self.accesses),
            Pattern::Dependent => {
                let lines = (bytes / LINE_BYTES) as u64;
                (0..self.accesses).fold(self.first_line, |line, _| next_line(line, lines))
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Sequential => f.pad("sequential"),
            Pattern::SequentialBulk => f.pad("sequential-bulk"),
            Pattern::Random { bytes } => f.pad(&format!("random-{bytes}b")),
            Pattern::Dependent => f.pad("dependent"),
        }
    }
}

/// Returns the element that random access number `access` reads; as `element_of` in `reads.cu`.
pub(crate) fn element_of(access: u64, elements: u64) -> u64 {
    let hash = (access + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (hash ^ (hash >> 32)) & (elements - 1)
}

/// Returns the line that follows a line; as `fill_cycle` in `reads.cu`.
pub(crate) fn next_line(line: u64, lines: u64) -> u64 {
    line.wrapping_mul(CYCLE_FACTOR).wrapping_add(CYCLE_ADDEND) & (lines - 1)
}

/// Returns the sum of the words of all elements that are read: word `i` holds `i`.
fn random_sum(bytes: usize, each: usize, accesses: u64) -> u64 {
    let (elements, words) = ((bytes / each) as u64, (each / size_of::<u32>()) as u64);
    let element_sum = |access| {
        let first = element_of(access, elements) * words;
        words * first + words * (words - 1) / 2
    };
    sum_below(accesses, element_sum)
}

/// Returns the sum, modulo 2^64, of `term` of all numbers below `count`, computed by all cores.
pub(crate) fn sum_below(count: u64, term: impl Fn(u64) -> u64 + Sync) -> u64 {
    let threads = forebay_device::cores() as u64;
    let share = count.div_ceil(threads).max(1);
    let share_sum = |number: u64| {
        let range = (number * share).min(count)..((number + 1) * share).min(count);
        range.map(&term).fold(0, u64::wrapping_add)
    };
    let share_sum = &share_sum;
    thread::scope(|scope| {
        let spawn = |number| scope.spawn(move || share_sum(number));
        let running: Vec<_> = (0..threads).map(spawn).collect();
        let sums = running
            .into_iter()
            .map(|thread| thread.join().expect("a sum does not panic"));
        sums.fold(0, u64::wrapping_add)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_cycle_visits_every_line_once() {
        for lines in [1_u64, 2, 8, 4096] {
            let mut line = 0;
            let visited: HashSet<u64> = (0..lines)
                .map(|_| {
                    line = next_line(line, lines);
                    line
                })
                .collect();
            assert_eq!((visited.len() as u64, line), (lines, 0), "{lines} lines");
        }
    }

    #[test]
    fn random_elements_are_spread() {
        let elements = 1 << 10;
        let hit: HashSet<u64> = (0..elements)
            .map(|access| element_of(access, elements))
            .collect();
        // 1 - 1/e of the elements are hit if the accesses are independent.
        assert!((550..750).contains(&hit.len()), "{} elements", hit.len());
    }

    #[test]
    fn sums_are_those_of_the_words() {
        let words: Vec<u64> = (0..1024).collect();
        let sum = |pattern, accesses| {
            let reads = Reads {
                pattern,
                accesses,
                first_line: 5,
            };
            reads.sum(4096)
        };
        assert_eq!(sum(Pattern::Sequential, 0), words.iter().sum::<u64>());
        let of_element = |element: u64| {
            let first = 2 * element as usize;
            words[first] + words[first + 1]
        };
        let expected: u64 = (0..100)
            .map(|access| of_element(element_of(access, 512)))
            .sum();
        assert_eq!(sum(Pattern::Random { bytes: 8 }, 100), expected);
        assert_eq!(sum(Pattern::Dependent, 32), 5, "a whole cycle");
    }
}
