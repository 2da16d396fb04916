//! Algorithm 1: an overfull bucket is divided at the middle of its hashes.
//!
//! The segments of a bucket are sorted, so dividing it cuts each of them in two; nothing is sorted again.
//!
//! # Sources
//! Morishima & Matsutani, DistGPU Cache, section 3.2, Algorithm 1.

use std::ops::Range;
use std::sync::Arc;

use crate::CacheSettings;
use crate::bucket::Bucket;
use crate::cache::Shared;
use crate::segment::Segment;

/// A part of a bucket on the way to be a bucket of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    /// Rows of each segment.
    rows: Vec<Range<usize>>,
    /// The least hash; `None` for the first piece, which begins where the divided bucket began.
    lower: Option<Vec<u8>>,
    /// First bytes of a value that make the hash.
    hash_bytes: usize,
}

/// The buckets that an overfull one becomes. The first keeps its id and device.
pub(super) fn split(
    shared: &Shared,
    bucket: &Arc<Bucket>,
    settings: &CacheSettings,
) -> Vec<Bucket> {
    let pieces = divide(&bucket.segments, bucket.hash_bytes, settings);
    pieces
        .into_iter()
        .map(|piece| make_bucket(shared, bucket, piece))
        .collect()
}

fn make_bucket(shared: &Shared, divided: &Arc<Bucket>, piece: Piece) -> Bucket {
    let cuts = divided
        .segments
        .iter()
        .zip(piece.rows)
        .filter(|(_, rows)| !rows.is_empty());
    let segments = cuts.map(|(segment, rows)| segment.cut(rows)).collect();
    match piece.lower {
        None => {
            let mut bucket = Bucket::clone(divided);
            bucket.hash_bytes = piece.hash_bytes;
            bucket.segments = segments;
            bucket
        }
        Some(lower) => {
            let guard = shared.owners.new_bucket();
            let mut bucket = Bucket::new(guard, &lower, piece.hash_bytes, segments);
            // A segment that was not cut still has its copy on the device of the bucket it came from.
            bucket.release();
            bucket
        }
    }
}

/// Divides sorted segments until no piece is overfull that has two hashes. Pieces come in order of hash.
fn divide(segments: &[Segment], hash_bytes: usize, settings: &CacheSettings) -> Vec<Piece> {
    let mut done = Vec::new();
    let mut rest = vec![Piece {
        rows: segments
            .iter()
            .map(|segment| 0..segment.block().len())
            .collect(),
        lower: None,
        hash_bytes,
    }];
    while let Some(piece) = rest.pop() {
        match divide_once(segments, &piece, settings) {
            // The upper half waits while the lower one is divided further.
            Some((lower, upper)) => rest.extend([upper, lower]),
            None => done.push(piece),
        }
    }
    done
}

/// One step of Algorithm 1; `None` if the piece is not overfull or holds one value only.
fn divide_once(
    segments: &[Segment],
    piece: &Piece,
    settings: &CacheSettings,
) -> Option<(Piece, Piece)> {
    if !is_overfull(segments, piece, settings) {
        return None;
    }
    let hash_bytes = distinguishing_bytes(segments, piece)?;
    let hashes = hashes(segments, piece, hash_bytes);
    // The lower half keeps the odd one: the algorithm moves half of the hashes, rounded down.
    let middle = hashes[hashes.len().div_ceil(2)];
    let cuts = segments.iter().zip(&piece.rows).map(|(segment, rows)| {
        let cut = segment
            .block()
            .first_row_near(rows.clone(), |value| value < middle);
        (rows.start..cut, cut..rows.end)
    });
    let (below, above) = cuts.unzip();
    let lower = piece.lower.clone();
    let upper = Some(middle.to_vec());
    Some((
        Piece {
            rows: below,
            lower,
            hash_bytes,
        },
        Piece {
            rows: above,
            lower: upper,
            hash_bytes,
        },
    ))
}

fn is_overfull(segments: &[Segment], piece: &Piece, settings: &CacheSettings) -> bool {
    let parts = || segments.iter().zip(&piece.rows);
    let values: usize = parts()
        .map(|(segment, rows)| segment.live_rows_in(rows.clone()))
        .sum();
    let bytes: u64 = parts()
        .map(|(segment, rows)| segment.block().span_bytes(rows))
        .sum();
    values > settings.bucket_values_max || bytes > settings.bucket_bytes_max as u64
}

