//! The caches of all collections, on one set of devices.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use forebay_device::{
    Device, DeviceEvent, DeviceId, Devices, MemoryPool, OutOfMemory, PoolOptions, Subscription,
};
use forebay_text_gpu::ScanQueue;
use parking_lot::{Mutex, RwLock};

use crate::maintain::{self, FlushSignal};
use crate::owners::Owners;
use crate::{CacheSettings, CollectionCache};

/// State that all collections of a cache share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) devices: Arc<Devices>,
    pub(crate) settings: CacheSettings,
    pub(crate) owners: Arc<Owners>,
    pub(crate) flush_signal: Arc<FlushSignal>,
    /// Number of buckets that each device gained when it joined, or lost when it left. Locked while the placement is
    /// updated.
    pub(crate) moved: Mutex<HashMap<DeviceId, usize>>,
    /// For each GPU, the queue of searches.
    queues: Mutex<HashMap<DeviceId, Arc<ScanQueue>>>,
    /// For each device, the cache's memory pool.
    pools: Mutex<HashMap<DeviceId, Arc<MemoryPool>>>,
    /// The caches of all collections, including those that are not installed yet.
    members: Mutex<Vec<Weak<CollectionCache>>>,
}

impl Shared {
    /// Returns the collection caches that are still in use.
    pub(crate) fn members(&self) -> Vec<Arc<CollectionCache>> {
        let mut members = self.members.lock();
        members.retain(|member| member.strong_count() > 0);
        members.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the queue of searches for a GPU.
    pub(crate) fn queue(&self, device: &Device) -> Arc<ScanQueue> {
        Arc::clone(self.queues.lock().entry(device.id()).or_default())
    }

    /// Returns the cache's memory pool on a device. Opens the pool on the first call.
    pub(crate) fn pool(
        self: &Arc<Self>,
        device: &Arc<Device>,
    ) -> Result<Arc<MemoryPool>, OutOfMemory> {
        let mut pools = self.pools.lock();
        if let Some(pool) = pools.get(&device.id()) {
            return Ok(Arc::clone(pool));
        }
        let options = PoolOptions {
            name: "documents".to_owned(),
            min_bytes: 0,
            share_bytes: device.part_of_memory(self.settings.device_share_percent),
            max_bytes: u64::MAX,
        };
        let (shared, id) = (Arc::downgrade(self), device.id());
        let reclaim = move |bytes| {
            if let Some(shared) = shared.upgrade() {
                maintain::give_back(&shared, id, bytes);
            }
        };
        let pool = device.open_pool(options, Some(Box::new(reclaim)))?;
        pools.insert(id, Arc::clone(&pool));
        Ok(pool)
    }

    /// Drops the queues and closes the pools of all devices that are not in `ready`. Memory in use stays valid.
    pub(crate) fn forget_devices_except(&self, ready: &HashSet<DeviceId>) {
        self.queues.lock().retain(|id, _| ready.contains(id));
        let closed: Vec<_> = self
            .pools
            .lock()
            .extract_if(|id, _| !ready.contains(id))
            .collect();
        // Dropped without holding the lock: dropping the last handle of a GPU's memory frees the memory.
        drop(closed);
    }

    fn enroll(&self, collection: Arc<CollectionCache>) -> Arc<CollectionCache> {
        self.members.lock().push(Arc::downgrade(&collection));
        collection
    }
}

/// The caches of all collections. Dropping it ends the background thread.
#[derive(Debug)]
pub struct Cache {
    shared: Arc<Shared>,
    _changes: Subscription,
    collections: RwLock<HashMap<String, Arc<CollectionCache>>>,
}

impl Cache {
    /// Creates an empty cache on `devices`. With a background thread ([`CacheSettings::background`]), buckets move
    /// automatically when devices join, leave or are lost.
    pub fn new(devices: Arc<Devices>, settings: CacheSettings) -> Arc<Cache> {
        let shared = Arc::new(Shared {
            owners: Arc::new(Owners::new(settings.seed)),
            devices,
            settings,
            flush_signal: Arc::default(),
            moved: Mutex::default(),
            queues: Mutex::default(),
            pools: Mutex::default(),
            members: Mutex::default(),
        });
        maintain::follow_devices(&shared);
        if shared.settings.background {
            maintain::start_background(&shared);
        }
        let signal = Arc::clone(&shared.flush_signal);
        let report = move |_: &DeviceEvent| signal.report_device_change();
        Arc::new(Cache {
            _changes: shared.devices.subscribe(report),
            shared,
            collections: RwLock::default(),
        })
    }

    /// Creates an empty cache for a collection's fields. [`Cache::get`] returns it only after [`Cache::install`], so
    /// that the caller can fill it first.
    pub fn prepare(&self, fields: &[&str]) -> Arc<CollectionCache> {
        self.shared
            .enroll(CollectionCache::new(&self.shared, fields))
    }

    /// Makes [`Cache::get`] return this collection cache for the namespace, instead of any earlier cache.
    pub fn install(&self, namespace: &str, collection: Arc<CollectionCache>) {
        self.collections
            .write()
            .insert(namespace.to_owned(), collection);
    }

    /// Creates and installs an empty cache for a collection's fields.
    pub fn declare(&self, namespace: &str, fields: &[&str]) -> Arc<CollectionCache> {
        let collection = self.prepare(fields);
        self.install(namespace, Arc::clone(&collection));
        collection
    }

    /// Removes fields from a collection's cache. Returns the cache that replaces it, or `None` if no field is left. The
    /// caller must exclude concurrent writes, because they might be lost.
    pub fn undeclare(&self, namespace: &str, fields: &[&str]) -> Option<Arc<CollectionCache>> {
        let mut collections = self.collections.write();
        let smaller = collections
            .get(namespace)?
            .with_fields(|name| !fields.contains(&name));
        if smaller.fields().is_empty() {
            collections.remove(namespace);
            return None;
        }
        let smaller = self.shared.enroll(smaller);
        collections.insert(namespace.to_owned(), Arc::clone(&smaller));
        Some(smaller)
    }

    /// Returns the cache of a collection, if it has one.
    pub fn get(&self, namespace: &str) -> Option<Arc<CollectionCache>> {
        self.collections.read().get(namespace).cloned()
    }

    /// Renames a collection's cache, replacing any cache of the new name. If there is no cache to rename, drops the
    /// cache of the new name.
    pub fn rename(&self, from: &str, to: &str) {
        let mut collections = self.collections.write();
        match collections.remove(from) {
            Some(collection) => drop(collections.insert(to.to_owned(), collection)),
            None => drop(collections.remove(to)),
        }
    }

    /// Drops the cache of a collection.
    pub fn drop_collection(&self, namespace: &str) {
        self.collections.write().remove(namespace);
    }

    /// Returns the devices.
    pub fn devices(&self) -> &Arc<Devices> {
        &self.shared.devices
    }

    /// Waits until the buckets of a device that joined, left or was lost have moved. Returns the number of buckets that
    /// the device gained or lost; 0 if an earlier call has returned that number.
    ///
    /// A device that joins gets a share of the data that is proportional to its share of the total search speed of all
    /// devices. Searches continue, and the host searches the buckets that no device holds. Blocks.
    pub fn wait_for_moves(&self, id: DeviceId) -> usize {
        maintain::follow_devices(&self.shared);
        let counted = self.shared.moved.lock().remove(&id);
        // A device that has joined also owns buckets that had no owner before. They were not counted when it joined.
        let owned = || self.shared.owners.lock().count_on(id);
        counted.map_or(0, |moved| moved.max(owned()))
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.shared.flush_signal.end();
    }
}
