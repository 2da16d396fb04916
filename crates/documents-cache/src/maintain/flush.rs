//! Flushing the delta to the buckets.

use std::sync::Arc;

use forebay_device::MemoryPool;
use forebay_text_gpu::LoadError;

use super::Extent;
use super::work::{Begun, apply_concurrent_deletes, begin};
use crate::CollectionCache;
use crate::bucket::Bucket;
use crate::cache::Shared;
use crate::field::FieldState;
use crate::segment::{Copying, Segment};
use crate::sort::Sorted;

/// Flushes the delta of a field. If `extent` asks only for full deltas and this delta is not full, flushes nothing and
/// returns false.
pub(super) fn flush(collection: &CollectionCache, field: usize, extent: Extent) -> bool {
    if extent == Extent::Everything {
        seal(collection, field);
    }
    let begun = begin(collection, field);
    let runs = begun.state.runs.len();
    if extent == Extent::Full && runs < collection.settings().runs_max() {
        return false;
    }
    if runs > 0 {
        flush_runs(collection, &begun);
    }
    true
}

pub(super) fn seal(collection: &CollectionCache, field: usize) {
    let mut state = collection.state.write();
    if state.fields[field].open.block().len() > 0 {
        Arc::make_mut(&mut state.fields[field]).seal();
    }
}

pub(super) fn flush_runs(collection: &CollectionCache, begun: &Begun) {
    let runs = &begun.state.runs;
    let additions = distribute(&collection.shared, &Sorted::new(runs), &begun.state);
    begun.install(collection, |state| {
        let directory = Arc::make_mut(&mut state.directory);
        for (position, segments) in additions {
            append(directory.bucket_mut(position), segments);
        }
        let flushed: Vec<Segment> = Arc::make_mut(&mut state.runs).drain(..runs.len()).collect();
        apply_concurrent_deletes(state, runs, &flushed);
    });
}

/// Divides the rows into segments for each bucket, with copies on the buckets' devices.
fn distribute(
    shared: &Arc<Shared>,
    sorted: &Sorted<'_>,
    state: &FieldState,
) -> Vec<(usize, Vec<Segment>)> {
    let buckets = state.directory.buckets();
    let mut additions = Vec::new();
    let mut start = 0;
    while start < sorted.len() {
        let position = state.directory.position(sorted.value(start));
        let end = buckets.get(position + 1).map_or(sorted.len(), |next| {
            sorted.end_of(start..sorted.len(), |value| value < &*next.lower)
        });
        let mut segments = sorted.segments(start..end);
        segments
            .iter_mut()
            .for_each(|segment| copy_to_device(shared, segment, &buckets[position]));
        additions.push((position, segments));
        start = end;
    }
    additions
}

/// Copies a segment to the device of its bucket, if the bucket has a device with enough free memory.
fn copy_to_device(shared: &Arc<Shared>, segment: &mut Segment, bucket: &Bucket) {
    let Some(device) = bucket.device() else {
        return;
    };
    let copy = |pool: Arc<MemoryPool>| Copying::begin(device, &pool, segment.block());
    let begun = shared.pool(device).map_err(LoadError::from).and_then(copy);
    match begun.and_then(Copying::wait) {
        Ok(replica) => segment.replica = Some(replica),
        Err(error) => {
            tracing::debug!(%error, bucket = %bucket.id(), "a new segment does not fit on the device of its bucket")
        }
    }
}

/// Adds segments to a bucket. Removes the bucket from its device if one of the segments is not on the device. If the
/// bucket was already removed while the segments were copied, it stays removed.
fn append(bucket: &mut Bucket, segments: Vec<Segment>) {
    let all_copied = segments.iter().all(|segment| segment.replica.is_some());
    bucket.segments.extend(segments);
    if !all_copied || bucket.device().is_none() {
        bucket.release();
    }
}
