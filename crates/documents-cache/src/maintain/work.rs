//! Work on a field beside its writers: begun on a snapshot, installed under the lock.

use std::ops::Range;
use std::sync::Arc;

use crate::CollectionCache;
use crate::bucket::Bucket;
use crate::field::FieldState;
use crate::segment::{Copying, Segment};

/// A field as it was when work on it began.
pub(super) struct Begun {
    field: usize,
    pub(super) state: Arc<FieldState>,
    generation: u64,
}

/// Takes the state of a field to work on.
pub(super) fn begin(collection: &CollectionCache, field: usize) -> Begun {
    let state = collection.state.read();
    Begun {
        field,
        state: Arc::clone(&state.fields[field]),
        generation: state.generation,
    }
}

impl Begun {
    /// Changes the field under the lock, unless everything was thrown away since work began.
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

    /// Puts `after` in the place of the buckets at `positions`.
    pub(super) fn replace(
        &self,
        collection: &CollectionCache,
        positions: Range<usize>,
        mut after: Vec<Bucket>,
    ) {
        after.iter_mut().for_each(renew_copies);
        self.install(collection, |state| {
            let directory = Arc::make_mut(&mut state.directory);
            let now = directory.buckets()[positions.clone()].to_vec();
            directory.replace(positions.clone(), after);
            let before = &self.state.directory.buckets()[positions];
            for (before, now) in before.iter().zip(&now) {
                bury(state, &before.segments, &now.segments);
            }
        });
    }
}

/// Gives the segments of a bucket that have no copy one on its device; without room the bucket leaves the device.
fn renew_copies(bucket: &mut Bucket) {
    let Some(device) = bucket.device().cloned() else {
        return;
    };
    match bucket.begin_copies(&device).and_then(Copying::wait_all) {
        Ok(copies) => bucket.place(&device, copies),
        Err(_) => bucket.release(),
    }
}

/// Marks rows dead in the buckets of `state` that died in their old segments while new ones were made of these.
pub(super) fn bury(state: &mut FieldState, before: &[Segment], now: &[Segment]) {
    for (before, now) in before.iter().zip(now) {
        debug_assert!(
            before.is_same_block(now),
            "only maintenance changes which segments there are"
        );
        for row in now.died_since(before) {
            let (value, number) = (now.block().value(row), now.block().number(row));
            let found = state.remove_from_bucket(value, number);
            debug_assert!(found, "a row that was alive is in the new segments");
        }
    }
}
