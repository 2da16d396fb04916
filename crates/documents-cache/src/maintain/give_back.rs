//! Releasing device memory for other tenants.

use std::sync::Arc;

use forebay_device::DeviceId;

use crate::CollectionCache;
use crate::bucket::Bucket;
use crate::cache::Shared;

/// Removes buckets from a device until at least `bytes` of its memory are released, or no bucket is left there. The
/// master copies stay, so the host searches these buckets until the placement finds free device memory for them again.
/// Memory that a search still reads is freed when the search ends.
///
/// Runs on a thread of another tenant that claims memory. It locks the state of collections. No thread that holds such
/// a lock requests device memory: maintenance does, with its own lock alone, which is not taken here.
pub(crate) fn give_back(shared: &Shared, device: DeviceId, bytes: u64) {
    let mut given = 0;
    for collection in shared.members() {
        for field in 0..collection.fields().len() {
            if given >= bytes {
                return;
            }
            given += release(&collection, field, device, bytes - given);
        }
    }
}

/// Removes buckets of a field from a device until at least `bytes` bytes of device memory are released, or no bucket is
/// left. Returns the number of released bytes.
fn release(collection: &CollectionCache, field: usize, device: DeviceId, bytes: u64) -> u64 {
    let is_there = |bucket: &Arc<Bucket>| {
        let own = bucket.device().is_some_and(|own| own.id() == device);
        own && bucket.device_bytes() > 0
    };
    let mut state = collection.state.write();
    if !state.fields[field].directory.buckets().iter().any(is_there) {
        return 0;
    }
    let directory = Arc::make_mut(&mut Arc::make_mut(&mut state.fields[field]).directory);
    let mut given = 0;
    for position in 0..directory.buckets().len() {
        let bucket = &directory.buckets()[position];
        if given < bytes && is_there(bucket) {
            given += bucket.device_bytes();
            directory.bucket_mut(position).release();
        }
    }
    given
}
