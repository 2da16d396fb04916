//! Maintenance of a field while writers proceed: starts on a snapshot, installs its results under the lock.

use std::ops::Range;
use std::sync::Arc;

use forebay_device::MemoryPool;
use forebay_text_gpu::LoadError;

use crate::CollectionCache;
use crate::bucket::Bucket;
use crate::cache::Shared;
use crate::field::FieldState;
use crate::segment::{Copying, Segment};

/// The field's state when the maintenance started.
pub(super) struct Begun {
    field: usize,
    pub(super) state: Arc<FieldState>,
    generation: u64,
}

/// Starts maintenance with the current state of a field.
pub(super) fn begin(collection: &CollectionCache, field: usize) -> Begun {
    let state = collection.state.read();
    Begun {
        field,
        state: Arc::clone(&state.fields[field]),
        generation: state.generation,
    }
}

impl Begun {
    /// Changes the field under the lock, unless the collection was cleared after the maintenance started.
    pub(super) fn install(
        &self,
        collection: &CollectionCache,
        change: impl FnOnce(&mut FieldState),
    ) {
        let mut state = collection.state.write();
        if state.generation == self.generation {
            change(Arc::make_mut(&mut state.fields[self.field]));
        }
    }

    /// Replaces the buckets at `positions` by `after`.
    pub(super) fn replace(
        &self,
        collection: &CollectionCache,
        positions: Range<usize>,
        mut after: Vec<Bucket>,
    ) {
        let renew = |bucket| renew_copies(&collection.shared, bucket);
        after.iter_mut().for_each(renew);
        self.install(collection, |state| {
            let directory = Arc::make_mut(&mut state.directory);
            let now = directory.buckets()[positions.clone()].to_vec();
            directory.replace(positions.clone(), after);
            let before = &self.state.directory.buckets()[positions];
            for (before, now) in before.iter().zip(&now) {
                apply_concurrent_deletes(state, &before.segments, &now.segments);
            }
        });
    }
}

/// Starts and awaits the missing copies of segments on the bucket's device. Removes the bucket from the device if a
/// copy fails.
fn renew_copies(shared: &Arc<Shared>, bucket: &mut Bucket) {
    let Some(device) = bucket.device().cloned() else {
        return;
    };
    let copies = |pool: Arc<MemoryPool>| bucket.begin_copies(&device, &pool);
    let begun = shared
        .pool(&device)
        .map_err(LoadError::from)
        .and_then(copies);
    match begun.and_then(Copying::wait_all) {
        Ok(copies) => bucket.place(&device, copies),
        Err(_) => bucket.release(),
    }
}

/// While maintenance built new segments from old ones, writers may have deleted rows of the old segments. Deletes the
/// same rows in the buckets of `state`. `before` and `now` are the old segments before and after these deletes.
pub(super) fn apply_concurrent_deletes(
    state: &mut FieldState,
    before: &[Segment],
    now: &[Segment],
) {
    for (before, now) in before.iter().zip(now) {
        debug_assert!(
            before.is_same_block(now),
            "only maintenance changes the list of segments"
        );
        for row in now.deleted_since(before) {
            let (value, number) = (now.block().value(row), now.block().number(row));
            let found = state.remove_from_bucket(value, number);
            debug_assert!(
                found,
                "the new segments hold the rows that were live before"
            );
        }
    }
}
