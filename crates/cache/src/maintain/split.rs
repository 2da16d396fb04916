//! Algorithm 1: an overfull bucket is divided at the middle of its hashes.
//!
//! # Sources
//! Morishima & Matsutani, DistGPU Cache, section 3.2, Algorithm 1.

use std::ops::Range;
use std::sync::Arc;

use crate::CollectionCache;
use crate::bucket::Bucket;
use crate::collection::new_ticket;
use crate::sort::Sorted;

/// A stretch of sorted values that becomes a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// Places in the order.
    pub(super) range: Range<usize>,
    /// The least hash; `None` for the first piece, which begins where the divided bucket began.
    pub(super) lower: Option<Vec<u8>>,
    /// First bytes of a value that make the hash.
    pub(super) hash_bytes: usize,
}

/// How full a bucket may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fill {
    pub(super) values_max: usize,
    pub(super) bytes_max: usize,
}

/// The buckets that an overfull one becomes. The first keeps its id and device.
pub(super) fn split(collection: &CollectionCache, bucket: &Arc<Bucket>) -> Vec<Bucket> {
    let settings = collection.settings();
    let fill = Fill {
        values_max: settings.bucket_values_max,
        bytes_max: settings.bucket_bytes_max,
    };
    let sorted = Sorted::new(&bucket.segments);
    let pieces = divide(&sorted, bucket.hash_bytes, fill);
    pieces
        .into_iter()
        .map(|piece| make_bucket(collection, bucket, &sorted, piece))
        .collect()
}

fn make_bucket(
    collection: &CollectionCache,
    divided: &Arc<Bucket>,
    sorted: &Sorted<'_>,
    piece: Piece,
) -> Bucket {
    let segments = sorted.segments(piece.range);
    match piece.lower {
        None => {
            let mut bucket = Bucket::clone(divided);
            bucket.hash_bytes = piece.hash_bytes;
            bucket.segments = segments;
            bucket
        }
        Some(lower) => Bucket::new(
            new_ticket(&collection.shared),
            &lower,
            piece.hash_bytes,
            segments,
        ),
    }
}

/// Divides sorted values until no piece is overfull that has two hashes.
pub(super) fn divide(sorted: &Sorted<'_>, hash_bytes: usize, fill: Fill) -> Vec<Piece> {
    let mut done = Vec::new();
    let mut rest = vec![Piece {
        range: 0..sorted.len(),
        lower: None,
        hash_bytes,
    }];
    while let Some(piece) = rest.pop() {
        match divide_once(sorted, &piece, fill) {
            // The upper half waits while the lower one is divided further: pieces come out in order.
            Some((lower, upper)) => rest.extend([upper, lower]),
            None => done.push(piece),
        }
    }
    done
}

/// One step of Algorithm 1; `None` if the piece is not overfull or holds one value only.
fn divide_once(sorted: &Sorted<'_>, piece: &Piece, fill: Fill) -> Option<(Piece, Piece)> {
    let range = piece.range.clone();
    let overfull = range.len() > fill.values_max || sorted.bytes(range.clone()) > fill.bytes_max;
    if !overfull || sorted.value(range.start) == sorted.value(range.end - 1) {
        return None;
    }
    let hash_bytes = distinguishing_bytes(sorted, &range, piece.hash_bytes);
    let starts = hash_starts(sorted, &range, hash_bytes);
    // The lower half keeps the odd one: the algorithm moves half of the hashes, rounded down.
    let middle = starts[starts.len().div_ceil(2)];
    let lower = Piece {
        range: range.start..middle,
        lower: piece.lower.clone(),
        hash_bytes,
    };
    let upper = Piece {
        range: middle..range.end,
        lower: Some(hash(sorted.value(middle), hash_bytes).to_vec()),
        hash_bytes,
    };
    Some((lower, upper))
}

/// The number of first bytes, `hash_bytes` at least, by which the values have two hashes.
fn distinguishing_bytes(sorted: &Sorted<'_>, range: &Range<usize>, hash_bytes: usize) -> usize {
    let (first, last) = (sorted.value(range.start), sorted.value(range.end - 1));
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    hash_bytes.max(common + 1)
}

/// Where each hash of a stretch begins.
fn hash_starts(sorted: &Sorted<'_>, range: &Range<usize>, hash_bytes: usize) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut start = range.start;
    while start < range.end {
        starts.push(start);
        let current = hash(sorted.value(start), hash_bytes);
        start = sorted.end_of(start..range.end, |value| hash(value, hash_bytes) <= current);
    }
    starts
}

fn hash(value: &[u8], hash_bytes: usize) -> &[u8] {
    &value[..value.len().min(hash_bytes)]
}