/// The number of first bytes, that of the piece at least, by which its values have two hashes; `None` if all values are
/// the same.
fn distinguishing_bytes(segments: &[Segment], piece: &Piece) -> Option<usize> {
    let filled = || {
        segments
            .iter()
            .zip(&piece.rows)
            .filter(|(_, rows)| !rows.is_empty())
    };
    let first = filled()
        .map(|(segment, rows)| segment.block().value(rows.start))
        .min()?;
    let last = filled()
        .map(|(segment, rows)| segment.block().value(rows.end - 1))
        .max()?;
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    (first != last).then_some(piece.hash_bytes.max(common + 1))
}

/// The distinct hashes of a piece in order.
fn hashes<'a>(segments: &'a [Segment], piece: &Piece, hash_bytes: usize) -> Vec<&'a [u8]> {
    let mut hashes = Vec::new();
    for (segment, rows) in segments.iter().zip(&piece.rows) {
        let block = segment.block();
        let mut row = rows.start;
        while row < rows.end {
            let current = hash(block.value(row), hash_bytes);
            hashes.push(current);
            row = block.first_row_near(row..rows.end, |value| hash(value, hash_bytes) <= current);
        }
    }
    hashes.sort_unstable();
    hashes.dedup();
    hashes
}

fn hash(value: &[u8], hash_bytes: usize) -> &[u8] {
    &value[..value.len().min(hash_bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Block;

    fn segment(values: &[&str]) -> Segment {
        let mut block = Block::with_capacity(values.len(), 0);
        let mut sorted = values.to_vec();
        sorted.sort_unstable();
        for (number, value) in sorted.iter().enumerate() {
            block.push(value.as_bytes(), number as u32);
        }
        Segment::new(block)
    }

    fn settings(bucket_values_max: usize) -> CacheSettings {
        CacheSettings {
            bucket_values_max,
            ..CacheSettings::default()
        }
    }

    /// Lower bound, hash length and values of each piece.
    fn pieces(segments: &[Segment], values_max: usize) -> Vec<(String, usize, Vec<String>)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let pieces = divide(segments, 1, &settings(values_max));
        let describe = |piece: Piece| {
            let rows = segments.iter().zip(piece.rows);
            let mut values: Vec<String> = rows
                .flat_map(|(segment, rows)| rows.map(|row| text(segment.block().value(row))))
                .collect();
            values.sort_unstable();
            (
                text(&piece.lower.unwrap_or_default()),
                piece.hash_bytes,
                values,
            )
        };
        pieces.into_iter().map(describe).collect()
    }

    fn strings(values: &[&str]) -> Vec<String> {
        values.iter().map(|value| (*value).to_owned()).collect()
    }

    #[test]
    fn divides_at_the_middle_of_the_hashes() {
        // Hashes a, b, c: the greatest one, half of three rounded down, moves.
        let segments = [segment(&["a1", "a2", "c"]), segment(&["b", "c"])];
        assert_eq!(
            pieces(&segments, 5),
            [(String::new(), 1, strings(&["a1", "a2", "b", "c", "c"]))]
        );
        let expected = [
            (String::new(), 1, strings(&["a1", "a2", "b"])),
            ("c".to_owned(), 1, strings(&["c", "c"])),
        ];
        assert_eq!(pieces(&segments, 4), expected);
    }

    #[test]
    fn one_hash_takes_a_finer_one() {
        let segments = [segment(&["react", "react-dom", "react-native", "redux"])];
        let expected = [
            (
                String::new(),
                3,
                strings(&["react", "react-dom", "react-native"]),
            ),
            ("red".to_owned(), 3, strings(&["redux"])),
        ];
        assert_eq!(pieces(&segments, 3), expected);
    }

    #[test]
    fn a_value_that_is_the_prefix_of_all_others_stays_below() {
        let segments = [segment(&["", "", "a", "ab", "abc"])];
        let expected = [
            (String::new(), 1, strings(&["", ""])),
            ("a".to_owned(), 2, strings(&["a"])),
            ("ab".to_owned(), 2, strings(&["ab", "abc"])),
        ];
        assert_eq!(pieces(&segments, 2), expected);
    }

    #[test]
    fn equal_values_cannot_be_divided() {
        let segments = [segment(&["same", "same"]), segment(&["same", "same"])];
        let expected = [(String::new(), 1, strings(&["same", "same", "same", "same"]))];
        assert_eq!(pieces(&segments, 2), expected);
    }
}
