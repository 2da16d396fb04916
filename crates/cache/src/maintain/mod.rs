//! What is done beside writes and searches: the tail is sorted into the buckets, buckets are split, merged, compacted
//! and placed on devices.
//!
//! One thread at a time does so for a collection, and it alone changes which segments and buckets there are. It works
//! on snapshots without the lock, and takes the lock only to install what it made. Rows that were removed meanwhile are
//! removed again from what it made.

mod background;
mod compact;
mod flush;
mod place;
mod split;
mod work;

use crate::CollectionCache;
use crate::bucket::Bucket;

pub(crate) use background::{Alarm, start_background};

/// How much to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Only put buckets where the placement says.
    Placement,
    /// Flush tails that are full.
    Full,
    /// Flush all tails and tidy up.
    Everything,
}

/// What maintenance remembers of a collection: counts of its writes.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// At the last look.
    seen_writes: u64,
    /// When everything was flushed last.
    flushed_writes: u64,
}

/// Does what there is to do for a collection.
pub(crate) fn maintain(collection: &CollectionCache, extent: Extent) {
    let mut progress = collection.maintenance.lock();
    maintain_alone(collection, extent, &mut progress);
}

/// Flushes a collection that nobody wrote to since the last call; false if there is still something to flush.
pub(crate) fn maintain_if_idle(collection: &CollectionCache) -> bool {
    let mut progress = collection.maintenance.lock();
    let writes = collection.state.read().writes;
    if writes == progress.seen_writes && writes != progress.flushed_writes {
        maintain_alone(collection, Extent::Everything, &mut progress);
    }
    progress.seen_writes = writes;
    progress.flushed_writes == writes
}

fn maintain_alone(collection: &CollectionCache, extent: Extent, progress: &mut Progress) {
    let writes = collection.state.read().writes;
    for field in 0..collection.fields().len() {
        if extent != Extent::Placement && flush::flush(collection, field, extent) {
            compact::tidy(collection, field, extent);
        }
        place::place(collection, field);
    }
    if extent == Extent::Everything {
        progress.flushed_writes = writes;
    }
}

/// Whether a bucket is overfull and stays so, because all its values are the same.
pub(crate) fn is_unsplittable(collection: &CollectionCache, bucket: &Bucket) -> bool {
    compact::is_overfull(bucket, collection.settings()) && compact::is_uniform(bucket)
}
