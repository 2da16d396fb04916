//! Reads of host memory by the processor.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use super::pattern::{LINE_BYTES, element_of, next_line, sum_below};
use super::{Pattern, Plan, Reading, Reads, measure_pattern};
use crate::MoveError;

/// How much more often a device reads its memory at random than the processor does.
const FACTOR: u64 = 16;

/// Words of a line.
const LINE_WORDS: usize = LINE_BYTES / size_of::<u32>();

/// Measures reads of pageable host memory by all cores; dependent reads, by one. Each step of the iterator measures one
/// pattern, and blocks; it gives [`MoveError::WrongSum`] if a read took other bytes.
pub fn read_by_cpu(plan: Plan) -> impl Iterator<Item = Result<Reading, MoveError>> {
    let mut words = vec![0_u32; plan.host_bytes / size_of::<u32>()];
    let patterns = Pattern::ALL.into_iter();
    let patterns = patterns.filter(|pattern| *pattern != Pattern::SequentialBulk);
    patterns.map(move |pattern| measure(&mut words, pattern, plan))
}

/// Measures one pattern. The first pattern of each filling fills the memory.
fn measure(words: &mut [u32], pattern: Pattern, plan: Plan) -> Result<Reading, MoveError> {
    match pattern {
        Pattern::Sequential => fill_words(words),
        Pattern::Dependent => fill_cycle(words),
        Pattern::SequentialBulk | Pattern::Random { .. } => {}
    }
    let random = (plan.accesses / FACTOR).max(1);
    let bytes = (plan.host_bytes, random);
    measure_pattern(pattern, bytes, plan, "the processor", |reads| {
        let start = Instant::now();
        let sum = black_box(read(words, reads));
        Ok((start.elapsed().max(Duration::from_nanos(1)), sum))
    })
}

/// Writes its index to each word, with all cores.
fn fill_words(words: &mut [u32]) {
    let share = words.len().div_ceil(forebay_device::cores()).max(1);
    thread::scope(|scope| {
        for (number, part) in words.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                for (index, word) in (number * share..).zip(part) {
                    *word = index as u32;
                }
            });
        }
    });
}

/// Writes the next line of the cycle to the first word of each line.
fn fill_cycle(words: &mut [u32]) {
    let lines = (words.len() / LINE_WORDS) as u64;
    for line in 0..lines {
        words[line as usize * LINE_WORDS] = next_line(line, lines) as u32;
    }
}

fn read(words: &[u32], reads: Reads) -> u64 {
    let accesses = reads.accesses;
    match reads.pattern {
        Pattern::Sequential | Pattern::SequentialBulk => sequential(words),
        Pattern::Random { bytes: 4 } => random::<1>(words, accesses),
        Pattern::Random { bytes: 8 } => random::<2>(words, accesses),
        Pattern::Random { bytes: 16 } => random::<4>(words, accesses),
        Pattern::Random { bytes: 64 } => random::<16>(words, accesses),
        Pattern::Random { .. } => random::<32>(words, accesses),
        Pattern::Dependent => dependent(words, reads.first_line, accesses),
    }
}

/// Sums all words with all cores.
fn sequential(words: &[u32]) -> u64 {
    let share = words.len().div_ceil(forebay_device::cores()).max(1);
    let sum = |part: &[u32]| part.iter().map(|word| u64::from(*word)).sum::<u64>();
    thread::scope(|scope| {
        let parts = words.chunks(share);
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || sum(part))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a sum does not panic"))
            .sum()
    })
}

/// Sums random elements of `WORDS` words with all cores.
fn random<const WORDS: usize>(words: &[u32], accesses: u64) -> u64 {
    let (elements, _) = words.as_chunks::<WORDS>();
    let count = elements.len() as u64;
    let element_sum = |access| {
        let element = &elements[element_of(access, count) as usize];
        element.iter().map(|word| u64::from(*word)).sum::<u64>()
    };
    sum_below(accesses, element_sum)
}

/// Follows the cycle of lines from `first_line`; returns the last line.
fn dependent(words: &[u32], first_line: u64, accesses: u64) -> u64 {
    let mut line = first_line as usize;
    for _ in 0..accesses {
        line = words[line * LINE_WORDS] as usize;
    }
    line as u64
}
