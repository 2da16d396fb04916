//! Algorithm 1 of the paper: splits an overfull bucket at the middle of its prefixes (the paper's *hashes*).
//!
//! The segments of a bucket are sorted. A split cuts each segment in two and sorts nothing.
//!
//! # Sources
//! Morishima & Matsutani, DistGPU Cache, section 3.2, Algorithm 1.

use std::ops::Range;
use std::sync::Arc;

use crate::CacheSettings;
use crate::bucket::Bucket;
use crate::cache::Shared;
use crate::segment::Segment;

/// A part of a bucket that becomes a separate bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    /// The rows of each segment that belong to this part.
    rows: Vec<Range<usize>>,
    /// The lowest prefix; `None` for the first part, which keeps the lower bound of the original bucket.
    lower: Option<Vec<u8>>,
    /// Length of the prefixes.
    prefix_bytes: usize,
}

/// Splits an overfull bucket. The first of the resulting buckets keeps the id and the device.
pub(super) fn split(
    shared: &Shared,
    bucket: &Arc<Bucket>,
    settings: &CacheSettings,
) -> Vec<Bucket> {
    let pieces = divide(&bucket.segments, bucket.prefix_bytes, settings);
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
            bucket.prefix_bytes = piece.prefix_bytes;
            bucket.segments = segments;
            bucket
        }
        Some(lower) => {
            let guard = shared.owners.new_bucket();
            let mut bucket = Bucket::new(guard, &lower, piece.prefix_bytes, segments);
            // The new bucket has no device yet. A segment that was not cut still has its copy on the original bucket's
            // device, so release the copy.
            bucket.release();
            bucket
        }
    }
}

/// Divides sorted segments until every overfull part has only equal values. Returns the parts in order of value.
fn divide(segments: &[Segment], prefix_bytes: usize, settings: &CacheSettings) -> Vec<Piece> {
    let mut done = Vec::new();
    let mut rest = vec![Piece {
        rows: segments
            .iter()
            .map(|segment| 0..segment.block().len())
            .collect(),
        lower: None,
        prefix_bytes,
    }];
    while let Some(piece) = rest.pop() {
        match divide_once(segments, &piece, settings) {
            // The lower half is pushed last, so that it is divided next and the parts stay in order.
            Some((lower, upper)) => rest.extend([upper, lower]),
            None => done.push(piece),
        }
    }
    done
}

/// Executes one step of Algorithm 1. Returns `None` if the part is not overfull or all its values are equal.
fn divide_once(
    segments: &[Segment],
    piece: &Piece,
    settings: &CacheSettings,
) -> Option<(Piece, Piece)> {
    if !is_overfull(segments, piece, settings) {
        return None;
    }
    let prefix_bytes = distinguishing_bytes(segments, piece)?;
    let prefixes = prefixes(segments, piece, prefix_bytes);
    // If the number of prefixes is odd, the lower part gets one prefix more than the upper part, because the algorithm
    // moves half of the prefixes, rounded down.
    let middle = prefixes[prefixes.len().div_ceil(2)];
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
            prefix_bytes,
        },
        Piece {
            rows: above,
            lower: upper,
            prefix_bytes,
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

/// Returns the shortest prefix length at which two values of the part have different prefixes, but at least the part's
/// own prefix length. Returns `None` if all values are equal.
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
    (first != last).then_some(piece.prefix_bytes.max(common + 1))
}

/// Returns the distinct prefixes of the values in a part, in order.
fn prefixes<'a>(segments: &'a [Segment], piece: &Piece, prefix_bytes: usize) -> Vec<&'a [u8]> {
    let mut prefixes = Vec::new();
    for (segment, rows) in segments.iter().zip(&piece.rows) {
        let block = segment.block();
        let mut row = rows.start;
        while row < rows.end {
            let current = prefix(block.value(row), prefix_bytes);
            prefixes.push(current);
            row = block.first_row_near(row..rows.end, |value| {
                prefix(value, prefix_bytes) <= current
            });
        }
    }
    prefixes.sort_unstable();
    prefixes.dedup();
    prefixes
}

fn prefix(value: &[u8], prefix_bytes: usize) -> &[u8] {
    &value[..value.len().min(prefix_bytes)]
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

    /// Returns the lower bound, prefix length and values of each part.
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
                piece.prefix_bytes,
                values,
            )
        };
        pieces.into_iter().map(describe).collect()
    }

    fn strings(values: &[&str]) -> Vec<String> {
        values.iter().map(|value| (*value).to_owned()).collect()
    }

    #[test]
    fn divides_at_the_middle_of_the_prefixes() {
        // Of the prefixes a, b and c, only c moves: half of three, rounded down.
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
    fn equal_prefixes_are_lengthened() {
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
