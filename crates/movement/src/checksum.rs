//! The checksum that verifies moved bytes; `kernels/bytes.cu` computes the same sum on a device.

use std::thread;

/// Maximum bytes that one thread sums.
const PIECE_BYTES: usize = 32 << 20;

/// Returns the sum, modulo 2^64, of the mixed 8-byte words (little-endian, the last one padded with zeros). Each word
/// is mixed with its index, so that exchanged words change the sum. Large inputs are summed by several threads.
pub fn checksum(bytes: &[u8]) -> u64 {
    let cores = forebay_device::cores();
    let piece_bytes = bytes
        .len()
        .div_ceil(cores)
        .max(PIECE_BYTES)
        .next_multiple_of(8);
    let mut pieces = bytes.chunks(piece_bytes).enumerate();
    let sum = |(index, piece): (usize, &[u8])| words_sum(piece, (index * piece_bytes / 8) as u64);
    if bytes.len() <= piece_bytes {
        return pieces.next().map_or(0, sum);
    }
    thread::scope(|scope| {
        let threads: Vec<_> = pieces
            .map(|piece| scope.spawn(move || sum(piece)))
            .collect();
        let sums = threads
            .into_iter()
            .map(|thread| thread.join().expect("a sum does not panic"));
        sums.fold(0, u64::wrapping_add)
    })
}

/// Returns the checksum of a part of longer bytes, at this offset, a multiple of 8. The checksum of all is the sum of
/// those of the parts, modulo 2^64.
pub fn part_checksum(bytes: &[u8], offset: u64) -> u64 {
    words_sum(bytes, offset / size_of::<u64>() as u64)
}

/// Returns the sum of the words of `bytes`, the first of which has the index `first`.
fn words_sum(bytes: &[u8], first: u64) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let mut sum = 0_u64;
    for (index, word) in (first..).zip(words) {
        sum = sum.wrapping_add(mix(u64::from_le_bytes(*word), index));
    }
    if rest.is_empty() {
        return sum;
    }
    sum.wrapping_add(mix(u64::from_le_bytes(last), first + words.len() as u64))
}

/// Mixes a word with its index; as `mix` in `bytes.cu`.
fn mix(word: u64, index: u64) -> u64 {
    let mixed = word.wrapping_add((index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_changes_the_sum() {
        let bytes: Vec<u8> = (0..100_u8).collect();
        let sum = checksum(&bytes);
        for index in 0..bytes.len() {
            let mut other = bytes.clone();
            other[index] ^= 1;
            assert_ne!(checksum(&other), sum, "byte {index}");
        }
        let mut swapped = bytes.clone();
        swapped.rotate_left(8);
        assert_ne!(checksum(&swapped), sum);
        assert_eq!(checksum(&[]), 0);
    }

    #[test]
    fn threads_give_the_sum_of_one_thread() {
        let bytes: Vec<u8> = (0..PIECE_BYTES * 2 + 5)
            .map(|index| (index % 251) as u8)
            .collect();
        assert_eq!(checksum(&bytes), words_sum(&bytes, 0));
    }
}
