//! Rewriting buckets: merging segments, removing deleted rows, splitting overfull buckets and merging underfull ones.

use std::ops::Range;
use std::sync::Arc;

use super::work::{Begun, begin};
use super::{Extent, split};
use crate::bucket::Bucket;
use crate::segment::Segment;
use crate::sort::Sorted;
use crate::{CacheSettings, CollectionCache};

/// While a collection receives writes, the segments of a size tier are merged once there are this many.
const SEGMENTS_BUSY: usize = 8;
/// While a collection is idle, the segments of a size tier are merged once there are this many.
const SEGMENTS_IDLE: usize = 2;
/// Size ratio of neighbouring tiers, as an exponent of two.
const TIER_BITS: u32 = 3;
/// A bucket is rewritten when at least 1/`DELETED_SHARE` of its rows are deleted.
const DELETED_SHARE: usize = 4;

/// Rewrites the buckets of a field that are overfull or have too many deleted rows or segments.
pub(super) fn tidy(collection: &CollectionCache, field: usize, extent: Extent) {
    let mut position = 0;
    loop {
        let begun = begin(collection, field);
        let Some(bucket) = begun.state.directory.buckets().get(position) else {
            break;
        };
        position += match rewrite(collection, bucket, extent) {
            Some(after) => {
                let buckets = after.len();
                begun.replace(collection, position..position + 1, after);
                buckets
            }
            None => 1,
        };
    }
    merge_neighbours(collection, field);
}

/// Returns the buckets that replace `bucket`, or `None` if it need not be rewritten.
fn rewrite(
    collection: &CollectionCache,
    bucket: &Arc<Bucket>,
    extent: Extent,
) -> Option<Vec<Bucket>> {
    let settings = collection.settings();
    if is_overfull(bucket, settings) && !is_uniform(bucket) {
        return Some(split::split(&collection.shared, bucket, settings));
    }
    let deleted = bucket.rows() - bucket.live_rows();
    if deleted > 0 && deleted * DELETED_SHARE >= bucket.rows() {
        return Some(vec![with_merged(bucket, |_| true)]);
    }
    let segments_max = if extent == Extent::Everything {
        SEGMENTS_IDLE
    } else {
        SEGMENTS_BUSY
    };
    let rows_max = full_tier(bucket, segments_max)?;
    Some(vec![with_merged(bucket, |segment| {
        segment.block().len() <= rows_max
    })])
}

pub(super) fn is_overfull(bucket: &Bucket, settings: &CacheSettings) -> bool {
    bucket.live_rows() > settings.bucket_values_max || bucket.bytes() > settings.bucket_bytes_max
}

/// Returns whether all values are equal, so that the bucket cannot be split.
pub(super) fn is_uniform(bucket: &Bucket) -> bool {
    let filled = bucket
        .segments
        .iter()
        .map(Segment::block)
        .filter(|block| block.len() > 0);
    let mut ends = filled.flat_map(|block| [block.value(0), block.value(block.len() - 1)]);
    let first = ends.next();
    ends.all(|value| Some(value) == first)
}

/// Returns the row count up to which segments should be merged: the upper bound of the largest size tier that has at
/// least `segments_max` segments. Returns `None` if every tier has fewer segments.
fn full_tier(bucket: &Bucket, segments_max: usize) -> Option<usize> {
    let tier = |segment: &Segment| segment.block().len().max(1).ilog2() / TIER_BITS;
    let tiers = bucket.segments.iter().map(tier);
    let full = tiers
        .clone()
        .filter(|tier| tiers.clone().filter(|t| t == tier).count() >= segments_max);
    full.max().map(|tier| (1 << ((tier + 1) * TIER_BITS)) - 1)
}

/// Copies the bucket. In the copy, merges all segments for which `merged` returns true into a single segment.
fn with_merged(bucket: &Arc<Bucket>, merged: impl Fn(&Segment) -> bool) -> Bucket {
    let (sources, kept): (Vec<_>, Vec<_>) = bucket.segments.iter().cloned().partition(merged);
    let sorted = Sorted::new(&sources);
    let mut after = Bucket::clone(bucket);
    after.segments = kept;
    after.segments.extend(sorted.segments(0..sorted.len()));
    after
}

/// Merges neighbouring buckets that together fill at most half a bucket.
fn merge_neighbours(collection: &CollectionCache, field: usize) {
    let mut position = 0;
    loop {
        let begun = begin(collection, field);
        let buckets = begun.state.directory.buckets();
        if position >= buckets.len() {
            break;
        }
        let few = underfull(&buckets[position..], collection.settings());
        if few > 1 {
            merge(collection, &begun, position..position + few);
        }
        position += 1;
    }
}

/// Returns the number of leading buckets that together fill at most half a bucket.
fn underfull(buckets: &[Arc<Bucket>], settings: &CacheSettings) -> usize {
    let (mut rows, mut bytes) = (0, 0);
    let fits = move |bucket: &&Arc<Bucket>| {
        rows += bucket.live_rows();
        bytes += bucket.bytes();
        rows <= settings.bucket_values_max / 2 && bytes <= settings.bucket_bytes_max / 2
    };
    buckets.iter().take_while(fits).count()
}

pub(super) fn merge(collection: &CollectionCache, begun: &Begun, positions: Range<usize>) {
    let buckets = &begun.state.directory.buckets()[positions.clone()];
    let sources: Vec<Segment> = buckets
        .iter()
        .flat_map(|bucket| bucket.segments.clone())
        .collect();
    let sorted = Sorted::new(&sources);
    let mut after = Bucket::clone(&buckets[0]);
    after.prefix_bytes = buckets
        .iter()
        .map(|bucket| bucket.prefix_bytes)
        .min()
        .unwrap_or(1);
    after.segments = sorted.segments(0..sorted.len());
    begun.replace(collection, positions, vec![after]);
}
