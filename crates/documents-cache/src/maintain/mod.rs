//! Maintenance, concurrent with writes and searches: flushes the delta to the buckets, and splits, merges, compacts and
//! places buckets.
//!
//! One thread at a time maintains a collection, and only this thread changes the lists of segments and buckets. It
//! works on snapshots without the lock, and takes the lock only to install its results. Rows that writers deleted in
//! the meantime are then deleted from the results too.

mod background;
mod compact;
mod flush;
mod follow;
mod give_back;
mod place;
mod split;
mod work;

use crate::CollectionCache;
use crate::bucket::Bucket;

pub(crate) use background::{FlushSignal, start_background};
pub(crate) use follow::follow_devices;
pub(crate) use give_back::give_back;

/// How much maintenance to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Only move buckets to their owners.
    Placement,
    /// Flush deltas that are full.
    Full,
    /// Flush all deltas, and compact and merge as for an idle collection.
    Everything,
}

/// How many writes a collection had received at its earlier maintenance.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Count at the last call of [`maintain_if_idle`].
    seen_writes: u64,
    /// Count at the last flush of the whole delta.
    flushed_writes: u64,
}

/// Maintains a collection.
pub(crate) fn maintain(collection: &CollectionCache, extent: Extent) {
    let mut progress = collection.maintenance.lock();
    maintain_locked(collection, extent, &mut progress);
}

/// Flushes a collection that had no writes since the last call. Returns false if unflushed writes remain.
pub(crate) fn maintain_if_idle(collection: &CollectionCache) -> bool {
    let mut progress = collection.maintenance.lock();
    let writes = collection.state.read().writes;
    if writes == progress.seen_writes && writes != progress.flushed_writes {
        maintain_locked(collection, Extent::Everything, &mut progress);
    }
    progress.seen_writes = writes;
    progress.flushed_writes == writes
}

/// Maintains a collection. The caller holds its `maintenance` lock.
fn maintain_locked(collection: &CollectionCache, extent: Extent, progress: &mut Progress) {
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

/// Returns whether a bucket is overfull but cannot be split, because all its values are equal.
pub(crate) fn is_unsplittable(collection: &CollectionCache, bucket: &Bucket) -> bool {
    compact::is_overfull(bucket, collection.settings()) && compact::is_uniform(bucket)
}

#[cfg(test)]
mod tests {
    //! Tests writes that happen between the start of maintenance and the installation of its results.

    use std::sync::Arc;

    use forebay_device::{DeviceOptions, Devices};

    use super::work::begin;
    use super::{compact, flush, split};
    use crate::{Cache, CacheSettings, CollectionCache, FieldValue};

    const ROWS: u32 = 300;

    fn collection() -> (Arc<Cache>, Arc<CollectionCache>) {
        let spec = "host:2".parse().expect("a valid specification");
        let devices = Devices::new(&spec, DeviceOptions::default()).expect("threads");
        let settings = CacheSettings {
            bucket_values_max: 1000,
            chunk_values_max: 50,
            background: false,
            ..CacheSettings::default()
        };
        let cache = Cache::new(Arc::new(devices), settings);
        let collection = cache.declare("db.c", &["f"]);
        for number in 0..ROWS {
            let value = value(number);
            collection
                .insert(number, &[FieldValue::String(value.as_bytes())])
                .expect("new");
        }
        (cache, collection)
    }

    fn value(number: u32) -> String {
        format!("{:03}", number * 7 % ROWS)
    }

    /// Removes every third document. Updates every fifth of the others to null and back to its value.
    fn write(collection: &CollectionCache) {
        for number in 0..ROWS {
            let value = value(number);
            let value = [FieldValue::String(value.as_bytes())];
            if number % 3 == 0 {
                collection.remove(number, &value).expect("known");
            } else if number % 5 == 0 {
                collection
                    .update(number, &value, &[FieldValue::Null])
                    .expect("known");
                collection
                    .update(number, &[FieldValue::Null], &value)
                    .expect("known");
            }
        }
    }

    /// Checks that each remaining document has exactly one live row, and that there are no other live rows.
    fn check(collection: &CollectionCache) {
        let state = begin(collection, 0).state;
        let mut rows: Vec<(Vec<u8>, u32)> = Vec::new();
        for segment in state.segments() {
            let block = segment.block();
            let live = (0..block.len()).filter(|row| !segment.is_deleted(*row));
            rows.extend(live.map(|row| (block.value(row).to_vec(), block.number(row))));
        }
        rows.sort();
        let left = (0..ROWS).filter(|number| number % 3 > 0);
        let mut expected: Vec<_> = left.map(|n| (value(n).into_bytes(), n)).collect();
        expected.sort();
        assert_eq!(rows, expected);
        assert_eq!(state.rows, rows.len() as u64);
    }

    #[test]
    fn during_a_flush() {
        let (_cache, collection) = collection();
        flush::seal(&collection, 0);
        let begun = begin(&collection, 0);
        write(&collection);
        flush::flush_runs(&collection, &begun);
        check(&collection);
        collection.flush();
        check(&collection);
    }

    #[test]
    fn during_a_split_a_merge_and_a_compaction() {
        let (_cache, collection) = collection();
        collection.flush();
        let begun = begin(&collection, 0);
        let small = CacheSettings {
            bucket_values_max: 20,
            ..CacheSettings::default()
        };
        let after = split::split(
            &collection.shared,
            &begun.state.directory.buckets()[0],
            &small,
        );
        assert!(after.len() > 10);
        write(&collection);
        begun.replace(&collection, 0..1, after);
        check(&collection);
        // Merges the many small buckets into one and compacts its segments.
        let begun = begin(&collection, 0);
        let buckets = begun.state.directory.buckets().len();
        compact::merge(&collection, &begun, 0..buckets);
        check(&collection);
        collection.flush();
        check(&collection);
    }

    #[test]
    fn nothing_is_installed_after_everything_was_cleared() {
        let (_cache, collection) = collection();
        flush::seal(&collection, 0);
        let begun = begin(&collection, 0);
        collection.clear();
        flush::flush_runs(&collection, &begun);
        assert_eq!(
            begin(&collection, 0)
                .state
                .segments()
                .map(|s| s.block().len())
                .sum::<usize>(),
            0
        );
    }
}
